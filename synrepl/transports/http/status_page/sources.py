"""Sections on sources other than posts: Redis, followed servers, tables."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from synrepl.html.humanize import span
from synrepl.html.markup import Markup, mark
from synrepl.transports.http.status_page.markup import lag, section, table

__all__ = ["heard_from", "stuck", "tables", "unfinished"]

SHOWN: Final = 100

SOURCE: Final = ("address", "state", "lag", "open gaps", "lost gaps", "writes")


def heard_from(status: Mapping[str, Any]) -> Markup:
    """Render each source and its gaps."""
    entries = [*([status["redis"]] if status["redis"] else []), *status["following"]]
    return section("Sources", table(SOURCE, [_source(entry) for entry in entries]), is_wide=True)


def _source(entry: Mapping[str, Any]) -> tuple[object, ...]:
    is_up = entry.get("subscribed", entry.get("connected"))
    return (
        entry.get("address", entry.get("endpoint")),
        mark("live", "good") if is_up else mark(f"down: {entry['why']}", "bad"),
        lag(entry["lag_rows"], entry["lag_seconds"]),
        len(entry["gaps"]),
        len(entry["lost"]),
        ", ".join(f"{pair['stream']} as {pair['writer']}" for pair in entry.get("writes", [])),
    )


STUCK: Final = ("stream", "writer", "position", "behind", "seconds")


def stuck(status: Mapping[str, Any]) -> Markup:
    """Render the writers that lag behind the others of their stream."""
    entries = status["stuck"]
    rows = [tuple(entry.values()) for entry in entries[:SHOWN]]
    return section("Stuck writers", table(STUCK, rows, beyond=len(entries) - SHOWN), is_wide=True)


TABLE: Final = ("stream", "read up to", "complete up to", "problem")


def tables(status: Mapping[str, Any]) -> Markup:
    """Render the streams that are read from tables."""
    rows = [(entry["stream"], entry["upto"], entry["limit"], entry["trouble"]) for entry in status["tables"]]
    return section("Tables", table(TABLE, rows), is_wide=True)


UNFINISHED: Final = ("stream", "writer", "ids", "oldest", "for", "reserved by")


def unfinished(status: Mapping[str, Any]) -> Markup:
    """Render writers with unfinished ids, the oldest first."""
    entries = list(_unfinished(status["writers"]))
    shown = table(UNFINISHED, entries[:SHOWN], beyond=len(entries) - SHOWN)
    return section("Unfinished ids", shown, is_wide=True)


def _unfinished(writers: Iterable[Mapping[str, Any]]) -> Iterable[tuple[object, ...]]:
    unfinished_writers = [entry for entry in writers if entry["unfinished"]]
    for entry in sorted(unfinished_writers, key=lambda entry: entry["age_seconds"] or 0.0, reverse=True):
        age = span(entry["age_seconds"] or 0.0)
        yield entry["stream"], entry["writer"], entry["unfinished"], entry["oldest_id"], age, entry["owner"]
