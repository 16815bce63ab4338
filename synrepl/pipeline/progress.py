"""How a job tells how far it is."""

from collections.abc import Callable

__all__ = ["Tell", "nobody"]

Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much: 0 where that was told before, or is not known."""


def nobody(what: str, done: int, total: int) -> None:
    """Tell nobody."""
