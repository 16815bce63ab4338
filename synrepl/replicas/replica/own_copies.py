"""What a replica makes a copy of its upstream's log: the log of a daemon, or the folder of a backup."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, Unpack

from synrepl.base.history import AppendReceipt, EpochStart, LogSnapshot
from synrepl.base.notes import NoteChanges, Notes
from synrepl.storage.log_head import LogHead
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition


class ICopy(Protocol):
    """Takes the facts of the upstream's log, in order (`LogCopies`, `StagedCopy`)."""

    @property
    def position(self) -> LogPosition:
        """Where the copy ends."""

    async def follow(
        self,
        facts: Sequence[Fact],
        receipts: Sequence[AppendReceipt],
        *,
        upto: LogPosition | None = None,
    ) -> None:
        """Append facts and receipts, as `LogCopies.follow` does."""

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        """Begin an epoch at the end of the copy."""


class IStagedCopy(ICopy, Protocol):
    """A copy under construction (`StagedCopy`)."""

    notes: Notes

    async def note(self, **notes: Unpack[NoteChanges]) -> None:
        """Store these notes with the copy; None deletes a note."""

    async def add(
        self, facts: Sequence[Fact], upto: LogPosition, *, trimmed_upto: LogPosition | None
    ) -> None:
        """Add facts of the snapshot, as `StagedCopy.add` does."""

    async def restore(self, snapshot: LogSnapshot) -> None:
        """Store the rest of the snapshot, after its facts."""

    async def close(self) -> None:
        """Close the copy; it stays."""


class ICopies(ICopy, Protocol):
    """A whole copy, and one under construction beside it (`LogCopies`)."""

    async def open_staged(self) -> Any:
        """Open the staged copy, an `IStagedCopy`; it may be empty."""

    async def drop(self, copy: Any) -> None:
        """Close a staged copy and delete it."""

    async def adopt(self, copy: Any) -> None:
        """Replace the whole copy by this staged one, in one step."""


class IOwnCopy(Protocol):
    """A log that follows another one (`Log`)."""

    head: LogHead
    notes: Notes
    table_streams: frozenset[str]

    @property
    def copies(self) -> ICopies:
        """What takes the facts."""

    @property
    def uuid(self) -> str:
        """The uuid of this copy."""

    @property
    def history(self) -> str:
        """The uuid of the log, the same for all its copies; empty as long as there is none."""

    @property
    def position(self) -> LogPosition:
        """Where the log ends."""

    async def note(self, **notes: Unpack[NoteChanges]) -> None:
        """Store these notes; None deletes a note."""

    def positions_by_stream(self) -> Mapping[str, Mapping[str, int]]:
        """The positions of the writers of every stream, as far as they are known."""


class IKeptEphemeral(Protocol):
    """The ephemeral streams of a log that keeps their facts in memory (`ephemeral_facts.KeptEphemeral`)."""

    @property
    def names(self) -> Collection[str]:
        """The names of the streams."""

    def add(self, facts: Sequence[Fact], *, is_all: bool) -> None:
        """Add facts. With `is_all` they are all that the upstream holds."""
