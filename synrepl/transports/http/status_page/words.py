"""Numbers, times and places as people say them."""

from datetime import UTC, datetime
from typing import Final

from synrepl.transports.http.status_page.markup import Markup, timed

__all__ = ["address", "ago", "at", "counted", "lag", "short", "size", "span"]

UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


def span(seconds: float) -> str:
    """How long that is: the two largest units, as 2 h 5 min."""
    left = int(max(0.0, seconds))
    if left < 10:
        return f"{max(0.0, seconds):.1f} s"
    parts = []
    for unit, length in UNITS:
        if left >= length:
            parts.append(f"{left // length} {unit}")
            left %= length
    if not parts:
        return f"{left} s"
    if len(parts) == 1 and left and parts[0].endswith("min"):
        parts.append(f"{left} s")
    return " ".join(parts[:2])


def at(moment: float) -> str:
    """A moment, in UTC."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{moment:.0f}"


def ago(moment: float | None, now: float) -> Markup | None:
    """How long ago, with the moment as its title."""
    return None if moment is None else timed(f"{span(now - moment)} ago", at(moment))


def lag(rows: int, seconds: float) -> str:
    """How far behind."""
    return f"{counted(rows, 'fact')}, {span(seconds)}" if rows or seconds >= 1 else "none"


def counted(count: int, what: str) -> str:
    """So many of these."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def size(count: float) -> str:
    """So many bytes."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def short(digest: str) -> Markup:
    """The beginning of a long name, with all of it as its title."""
    return timed(f"{digest[:12]}…" if len(digest) > 13 else digest, digest)


def address(told: str | None) -> str:
    """Where a daemon is; its unknown half is left out."""
    return ", ".join(part for part in (told or "").split() if part != "-")
