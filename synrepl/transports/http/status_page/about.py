"""Sections on this daemon: its state, problems, log and upstream."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from synrepl.html.humanize import at, span
from synrepl.html.markup import Markup, element, facts, mark
from synrepl.replication.status import STATES
from synrepl.transports.http.status_page.markup import address, ago, bar, lag, section, short, timed

__all__ = ["KINDS", "errors", "log", "state", "upstream"]

KINDS: Final = {
    "failing": "bad",
    "stopped": "bad",
    "fenced": "bad",
    "joining": "busy",
    "stale": "busy",
    "handing over": "busy",
    "behind": "busy",
    "serving": "good",
}
"""The color of each state; the word is always shown, too."""

CONNECTION: Final = {"live": "good", "disconnected": "bad", "refused": "bad", "stopped": "bad", "off": "dim"}
STOPPED: Final = Markup(
    "Nothing is discarded automatically. <code>synrepl resync</code> saves the facts that only this copy"
    " has to a file, and joins again."
)
JOINING_STATES: Final = ("snapshot", "meanwhile", "adopting")


def state(status: Mapping[str, Any]) -> Markup:
    """Render the state, as the headline."""
    word, role = status["state"], status["role"]
    # The role repeats the state of a fenced daemon.
    role_note = element("small", f" · {role}") if role != word else ""
    headline = element(
        "p", Markup(element("span", word) + role_note), class_=f"state {KINDS.get(word, 'busy')}"
    )
    means = STATES.get(word, "")
    behind = lag(status["lag_rows"], status["lag_seconds"])
    text = f"{means}. Furthest behind: {behind}." if status["lag_rows"] else f"{means}."
    return Markup(headline + element("p", text, class_="dim"))


def errors(status: Mapping[str, Any], now: float) -> Markup:
    """Render the problems, most severe first, with their age."""
    if not status["errors"]:
        return Markup()
    lines = [
        element("li", Markup(element("b", problem["what"]) + Markup(" ") + _since(problem["since"], now)))
        for problem in status["errors"]
    ]
    # Transient problems are not red.
    kind = "busy" if KINDS.get(status["state"]) == "busy" else None
    return element("ul", Markup("".join(lines)), class_=" ".join(filter(None, ("errors", kind))))


def _since(moment: float, now: float) -> Markup:
    return element("span", f"for {span(now - moment)}", title=f"since {at(moment * 1000)}")


def log(status: Mapping[str, Any], now: float) -> Markup:
    """Render the daemon's role, position and addresses."""
    trimmed_upto = status.get("trimmed_upto") or 0
    role = status["role"]
    rows = [
        ("role", role),
        ("name", status.get("name")),
        ("holds", status.get("holds")),
        ("epoch", _epoch(status, now)),
        ("own serial", f"{status['serial']:,}"),
        ("trimmed up to", f"{trimmed_upto:,} (older facts were trimmed)" if trimmed_upto else None),
        ("digest", short(status["digest"])),
        ("history", short(status.get("history") or "")),
        ("address", address(status.get("address"))),
        ("primary", address(status.get("primary")) if role != "primary" else None),
        ("not notified yet", ", ".join(map(address, status.get("unnotified") or ()))),
    ]
    return section("This daemon", facts(rows))


def _epoch(status: Mapping[str, Any], now: float) -> object:
    own = [
        epoch_start
        for epoch_start in status.get("epoch_starts") or ()
        if epoch_start["epoch"] == status["epoch"]
    ]
    if not own:
        return str(status["epoch"])
    return timed(
        f"{status['epoch']}, {own[-1]['why']} {span(now - own[-1]['at_ms'] / 1000)} ago",
        at(own[-1]["at_ms"]),
    )


def upstream(status: Mapping[str, Any], now: float) -> Markup:
    """Render a replica's upstream and the connection to it."""
    connection = status.get("upstream")
    if connection is None:
        return Markup()
    refusal = connection["refusal"]
    is_refused = refusal is not None and connection["state"] in (
        "refused",
        "stopped",
        "connecting",
        "disconnected",
    )
    received = connection["heard_seconds_ago"]
    is_following = connection["state"] != "stopped"
    rows = [
        (
            "connection",
            Markup(_connection(connection) + element("span", f" {connection['means']}", class_="dim")),
        ),
        ("since", ago(connection["since"], now)),
        ("refused", f"{refusal['code']}: {refusal['message']}" if is_refused else None),
        ("why", connection["why"] if not is_refused else None),
        ("address", address(connection["address"])),
        ("last message", f"{span(received)} ago" if received is not None else "never"),
        ("epoch", str(connection["epoch"]) if connection["epoch"] is not None else None),
        ("upstream serial", f"{connection['serial']:,}"),
        ("own serial", f"{status['serial']:,}"),
        (
            "lag",
            lag(max(0, connection["serial"] - status["serial"]), status["lag_seconds"])
            if is_following
            else None,
        ),
        ("saved facts", Markup("<br>").join(element("code", path) for path in connection["only_here"])),
    ]
    todo = element("p", STOPPED) if connection["state"] == "stopped" else ""
    return section("Upstream", todo, *_progress(connection), facts(rows))


def _connection(connection: Mapping[str, Any]) -> Markup:
    return mark(connection["state"], CONNECTION.get(connection["state"], "busy"), connection["means"])


def _progress(connection: Mapping[str, Any]) -> Iterator[Markup]:
    """Render the progress of a join or catch-up."""
    join = connection["join"]
    if join is None:
        return
    done, total = join["done"], join["total"]
    share = done / total if total else 0.0
    eta = join["eta_seconds"]
    what = "catching up" if connection["state"] == "catching up" else "joining"
    is_moving = connection["state"] in (*JOINING_STATES, "catching up")
    if is_moving:
        left = f"about {span(eta)} left" if eta is not None else "remaining time unknown"
        pace = f"{join['rows_per_second']:,.0f} facts/s, {left}"
    else:
        pace = "stopped; received facts are kept, and the join continues from there"
    yield element("p", f"{what}: {done:,} of {total:,} facts ({share:.0%})")
    yield Markup(bar(share, label=what).replace("<progress", '<progress class="join"', 1))
    yield element("p", pace, class_="dim")
