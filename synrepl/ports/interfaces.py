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

    `synrepl.replication` sees the log through this interface only. Durable streams go to a `SQLEngine`
    in group commits; ephemeral ones live in memory.
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

    def load(self) -> SaveablePosition:
        """The positions last saved; empty if there are none. `Follower` calls it once, when it is made."""

    def save(self, positions: SaveablePosition) -> None:
        """Called after the facts up to these positions were applied, once for many facts."""
