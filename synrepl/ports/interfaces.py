"""Interfaces between parts that must not import each other."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from synrepl.errors import StorageError
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
    "ICopy",
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
    """Time in seconds: the part of `twisted.internet.interfaces.IReactorTime` that synrepl uses."""

    def seconds(self) -> float: ...

    def callLater(self, delay: float, callable: Callable[..., object], *args: Any, **kw: Any) -> Any: ...


class IThread(Protocol):
    """One thread that runs one piece of work at a time, in the order of the calls.

    Real threads run `work` outside the reactor's thread; the simulator's run it at once or after a delay.
    """

    def run(self, work: Callable[[], T]) -> Awaitable[T]: ...

    def stop(self) -> Awaitable[None]: ...


class Head(msgspec.Struct, frozen=True):
    """The end of the log, as the engine has it.

    `positions` holds the highest token of each (stream, writer); `allocated` the highest token of each stream
    over all writers; `boots` counts how often this log was opened, this time included. The log is trimmed up
    to `trimmed_upto`. `epoch_starts` are in order; the first epoch began with the log.
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
        """The position of the end of the log."""
        return LogPosition(self.epoch, self.serial, self.digest)


SaveablePosition = dict[str, dict[str, int]]

KeysOf = Callable[[str, bytes], "list[bytes] | None"]
"""Returns the keys of a fact from its stream and its rows (a JSON array): one key per row, in any order.
None if the stream's rows have no keys, so that no row replaces another."""


