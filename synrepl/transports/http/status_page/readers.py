"""Sections on readers: replicas, leases and followers."""

from collections.abc import Mapping
from typing import Any, Final

from synrepl.html.humanize import counted, size, span
from synrepl.html.markup import Markup, details, facts, mark
from synrepl.replication.relay.registry import RELAY_STATES, REPLICA_STATES
from synrepl.transports.http.status_page.markup import address, ago, bar, lag, section, table, timed

__all__ = ["followers", "leases", "replicas"]

SHOWN: Final = 100
"""Maximum rows of a table; `synrepl leases list` and ``GET /v1/leases`` have all of them."""
OPEN: Final = 25
"""More rows than this are folded."""

KINDS: Final = {
    "ended": "bad",
    "lost": "bad",
    "behind": "busy",
    "never seen": "busy",
    "live": "good",
    "idle": "good",
}
REPLICA: Final = ("name", "state", "lag", "serial", "connection", "last message", "address", "why")


def replicas(status: Mapping[str, Any], now: float) -> Markup:
    """Render the replicas, those with problems first."""
    entries = status["replicas"]
    if not entries:
        return Markup()
    counts = {state: sum(entry["state"] == state for entry in entries) for state in KINDS}
    beyond = status.get("more_replicas", 0)
    summary = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    summary += f", {beyond:,} more" if beyond else ""
    words = facts((state, REPLICA_STATES[state]) for state, count in counts.items() if count)
    rows = [_replica(entry, now) for entry in entries[:SHOWN]]
    shown = table(REPLICA, rows, beyond=len(entries) + beyond - len(rows))
    folded = details(summary, shown, name="replicas") if len(entries) > OPEN else shown
    legend = details("what the states mean", words, name="replica-states")
    return section("Replicas", folded, legend, note="" if len(entries) > OPEN else summary, is_wide=True)


def _replica(entry: Mapping[str, Any], now: float) -> tuple[object, ...]:
    relay = entry["relay"]
    means = RELAY_STATES.get(relay or "", "it follows over HTTP" if relay == "http" else "")
    return (
        timed(entry["name"] or "(no name)", entry["uuid"]),
        mark(entry["state"], KINDS.get(entry["state"], "busy"), REPLICA_STATES.get(entry["state"], "")),
        lag(entry["lag_rows"], entry["lag_seconds"]),
        entry["serial"],
        mark(relay, "dim", means) if relay else "none",
        ago(entry["seen"], now) or "never",
        address(entry["address"]),
        entry["why"],
    )


LEASE: Final = ("name", "used", "retained after", "retained bytes", "expires after absence of", "")


def leases(status: Mapping[str, Any], now: float) -> Markup:
    """Render the leases, those that retain most first."""
    entries = status["leases"]
    if not entries:
        return Markup()
    rows = [_lease(entry, now) for entry in entries[:SHOWN]]
    beyond = status.get("more_leases", 0)
    shown = table(LEASE, rows, beyond=len(entries) + beyond - len(rows))
    ended = sum(entry["ended"] is not None for entry in entries)
    summary = counted(len(entries) - ended, "lease") + (f", {ended} ended" if ended else "")
    summary += f", {beyond:,} more" if beyond else ""
    note = "A lease retains the facts after its serial, within its limits of bytes and time."
    folded = details(summary, shown, name="leases") if len(entries) > OPEN else shown
    return section("Leases", folded, note=note, is_wide=True)


def _lease(entry: Mapping[str, Any], now: float) -> tuple[object, ...]:
    kind = "" if entry["registered"] else "anonymous"
    if entry["ended"] is not None:
        used: object = mark("ended", "bad")
        kind = f"{kind} {entry['reason']}".strip()
    else:
        label = f"used of the lease of {entry['name']}"
        filled = bar(entry["used"], label=label, kind="bad" if entry["used"] >= 0.8 else "")
        used = Markup(f"{filled}{entry['used']:.0%}")
    return (
        timed(entry["name"] or "(no name)", entry["uuid"]),
        used,
        entry["serial"],
        size(entry["held_bytes"]),
        span(entry["ends_after_seconds"]) if entry["ended"] is None else ago(entry["ended"], now),
        kind,
    )


FOLLOWER: Final = ("name", "dialect", "state", "lag", "serial", "connected for")


def followers(status: Mapping[str, Any]) -> Markup:
    """Render the followers, slowest first."""
    entries = status["followers"]
    rows = [
        (
            entry["name"] or "(no name yet)",
            entry["dialect"] or "(not known yet)",
            mark("behind", "busy", "it reads from disk") if entry["behind"] else mark("live", "good"),
            lag(entry["lag_rows"], entry["lag_seconds"]),
            entry["serial"],
            span(entry["connected_seconds"]),
        )
        for entry in entries[:SHOWN]
    ]
    shown = table(FOLLOWER, rows, beyond=len(entries) - SHOWN)
    if len(entries) > OPEN:
        shown = details(counted(len(entries), "follower"), shown, name="followers")
    return section("Followers", shown, is_wide=True)
