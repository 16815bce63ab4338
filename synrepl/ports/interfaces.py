"""Where parts meet that must not import each other."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from synrepl.ports.history import (
    BEGINNING,
    Appended,
    AppendReceipt,
    EpochStart,
    Lease,
    LogPosition,
    LogRange,
    LogSnapshot,
)
from synrepl.streams.facts import Fact
from synrepl.wire.filter import ALL, Filter

__all__ = [
    "Appended",
    "Head",
    "IAllocated",
    "ICaches",
    "IClock",
    "IEngine",
    "ILog",
    "IPositionStore",
    "IThread",
    "KeysOf",
    "AppendReceipt",
    "SaveablePosition",
]

T = TypeVar("T")


class IClock(Protocol):
    """Time, in seconds; `twisted.internet.interfaces.IReactorTime` as far as we use it."""

    def seconds(self) -> float: ...

    def callLater(self, delay: float, callable: Callable[..., object], *args: Any, **kw: Any) -> Any: ...


class IThread(Protocol):
    """One thread that does one thing at a time, in the order asked.

    Real ones run `work` outside the reactor's thread; the simulator's run it at once or after a delay.
    """

    def run(self, work: Callable[[], T]) -> Awaitable[T]: ...

    def stop(self) -> Awaitable[None]: ...


class Head(msgspec.Struct, frozen=True):
    """Where the log stands when it is opened.

    `positions` holds the highest token of each (stream, writer); `allocated` the highest token of each
    stream, whoever wrote it; `boots` counts how often this log was opened, this time included. Up to `begin`
    the log was trimmed. `turns` are the places where epochs began, in order; the first began with the log.
    """

    epoch: int
    serial: int
    digest: str
    boots: int
    positions: Mapping[tuple[str, str], int]
    allocated: Mapping[str, int]
    trimmed_upto: LogPosition = BEGINNING
    epoch_starts: Sequence[EpochStart] = ()

    @property
    def position(self) -> LogPosition:
        """The place where the log stands."""
        return LogPosition(self.epoch, self.serial, self.digest)


KeysOf = Callable[[str, bytes], "list[bytes] | None"]
"""Of a stream and the rows of one fact (a JSON array): a key for each row, in any order; None where nothing
replaces anything, since the stream's rows have no keys."""


