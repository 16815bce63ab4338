"""Tables of a daemon's status for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, RenderableType
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
    "print_parts",
    "replicas",
    "span",
    "upstream",
]

SHOWN: Final = 50
"""Maximum rows of a table; `--json` has all."""

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


def state_text(state: str) -> Text:
    """Return a state in its color."""
    return Text(state, style=STYLES.get(state, "yellow"))


def span(seconds: float) -> str:
    """Return a duration in words, such as 2h 5m."""
    left = int(max(0.0, seconds))
    if left < 10:
        return f"{max(0.0, seconds):.1f}s"
    parts = [f"{left // length % most}{unit}" for unit, length, most in UNITS if left // length % most]
    return " ".join(parts[:2]) or "0s"


UNITS: Final = (("d", 86_400, 10**6), ("h", 3_600, 24), ("m", 60, 60), ("s", 1, 60))


def errors(found: Mapping[str, Any], now: float) -> list[RenderableType]:
    """Render the errors, the worst first."""
    return [
        Text(f"error: {one['what']} (for {span(now - one['since'])})", style="bold red")
        for one in found.get("errors", [])
    ]


def about(found: Mapping[str, Any]) -> RenderableType:
    """Render role, state and position."""
    table = Table(show_header=False, box=None)
    headline = state_text(str(found.get("state")))
    for warning in found.get("warnings") or ():
        headline.append(f"; {warning}", "yellow")
    table.add_row("state", headline)
    for key in ("role", "why", "holds", "name", "server_name", "instance", "epoch", "serial", "digest"):
        if found.get(key) not in {None, ""}:
            table.add_row(key, str(found[key]))
    for key in ("lag_rows", "lag_seconds"):
        table.add_row(key, str(found.get(key)))
    if found.get("role") != "primary" and found.get("primary"):
        table.add_row("primary", address(found["primary"]))
    if found.get("role") == "fenced":
        table.add_row("what to do", "synrepl resync: become a replica of the other daemon")
        table.add_row("", "synrepl promote --force: become primary again, if the other daemon is not")
    return table


def address(text: str) -> str:
    """Return the known addresses of a daemon."""
    return ", ".join(part for part in text.split() if part != "-")


def upstream(found: Mapping[str, Any]) -> list[RenderableType]:
    """Render the upstream and the progress of replication."""
    one = found.get("upstream")
    if one is None:
        return []
    table = Table("upstream", "", "serial there", "serial here", "last received")
    silent_seconds = one["heard_seconds_ago"]
    table.add_row(
        address(one["address"]),
        state_text(one["state"]),
        f"{one['serial']:,}",
        f"{found['serial']:,}",
        "never" if silent_seconds is None else f"{span(silent_seconds)} ago",
    )
    shown: list[RenderableType] = [table]
    if one["why"]:
        shown.append(Text(f"{one['state']}: {one['why']}", style="yellow"))
    if one["state"] == "stopped":
        shown.append(Text("what to do: synrepl resync; facts that only this copy has are written to a file"))
    shown += [Text(f"only this copy had: {path}") for path in one["only_here"]]
    shown += progress(one)
    return shown


def progress(one: Mapping[str, Any]) -> list[RenderableType]:
    """Render a progress bar while the daemon joins or catches up."""
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
        pace = f"waiting: {one['state']}"
    share = f"{done / total:.0%}" if total else "0%"
    row.add_row(what, ProgressBar(max(total, 1), done, width=30), share, f"{done:,} of {total:,}", pace)
    return [row]


def replicas(found: Sequence[Mapping[str, Any]], now: float) -> list[RenderableType]:
    """Render the replicas, the worst first."""
    if not found:
        return []
    table = Table(
        "replica", "", "connection", "serial", "lag in rows", "in seconds", "last seen", "address", "why"
    )
    table.columns[0].no_wrap = True
    for one in found[:SHOWN]:
        table.add_row(
            one["name"],
            state_text(one["state"]),
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
    """Render the leases, those that retain most first."""
    if not found:
        return []
    table = Table("lease", "", "used", "retained after", "retains", "expires when away for", "")
    table.columns[0].no_wrap = True
    for one in found[:SHOWN]:
        is_ended = one["ended"] is not None
        table.add_row(
            one["name"],
            "registered" if one["registered"] else "anonymous",
            state_text("ended")
            if is_ended
            else Text(f"{one['used']:.0%}", "red" if one["used"] >= 0.8 else ""),
            f"{one['serial']:,}",
            f"{one['held_bytes']:,} B",
            f"ended {span(now - one['ended'])} ago" if is_ended else span(one["ends_after_seconds"]),
            one["reason"],
        )
    return [table, *_more(found)]


def files(found: Mapping[str, Any], now: float) -> list[RenderableType]:
    """Render the counts of files by checksum and the failing fetches."""
    one = found.get("files")
    if one is None or not any(one[key] for key in ("stored", "wanted", "missing", "failing", "quarantined")):
        return []
    counts = (
        f"files: {one['stored']:,} stored ({one['stored_bytes']:,} B), {one['missing']:,} missing,"
        f" {one['wanted']:,} wanted, {one['in_flight']:,} in flight, {one['quarantined']:,} quarantined"
    )
    shown: list[RenderableType] = [Text(counts)]
    for failing in one["failing"]:
        left = failing["next_at"] - now
        when = f"in {span(left)}" if left > 0 else "now"
        text = f"    {failing['name']}: {failing['why']} ({failing['tries']} tries, the next {when})"
        shown.append(Text(text, style="yellow"))
    return shown


def _more(found: Sequence[object]) -> list[RenderableType]:
    return [Text(f"and {len(found) - SHOWN:,} more")] if len(found) > SHOWN else []


def print_parts(parts: Iterable[RenderableType], *, otherwise: str = "") -> None:
    """Print these parts, one below the other, or the text `otherwise` if there are none."""
    console = Console(highlight=False)
    for part in [*parts] or [otherwise]:
        console.print(part)
