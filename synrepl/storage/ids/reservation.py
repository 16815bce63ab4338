"""Ids that somebody has, and has to give an account of."""

from collections.abc import Sequence
from types import CodeType
from typing import Protocol

import msgspec

from synrepl.errors import StorageError

__all__ = ["NotAWriter", "Reservation", "Unfinished"]


class NotAWriter(StorageError):
    """This instance may not write the stream, so it gets no ids of it."""

    def __init__(self, *, stream: str, instance: str, writers: Sequence[str]) -> None:
        super().__init__(
            op="reserve",
            why=f"{instance} is none of its writers ({', '.join(writers)})",
            hint="write in one of those, or add it to the writers in the configuration of every process",
            stream=stream,
        )


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """Ids that were reserved and are not finished: which, by whom, how long ago (in seconds)."""

    stream: str
    writer: str
    tokens: tuple[int, ...]
    owner: str
    age_seconds: float


class IFinishes(Protocol):
    """What a reservation goes back to."""

    def complete(self, reservation: "Reservation", /) -> None:
        """The facts under these ids are committed."""

    def roll_back(self, reservation: "Reservation", /) -> None:
        """They were to be rolled back."""


class Reservation:
    """Ids that are reserved until they are completed or rolled back.

    `owner` says who asked, in words: the place in the program unless it was told otherwise.
    """

    __slots__ = ("_generator", "ids", "mark", "_owner", "since", "tokens")

    def __init__(
        self,
        generator: IFinishes,
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
        """Who asked for the ids."""
        if isinstance(self._owner, str):
            return self._owner
        code, line = self._owner
        return f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line})"

    def complete(self) -> None:
        """The facts are committed; nothing more is written under these ids. In the reactor's thread."""
        self._generator.complete(self)

    def roll_back(self) -> None:
        """The facts were rolled back; nothing is, or will be, written under these ids. In the reactor's
        thread.
        """
        self._generator.roll_back(self)
