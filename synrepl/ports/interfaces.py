"""Where parts meet that must not import each other."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from synrepl.streams.facts import Fact

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
    "Receipt",
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


class Appended(msgspec.Struct, frozen=True):
    """The answer to an append: what it became. `first_serial` is None for ephemeral streams."""

    epoch: int
    first_serial: int | None
    tokens: list[int]


class Receipt(msgspec.Struct, frozen=True):
    """What an append with an idempotency key was answered, kept so that repeating it is harmless.

    `request` is a checksum of what was asked, so that one key cannot stand for two things.
    """

    key: str
    request: str
    appended: Appended
    at_ms: int


class Head(msgspec.Struct, frozen=True):
    """Where the log stands when it is opened.

    `positions` holds the highest token of each (stream, writer); `allocated` the highest token of each
    stream, whoever wrote it; `boots` counts how often this log was opened, this time included.
    """

    epoch: int
    serial: int
    digest: str
    boots: int
    positions: Mapping[tuple[str, str], int]
    allocated: Mapping[str, int]


class IEngine(Protocol):
    """Where facts are kept. Synchronous; called from two threads, each of which does one thing at a time.

    The writing thread calls everything but `read` and `read_tokens`, which the reading thread calls
    meanwhile. `close` is called when no read is going on. Every method may raise `StorageError`.
    """

    def open(self) -> Head:
        """Make or migrate what is missing, count this boot, and say where the log stands."""

    def head(self) -> Head:
        """Where the log stands now; asked when a commit failed and nobody knows what became of it."""

    def commit(self, facts: Sequence[Fact], receipts: Sequence[Receipt]) -> None:
        """Keep all of these or none. When it returns they survive a power cut.

        `facts` follow the last ones without a hole in their serials. The position of a writer is the highest
        token among its facts, which need not be the last.
        """

    def read(
        self, *, after: int, upto: int, streams: Collection[str] | None, limit: int
    ) -> tuple[list[Fact], int]:
        """Facts with ``after < serial <= upto`` in order of serial, of these streams (None: of all).

        Stops after the fact with which `limit` rows (JSON bytes / 200, at least one a fact, is near enough)
        are reached; gives the facts and the serial up to which it has looked.
        """

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

    def lose(self, stream: str, upto: int) -> Head:
        """Begin a new epoch: the facts of this stream beyond token `upto` were lost where they came from.

        They stay where they are in the order of serials, and are in no answer by token any more; positions
        beyond `upto` go back to it. Says where the log stands now.
        """

    def receipt(self, key: str) -> Receipt | None:
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
        self, *, after: int, upto: int, streams: Collection[str] | None, limit: int
    ) -> Awaitable[tuple[list[Fact], int]]:
        """`IEngine.read`, in the reading thread."""

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> Awaitable[tuple[list[Fact], bool]]:
        """`IEngine.read_tokens`, in the reading thread; ephemeral streams are read from memory."""

    def ephemeral_after(self, stream: str, after: int) -> list[Fact]:
        """What memory holds of an ephemeral stream beyond token `after`, in order."""

    def restarts(self, stream: str) -> int:
        """How often a writer of this ephemeral stream began anew while the log was open."""

    def forget(self, stream: str, upto: int) -> None:
        """Let go of an ephemeral stream's facts up to this token: all who read it have them."""


class ICaches(Protocol):
    """What a worker remembers, and must forget in time; `synrepl.ports.caching.Caches` is one."""

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
