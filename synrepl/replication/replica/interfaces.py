"""Interfaces that a replica needs: its log and the unfinished copy."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from synrepl.ports.history import AppendReceipt, EpochStart, LogPosition, LogSnapshot
from synrepl.ports.interfaces import ILog
from synrepl.streams.facts import Fact

__all__ = ["ICopy", "IKeepLeftovers", "ReplicaLog"]


class ICopy(Protocol):
    """An unfinished copy of another log."""

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


class ReplicaLog(ILog, Protocol):
    """A log that can become a copy of another one, and follow it."""

    @property
    def notes(self) -> Mapping[str, str]: ...

    async def note(self, **notes: str | None) -> None: ...

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

    def append_assigned(self, stream: str, facts: Sequence[tuple[str, int, bytes]]) -> Awaitable[Any]: ...

    def reset_writer(self, stream: str, writer: str) -> None: ...

    def positions_by_stream(self) -> dict[str, dict[str, int]]: ...


IKeepLeftovers = Callable[[AsyncIterator[Sequence[Fact]]], Awaitable[Any]]
"""Writes facts that only this copy has to a file; returns its path, or None without facts."""
