"""Finds those who read the events and are down, behind or failing; without I/O."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from synrepl.homeserver.configuration import Homeserver
from synrepl.homeserver.duties import BY_NAME
from synrepl.homeserver.file_findings import notes_on_addresses, notes_on_releases
from synrepl.homeserver.findings import Finding
from synrepl.homeserver.looks import (
    POSITIONS_SINCE,
    Consumers,
    EventsProgress,
    Look,
    MetricsLook,
    release_of,
)
from synrepl.html.humanize import counted, several
from synrepl.wire.text import printable

BEHIND_EVENTS: Final = 1_000
"""A consumer so many ids behind the events, and not moving, is behind."""
WAITING_SECONDS: Final = 60.0
"""So is one that an event waits for so long, while new ones come and call it."""
SET_APPSERVICES_POSITION: Final = (
    "UPDATE appservice_stream_position SET stream_ordering = (SELECT max(stream_ordering) FROM events);"
)
NAMED_GATEWAYS: Final = 5
"""The most gateways that one finding names."""


def find_consumers(homeserver: Homeserver, looks: Sequence[Look]) -> Iterator[Finding]:
    """Find those who read the events that are down, behind or failing."""
    databases = [look.database for look in looks if look.database is not None]
    if not databases:
        return
    last = databases[-1].consumers
    # One failed transaction makes it down until the next try, two seconds later.
    down = set.intersection(
        *({one.name for one in look.consumers.appservices if one.is_down} for look in databases)
    )
    if homeserver.appservices is not None:
        down &= set(homeserver.appservices)
    for service in last.appservices:
        if service.name in down:
            waiting = service.first_waiting is not None
            count = (service.last_waiting or 0) - (service.first_waiting or 0) + 1 if waiting else None
            waits = (
                f": transactions {service.first_waiting} to {service.last_waiting} wait" if waiting else ""
            )
            yield Finding(
                kind="appservice_down",
                process=service.name,
                count=count,
                why=f"the application service {service.name} refused a transaction, or could not be"
                f" reached{waits}",
                remedy=f"look at the log of {service.name}; Synapse tries again by itself, later each time",
            )
    if homeserver.appservices != ():
        yield from _behind(
            "appservices_behind",
            "the sender of application services",
            [look.consumers.appservices_reader for look in databases],
            [look.consumers.events for look in databases],
            f"look at the log of {_notifier(homeserver)}; if it stands still without an error, stop that"
            " process,"
            " set the position, and start it again",
            cure=SET_APPSERVICES_POSITION,
            cost="the events between are sent to no application service: its rooms miss those messages",
        )
    for sender in sorted(last.federation):
        if _sends(homeserver, sender):
            yield from _behind(
                "federation_behind",
                f"the federation sender {sender}",
                [look.consumers.federation.get(sender) for look in databases],
                [look.consumers.events for look in databases],
                f"look whether {sender} runs, and at its log",
                process=sender,
            )
    yield from (one for one, is_wrong in _pushers(homeserver, last) if is_wrong)


def _notifier(homeserver: Homeserver) -> str:
    """The process that sends to application services, as far as the files say."""
    names = [one.name for one in homeserver.processes if "appservices" in one.duties]
    return names[0] if len(names) == 1 else "the process that notify_appservices_from_worker names"


def _sends(homeserver: Homeserver, name: str) -> bool:
    """Whether this process sends federation, as far as the files that were given say."""
    process = homeserver.process(name)
    if process is not None and process.file:
        return "federation" in process.duties
    return any(key.startswith(BY_NAME["federation"].names) for key in homeserver.named.get(name, ()))


def _pushers(homeserver: Homeserver, consumers: Consumers) -> Iterator[tuple[Finding, bool]]:
    """Yield what is to be said of failing pushers, and whether it is wrong.

    On most homeservers the gateways of some phones are gone, and always will be. It is wrong if pushers of
    several gateways fail, which have nothing in common but this homeserver, and none succeeded since the
    newest of them began to; or if none succeeds. A pusher without news is at an old position.
    """
    events = consumers.events
    if not homeserver.pushes or events is None:
        return
    failing = [one for one in consumers.failing_pushers if events > one.lowest.position]
    if not failing:
        return
    count = sum(one.count for one in failing)
    lowest = min((one.lowest for one in failing), key=lambda one: one.position)
    gateways = ", ".join(
        f"{one.host} ({one.count}, such as {one.example})" for one in failing[:NAMED_GATEWAYS]
    )
    more = f" and {len(failing) - NAMED_GATEWAYS} more" if len(failing) > NAMED_GATEWAYS else ""
    since = _time(min(one.failing_since for one in failing))
    working = "" if consumers.has_working_pushers else ", and no pusher succeeds"
    yield (
        Finding(
            kind="pushers_failing",
            count=count,
            since_seconds=_rounded(lowest.waiting_seconds),
            why=f"{counted(count, 'pusher')} of {counted(len(failing), 'push gateway')} fail"
            f": {gateways}{more}; the first since {since}, up to {events - lowest.position} ids behind the"
            f" events{working}",
            remedy="look whether this host can reach the gateway, and at the log of the pusher",
        ),
        sum(one.newest_since >= (consumers.pushed_at or 0.0) for one in failing) > 1
        or not consumers.has_working_pushers,
    )


def remarks(homeserver: Homeserver, looks: Sequence[Look]) -> list[Finding]:
    """Return notes on what is unusual and not wrong."""
    databases = [look.database for look in looks if look.database is not None]
    # That a process is not measured is among what was not seen.
    found = [one for one in homeserver.notes if one.kind != "unmeasured"]
    pages = looks[-1].metrics if looks else {}
    found += notes_on_addresses(homeserver)
    found += notes_on_releases(
        homeserver, [one for page in pages.values() if (one := release_of(page.release))]
    )
    found += _notes_on_positions(pages)
    if databases:
        found += [one for one, is_wrong in _pushers(homeserver, databases[-1].consumers) if not is_wrong]
    return found


def _notes_on_positions(pages: Mapping[str, MetricsLook]) -> Iterator[Finding]:
    """Say what is not judged by the metrics of older releases."""
    names: dict[str, list[str]] = {}
    for name, page in pages.items():
        release = release_of(page.release)
        if page.positions is None and not page.trouble and release is not None and release < POSITIONS_SINCE:
            names.setdefault(page.release, []).append(name)
    for text, having in names.items():
        shown = several([printable(one) for one in having])
        yield Finding(
            kind="no_positions",
            process=having[0] if len(having) == 1 else "",
            count=len(having),
            why=f"the metrics of {shown} ({printable(text)}) have no positions of streams, as those of all"
            " releases before 1.163: whether a process received what was announced, and whether a writer does"
            " not run, was not judged",
            remedy="nothing: the database and Redis are looked at all the same",
        )


def _behind(
    kind: str,
    who: str,
    readers: Sequence[EventsProgress | None],
    events: Sequence[int | None],
    remedy: str,
    *,
    process: str = "",
    cure: str = "",
    cost: str = "",
) -> Iterator[Finding]:
    """Behind the events of the first look at the last, and standing still: far, or long although called.

    An event must wait for it at both: of outliers, as a join stores thousands, nobody is told. Each new event
    calls it. Until one comes, a reader may rest below the last events: Synapse does not store
    a position for events that are none of its business.
    """
    first, last, highest = readers[0], readers[-1], events[0]
    if first is None or last is None or highest is None or first.position != last.position:
        return
    if first.waiting_seconds is None or last.waiting_seconds is None:
        return
    behind = highest - last.position
    was_called = len(events) > 2 and (events[1] or 0) > highest
    is_late = was_called and last.waiting_seconds >= WAITING_SECONDS
    if behind >= BEHIND_EVENTS or (behind > 0 and is_late):
        yield Finding(
            kind=kind,
            process=process,
            since_seconds=_rounded(last.waiting_seconds),
            count=behind,
            why=f"{who} is at {last.position}, {behind} ids behind the events, and does not move",
            remedy=remedy,
            cure=cure,
            cost=cost,
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
