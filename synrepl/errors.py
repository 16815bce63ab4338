"""Errors that synrepl raises.

* `ReplicationError`
    * `ProtocolError` (abstract)
        * `LocalProtocolError`: a command of this side broke a rule of the wire, and was not sent: a bug
        * `RemoteProtocolError`: the peer broke a rule; over TCP it usually gets ERROR before the close
    * `RowError`: a row does not fit any known release of its stream
    * `UnknownStream`: the stream table has no such stream
    * `GapError`: facts are missing and could not be fetched (yet)
    * `StorageError`: the log, or another store of the process, could not be read or written
    * `NotConnected`: there is no connection, or it was lost before the answer
    * `WaitTimeout`: a follower did not reach a position in time
    * `NeverAllocated`: a follower can never reach a position, as no fact has that token
    * `ConfigError`: settings or arguments are invalid

Most have details as attributes, and a text made from them. A worker that retries reads `retryable`:

>>> try:
...     raise GapError(stream="receipts", writer="master", have=54, want=57, why="no HTTP address")
... except ReplicationError as error:
...     print(error, error.retryable)
gap in receipts of master: facts after 54 up to 57 are missing: no HTTP address True
"""

from collections.abc import Mapping, Sequence


class ReplicationError(Exception):
    """Base class of the errors of synrepl.

    `retryable` tells whether a retry can succeed.
    """

    retryable = False


class ProtocolError(ReplicationError):
    """A rule of the wire was broken; `why` says how. Abstract: the subclass says by which side."""

    def __init__(self, why: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("ProtocolError is abstract: raise LocalProtocolError or RemoteProtocolError")
        super().__init__(why)
        self.why = why


class LocalProtocolError(ProtocolError):
    """This side made or tried to send something that the wire does not allow: a bug in the caller."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the wire does not allow. Over TCP it usually gets ERROR with `why`."""


class RowError(ReplicationError):
    """A row does not have the shape of any known release of its stream.

    `index` is the position of the row among the given rows (0 for a single row).
    """

    def __init__(self, *, stream: str, why: str, index: int = 0) -> None:
        super().__init__(f"bad row {index} of stream {stream}: {why}")
        self.stream = stream
        self.why = why
        self.index = index


class UnknownStream(ReplicationError):
    """The stream table has no stream of this name. `known` are the names that it has, for a suggestion."""

    def __init__(self, stream: str, known: Sequence[str] = ()) -> None:
        super().__init__(f"unknown stream {stream!r}{suggest(stream, known)}")
        self.stream = stream


class GapError(ReplicationError):
    """Facts after token `have` up to token `want` are missing and could not be fetched; `why` says why."""

    retryable = True

    def __init__(self, *, stream: str, writer: str, have: int, want: int, why: str) -> None:
        super().__init__(f"gap in {stream} of {writer}: facts after {have} up to {want} are missing: {why}")
        self.stream = stream
        self.writer = writer
        self.have = have
        self.want = want
        self.why = why


class StorageError(ReplicationError):
    """The operation `op` on the log, or on another store, failed. `hint` tells an operator what to do.

    `tried` is False if the operation certainly had no effect.
    """

    def __init__(
        self,
        *,
        op: str,
        why: str,
        hint: str = "",
        stream: str = "",
        retryable: bool = False,
        tried: bool = True,
    ) -> None:
        of = f" of {stream}" if stream else ""
        super().__init__(f"{op}{of} failed: {why}" + (f" ({hint})" if hint else ""))
        self.op = op
        self.why = why
        self.hint = hint
        self.stream = stream
        self.retryable = retryable
        self.tried = tried


class NotConnected(ReplicationError):
    """There is no connection, or it was lost before the answer. Nothing is queued to be sent later."""

    retryable = True


class WaitTimeout(ReplicationError):
    """A follower did not reach the requested positions within `timeout` seconds.

    `writer`, `have` and `want` describe the writer that is furthest behind; `have` is None if its position is
    unknown. `lacks` has (have, want) of every writer that is behind. `connection` is ``connected`` or
    ``disconnected``. `queued` counts the received rows and positions of the stream that are not yet applied.
    """

    retryable = True

    def __init__(
        self,
        *,
        stream: str,
        lacks: Mapping[str, tuple[int | None, int]],
        timeout: float,
        connection: str,
        queued: int,
    ) -> None:
        worst = sorted(lacks, key=lambda name: (lacks[name][0] or 0) - lacks[name][1])
        details = "; ".join(
            f"{name}: have {'nothing' if have is None else have}, want {want}"
            for name in worst
            for have, want in [lacks[name]]
        )
        super().__init__(
            f"waited {timeout:g} seconds for {stream}: {details};"
            f" {connection}, {queued} rows and positions are not applied yet"
        )
        self.stream = stream
        self.writer = worst[0]
        self.have, self.want = lacks[self.writer]
        self.lacks = {name: lacks[name] for name in worst}
        self.timeout = timeout
        self.connection = connection
        self.queued = queued


class NeverAllocated(ReplicationError):
    """No fact of `stream` has the token `want`: the highest token ever allocated is `allocated`.

    The token was never allocated, or the history that had it is lost.
    """

    def __init__(self, *, stream: str, writer: str, want: int, allocated: int) -> None:
        super().__init__(f"{stream} has no token {want} of {writer}: the highest is {allocated}")
        self.stream = stream
        self.writer = writer
        self.want = want
        self.allocated = allocated


class ConfigError(ReplicationError):
    """A setting or an argument is invalid; the text says which one, and what is valid."""


MAX_SUGGESTED = 64
"""The longest name that is compared with others: a peer can send a longer one."""


def suggest(given: str, known: Sequence[str]) -> str:
    """Return ``; did you mean ...?`` if a known name is near, otherwise an empty text.

    >>> suggest("push_rulez", ["events", "push_rules"])
    '; did you mean push_rules?'
    """
    if len(given) > MAX_SUGGESTED:
        return ""
    import difflib  # Imported late: large and rarely needed.

    near = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
