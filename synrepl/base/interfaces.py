"""Interfaces between parts that must not import each other."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from synrepl.base.history import BEGINNING, EpochStart
from synrepl.streams.writer import Writer
from synrepl.wire.position import LogPosition

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
    to `trimmed_upto`. `epoch_starts` are in order, without epoch 1, which began with the log.
    """

    epoch: int
    serial: int
    digest: str
    boots: int
    positions: Mapping[Writer, int]
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


class IAllocated(Protocol):
    """Source of the highest token that a follower can wait for in a stream."""

    async def highest(self, stream: str) -> int | None:
        """The highest token of this stream that any process may have been given; None if unknown.

        An exception counts as None, and is reported unless it is a `ReplicationError`.
        """


class IPositionStore(Protocol):
    """Storage for a follower's positions between runs: ``{stream: {writer: token}}``.

    A worker whose effects live in a database can store the positions there and write both in one
    transaction: then each fact is applied exactly once, even through a kill. `synrepl.SQLPositions` does so.
    A store may have a method ``check_subscriber``, which raises `ConfigError` for an unsuitable subscriber.
    """

    def load(self) -> SaveablePosition:
        """The positions last saved; empty if there are none. `Follower` calls it once, when it is made."""

    def save(self, positions: SaveablePosition) -> None:
        """Save the positions. Called after the facts up to them were applied, once for many facts."""
