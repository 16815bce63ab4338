"""Updates: the facts that subscribers receive."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["RawFact", "Subscriber", "Updates"]

R = TypeVar("R")


class Updates(msgspec.Struct, Generic[R], frozen=True):
    """One complete fact: its typed `rows`, and its `stream`, `writer` and `token`.

    A subscriber receives each fact in order, and applies it before the follower's position reaches `token`.
    After a crash a fact may be delivered again (at least once)::

        @follower.on(RECEIPTS)
        def show(updates: Updates[Receipt]) -> None:
            for row in updates.rows:
                print(updates.writer, updates.token, row.room_id)
    """

    stream: str
    writer: str
    token: int
    rows: list[R]


Subscriber = Callable[[Updates[Any]], Awaitable[None] | None]

RawFact = tuple[str, int, list[bytes]]
"""A fact as it arrived: writer, token, and rows as JSON texts."""