class IEngine(Protocol):
    """Where facts are kept. Synchronous; called from two threads, each of which does one thing at a time.

    The writing thread calls everything but `read`, `read_tokens`, `digest_at`, `receipts_between` and
    `check`, which the reading thread calls meanwhile. `close` is called when no read is going on. Every
    method may raise `StorageError`.

    A log that has no history yet is given one when it is opened first: its notes (`notes`) are then
    ``uuid``, that of this copy, and ``history``, that of the log and of all its copies; both are random.
    """

    def open(self) -> Head:
        """Make or migrate what is missing, count this boot, and say where the log stands."""

    def head(self) -> Head:
        """Where the log stands now; asked when a commit failed and nobody knows what became of it."""

    def check(self) -> None:
        """Raise `StorageError` unless a restart would find this log where it is, as this process left it.

        Called every few seconds. Once it finds that the log is not this process's own any more (somebody else
        writes to it, or it was deleted), it and all that writes fail until the next `open`.
        """

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Keep all of these or none. When it returns they survive a power cut.

        `facts` follow the last ones without a hole in their serials. The position of a writer is the highest
        token among its facts, which need not be the last.

        With `upto` they are some of another log's facts up to that place: their serials ascend, from above
        where this log stands, and may have holes. The log then stands at `upto`. Its digest is taken as
        told: only where nothing was left out can it be recomputed. Receipts with keys known already are left
        out (in either form).
        """

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        wanted: Filter = ALL,
    ) -> tuple[list[Fact], int]:
        """Facts with ``after < serial <= upto`` in order of serial, of those that are wanted. What was
        trimmed is not among them.

        Stops after the fact with which `limit` rows (JSON bytes / 200, at least one a fact, is near enough)
        are reached; gives the facts and the serial up to which it has looked.
        """

    def read_text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        wanted: Filter = ALL,
    ) -> tuple[bytes, int]:
        """As `read`, for whoever reads by the million: at most `limit` facts as one text, and the serial up
        to which it has looked. Stops early where the text grows long.

        A line for each fact, with its fields in their order, parted by the character 31: names are words, and
        rows canonical, so that neither holds one, nor the end of a line. The last line has no end.
        """

    def extent(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        wanted: Filter = ALL,
    ) -> LogRange:
        """What `read` would give of as many facts, without them. Stops early where that takes long."""

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream with ``after < token <= upto``, none later than `serial`.

        In order of (token, serial); of one writer, or of all when it is None. Facts that share a token are
        never parted. Gives the facts and whether there are more.
        """

    def held(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and the rows of every fact of this stream under this token, in order of serial.

        Facts that were lost where they came from (`lose`) are not among them.
        """

    def begin_epoch(self, epoch_start: EpochStart) -> Head:
        """Begin a new epoch where the log stands, which is the serial and digest of `turn`.

        If it names a stream, that stream's facts beyond its token were lost where they came from: they stay
        where they are in the order of serials, and are in no answer by token any more; positions beyond the
        token go back to it. `StorageError` unless the epoch is above the present one and the place is right.
        """

    def digest_at(self, serial: int) -> str | None:
        """The digest there; None if the log does not reach that far, or does not know it any more.

        It is known from `begin` on, wherever a fact is kept, and where the log stands.
        """

    def receipts_between(self, after: int, upto: int) -> list[AppendReceipt]:
        """The receipts whose first serial is beyond `after` and not beyond `upto`, in that order."""

    def snapshot(self) -> LogSnapshot:
        """What stands beside the facts, as of now."""

    def restore(self, snapshot: LogSnapshot) -> Head:
        """Take all that stands beside the facts from this, in one transaction.

        The facts up to its place, or those of them that are wanted, were committed before.
        """

    def size(self, after: int) -> int:
        """About how many bytes the facts beyond this serial take; an estimate, made in a few milliseconds."""

    def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Trim a slice of the log: the next facts after `begin`, at most `limit` of them and none beyond
        `upto`. Gives the new beginning, which is `upto`'s place when there is no more to do.

        Of a stream whose rows have keys a fact goes once each of its rows' keys came again in facts up to
        there; of one without keys every fact goes. What goes and the new beginning are one transaction.
        """

    def notes(self) -> dict[str, str]:
        """Small texts kept beside the log, by name."""

    def note(self, notes: "Mapping[str, str | None]") -> None:
        """Keep these notes, or forget those that are None, in one transaction."""

    def leases(self) -> list[Lease]:
        """All leases, ended ones included, in order of uuid."""

    def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        """Keep these as they are now, and forget those of the `dropped` uuids, in one transaction."""

    def staging(self) -> "IEngine":
        """A second log of the same kind beside this one, to make a copy in; not open yet.

        It may be there from an earlier life of this process, with what was committed to it. What it commits
        may be lost in a power cut (never in part), until `adopt_staged`.
        """

    def adopt_staged(self) -> Head:
        """Replace all of this log by the staged one, which was closed, in one step that survives a power cut.

        Nothing reads meanwhile. When it fails, this log is as it was. If the process dies in it, the next
        `open` finds either the one or the other, whole. Counts as a boot.
        """

    def drop_staged(self) -> None:
        """Remove what was staged, if there is anything. It is closed."""

    def receipt(self, key: str) -> AppendReceipt | None:
        """What an append with this idempotency key was answered."""

    def forget_receipts(self, before_ms: int) -> None:
        """Forget the answers given before then."""

    def close(self) -> None: ...


class ILog(Protocol):
    """The log, as the reactor's thread sees it: what is committed, and the way to add to it.

    Kept streams go to an `IEngine` in group commits; ephemeral ones live in memory.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def serial(self) -> int:
        """The last committed serial."""

    @property
    def digest(self) -> str: ...

    @property
    def position(self) -> LogPosition:
        """Epoch, serial and digest together."""

    @property
    def trimmed_upto(self) -> LogPosition:
        """Up to where it was trimmed: to whoever stands before that, something is missing."""

    @property
    def epoch_starts(self) -> Sequence[EpochStart]:
        """Where epochs began."""

    @property
    def uuid(self) -> str:
        """This copy's own."""

    @property
    def history(self) -> str:
        """That of the log, the same for all copies of it."""

    def positions(self, stream: str) -> dict[str, int]:
        """The committed position of each writer of this stream."""

    def linear_position(self, stream: str) -> int:
        """The highest committed token of the stream, whoever wrote it; 0 when there is none."""

    def append(
        self, stream: str, writer: str, facts: Sequence[bytes], *, key: str | None = None
    ) -> Awaitable[Appended]:
        """Add facts (each the canonical JSON array of its rows); done when they are durable.

        Tokens are the next ones of the stream. Fails with `StorageError`, and then nothing of it is stored.
        """

    def watch(self, watcher: Callable[[Sequence[Fact]], None]) -> None:
        """Call `watcher` with each group of facts, in order, right after it is committed."""

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        wanted: Filter = ALL,
    ) -> Awaitable[tuple[list[Fact], int]]:
        """`IEngine.read`, in the reading thread."""

    def digest_at(self, serial: int) -> Awaitable[str | None]:
        """`IEngine.digest_at`, in the reading thread; None beyond `serial`."""

    def receipts_between(self, after: int, upto: int) -> Awaitable[list[AppendReceipt]]:
        """`IEngine.receipts_between`, in the reading thread."""

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> Awaitable[tuple[list[Fact], bool]]:
        """`IEngine.read_tokens`, in the reading thread; ephemeral streams are read from memory."""

    def ephemeral_after(self, stream: str, after: int) -> list[Fact]:
        """What memory holds of an ephemeral stream beyond token `after`, in order."""

    def held_ephemeral(self) -> list[Fact]:
        """All that memory holds of ephemeral streams, and behind that where each writer of them is (a fact
        without rows)."""

    def restarts(self, stream: str) -> int:
        """How often a writer of this ephemeral stream began anew while the log was open."""

    def forget(self, stream: str, upto: int) -> None:
        """Let go of an ephemeral stream's facts up to this token: all who read it have them."""


class ICaches(Protocol):
    """What a worker remembers, and must forget in time; `synrepl.ports.caches.Caches` is one."""

    @property
    def streams(self) -> Collection[str]:
        """The names of all streams that can invalidate something."""

    def apply(self, stream: str, rows: Sequence[Any], *, token: int = 0) -> None:
        """Drop what these typed rows, those of one fact, invalidate. Harmless if repeated."""

    def skipped(self, stream: str) -> None:
        """Facts of this stream may have been missed for good: drop all that it can invalidate."""


class IAllocated(Protocol):
    """Where a follower asks how far a stream can be waited for."""

    async def highest(self, stream: str) -> int | None:
        """The highest token of this stream that anybody can have been told of; None if that is not known.

        Any exception counts as None.
        """


SaveablePosition = dict[str, dict[str, int]]


class IPositionStore(Protocol):
    """Where a follower keeps its positions between runs: ``{stream: {writer: token}}``.

    A worker whose own effects live in a database can keep positions there too and write both in one
    transaction: then each fact is applied once even through a kill.
    """

    def load(self) -> SaveablePosition: ...

    def save(self, positions: SaveablePosition) -> None:
        """Called after the facts up to these positions were applied, once for many of them."""
