"""Times, digests and places as the page says them."""

from synrepl.html.humanize import at, counted, span
from synrepl.html.markup import Markup
from synrepl.transports.http.status_page.markup import timed

__all__ = ["address", "ago", "lag", "short"]


def ago(moment: float | None, now: float) -> Markup | None:
    """How long ago, with the moment as its title."""
    return None if moment is None else timed(f"{span(max(0.0, now - moment))} ago", at(moment * 1000))


def lag(rows: int, seconds: float) -> str:
    """How far behind."""
    return f"{counted(rows, 'fact')}, {span(seconds)}" if rows or seconds >= 1 else "none"


def short(digest: str) -> Markup:
    """The beginning of a long name, with all of it as its title."""
    return timed(f"{digest[:12]}…" if len(digest) > 13 else digest, digest)


def address(told: str | None) -> str:
    """Where a daemon is; its unknown half is left out."""
    return ", ".join(part for part in (told or "").split() if part != "-")
