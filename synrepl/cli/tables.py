"""Tables of plain text, and those of a daemon's status. No column is cut to the width of the terminal.

A styled text loses its style where standard output is not a terminal (`click.echo`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from synrepl.html.humanize import span
from synrepl.rooms import rooms

SHOWN: Final = 50
"""Default maximum number of rows of a table. JSON output has all rows."""

COLORS: Final = {
    **dict.fromkeys(("serving", "live", "idle"), "green"),
    **dict.fromkeys(("failing", "stopped", "fenced", "lost", "ended", "refused", "disconnected"), "red"),
}

LABELS: Final = {"instance": "writes as"}
"""What tables call a field of the status, where its own name is misread."""

BAR: Final = 30
"""The width of a progress bar in characters."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    wide: Collection[str] = (),
    is_wide: bool = False,
    limit: int = SHOWN,
) -> Iterator[str]:
    """Yield the lines of a table with at most `limit` rows.

    Numbers are aligned right. The columns `wide` need `is_wide`. A last line counts the rows beyond `limit`.
    """
    shown = [place for place, name in enumerate(head) if is_wide or name not in wide]
    texts = [[head[place] and click.style(head[place], bold=True) for place in shown]]
    texts += [
        [f"{row[place]:,}" if _is_number(row[place]) else str(row[place]) for place in shown]
        for row in rows[:limit]
    ]
    widths = [max(len(click.unstyle(text)) for text in column) for column in zip(*texts, strict=True)]
    rights = [any(_is_number(row[place]) for row in rows) for place in shown]
    for line in texts:
        cells = []
        for text, width, is_right in zip(line, widths, rights, strict=True):
            space = " " * (width - len(click.unstyle(text)))
            cells.append(space + text if is_right else text + space)
        yield "   ".join(cells).rstrip()
    if len(rows) > limit:
        yield f"and {len(rows) - limit:,} more"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def styled(state: str, text: str = "") -> str:
    """Return a state in its color, in other words if `text` is given."""
    return click.style(text or state, COLORS.get(state, "yellow"))


def address(text: str) -> str:
    """Return the native and the HTTP address in a daemon's address text (``-``: none), as far as known."""
    return ", ".join(part for part in text.split() if part != "-")


def ago(seconds: float | None) -> str:
    """Return how long ago something was; None: never."""
    return "never" if seconds is None else f"{span(seconds)} ago"


def number(value: Any) -> Any:
    """Return a number from a status, or whatever else is in its place as text."""
    return value if _is_number(value) else str(value)


def status_lines(found: Mapping[str, Any], now: float, *, is_wide: bool = False) -> Iterator[str]:
    """Yield the status: errors; state, role and position; then a table for each part."""
    for one in found.get("errors", []):
        yield click.style(f"error: {one['what']} (for {span(now - one['since'])})", "red", bold=True)
    yield from _about(found)
    parts = (
        *(lines for room in rooms() for lines in room.status_tables(found, now, is_wide=is_wide)),
        _sources(found),
        _stalled(found),
        followers_table(found.get("followers") or [], is_wide=is_wide),
    )
    for part in parts:
        lines = list(part)
        if lines:
            yield ""
            yield from lines


def _about(found: Mapping[str, Any]) -> Iterator[str]:
    warnings = (click.style(warning, "yellow") for warning in found.get("warnings") or ())
    facts = {"state": "; ".join((styled(str(found.get("state"))), *warnings))}
    for key in ("role", "why", "holds", "name", "server_name", "instance", "epoch", "serial", "digest"):
        if found.get(key) not in {None, ""}:
            facts[LABELS.get(key, key)] = str(found[key])
    facts["lag"] = f"{found.get('lag_rows')} rows, {found.get('lag_seconds')} seconds"
    if found.get("role") != "primary" and found.get("primary"):
        facts["primary"] = address(found["primary"])
    for key, value in facts.items():
        yield f"{key:<12} {value}"
    for text in found.get("what_to_do") or ():
        yield f"{'what to do':<12} {text}"


def bar(share: float) -> str:
    """Return a progress bar with the percentage."""
    return f"[{'#' * round(BAR * share):.<{BAR}}] {share:.0%}"


def followers_table(found: Sequence[Mapping[str, Any]], *, is_wide: bool = False) -> Iterator[str]:
    """Yield the table of followers."""
    if not found:
        yield "no followers"
        return
    rows = [
        (
            one["name"] or "(no name)",
            one["dialect"] or "unknown",
            styled("behind" if one["behind"] else "live"),
            number(one["lag_rows"]),
            number(one["lag_seconds"]),
            "" if one["serial"] is None else one["serial"],
            span(one["connected_seconds"]),
        )
        for one in found
    ]
    head = ("follower", "dialect", "state", "lag rows", "lag seconds", "serial", "connected for")
    yield from table(head, rows, wide=("serial", "connected for"), is_wide=is_wide)


def _sources(found: Mapping[str, Any]) -> Iterator[str]:
    sources = [one for one in found.values() if isinstance(one, Mapping) and "gaps" in one]
    sources += found.get("following", [])
    if sources:
        rows = [
            (
                one.get("address", one.get("endpoint", "")),
                _source_state(one),
                number(one["lag_rows"]),
                number(one["lag_seconds"]),
                len(one["gaps"]),
                len(one["lost"]),
                ", ".join(dict.fromkeys(pair["stream"] for pair in one.get("writes", []))) or "nothing",
            )
            for one in sources
        ]
        yield from table(("source", "state", "lag rows", "lag seconds", "gaps", "lost", "writes"), rows)


def _source_state(source: Mapping[str, Any]) -> str:
    if not source.get("subscribed", source.get("connected")):
        return styled("disconnected") + f": {source['why']}"
    return styled("at a replica") if source.get("replica_of") else styled("live")


def _stalled(found: Mapping[str, Any]) -> Iterator[str]:
    if stalled := found.get("stuck"):
        rows = [
            (one["writer"], one["stream"], one["token"], number(one["behind"]), number(one["seconds"]))
            for one in stalled
        ]
        yield from table(("stuck writer", "stream", "at", "behind", "seconds"), rows)
