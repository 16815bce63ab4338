"""What can go wrong, and who did it.

* `ReplicationError`
    * `ProtocolError` (abstract)
        * `LocalProtocolError`: we broke a rule of the wire; a bug here, never sent to the peer
        * `RemoteProtocolError`: the peer broke one; it is told with ERROR, then the connection closes
    * `RowError`: a row has no shape that any known release of its stream has
    * `UnknownStream`: no such stream here
    * `GapError`: rows are missing and could not be fetched (yet)
    * `StorageError`: the log could not be read or written
    * `NotConnected`: nobody is there to send it to
    * `WaitTimeout`: a position was not reached in time
    * `NeverAllocated`: a position cannot be reached, as no fact has that token
    * `ConfigError`: the settings make no sense

Each carries its facts as attributes; the text is derived from them.
"""

from collections.abc import Mapping

__all__ = [
    "ConfigError",
    "GapError",
    "LocalProtocolError",
    "NeverAllocated",
    "NotConnected",
    "ProtocolError",
    "RemoteProtocolError",
    "ReplicationError",
    "RowError",
    "StorageError",
    "UnknownStream",
    "WaitTimeout",
]


class ReplicationError(Exception):
    """Anything that synrepl raises on purpose.

    `retryable` says whether trying the same thing again can help.
    """

    retryable = False


class ProtocolError(ReplicationError):
    """A rule of the wire was broken. Abstract: the subclass says by whom."""

    def __init__(self, why: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("raise LocalProtocolError or RemoteProtocolError: say who did it")
        super().__init__(why)
        self.why = why


class LocalProtocolError(ProtocolError):
    """We tried to say what this connection must not say: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer said what it must not say. `why` is sent to it in an ERROR line."""


class RowError(ReplicationError):
    """A row has no shape that any known release of its stream has.

    `index` is the place of the row in what was offered (0 for a single row).
    """

    def __init__(self, *, stream: str, why: str, index: int = 0) -> None:
        super().__init__(f"bad row {index} of stream {stream}: {why}")
        self.stream = stream
        self.why = why
        self.index = index


class UnknownStream(ReplicationError):
    """No stream of this name is known here."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"unknown stream {stream!r}")
        self.stream = stream


class GapError(ReplicationError):
    """Facts between `have` and `want` are missing and could not be fetched."""

    retryable = True

    def __init__(self, *, stream: str, writer: str, have: int, want: int, why: str) -> None:
        super().__init__(f"gap in {stream} of {writer}: have {have}, want {want}: {why}")
        self.stream = stream
        self.writer = writer
        self.have = have
        self.want = want
        self.why = why


class StorageError(ReplicationError):
    """The log could not do `op`. `hint` says what a person can do about it.

    `tried` is False when it is certain that nothing of it was done.
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
    """There is no connection to send this on; it was not queued."""

    retryable = True


class WaitTimeout(ReplicationError):
    """A follower did not get as far as somebody waited for.

    `writer`, `have` and `want` are those furthest behind (`have` is None if nothing is known of it), `lacks`
    holds both of every writer that lacks something; `connection` is ``connected`` or ``disconnected``;
    `queued` counts the rows and positions of the stream that wait here to be applied.
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
        told = "; ".join(
            f"{name}: have {'nothing' if have is None else have}, want {want}"
            for name in worst
            for have, want in [lacks[name]]
        )
        super().__init__(
            f"waited {timeout:g} seconds for {stream}: {told}; {connection}, {queued} rows and positions wait"
        )
        self.stream = stream
        self.writer = worst[0]
        self.have, self.want = lacks[self.writer]
        self.lacks = {name: lacks[name] for name in worst}
        self.timeout = timeout
        self.connection = connection
        self.queued = queued


class NeverAllocated(ReplicationError):
    """No fact of `stream` has the token `want`: the highest ever given out is `allocated`.

    Either it was never given out, or the history that had it is lost.
    """

    def __init__(self, *, stream: str, writer: str, want: int, allocated: int) -> None:
        super().__init__(f"{stream} has no token {want} of {writer}: the highest is {allocated}")
        self.stream = stream
        self.writer = writer
        self.want = want
        self.allocated = allocated


class ConfigError(ReplicationError):
    """The settings make no sense; the text says which one, and what would."""
