"""What subscribers get."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Subscriber", "Updates"]

R = TypeVar("R")


class Updates(msgspec.Struct, Generic[R], frozen=True):
    """One fact, whole: its typed rows, and where it stands."""

    stream: str
    writer: str
    token: int
    rows: list[R]


Subscriber = Callable[[Updates[Any]], Awaitable[None] | None]
