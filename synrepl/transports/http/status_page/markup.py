"""Building blocks of the page: bars, tables, sections, and short forms of times, digests and addresses."""

from collections.abc import Collection, Sequence
from html import escape
from typing import Any

from synrepl.html.humanize import at, counted, span
from synrepl.html.markup import Markup, element, text

__all__ = ["address", "ago", "bar", "lag", "section", "short", "table", "timed"]


def timed(shown: str, exact: str) -> Markup:
    """Render a short text with the exact one as its title."""
    return element("span", shown, title=exact)


def bar(share: float, *, label: str, kind: str = "") -> Markup:
    """Render a progress bar."""
    share = min(1.0, max(0.0, share))
    shown = f"{int(share * 100)} %"
    return element(
        "progress", shown, class_=kind or None, max="1", value=f"{share:.4f}", aria_label=label, title=shown
    )


def table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], *, beyond: int = 0, is_slim: bool = False
) -> Markup:
    """Render a table without its empty columns; on a narrow screen each row becomes a card.

    A slim table stays a table and scrolls. `beyond` is the number of rows that are not shown.
    """
    columns = [
        position for position in range(len(heads)) if any(row[position] not in {None, ""} for row in rows)
    ]
    if not rows:
        return Markup()
    numbers = {position for position in columns if all(isinstance(row[position], int) for row in rows)}
    head = "".join(
        f"<th scope=col{_kind(position, numbers)}>{escape(heads[position])}</th>" for position in columns
    )
    lines = []
    for row in rows:
        cells = (_cell(heads[position], _kind(position, numbers), row[position]) for position in columns)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = f'<p class="dim">and {beyond:,} more</p>' if beyond > 0 else ""
    body = "".join(lines)
    shown = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    if is_slim:
        return Markup(f'<div class="slim"><table>{shown}</table></div>{more}')
    return Markup(f'<table class="cards">{shown}</table>{more}')


def _cell(head: str, kind: str, cell: object) -> str:
    if cell in {None, ""}:
        return "<td></td>"
    return f'<td data-label="{escape(head)}"{kind}><span>{_shown(cell)}</span></td>'


def _kind(position: int, numbers: Collection[int]) -> str:
    if position == 0:
        return ' class="name"'
    return ' class="number"' if position in numbers else ""


def _shown(cell: Any) -> Markup:
    return text(f"{cell:,}") if isinstance(cell, int) else text(cell)


def section(title: str, *content: object, note: str = "", is_wide: bool = False) -> Markup:
    """Render a section with a heading; empty without content."""
    inside = "".join(map(text, content))
    if not inside:
        return Markup()
    note_html = f'<p class="dim">{escape(note)}</p>' if note else ""
    wide = ' class="wide"' if is_wide else ""
    return Markup(f"<section{wide}><h2>{escape(title)}</h2>{note_html}{inside}</section>")


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
