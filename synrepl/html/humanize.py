"""Readable numbers, times and names."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

__all__ = ["at", "counted", "number", "printable", "rate", "several", "share", "shortened", "size", "span"]

UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))

LONGEST: Final = 60

LISTED: Final = 3


def number(count: float) -> str:
    """Format a number: no decimals if it is whole or at least 1,000, else three significant digits."""
    if isinstance(count, int) or count >= 999.5 or count == int(count):
        return f"{round(count):,}"
    return f"{count:.3g}"


def listed(names: Sequence[str]) -> str:
    """List all names in a sentence; there is at least one.

    >>> listed(["a"]), listed(["a", "b", "c", "d"])
    ('a', 'a, b, c and d')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def several(names: Sequence[str]) -> str:
    """List names in a sentence: the first three of many.

    >>> several(["a", "b"]), several(["a", "b", "c", "d"])
    ('a and b', 'a, b, c and 1 more')
    """
    if len(names) <= LISTED:
        return listed(names)
    return f"{', '.join(names[:LISTED])} and {len(names) - LISTED} more"


def counted(count: int, what: str, many: str = "") -> str:
    """Format a count with its noun: `what` for 1, else `many` (default: `what` with an s)."""
    return f"{count:,} {what if count == 1 else many or what + 's'}"


def size(count: float) -> str:
    """Format a number of bytes."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if round(count, 1) < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def span(seconds: float) -> str:
    """Format a duration in at most two adjacent units, as 2 h 5 min."""
    if seconds < 0:
        return f"−{span(-seconds)}"  # noqa: RUF001  # a minus sign is one
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = int(seconds)
    parts = []
    for unit, length in UNITS:
        if left >= length:
            parts.append(f"{left // length:,} {unit}")
            left %= length
        elif parts:
            # In 1 d 0 h 3 min, the minutes do not matter.
            break
    if not parts:
        return f"{left} s"
    if len(parts) == 1 and left and parts[0].endswith("min"):
        parts.append(f"{left} s")
    return " ".join(parts[:2])


def at(moment_ms: float, *, seconds: bool = True) -> str:
    """Format a moment (Unix time in milliseconds) in UTC; as milliseconds if it is out of range."""
    try:
        value = datetime.fromtimestamp(moment_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{moment_ms:.0f} ms"
    return value.strftime("%Y-%m-%d %H:%M:%S UTC" if seconds else "%Y-%m-%d %H:%M UTC")


def share(part: float, whole: float) -> str:
    """Format a share as a percentage; empty if `whole` is 0. Only exact values show as 0 % and 100 %."""
    if not whole:
        return ""
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.0f} %" if percent in {0.0, 100.0} else f"{percent:.1f} %"


def rate(count: float, seconds: float, what: str) -> str:
    """Format a rate per second; per minute or hour if it is below 1. A time below 1 second counts as 1."""
    for unit, length in (("second", 1), ("minute", 60)):
        value = count * length / max(seconds, 1.0)
        if value >= 1:
            return f"{number(value)} {what} a {unit}"
    return f"{number(count * 3600 / max(seconds, 1.0))} {what} an hour"


def printable(text: str) -> str:
    """Replace unprintable characters, such as line ends and escapes, by U+FFFD."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a printable text; over `longest` characters, only its start and end."""
    shown = printable(text)
    if len(shown) <= longest:
        return shown
    tail = longest // 4
    return f"{shown[: longest - tail - 1]}…{shown[-tail:]}"
