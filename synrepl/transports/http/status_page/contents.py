"""Sections on the data: streams, files, epochs and recent facts."""

from collections.abc import Mapping
from typing import Any, Final

from synrepl.html.humanize import counted, size, span
from synrepl.html.markup import Markup, details, element, facts, mark
from synrepl.transports.http.status_page.markup import section, table
from synrepl.transports.http.status_page.words import ago, short

__all__ = ["files", "recent", "streams", "epoch_starts"]

WRITERS: Final = 100
"""Maximum number of shown writers per stream."""
ALL_WRITERS: Final = 500
"""Maximum number of shown writers in total."""
STREAMS: Final = 200
INLINE: Final = 3
"""More writers than this are folded."""


def streams(status: Mapping[str, Any]) -> Markup:
    """Render the position of each writer of each stream."""
    found = {name: one for name, one in status["streams"].items() if one["writers"]}
    empty = [name for name, one in status["streams"].items() if not one["writers"]]
    left = ALL_WRITERS
    parts = []
    for name, one in list(found.items())[:STREAMS]:
        writers = one["writers"]
        shown = sorted(writers.items(), key=lambda pair: (-pair[1], pair[0]))[: min(WRITERS, left)]
        left -= len(shown)
        parts.append(_stream(name, one, shown))
    if len(found) > STREAMS:
        parts.append(element("p", f"and {len(found) - STREAMS:,} more streams", class_="dim"))
    if empty:
        parts.append(
            details(Markup(_dimmed(f"{len(empty)} without facts")), ", ".join(empty), name="empty-streams")
        )
    return section("Streams", *parts, is_wide=True)


def _stream(name: str, one: Mapping[str, Any], shown: list[tuple[str, int]]) -> Markup:
    writers = one["writers"]
    where = "" if one["kept"] else ", in memory only"
    if len(writers) <= INLINE:
        text = ", ".join(f"{writer} {token:,}" for writer, token in sorted(writers.items()))
    else:
        text = f"{counted(len(writers), 'writer')}, up to {max(writers.values()):,}"
    summary = Markup(f"{element('b', name)} {_dimmed(text + where)}")
    rows = table(("writer", "position"), shown, beyond=len(writers) - len(shown), is_slim=True)
    return details(summary, rows, name=f"stream-{name}")


def _dimmed(text: str) -> Markup:
    return element("span", text)


RULES: Final = {
    "none": "no: only uploads",
    "eager": "eagerly: all named files",
    "lazy": "lazily: on request",
}
FAILING: Final = ("name", "sha256", "why", "tries", "next try")


def files(status: Mapping[str, Any], now: float) -> Markup:
    """Render the files: stored, being fetched, and failing."""
    one = status.get("files")
    if one is None or not any(one[key] for key in ("stored", "wanted", "missing", "failing", "quarantined")):
        return Markup()
    oldest = one["oldest_seconds"]
    bad = one["quarantined"]
    rows = [
        ("stored", f"{counted(one['stored'], 'file')}, {size(one['stored_bytes'])}"),
        ("fetched", RULES.get(one["rule"], one["rule"])),
        ("missing", mark(f"{one['missing']:,}", "busy") if one["missing"] else "none"),
        ("wanted", f"{one['wanted']:,}, {one['in_flight']:,} being fetched" if one["wanted"] else None),
        ("oldest wanted", f"for {span(oldest)}" if oldest is not None else None),
        ("quarantined", mark(f"{bad:,}", "bad", "bytes that did not match their checksum") if bad else None),
    ]
    failing = [
        (
            failed["name"],
            short(failed["sha256"]),
            failed["why"],
            failed["tries"],
            f"in {span(failed['next_at'] - now)}" if failed["next_at"] > now else "now",
        )
        for failed in one["failing"]
    ]
    return section("Files", facts(rows), table(FAILING, failing), is_wide=bool(failing))


WHY: Final = {
    "promoted": "another daemon took over",
    "lost": "the source lost facts",
    "restored": "the log was restored",
}


def epoch_starts(status: Mapping[str, Any], now: float) -> Markup:
    """Render the epochs, newest first."""
    found = sorted(
        status.get("epoch_starts") or (), key=lambda epoch_start: epoch_start["epoch"], reverse=True
    )
    rows = [
        (
            epoch_start["epoch"],
            ago(epoch_start["at_ms"] / 1000, now),
            mark(epoch_start["why"], "dim", WHY.get(epoch_start["why"], "")),
            epoch_start["serial"],
            f"{epoch_start['stream']} beyond {epoch_start['token']:,} is discarded"
            if epoch_start["stream"]
            else "",
        )
        for epoch_start in found[:20]
    ]
    shown = table(("epoch", "began", "why", "after serial", ""), rows, beyond=len(found) - 20)
    return section("Epochs", shown, note="Before the first of these, the epoch was 1." if rows else "")


RECENT: Final = ("stream", "token", "when", "writer", "serial", "rows")


def recent(status: Mapping[str, Any], now: float) -> Markup:
    """Render the newest facts."""
    rows = [
        (
            one["stream"],
            one["token"],
            ago(one["at"], now),
            one["writer"],
            one["serial"],
            one["rows"],
        )
        for one in status["recent"]
    ]
    return section("Recent changes", table(RECENT, rows, is_slim=True), is_wide=True)
