"""A value that is never shown."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    """Holds a secret value, and shows it nowhere: `value` is the only way to it."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"
