"""Where facts come from beside those that are posted: Redis, servers that are followed, tables."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from synrepl.html.humanize import span
from synrepl.html.markup import Markup, mark
from synrepl.transports.http.status_page.markup import section, table
from synrepl.transports.http.status_page.words import lag

__all__ = ["heard_from", "stuck", "tables", "unfinished"]

SHOWN: Final = 100

SOURCE: Final = ("where", "state", "lag", "gaps now", "gaps lost", "written there")


def heard_from(status: Mapping[str, Any]) -> Markup:
    """Each source, and what was missed of it."""
    found = [*([status["redis"]] if status["redis"] else []), *status["following"]]
    return section("Heard from", table(SOURCE, [_source(one) for one in found]), is_wide=True)


def _source(one: Mapping[str, Any]) -> tuple[object, ...]:
    is_up = one.get("hearing", one.get("connected"))
    return (
        one.get("address", one.get("endpoint")),
        mark("live", "good") if is_up else mark(f"down: {one['why']}", "bad"),
        lag(one["lag_rows"], one["lag_seconds"]),
        len(one["gaps"]),
        len(one["lost"]),
        ", ".join(f"{pair['stream']} as {pair['writer']}" for pair in one.get("writes", [])),
    )


STUCK: Final = ("stream", "writer", "at", "behind", "for seconds")


def stuck(status: Mapping[str, Any]) -> Markup:
    """Writers that do not follow the others of their stream."""
    found = status["stuck"]
    rows = [tuple(one.values()) for one in found[:SHOWN]]
    return section("Stuck writers", table(STUCK, rows, beyond=len(found) - SHOWN), is_wide=True)


TABLE: Final = ("stream", "taken in up to", "complete up to", "trouble")


def tables(status: Mapping[str, Any]) -> Markup:
    """Streams that are read from tables."""
    rows = [(one["stream"], one["upto"], one["limit"], one["trouble"]) for one in status["tables"]]
    return section("Tables", table(TABLE, rows), is_wide=True)


UNFINISHED: Final = ("stream", "writer", "ids", "oldest", "for", "reserved by")


def unfinished(status: Mapping[str, Any]) -> Markup:
    """Whoever holds a stream up longest first."""
    found = list(_unfinished(status["writers"]))
    shown = table(UNFINISHED, found[:SHOWN], beyond=len(found) - SHOWN)
    return section("Unfinished ids", shown, is_wide=True)


def _unfinished(writers: Iterable[Mapping[str, Any]]) -> Iterable[tuple[object, ...]]:
    held = [one for one in writers if one["unfinished"]]
    for one in sorted(held, key=lambda one: one["age_seconds"] or 0.0, reverse=True):
        age = span(one["age_seconds"] or 0.0)
        yield one["stream"], one["writer"], one["unfinished"], one["oldest_id"], age, one["owner"]
