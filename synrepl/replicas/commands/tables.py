"""Tables of the room of replicas in a daemon's status."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from synrepl.cli.tables import address, ago, bar, number, styled, table
from synrepl.html.humanize import size, span

STATE_WORDS: Final = {"ended": "its lease has ended"}


def status_tables(found: Mapping[str, Any], now: float, *, is_wide: bool) -> Iterable[Iterable[str]]:
    """Return the tables of the upstream, of replicas, leases and backups in a status."""
    return (
        _upstream(found),
        replicas_table(found.get("replicas") or [], now, is_wide=is_wide),
        leases_table(found.get("leases") or [], now, is_wide=is_wide),
        _backups(found.get("backups") or []),
    )


def _replica_lag(replica: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the lag in rows and in seconds; unknown if a replica is away and had everything."""
    if replica["state"] in {"lost", "ended", "never seen"} and not replica["lag_rows"]:
        return "unknown", "unknown"
    return replica["lag_rows"], number(replica["lag_seconds"])


def _upstream(found: Mapping[str, Any]) -> Iterator[str]:
    one = found.get("upstream")
    if one is None:
        return
    serials = one["serial"], found["serial"]
    row = (address(one["address"]), styled(one["state"]), *serials, ago(one["heard_seconds_ago"]))
    yield from table(("upstream", "state", "serial there", "serial here", "last received"), [row])
    if one["why"]:
        yield click.style(f"{one['state']}: {one['why']}", "yellow")
    yield from (f"only this copy had: {path}" for path in one["only_here"])
    if (join := one.get("join")) is not None:
        yield _progress(one["state"], join)


def _progress(state: str, join: Mapping[str, Any]) -> str:
    done, total, eta = join["done"], join["total"], join["eta_seconds"]
    what = "catching up" if state == "catching up" else "joining"
    if state in {"snapshot", "meanwhile", "adopting", "catching up"}:
        left = f"{span(eta)} left" if eta is not None else "..."
        pace = f"{join['rows_per_second']:,.0f}/s, {left}"
    else:
        pace = f"waiting: {state}"
    share = min(1.0, done / total) if total else 0.0
    return f"{what} {bar(share)}  {done:,} of {total:,}  {pace}"


def replicas_table(found: Sequence[Mapping[str, Any]], now: float, *, is_wide: bool = False) -> Iterator[str]:
    """Yield the table of replicas, in the order of the status: the worst first."""
    if found:
        rows = [
            (
                one["name"],
                styled(one["state"], STATE_WORDS.get(one["state"], one["state"])),
                one["relay"] or "none",
                one["serial"],
                *_replica_lag(one),
                "never" if one["seen"] is None else ago(now - one["seen"]),
                address(one["address"]),
                one["why"],
            )
            for one in found
        ]
        head = ("replica", "state", "connection", "serial", "lag rows", "lag seconds", "last seen", "address")
        yield from table((*head, "why"), rows, wide=("connection", "address"), is_wide=is_wide)


def _backups(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if found:
        rows = [
            (
                one["name"],
                "connected" if one["is_connected"] else "away",
                one["serial"],
                span(one["age_seconds"]),
            )
            for one in found
        ]
        yield from table(("backup", "state", "serial", "age"), rows)


def leases_table(found: Sequence[Mapping[str, Any]], now: float, *, is_wide: bool = False) -> Iterator[str]:
    """Yield the table of leases, in the order of the status: those that retain most first."""
    if found:
        rows = [
            (
                one["name"],
                "registered" if one["registered"] else "anonymous",
                styled("ended")
                if one["ended"] is not None
                else click.style(f"{one['used']:.0%}", "red" if one["used"] >= 0.8 else None),
                one["serial"],
                size(one["held_bytes"]),
                span(one["ends_after_seconds"])
                if one["ended"] is None
                else f"ended {ago(now - one['ended'])}",
                one["reason"],
            )
            for one in found
        ]
        head = ("lease", "kind", "used", "retained after", "retains", "expires when away for", "why")
        yield from table(head, rows, wide=("kind",), is_wide=is_wide)
