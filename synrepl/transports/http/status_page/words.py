"""Short forms of times, digests and addresses."""

from synrepl.html.humanize import at, counted, span
from synrepl.html.markup import Markup
from synrepl.transports.http.status_page.markup import timed

__all__ = ["address", "ago", "lag", "short"]


def ago(moment: float | None, now: float) -> Markup | None:
    """Render the age of a moment, with the moment as title."""
    return None if moment is None else timed(f"{span(max(0.0, now - moment))} ago", at(moment * 1000))


def lag(rows: int, seconds: float) -> str:
    """Describe a lag."""
    return f"{counted(rows, 'fact')}, {span(seconds)}" if rows or seconds >= 1 else "none"


def short(digest: str) -> Markup:
    """Render the start of a digest, with all of it as title."""
    return timed(f"{digest[:12]}…" if len(digest) > 13 else digest, digest)


def address(value: str | None) -> str:
    """Describe a daemon's address without its unknown half."""
    return ", ".join(part for part in (value or "").split() if part != "-")
