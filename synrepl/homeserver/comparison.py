"""Compares what was written, announced and received, and finds what is wrong; without I/O.

Each finding is sound: what a healthy homeserver may show for the time of an inspection is none. The rules say
why. Times are those of the looks, in seconds of a monotonic clock.

Three looks within 15 seconds (`inspection.py`) have the positions in the database, those that were
announced on Redis, and those that each process says in its metrics. A stream that does not move is one of
these findings:

* ``never_announced``: the database has a position that its writer has not told (`_never_announced`);
* ``not_received``: a process is below what another one had at the look before (`_not_received`);
* ``held``: ids are taken, and the position stands still, as a transaction is open (`find_held`);
* ``waiting_for_lock``: a transaction waits for another one (`find_lock_waits`);
* ``writer_not_running``: nobody writes the stream (`_not_running`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from synrepl.homeserver.configuration import Homeserver
from synrepl.homeserver.consumers import find_consumers
from synrepl.homeserver.duties import DOES
from synrepl.homeserver.file_findings import find_in_files, unseen_in_files
from synrepl.homeserver.findings import Finding, Unseen, with_cost
from synrepl.homeserver.looks import (
    POSITIONS_SINCE,
    DatabaseLook,
    Heard,
    Look,
    MetricsLook,
    UnreadableRows,
    release_of,
)
from synrepl.homeserver.merging import MAIN
from synrepl.homeserver.streams import WIRE, WRITER_KEYS
from synrepl.homeserver.transactions import (
    HELD_SECONDS,
    LATENESS_SECONDS,
    find_held,
    find_lock_waits,
    oldest_transaction,
)
from synrepl.html.humanize import counted, several
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import declared_commands
from synrepl.wire.dialect import Dialect, Release

HEARING_SECONDS: Final = 5.0
"""What was stored is heard of within so many seconds."""


NOT_FROM_HERE: Final = (
    ": it is not reachable from here; whether the processes reach it was not seen: run this where they run,"
    " or give their metrics"
)


def compare(homeserver: Homeserver, looks: Sequence[Look], *, has_asked: bool = False) -> list[Finding]:
    """Find what is wrong in these looks, the earliest first. `has_asked`: REPLICATE was published."""
    found = [
        *_unreachable(homeserver, looks),
        *_never_announced(homeserver, looks, has_asked=has_asked),
        *_not_received(looks),
        *find_held(looks),
        *find_lock_waits(looks),
        *_not_running(homeserver, looks),
        *_processes(homeserver, looks),
        *_channel(homeserver, looks, has_asked=has_asked),
        *_files(homeserver, looks),
        *_mixed_releases(looks),
        *find_consumers(homeserver, looks),
    ]
    return [with_cost(one) for one in found]


def unseen(homeserver: Homeserver, looks: Sequence[Look], findings: Sequence[Finding] = ()) -> list[Unseen]:
    """Return what could not be looked at, each with the option that helps, but for what `findings` say."""
    kinds = {one.kind for one in findings}
    found = unseen_in_files(homeserver)
    last = looks[-1] if looks else Look(at=0.0)
    if homeserver.database is not None and last.database is not None:
        found += [Unseen(what="database", why=why) for why in last.database.unread]
        if last.database.locked_out and "waiting_for_lock" not in kinds:
            parts = ", ".join(last.database.locked_out)
            found.append(
                Unseen(what="database", why=f"another session has locked what is needed for {parts}")
            )
    if last.database_trouble and "database_unreachable" not in kinds:
        found.append(Unseen(what="database", why=last.database_trouble))
    if last.heard is not None and last.heard.trouble and "redis_unreachable" not in kinds:
        away = any(look.connections for look in last.metrics.values())
        found.append(Unseen(what="Redis", why=f"{last.heard.trouble}{'' if away else NOT_FROM_HERE}"))
    if last.heard is not None:
        found += [
            Unseen(what=f"{stream} of {writer}", why=_unreadable(rows))
            for (stream, writer), rows in sorted(last.heard.unreadable.items())
        ]
    named = {one.process for one in findings if one.kind in ("fewer_subscribers", "silent_process")}
    named.update(one.what for one in found)
    found += [
        Unseen(what=f"metrics of {name}", why=look.trouble)
        for name, look in last.metrics.items()
        if look.trouble and name not in named
    ]
    blind: dict[str, list[str]] = {}
    for name, look in last.metrics.items():
        # Of a release that has none in any case it is noted.
        has_some = (release_of(look.release) or POSITIONS_SINCE) >= POSITIONS_SINCE
        if look.positions is None and not look.trouble and has_some:
            blind.setdefault(look.release, []).append(name)
    found += [
        Unseen(
            what=f"positions of {several(names)}",
            why=f"the metrics of {release or 'that release'} have none: whether a process received what was"
            " announced, and whether a writer does not run, was not judged",
        )
        for release, names in blind.items()
    ]
    return found


def _files(homeserver: Homeserver, looks: Sequence[Look]) -> Iterator[Finding]:
    """What is wrong in the files, for the releases that the processes show."""
    pages = looks[-1].metrics if looks else {}
    releases: set[Release] | None = {
        one for page in pages.values() if (one := release_of(page.release)) is not None
    }
    if not pages and any(one.metrics is not None for one in homeserver.processes):
        releases = None  # the pages come with another look
    there = {name for name, page in pages.items() if not page.trouble}
    heard = looks[-1].heard if looks else None
    if heard is not None:
        there.update(*heard.positions.values())
    return find_in_files(homeserver, releases, there=there)


def _unreadable(rows: UnreadableRows) -> str:
    at = "" if rows.token is None else f" at token {rows.token}"
    return (
        f"{counted(rows.count, 'row')} on Redis cannot be read, the first{at}: {rows.why};"
        " a daemon of synrepl records such facts as lost"
    )


# -- what cannot be asked ----------------------------------------------------------------------------------


def _unreachable(homeserver: Homeserver, looks: Sequence[Look]) -> Iterator[Finding]:
    """Yield a finding for a database or a Redis that could not be queried at two looks.

    Of the Redis processes must show that they have no connection to it: else it may be that only this machine
    cannot reach it, or does not trust its certificate, which Synapse does not check.
    """
    if len(looks) < 2:
        return
    before, last = looks[-2:]
    if before.database_trouble and last.database_trouble:
        yield Finding(
            kind="database_unreachable",
            since_seconds=round(last.at - before.at, 1),
            why=f"the database cannot be asked: {last.database_trouble}",
            remedy=last.database_hint or "start it, or correct `database` in homeserver.yaml",
        )
    if _is_redis_down(looks):
        assert last.heard is not None
        names = [name for name, look in sorted(last.metrics.items()) if look.connections == 0]
        without = f"; {', '.join(names)} {'have' if len(names) > 1 else 'has'} no connection to it"
        yield Finding(
            kind="redis_unreachable",
            since_seconds=round(last.at - before.at, 1),
            count=len(names),
            why=f"Redis cannot be asked: {last.heard.trouble}{without}: processes hear nothing of each other",
            remedy="start it, or correct `redis` in homeserver.yaml, and restart what does not come back",
        )


def _is_redis_down(looks: Sequence[Look]) -> bool:
    if len(looks) < 2 or not all(look.heard is not None and look.heard.trouble for look in looks[-2:]):
        return False
    shown = [look.connections for look in looks[-1].metrics.values() if look.connections is not None]
    return bool(shown) and not any(shown)


# -- written and announced ---------------------------------------------------------------------------------


def _never_announced(homeserver: Homeserver, looks: Sequence[Look], *, has_asked: bool) -> Iterator[Finding]:
    """Synapse notifies, then stores the position: what is stored was announced, or is at once.

    Three signs are sound. A position that moved between the first two looks was above everything heard before
    and since: the channel was subscribed before the first look. A position moved between two looks, and was
    not heard of `HEARING_SECONDS` later, while the channel had been subscribed as long before. A writer that
    answered REPLICATE for others of its streams had to answer for this one, if it may still write it.
    """
    databases = [look.database for look in looks if look.database is not None]
    heard = looks[-1].heard if looks else None
    if len(databases) < 2 or heard is None or heard.trouble:
        return
    first, later, last = databases[0], databases[1], databases[-1]
    has_listened = heard.since <= first.at and last.at - later.at >= HEARING_SECONDS - LATENESS_SECONDS
    answered = {writer for _, writer in heard.answers} if has_asked else set()
    for stream, writer, now in _each(last):
        wire = WIRE.get(stream)
        if wire is None:
            continue
        announced = heard.positions.get(wire, {}).get(writer, -1)
        position = _position(first, stream, writer)
        if (moved := _moved(databases, heard, stream, writer, announced)) is not None:
            what = f" ({now - moved} further within {last.at - first.at:.0f} s)"
        elif position is None or announced >= position:
            continue
        elif has_listened and (_position(later, stream, writer) or 0) > position:
            moved = position
            what = f" ({now - position} further within {last.at - first.at:.0f} s)"
        elif writer in answered and _is_writer(homeserver, stream, writer):
            what = ", and answered for other streams"
        else:
            continue
        said = f"announced only {announced}" if announced >= 0 else "announced nothing of it"
        base = announced if announced >= 0 else moved
        yield Finding(
            kind="never_announced",
            stream=wire,
            writer=writer,
            process=writer,
            position=now,
            since_seconds=round(last.at - first.at, 1),
            count=None if base is None else now - base,
            why=f"{writer} stored {stream} up to {now} in the database{what}, and {said} on Redis: other"
            " processes wait for it",
            remedy=f"restart {writer}; if it is so again, this release does not announce the stream from"
            " there: let the main process write it, or upgrade",
            command="synrepl inspect --ask",
        )


def _moved(
    databases: Sequence[DatabaseLook], heard: Heard, stream: str, writer: str, announced: int
) -> int | None:
    """The position before a move that the channel had to hear of, and did not; None without one."""
    for before, after in pairwise(databases):
        position, goal = _position(before, stream, writer), _position(after, stream, writer)
        if position is None or goal is None or not position < goal or announced >= goal:
            continue
        if (
            before.at - heard.since >= HEARING_SECONDS
            and databases[-1].at - after.at >= HEARING_SECONDS - LATENESS_SECONDS
        ):
            return position
    return None


def _position(look: DatabaseLook, stream: str, writer: str) -> int | None:
    return look.positions.get(stream, {}).get(writer)


def _is_writer(homeserver: Homeserver, stream: str, writer: str) -> bool:
    """Whether the configuration lets this process write the stream, as far as it says."""
    key = WRITER_KEYS.get(WIRE.get(stream, stream))
    return key is None or writer in homeserver.writers.get(key, (MAIN,))


def _each(look: DatabaseLook) -> Iterator[tuple[str, str, int]]:
    for stream, writers in sorted(look.positions.items()):
        for writer, position in sorted(writers.items()):
            yield stream, writer, position


# -- announced and received --------------------------------------------------------------------------------


def _not_received(looks: Sequence[Look]) -> Iterator[Finding]:
    """Yield a finding for each process that is below the highest position of the look before."""
    seen = [look for look in looks if look.metrics]
    if len(seen) < 2:
        return
    before, last = seen[0], seen[-1]
    highest: dict[str, tuple[int, str]] = {}
    for name, look in before.metrics.items():
        for stream, position in (look.positions or {}).items():
            if abs(position) > highest.get(stream, (-1, ""))[0]:
                highest[stream] = abs(position), name
    for name, look in sorted(last.metrics.items()):
        for stream, position in sorted((look.positions or {}).items()):
            wire = WIRE.get(stream, "")
            if not wire or wire == "caches" or stream not in highest:
                continue
            goal, ahead = highest[stream]
            if abs(position) >= goal:
                continue
            known = before.metrics.get(name)
            first = abs((known.positions or {}).get(stream, position)) if known is not None else abs(position)
            moves = "does not move" if first == abs(position) else f"was at {first} then"
            waits = look.timeouts.get(wire, 0) - (known.timeouts.get(wire, 0) if known is not None else 0)
            in_vain = f"; {waits} requests waited there for {wire} in vain meanwhile" if waits > 0 else ""
            yield Finding(
                kind="not_received",
                stream=wire,
                process=name,
                since_seconds=round(look.at - before.at, 1),
                count=goal - abs(position),
                why=f"{name} is at {abs(position)} of {stream}, and {ahead} was at {goal}"
                f" {look.at - before.at:.0f} s before; {name} {moves}{in_vain}",
                remedy=_receive_remedy(name, look),
                command=f"curl -s URL/_synapse/metrics | grep 'current_position.*{stream}'",
            )


def _receive_remedy(name: str, look: MetricsLook) -> str:
    if look.connections == 0:
        return f"{name} has no connection to Redis: check that it reaches Redis, and its log"
    return (
        f"look at the log of {name} for its connection to Redis and for errors while it processes rows;"
        f" --ask makes it fetch what it lacks; a restart of {name} does so too"
    )


# -- writers that do not run ---------------------------------------------------------------------------------


def _not_running(homeserver: Homeserver, looks: Sequence[Look]) -> Iterator[Finding]:
    """A writer that is configured and does not run, while all wait below an id that another one passed.

    An id that was rolled back is passed when each configured writer has announced a position above it. One
    that runs does so when it hears of the others, even if it is idle. Without a gap in the ids all go on.
    """
    seen = [look for look in looks if look.metrics and look.database is not None]
    if len(seen) < 2 or seen[-1].at - seen[0].at < HELD_SECONDS:
        return
    before, last = seen[0], seen[-1]
    if before.database is None or last.database is None:
        return
    still = last.at - before.at
    if oldest_transaction(last.database.open_transactions, still) is not None:
        return  # an id may be in flight
    for stream, positions in sorted(before.database.positions.items()):
        wire = WIRE.get(stream, "")
        configured = homeserver.writers.get(WRITER_KEYS.get(wire, ""), ())
        linear = _linear(last, stream)
        if linear is None or linear != _linear(before, stream):
            continue
        ahead = [
            writer
            for writer, position in positions.items()
            if position > linear
            and (look := last.metrics.get(writer))
            and look.positions
            and look.connections
        ]
        for writer in configured if ahead else ():
            refused = [writer in look.metrics and look.metrics[writer].is_refused for look in (before, last)]
            if all(refused) and positions.get(writer, 0) <= linear:
                goal = positions[ahead[0]]
                yield Finding(
                    kind="writer_not_running",
                    stream=wire,
                    writer=writer,
                    process=writer,
                    position=linear,
                    since_seconds=round(still, 1),
                    count=goal - linear,
                    why=f"all processes stay at {linear} of {wire}, and {ahead[0]} stored {goal} before: an"
                    f" id between was given up, and {writer}, which stream_writers names, does not run",
                    remedy=f"start {writer}; or remove it from stream_writers and restart all processes",
                )


def _linear(look: Look, stream: str) -> int | None:
    """How far the process is that is furthest."""
    pages = [one.positions or {} for one in look.metrics.values()]
    return max((abs(page[stream]) for page in pages if stream in page), default=None)


# -- processes and the channel -----------------------------------------------------------------------------


def _processes(homeserver: Homeserver, looks: Sequence[Look]) -> Iterator[Finding]:
    seen = [look for look in looks if look.metrics]
    if len(seen) < 2:
        return
    for name, last in sorted(seen[-1].metrics.items()):
        before = seen[0].metrics.get(name)
        if before is None:
            continue
        if last.is_silent and before.is_silent:
            yield Finding(
                kind="silent_process",
                process=name,
                since_seconds=round(last.at - before.at, 1),
                why=f"{name} did not answer, twice: {last.trouble}",
                remedy=f"look whether {name} is stopped (kill -CONT), or busy; else restart it",
            )
        if (
            homeserver.redis is not None
            and last.connections == 0
            and before.connections == 0
            and not _is_redis_down(looks)
        ):
            yield Finding(
                kind="not_connected",
                process=name,
                since_seconds=round(last.at - before.at, 1),
                why=f"{name} has no connection to Redis: it hears of nothing, and announces nothing",
                remedy="look at its log; check that it reaches Redis, and the password in its configuration",
            )


def _channel(homeserver: Homeserver, looks: Sequence[Look], *, has_asked: bool) -> Iterator[Finding]:
    heards = [look.heard for look in looks if look.heard is not None and not look.heard.trouble]
    if not heards or heards[-1] is not looks[-1].heard:
        return
    last = heards[-1]
    if last.replica_of:
        yield Finding(
            kind="redis_replica",
            why=f"the Redis of the homeserver is a replica of {last.replica_of}: what processes publish there"
            " reaches the subscribers of this replica alone, and no error tells of it",
            remedy=f"give all processes the address of the master, {last.replica_of}, or of a proxy that"
            " follows it; if no replica is meant: redis-cli REPLICAOF NO ONE, and find out who made it one",
            command="redis-cli ROLE",
        )
    yield from _subscribers(homeserver, heards, [look for look in looks if look.metrics])
    yield from _unknown_writers(homeserver, last)
    if has_asked:
        for one, answers in sorted(last.answers.items()):
            stream, writer = one
            # Not at both questions, if it was another process that asked as well, as one that starts does.
            if answers > 1 and last.asks > 1 and last.rows.get(one, 0) == 0:
                yield Finding(
                    kind="name_twice",
                    stream=stream,
                    writer=writer,
                    process=writer,
                    count=answers,
                    why=f"{answers} processes answered as {writer} to one REPLICATE",
                    remedy="give each process a name of its own, and end the one that is too many",
                )
                return


def _subscribers(
    homeserver: Homeserver, heards: Sequence[Heard], measured: Sequence[Look]
) -> Iterator[Finding]:
    """Fewer at each count than the processes whose files were given; others may listen as well.

    Of those that are missing, the ones are known whose machine says, twice, that nothing listens there; and
    all, if no more are left when those are taken away that show a connection to Redis. A process that shows
    that it has none runs: `not_connected` tells of it.
    """
    counts = [heard.subscribers for heard in heards if heard.subscribers is not None]
    expected = [one.name for one in homeserver.processes if one.file]
    in_files = len(expected)
    if len(counts) < 2 or max(counts) >= in_files:
        return
    pages = [look.metrics for look in (measured[0], measured[-1])] if len(measured) > 1 else []
    cut_off = [name for name in expected if pages and all(_has_no_connection(page, name) for page in pages)]
    expected = [name for name in expected if name not in cut_off]
    missing = len(expected) - max(counts)
    if missing <= 0:
        return
    listen = f"{max(counts)} of the {counted(in_files, 'process', 'processes')} in the files listen on Redis"
    command = f"redis-cli PUBSUB NUMSUB {homeserver.server_name}"
    since = round(measured[-1].at - measured[0].at, 1) if pages else None
    down = {
        name: f"{name} does not run: {pages[-1][name].trouble}"
        for name in expected
        if pages and all(name in page and page[name].is_refused for page in pages)
    }
    down = dict(list(down.items())[:missing])
    left = [name for name in expected if name not in down]
    silent = [name for name in left if not (pages and all(_is_connected(page, name) for page in pages))]
    if missing > len(down) and len(silent) == missing - len(down):
        maybe = "does not run, or has lost its connection to Redis: all others show theirs"
        down |= {name: f"{name} {maybe}" for name in silent}
    for name, why in down.items():
        yield Finding(
            kind="fewer_subscribers",
            process=name,
            count=1,
            since_seconds=since,
            why=f"{why}, and {listen}{_only(homeserver, name)}",
            remedy=f"start {name}; its log says why it ended",
            command=command,
        )
    if missing > len(down):
        yield Finding(
            kind="fewer_subscribers",
            count=missing - len(down),
            why=f"{listen}: {', '.join(name for name in expected if name not in down)} should",
            remedy="look which one does not run, or has lost its connection to Redis",
            command=command,
        )


def _has_no_connection(page: Mapping[str, MetricsLook], name: str) -> bool:
    look = page.get(name)
    return look is not None and not look.trouble and look.connections == 0


def _is_connected(page: Mapping[str, MetricsLook], name: str) -> bool:
    look = page.get(name)
    return look is not None and bool(look.connections)


def _only(homeserver: Homeserver, name: str) -> str:
    """What no other process writes and does, as the end of a sentence."""
    process = homeserver.process(name)
    if process is None:
        return ""
    others = [one for one in homeserver.processes if one.name != name and one.file]
    streams = sorted(set(process.writes).difference(*(one.writes for one in others)))
    duties = sorted(set(process.duties).difference(*(one.duties for one in others)))
    does = [f"writes {', '.join(streams)}"] * bool(streams) + [DOES[duty] for duty in duties]
    return f"; only {name} {' and '.join(filter(None, (', '.join(does[:-1]), does[-1])))}" if does else ""


def _unreadable_by(older: Release, newer: Release) -> list[str]:
    """What the newer of two releases may announce, and the older cannot read."""
    old, new = Dialect(release=older, name=""), Dialect(release=newer, name="")
    known = StreamTable.default()
    there, here = known.known_to(new), known.known_to(old)
    found = [f"the stream {one.name}" for one in there if one not in here]
    found += [
        f"the command {one.NAME}"
        for one in declared_commands()
        if newer in one.SPAN and older not in one.SPAN
    ]
    longer = [one.name for one in there if one in here and _shapes(one, old) != _shapes(one, new)]
    return found + ([f"rows of {', '.join(longer)} in their new form"] if longer else [])


def _shapes(stream: Stream[Any], dialect: Dialect) -> dict[str, tuple[str, ...]]:
    return {tag: stream.shape(dialect, tag) for tag in stream.tags or ("",)}


def _mixed_releases(looks: Sequence[Look]) -> Iterator[Finding]:
    """Processes of different minor releases, with what the older ones cannot read."""
    pages = looks[-1].metrics if looks else {}
    shown = {name: one for name, page in sorted(pages.items()) if (one := release_of(page.release))}
    oldest, newest = min(shown.values(), default=None), max(shown.values(), default=None)
    if oldest is None or newest is None or oldest[:2] == newest[:2]:
        return
    old = [name for name, release in shown.items() if release[:2] < newest[:2]]
    lacks = _unreadable_by(oldest, newest)
    which = ", ".join(f"{name} {pages[name].release}" for name in shown)
    yield Finding(
        kind="mixed_releases",
        process=old[0] if len(old) == 1 else "",
        count=len(old),
        why=f"the processes are of different releases: {which}; {', '.join(old)} cannot read"
        f" {', '.join(lacks) if lacks else 'anything less'}",
        remedy=f"upgrade {', '.join(old)}, and restart {'them' if len(old) > 1 else 'it'}",
    )


def _unknown_writers(homeserver: Homeserver, heard: Heard) -> Iterator[Finding]:
    for (stream, writer), count in sorted(heard.rows.items()):
        key = WRITER_KEYS.get(stream)
        if key is None or _is_writer(homeserver, stream, writer):
            continue
        yield Finding(
            kind="unknown_writer",
            stream=stream,
            writer=writer,
            process=writer,
            count=count,
            why=f"{writer} writes {stream} ({count} rows heard), and stream_writers has"
            f" {', '.join(homeserver.writers.get(key, (MAIN,)))} for {key}",
            remedy="give all processes the same stream_writers and restart them, or end that process",
        )
