"""The status on one page, for people."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

__all__ = ["page"]

STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}"
    "table{border-collapse:collapse}th,td{text-align:left;padding:.2em 1.2em .2em 0;vertical-align:top}"
    "th{font-weight:600}td{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}"
    "tr+tr td{border-top:1px solid #ddd}.bad{color:#a00;font-weight:600}.good{color:#070}"
)


def page(status: Mapping[str, Any]) -> bytes:
    """The page for what `describe` gave. No script, nothing fetched; everything escaped."""
    title = f"synrepl {status['instance']} of {status['server_name']}"
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
        _state(status),
        *_section("Errors", ("what", "since"), [(e["what"], e["since"]) for e in status["errors"]]),
        *_section("Log", ("", ""), _facts(status), is_titled=False),
        *_section("Heard from", SOURCE, [_source(one) for one in _sources(status)]),
        *_section("Stuck writers", STUCK, [tuple(one.values()) for one in status["stuck"]]),
        *_section("Followers", FOLLOWER, [_follower(one) for one in status["followers"]]),
        *_section("Tables", TABLE, [_table(one) for one in status["tables"]]),
        *_section("Unfinished ids", UNFINISHED, list(_unfinished(status["writers"]))),
        *_section("Streams", ("stream", "where", "writer", "token"), list(_positions(status["streams"]))),
        "</body></html>\n",
    ]
    return "".join(parts).encode("utf-8", "replace")


def _state(status: Mapping[str, Any]) -> str:
    word = "good" if status["state"] == "serving" else "bad"
    lag = f", furthest behind: {status['lag_rows']} facts, {status['lag_seconds']:.0f} s"
    behind = lag if status["lag_rows"] else ""
    state = f'<span class="{word}">{escape(status["state"])}</span>'
    return f"<p>{escape(status['role'])}, {state}{escape(behind)}</p>"


def _facts(status: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        ("serial", status["serial"]),
        ("epoch", status["epoch"]),
        ("digest", status["digest"]),
        ("up for", f"{status['uptime_seconds']:.0f} s"),
        ("version", status["version"]),
    ]


TABLE: Final = ("stream", "taken in up to", "complete up to", "")


def _table(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return (one["stream"], one["upto"], one["limit"], one["trouble"])


UNFINISHED: Final = ("stream", "writer", "ids", "oldest", "for", "reserved by")


def _unfinished(writers: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Any, ...]]:
    """Whoever holds a stream up longest first."""
    held = [one for one in writers if one["unfinished"]]
    for one in sorted(held, key=lambda one: one["age_seconds"] or 0.0, reverse=True):
        age = f"{one['age_seconds'] or 0:.0f} s"
        yield one["stream"], one["writer"], one["unfinished"], one["oldest_id"], age, one["owner"]


SOURCE: Final = ("where", "", "lag", "gaps now", "gaps lost", "written there")
STUCK: Final = ("stream", "writer", "at", "behind", "for seconds")


def _sources(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*([status["redis"]] if status["redis"] else []), *status["following"]]


def _source(one: Mapping[str, Any]) -> tuple[Any, ...]:
    is_up = one.get("hearing", one.get("connected"))
    return (
        one.get("address", one.get("endpoint")),
        "live" if is_up else f"down: {one['why']}",
        f"{one['lag_rows']} facts, {one['lag_seconds']:.0f} s",
        len(one["gaps"]),
        len(one["lost"]),
        ", ".join(f"{pair['stream']} as {pair['writer']}" for pair in one.get("writes", [])),
    )


FOLLOWER: Final = ("name", "dialect", "lag", "reads from", "serial", "connected for")


def _follower(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        one["name"] or "(no name yet)",
        one["dialect"] or "(not known yet)",
        f"{one['lag_rows']} facts, {one['lag_seconds']:.0f} s",
        "the log" if one["behind"] else "memory",
        one["serial"],
        f"{one['connected_seconds']:.0f} s",
    )


def _positions(streams: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    for name, stream in streams.items():
        kept = "kept" if stream["kept"] else "in memory"
        for writer, token in sorted(stream["writers"].items()):
            yield name, kept, writer, token


def _section(
    title: str, heads: tuple[str, ...], rows: list[tuple[Any, ...]], *, is_titled: bool = True
) -> Iterable[str]:
    if not rows:
        return
    yield f"<h2>{title}</h2><table>"
    if is_titled:
        yield "<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield (
            "<tr>"
            + "".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row)
            + "</tr>"
        )
    yield "</table>"