class IEngine(Protocol):
    """Storage for facts. Synchronous; called from two threads, each of which runs one call at a time.

    The reading thread calls `read`, `read_text`, `extent`, `read_tokens`, `digest_at`, `receipts_between` and
    `check`; at the same time the writing thread calls the rest. No read runs during `close`. Every method may
    raise `StorageError`.

    The first open of a new log sets two notes (`notes`), both random: ``uuid`` is the uuid of this copy,
    ``history`` is the uuid of the log and of all its copies.
    """

    def open(self) -> Head:
        """Create or migrate the tables, count this boot, and give the end of the log."""

    def head(self) -> Head:
        """The end of the log now; used to find the outcome of a failed commit."""

    def check(self) -> None:
        """Raise `StorageError` unless a restart would find this log as this process left it.

        Called every few seconds. If the log no longer belongs to this process (another process writes to it,
        or it was deleted), this call and all writes fail until the next `open`.
        """

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        """Store all of these or none. When the call returns they survive a power cut.

        `facts` follow the last ones without a gap in their serials. The position of a writer is the highest
        token among its facts, which need not be the last.

        With `upto` they are a part of another log's facts up to that position: their serials ascend from
        above the end of this log, and may have gaps. The log then ends at `upto`. Its digest is not verified:
        that is possible only if no fact was left out. In both forms, receipts whose keys are known already
        are skipped.
        """

    def read(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[list[Fact], int]:
        """Facts with ``after < serial <= upto`` that pass the filter, in order of serial, without those that
        were trimmed.

        Stops after the fact with which `limit` rows are reached (JSON bytes / 200, at least one per fact, is
        near enough). Returns the facts and the last serial examined.
        """

    def read_text(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> tuple[bytes, int]:
        """Read in bulk: at most `limit` facts as one text, and the last serial examined. Stops early when the
        text grows long.

        Each fact is a line of its fields in order, separated by character 31. Names are words and rows are
        canonical, so that neither contains the separator or a line end. The last line has no line end.
        """

    def extent(
        self,
        *,
        after: int,
        upto: int,
        limit: int,
        filter: Filter = ALL,
    ) -> LogRange:
        """Measure the facts that `read` would give, without reading them. Stops early when it takes long."""

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream with ``after < token <= upto`` and serials up to `serial`.

        In order of (token, serial); of one writer, or of all if `writer` is None. Facts that share a token
        are never separated. Returns the facts and whether there are more.
        """

    def rows_at_token(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and rows of every fact of this stream under this token, in order of serial.

        Discarded facts, those that their source lost, are not among them.
        """

    def begin_epoch(self, epoch_start: EpochStart) -> Head:
        """Begin a new epoch at the end of the log, which is the serial and digest of `epoch_start`.

        If it names a stream, the source of that stream lost the facts beyond its token. They keep their
        serials, and no read by token gives them any more; positions beyond the token go back to it. Raises
        `StorageError` unless the epoch is above the current one and the position is right.
        """

    def digest_at(self, serial: int) -> str | None:
        """The digest at this serial; None if it is beyond the log or no longer known.

        Known are the digests from `trimmed_upto` on, those of stored facts, and the one at the log's end.
        """

    def receipts_between(self, after: int, upto: int) -> list[AppendReceipt]:
        """The receipts with ``after < first serial <= upto``, in that order."""

    def snapshot(self) -> LogSnapshot:
        """Everything the log has besides facts, as of now."""

    def restore(self, snapshot: LogSnapshot) -> Head:
        """Replace everything besides the facts by this snapshot, in one transaction.

        The facts up to its position, or those that pass the filter, were committed before.
        """

    def size(self, after: int) -> int:
        """The approximate size in bytes of the facts beyond this serial, estimated in a few milliseconds."""

    def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Trim the next slice of the log: at most `limit` facts after `trimmed_upto`, none beyond `upto`.
        Returns the new `trimmed_upto`, which is at `upto` when the work is done.

        In a stream whose rows have keys a fact is deleted once later facts up to there have all its keys; in
        a stream without keys every fact is deleted. Each slice is one transaction.
        """

    def notes(self) -> dict[str, str]:
        """Short texts stored with the log, by name."""

    def note(self, notes: "Mapping[str, str | None]") -> None:
        """Store these notes in one transaction; None deletes a note."""

    def leases(self) -> list[Lease]:
        """All leases, ended ones included, in order of uuid."""

    def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        """Store these leases and delete the `dropped` uuids, in one transaction."""

    def staging(self) -> "IEngine":
        """A second log of the same kind, stored next to this one, for building a copy; not opened yet.

        An earlier process may have left it with the facts it had committed. A power cut may lose commits to
        it (never parts of one) until `adopt_staged`.
        """

    def adopt_staged(self) -> Head:
        """Replace all of this log by the closed staged one, in one step that survives a power cut.

        No read runs meanwhile. If it fails, this log is unchanged. If the process dies, the next `open` finds
        one log or the other, complete. Counts as a boot.
        """

    def drop_staged(self) -> None:
        """Delete the closed staged log, if there is one."""

    def receipt(self, key: str) -> AppendReceipt | None:
        """The receipt of the append with this idempotency key."""

    def forget_receipts(self, before_ms: int) -> None:
        """Delete the receipts from before this time."""

    def close(self) -> None: ...


class ICopy(Protocol):
    """An unfinished copy of another log, stored next to the log that it will replace."""

    position: LogPosition
    notes: dict[str, str]

    async def note(self, **notes: str | None) -> None: ...

    async def add(
        self, facts: Sequence[Fact], upto: LogPosition, *, trimmed_upto: LogPosition | None
    ) -> None: ...

    async def restore(self, snapshot: LogSnapshot) -> None: ...

    async def follow(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None: ...

    async def begin_epoch(self, epoch_start: EpochStart) -> None: ...

    async def close(self) -> None: ...


class ILog(Protocol):
    """The log for callers in the reactor's thread; implemented by `synrepl.storage.Log`, which documents it.

    `synrepl.replication` sees the log through this interface only. Durable streams go to an `IEngine` in
    group commits; ephemeral ones live in memory.
    """

    write_barrier: Callable[[str], StorageError] | None

    # position, health and history

    @property
    def epoch(self) -> int: ...

    @property
    def serial(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def position(self) -> LogPosition: ...

    @property
    def trimmed_upto(self) -> LogPosition: ...

    @property
    def epoch_starts(self) -> Sequence[EpochStart]: ...

    @property
    def receipts_upto(self) -> int: ...

    @property
    def uuid(self) -> str: ...

    @property
    def history(self) -> str: ...

    @property
    def boots(self) -> int: ...

    @property
    def healthy(self) -> tuple[bool, str]: ...

    def failing_since(self) -> float: ...

    def head_age(self) -> float: ...

    def positions(self, stream: str) -> dict[str, int]: ...

    def linear_position(self, stream: str) -> int: ...

    def positions_by_stream(self) -> SaveablePosition: ...

    # notes and leases

    @property
    def notes(self) -> Mapping[str, str]: ...

    async def note(self, **notes: str | None) -> None: ...

    @property
    def leases(self) -> Mapping[str, Lease]: ...

    async def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None: ...

    # appending

    def append(
        self, stream: str, writer: str, facts: Sequence[bytes], *, key: str | None = None
    ) -> Awaitable[Appended]: ...

    def append_assigned(
        self, stream: str, facts: Sequence[tuple[str, int, bytes]]
    ) -> Awaitable[Appended]: ...

    def reset_writer(self, stream: str, writer: str) -> None: ...

    def forget(self, stream: str, upto: int) -> None: ...

    async def rewind_stream(self, stream: str, upto: int) -> None: ...

    async def next_epoch(
        self, why: str, *, epoch: int | None = None, at_ms: int | None = None
    ) -> EpochStart: ...

    async def flush(self) -> None: ...

    async def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition: ...

    # reading

    def read(
        self, *, after: int, upto: int, limit: int, filter: Filter = ALL
    ) -> Awaitable[tuple[list[Fact], int]]: ...

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> Awaitable[tuple[list[Fact], bool]]: ...

    def digest_at(self, serial: int) -> Awaitable[str | None]: ...

    def receipts_between(self, after: int, upto: int) -> Awaitable[list[AppendReceipt]]: ...

    def size(self, after: int) -> Awaitable[int]: ...

    def snapshot(self) -> Awaitable[LogSnapshot]: ...

    def ephemeral_after(self, stream: str, after: int) -> list[Fact]: ...

    def ephemeral_snapshot(self) -> list[Fact]: ...

    # callbacks

    def subscribe(self, watcher: Callable[[Sequence[Fact]], None]) -> None: ...

    def on_epoch_started(self, callback: Callable[[], None]) -> None: ...

    def on_replaced(self, callback: Callable[[], None]) -> None: ...

    # a copy of another log

    async def follow(
        self,
        facts: Sequence[Fact],
        receipts: Sequence[AppendReceipt] = (),
        *,
        upto: LogPosition | None = None,
    ) -> None: ...

    async def begin_epoch(self, epoch_start: EpochStart) -> None: ...

    async def open_staged_copy(self) -> Any: ...

    async def drop_copy(self, copy: Any) -> None: ...

    async def adopt_copy(self, copy: Any) -> None: ...


class ICaches(Protocol):
    """A worker's caches, which must drop invalidated entries in time; implemented by `synrepl.Caches`."""

    @property
    def streams(self) -> Collection[str]:
        """The names of all streams that can invalidate entries."""

    def apply(self, stream: str, rows: Sequence[Any], *, token: int = 0) -> None:
        """Drop the entries that these typed rows of one fact invalidate. Idempotent."""

    def invalidate_stream(self, stream: str) -> None:
        """Drop everything this stream can invalidate: facts of it may have been missed."""


class IAllocated(Protocol):
    """Source of the highest token that a follower can wait for in a stream."""

    async def highest(self, stream: str) -> int | None:
        """The highest token of this stream that any process may have been given; None if unknown.

        Any exception counts as None.
        """


class IPositionStore(Protocol):
    """Storage for a follower's positions between runs: ``{stream: {writer: token}}``.

    A worker whose effects live in a database can store the positions there and write both in one
    transaction: then each fact is applied exactly once, even through a kill. `synrepl.SQLPositions` does so.
    A store may have a method ``check_subscriber``, which raises `ConfigError` for one that it refuses.
    """

    def load(self) -> SaveablePosition: ...

    def save(self, positions: SaveablePosition) -> None:
        """Called after the facts up to these positions were applied, once for many facts."""
