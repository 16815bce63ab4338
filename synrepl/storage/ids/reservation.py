"""Reservations of ids, and the report of unfinished ones."""

from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING

import msgspec

from synrepl.errors import StorageError

if TYPE_CHECKING:
    from synrepl.storage.ids.generator import MultiWriterIdGenerator

__all__ = ["NotAWriter", "Reservation", "Unfinished"]


class NotAWriter(StorageError):
    """This instance is not a writer of the stream, so it gets no ids."""

    def __init__(self, *, stream: str, instance: str, writers: Sequence[str]) -> None:
        super().__init__(
            op="reserve",
            why=f"{instance} is none of its writers ({', '.join(writers)})",
            hint="write in one of those processes, or add this one to the writers in every configuration",
            stream=stream,
        )


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """Reserved ids that are not finished, their owner and their age in seconds."""

    stream: str
    writer: str
    tokens: tuple[int, ...]
    owner: str
    age_seconds: float


class Reservation:
    """Ids that are reserved until they are completed or rolled back.

    `owner` is a text that names the user of the ids, by default the calling line.
    """

    __slots__ = ("_generator", "ids", "mark", "_owner", "since", "tokens")

    def __init__(
        self,
        generator: "MultiWriterIdGenerator",
        ids: Sequence[int],
        tokens: Sequence[int],
        mark: int,
        owner: "str | tuple[CodeType, int]",
        since: float,
    ) -> None:
        self._generator = generator
        self.ids = ids
        self.mark = mark
        self.tokens = tokens
        self._owner = owner
        self.since = since

    @property
    def owner(self) -> str:
        """The user of the ids, for warnings."""
        if isinstance(self._owner, str):
            return self._owner
        code, line = self._owner
        return f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line})"

    def complete(self) -> None:
        """Finish the ids: their facts are committed. Called in the reactor's thread."""
        self._generator.complete(self)

    def roll_back(self) -> None:
        """Finish the ids: their transaction was rolled back. Called in the reactor's thread."""
        self._generator.roll_back(self)
