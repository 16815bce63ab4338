"""What a daemon is and how its copies are, in tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = [
    "SHOWN",
    "about",
    "errors",
    "files",
    "leases",
    "progress",
    "replicas",
    "span",
    "together",
    "upstream",
]

SHOWN: Final = 50
"""Rows of a table at most; `--json` has all."""

STYLES: Final = {
    "serving": "green",
    "live": "green",
    "idle": "green",
    "failing": "bold red",
    "stopped": "bold red",
    "fenced": "bold red",
    "lost": "red",
    "ended": "red",
    "refused": "red",
    "disconnected": "red",
}


def word(told: str) -> Text:
    """A state, in its color."""
    return Text(told, style=STYLES.get(told, "yellow"))


def span(seconds: float) -> str:
    """How long that is, as 2h 5m."""
    left = int(max(0.0, seconds))
    if left < 10:
        return f"{max(0.0, seconds):.1f}s"
    parts = [f"{left // length % most}{unit}" for unit, length, most in UNITS if left // length % most]
    return " ".join(parts[:2]) or "0s"


UNITS: Final = (("d", 86_400, 10**6), ("h", 3_600, 24), ("m", 60, 60), ("s", 1, 60))


def errors(found: Mapping[str, Any], now: float) -> list[RenderableType]:
    """What is wrong, the worst first."""
    return [
        Text(f"error: {one['what']} (for {span(now - one['since'])})", style="bold red")
        for one in found.get("errors", [])
    ]


def about(found: Mapping[str, Any]) -> RenderableType:
    """Where it stands."""
    table = Table(show_header=False, box=None)
    table.add_row("state", word(str(found.get("state"))))
    for key in ("role", "why", "holds", "name", "server_name", "instance", "epoch", "serial", "digest"):
        if found.get(key) not in {None, ""}:
            table.add_row(key, str(found[key]))
    for key in ("lag_rows", "lag_seconds"):
        table.add_row(key, str(found.get(key)))
    if found.get("role") != "primary" and found.get("primary"):
        table.add_row("primary", address(found["primary"]))
    if found.get("role") == "fenced":
        table.add_row("what to do", "synrepl resync: become a replica of that daemon")
        table.add_row("", "synrepl promote --force: become primary again, if that daemon is not")
    return table


def address(told: str) -> str:
    """Where a daemon is; its unknown half is left out."""
    return ", ".join(part for part in told.split() if part != "-")


def upstream(found: Mapping[str, Any]) -> list[RenderableType]:
    """Whom it follows, and how that goes."""
    one = found.get("upstream")
    if one is None:
        return []
    table = Table("upstream", "", "there", "here", "last heard")
    heard = one["heard_seconds_ago"]
    table.add_row(
        address(one["address"]),
        word(one["state"]),
        f"{one['serial']:,}",
        f"{found['serial']:,}",
        "never" if heard is None else f"{span(heard)} ago",
    )
    shown: list[RenderableType] = [table]
    if one["why"]:
        shown.append(Text(f"{one['state']}: {one['why']}", style="yellow"))
    if one["state"] == "stopped":
        shown.append(Text("what only this copy has is given up, and kept in a file, by: synrepl resync"))
    shown += [Text(f"only this copy had: {path}") for path in one["only_here"]]
    shown += progress(one)
    return shown


def progress(one: Mapping[str, Any]) -> list[RenderableType]:
    """A bar while it joins or catches up."""
    join = one.get("join")
    if join is None:
        return []
    done, total = join["done"], join["total"]
    row = Table.grid(padding=(0, 1))
    eta = join["eta_seconds"]
    what = "catching up" if one["state"] == "catching up" else "joining"
    if one["state"] in {"snapshot", "meanwhile", "adopting", "catching up"}:
        pace = f"{join['rows_per_second']:,.0f}/s, " + (f"{span(eta)} left" if eta is not None else "...")
    else:
        pace = f"held up: {one['state']}"
    share = f"{done / total:.0%}" if total else "0%"
    row.add_row(what, ProgressBar(max(total, 1), done, width=30), share, f"{done:,} of {total:,}", pace)
    return [row]


def replicas(found: Sequence[Mapping[str, Any]], now: float) -> list[RenderableType]:
    """Those that are worst off first."""
    if not found:
        return []
    table = Table("replica", "", "connection", "serial", "lag in rows", "in seconds", "heard", "where", "why")
    table.columns[0].no_wrap = True
    for one in found[:SHOWN]:
        table.add_row(
            one["name"],
            word(one["state"]),
            one["relay"] or "none",
            f"{one['serial']:,}",
            f"{one['lag_rows']:,}",
            str(one["lag_seconds"]),
            "never" if one["seen"] is None else f"{span(now - one['seen'])} ago",
            "\n".join(part for part in one["address"].split() if part != "-"),
            one["why"],
        )
    return [table, *_more(found)]


def leases(found: Sequence[Mapping[str, Any]], now: float) -> list[RenderableType]:
    """Those that hold most back first."""
    if not found:
        return []
    table = Table("lease", "", "used", "kept beyond", "holds back", "ends when away for", "")
    table.columns[0].no_wrap = True
    for one in found[:SHOWN]:
        is_ended = one["ended"] is not None
        table.add_row(
            one["name"],
            "registered" if one["registered"] else "anonymous",
            word("ended") if is_ended else Text(f"{one['used']:.0%}", "red" if one["used"] >= 0.8 else ""),
            f"{one['serial']:,}",
            f"{one['held_bytes']:,} B",
            f"ended {span(now - one['ended'])} ago" if is_ended else span(one["ends_after_seconds"]),
            one["reason"],
        )
    return [table, *_more(found)]


def files(found: Mapping[str, Any], now: float) -> list[RenderableType]:
    """Bytes by checksum: what is here, and what does not come."""
    one = found.get("files")
    if one is None or not any(one[key] for key in ("stored", "wanted", "missing", "failing", "quarantined")):
        return []
    told = (
        f"files: {one['stored']:,} stored ({one['stored_bytes']:,} B), {one['missing']:,} missing,"
        f" {one['wanted']:,} wanted, {one['in_flight']:,} on their way, {one['quarantined']:,} quarantined"
    )
    shown: list[RenderableType] = [Text(told)]
    for failing in one["failing"]:
        left = failing["next_at"] - now
        when = f"in {span(left)}" if left > 0 else "now"
        text = f"    {failing['name']}: {failing['why']} ({failing['tries']} tries, the next one {when})"
        shown.append(Text(text, style="yellow"))
    return shown


def _more(found: Sequence[object]) -> list[RenderableType]:
    return [Text(f"and {len(found) - SHOWN:,} more")] if len(found) > SHOWN else []


def together(parts: Sequence[RenderableType]) -> Group:
    """All of these, one below the other."""
    return Group(*parts)
