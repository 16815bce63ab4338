"""Who reads this log: replicas, what is kept for them, and followers."""

from collections.abc import Mapping
from typing import Any, Final

from synrepl.html.humanize import counted, size, span
from synrepl.html.markup import Markup, details, facts, mark
from synrepl.replication.relay import RELAY_STATES, REPLICA_STATES
from synrepl.transports.http.status_page.markup import bar, section, table, timed
from synrepl.transports.http.status_page.words import address, ago, lag

__all__ = ["followers", "leases", "replicas"]

SHOWN: Final = 100
"""Rows of a table at most; `synrepl leases list` and ``GET /v1/leases`` have all of them."""
OPEN: Final = 25
"""More rows than these are folded away."""

KINDS: Final = {
    "ended": "bad",
    "lost": "bad",
    "behind": "busy",
    "never seen": "busy",
    "live": "good",
    "idle": "good",
}
REPLICA: Final = ("name", "state", "lag", "serial", "connection", "heard", "where", "why")


def replicas(status: Mapping[str, Any], now: float) -> Markup:
    """Those that are worst off first."""
    found = status["replicas"]
    if not found:
        return Markup()
    counts = {state: sum(one["state"] == state for one in found) for state in KINDS}
    beyond = status.get("more_replicas", 0)
    told = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    told += f", {beyond:,} more" if beyond else ""
    words = facts((state, REPLICA_STATES[state]) for state, count in counts.items() if count)
    rows = [_replica(one, now) for one in found[:SHOWN]]
    shown = table(REPLICA, rows, beyond=len(found) + beyond - len(rows))
    folded = details(told, shown, name="replicas") if len(found) > OPEN else shown
    legend = details("what the states mean", words, name="replica-states")
    return section("Replicas", folded, legend, note="" if len(found) > OPEN else told, is_wide=True)


def _replica(one: Mapping[str, Any], now: float) -> tuple[object, ...]:
    relay = one["relay"]
    means = RELAY_STATES.get(relay or "", "it asks over HTTP" if relay == "http" else "")
    return (
        timed(one["name"] or "(no name)", one["uuid"]),
        mark(one["state"], KINDS.get(one["state"], "busy"), REPLICA_STATES.get(one["state"], "")),
        lag(one["lag_rows"], one["lag_seconds"]),
        one["serial"],
        mark(relay, "dim", means) if relay else "none",
        ago(one["seen"], now) or "never",
        address(one["address"]),
        one["why"],
    )


LEASE: Final = ("name", "used", "kept beyond", "holds back", "ends when away for", "")


def leases(status: Mapping[str, Any], now: float) -> Markup:
    """What is kept for whom: those that hold most back first."""
    found = status["leases"]
    if not found:
        return Markup()
    rows = [_lease(one, now) for one in found[:SHOWN]]
    beyond = status.get("more_leases", 0)
    shown = table(LEASE, rows, beyond=len(found) + beyond - len(rows))
    ended = sum(one["ended"] is not None for one in found)
    told = counted(len(found) - ended, "lease") + (f", {ended} ended" if ended else "")
    told += f", {beyond:,} more" if beyond else ""
    note = "The log is kept from the serial of the lease on, within bytes and time."
    folded = details(told, shown, name="leases") if len(found) > OPEN else shown
    return section("Leases", folded, note=note, is_wide=True)


def _lease(one: Mapping[str, Any], now: float) -> tuple[object, ...]:
    kind = "" if one["registered"] else "anonymous"
    if one["ended"] is not None:
        used: object = mark("ended", "bad")
        kind = f"{kind} {one['reason']}".strip()
    else:
        label = f"used of the lease of {one['name']}"
        filled = bar(one["used"], label=label, kind="bad" if one["used"] >= 0.8 else "")
        used = Markup(f"{filled}{one['used']:.0%}")
    return (
        timed(one["name"] or "(no name)", one["uuid"]),
        used,
        one["serial"],
        size(one["held_bytes"]),
        span(one["ends_after_seconds"]) if one["ended"] is None else ago(one["ended"], now),
        kind,
    )


FOLLOWER: Final = ("name", "dialect", "state", "lag", "serial", "connected for")


def followers(status: Mapping[str, Any]) -> Markup:
    """Workers: the slowest first."""
    found = status["followers"]
    rows = [
        (
            one["name"] or "(no name yet)",
            one["dialect"] or "(not known yet)",
            mark("behind", "busy", "it reads from the log") if one["behind"] else mark("live", "good"),
            lag(one["lag_rows"], one["lag_seconds"]),
            one["serial"],
            span(one["connected_seconds"]),
        )
        for one in found[:SHOWN]
    ]
    shown = table(FOLLOWER, rows, beyond=len(found) - SHOWN)
    if len(found) > OPEN:
        shown = details(counted(len(found), "follower"), shown, name="followers")
    return section("Followers", shown, is_wide=True)
