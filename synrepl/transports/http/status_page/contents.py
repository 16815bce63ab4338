"""Sections on the data: streams, files, epochs and recent facts."""

from collections.abc import Mapping
from typing import Any, Final

from synrepl.html.humanize import counted, size, span
from synrepl.html.markup import Markup, details, element, facts, mark
from synrepl.transports.http.status_page.markup import ago, section, short, table

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
    entries = {name: entry for name, entry in status["streams"].items() if entry["writers"]}
    empty = [name for name, entry in status["streams"].items() if not entry["writers"]]
    left = ALL_WRITERS
    parts = []
    for name, entry in list(entries.items())[:STREAMS]:
        writers = entry["writers"]
        visible = sorted(writers.items(), key=lambda pair: (-pair[1], pair[0]))[: min(WRITERS, left)]
        left -= len(visible)
        parts.append(_stream(name, entry, visible))
    if len(entries) > STREAMS:
        parts.append(element("p", f"and {len(entries) - STREAMS:,} more streams", class_="dim"))
    if empty:
        parts.append(
            details(Markup(_dimmed(f"{len(empty)} without facts")), ", ".join(empty), name="empty-streams")
        )
    return section("Streams", *parts, is_wide=True)


def _stream(name: str, entry: Mapping[str, Any], visible: list[tuple[str, int]]) -> Markup:
    writers = entry["writers"]
    where = "" if entry["kept"] else ", in memory only"
    if len(writers) <= INLINE:
        text = ", ".join(f"{writer} {token:,}" for writer, token in sorted(writers.items()))
    else:
        text = f"{counted(len(writers), 'writer')}, up to {max(writers.values()):,}"
    summary = Markup(f"{element('b', name)} {_dimmed(text + where)}")
    rows = table(("writer", "position"), visible, beyond=len(writers) - len(visible), is_slim=True)
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
    entry = status.get("files")
    if entry is None or not any(
        entry[key] for key in ("stored", "wanted", "missing", "failing", "quarantined")
    ):
        return Markup()
    oldest = entry["oldest_seconds"]
    bad = entry["quarantined"]
    rows = [
        ("stored", f"{counted(entry['stored'], 'file')}, {size(entry['stored_bytes'])}"),
        ("fetched", RULES.get(entry["rule"], entry["rule"])),
        ("missing", mark(f"{entry['missing']:,}", "busy") if entry["missing"] else "none"),
        ("wanted", f"{entry['wanted']:,}, {entry['in_flight']:,} being fetched" if entry["wanted"] else None),
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
        for failed in entry["failing"]
    ]
    return section("Files", facts(rows), table(FAILING, failing), is_wide=bool(failing))


WHY: Final = {
    "promoted": "another daemon took over",
    "lost": "the source lost facts",
    "restored": "the log was restored",
}


def epoch_starts(status: Mapping[str, Any], now: float) -> Markup:
    """Render the epochs, newest first."""
    entries = sorted(
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
        for epoch_start in entries[:20]
    ]
    visible = table(("epoch", "began", "why", "after serial", ""), rows, beyond=len(entries) - 20)
    return section("Epochs", visible, note="Before the first of these, the epoch was 1." if rows else "")


RECENT: Final = ("stream", "token", "when", "writer", "serial", "rows")


def recent(status: Mapping[str, Any], now: float) -> Markup:
    """Render the newest facts."""
    rows = [
        (
            entry["stream"],
            entry["token"],
            ago(entry["at"], now),
            entry["writer"],
            entry["serial"],
            entry["rows"],
        )
        for entry in status["recent"]
    ]
    return section("Recent changes", table(RECENT, rows, is_slim=True), is_wide=True)
