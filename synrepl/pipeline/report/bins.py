"""Time bins of equal width, for plots over time."""

from typing import Final

import msgspec

__all__ = ["Bins", "bins_for"]

MOST: Final = 200

DAY: Final = 86_400
WIDTHS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
"""Widths in seconds. Each is at most 2.5 times the previous one, so that there are at least 80 bins."""

NAMES: Final = (("day", DAY), ("hour", 3600), ("minute", 60), ("second", 1))


class Bins(msgspec.Struct, frozen=True):
    """`count` bins, each `width` seconds; the first begins at `first` (Unix seconds, a multiple of it)."""

    first: int
    width: int
    count: int

    @property
    def starts(self) -> list[int]:
        """The start of each bin, in Unix seconds."""
        return [self.first + place * self.width for place in range(self.count)]

    @property
    def name(self) -> str:
        """The width in words, as in `a bin is ...`."""
        for name, length in NAMES:
            if self.width % length == 0:
                many = self.width // length
                return name if many == 1 else f"{many} {name}s"
        raise AssertionError("every width is whole seconds")

    def place(self, second: int) -> int:
        """Return the index of the bin of this second."""
        return (second - self.first) // self.width


def bins_for(first_ms: int, last_ms: int) -> Bins:
    """Return the narrowest bins that cover the time with at most 200 bins."""
    first, last = first_ms // 1000, last_ms // 1000
    for width in WIDTHS:
        found = Bins(first // width * width, width, last // width - first // width + 1)
        if found.count <= MOST:
            return found
    # Decades: the clocks were wrong, or the facts are of several servers.
    width = -(-(last - first + 1) // (MOST - 1) // DAY + 1) * DAY
    return Bins(first // width * width, width, last // width - first // width + 1)
