"""Status: this daemon's own report, problems first. It can be built even while errors persist."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import msgspec

from synrepl.base.access import LOCAL, Access
from synrepl.base.interfaces import IClock
from synrepl.base.problems import Problem
from synrepl.html.humanize import counted, size, span
from synrepl.replication.hooks import Hooks
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.status_parts import NO_INGEST, FactReceiver, Lagging, RoomPart, StatusPart
from synrepl.rooms import DaemonState
from synrepl.rooms import rooms as installed_rooms
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.filter import Filter
from synrepl.wire.text import printable

FAILING: Final = DaemonState(
    "failing",
    "facts cannot be stored, or stored facts cannot be read; readable facts are still sent",
    "read the error: after a full disk, or a database that could not be reached, facts are accepted again by"
    " themselves; a damaged file does not mend itself (manual: howto/operate)",
    kind="bad",
)
BEHIND: Final = DaemonState(
    "behind",
    "an upstream, a table or Redis cannot be read, facts or files are missing, or there is another"
    " error; stored facts are still sent",
    "read the errors; most end by themselves when the source is back (manual: howto/operate)",
)
SERVING: Final = DaemonState(
    "serving",
    "appends are accepted (a replica forwards them to its primary), and facts are sent",
    kind="good",
)


@cache
def states() -> Mapping[str, DaemonState]:
    """Return the values of `state`, the most severe first: those of the core and of all installed rooms."""
    found = (FAILING, *(one for room in installed_rooms() for one in room.states), BEHIND, SERVING)
    return MappingProxyType({one.word: one for one in found})


RATE_FACTS: Final = 1_000
RATE_SECONDS: Final = 60.0
"""The rate is that of the facts of the last minute, as far as the newest `RATE_FACTS` show it."""

SHOWN: Final = 200
"""Entries listed; the rest are counted."""

LOW_SHARE: Final = 0.1
LOW_BYTES: Final = 1024**3
"""Less than this share of the log's disk, and fewer bytes, are a warning before it is full."""

UNTOLD: Final = "this daemon has errors that a key for some streams does not see: ask its operator"
"""In place of all errors, for whom their texts would name other streams, their keys, and addresses."""

RECENT: Final = 20
"""The number of newest facts listed."""


def build_status(
    *,
    log: Log,
    publisher: Publisher,
    table: StreamTable,
    ingest: FactReceiver,
    hooks: Hooks | None = None,
    refused: RefusedFacts,
    rooms: Mapping[str, RoomPart] = MappingProxyType({}),
    clock: IClock,
    instance: str,
    server_name: str,
    started_at: float,
    version: str,
    access: Access = LOCAL,
) -> dict[str, Any]:
    """The status as a JSON object. Times are in Unix seconds, durations in seconds.

    A lag is the worst of this daemon's own lag, behind its sources or its upstream, and its followers' lags.
    A peer whose key is limited to some streams (`access`) is told nothing that names other streams or other
    readers: neither sources nor followers, only its own leases, and of errors only that there are some.
    """
    now = clock.seconds()
    is_healthy, why = log.healthy
    problems = [] if is_healthy else [Problem(f"log: {why}", log.failing_since())]
    role = (hooks or Hooks()).role
    worst = [role.state()] if is_healthy else [role.state(), FAILING.word]
    parts: list[StatusPart | RoomPart] = [*rooms.values(), ingest]
    problems += [problem for part in parts for problem in part.problems()]
    if problems and access.streams is not None:
        problems = [Problem(UNTOLD, min(problem.since for problem in problems))]
    errors = [{"what": problem.text, "since": round(problem.since, 3)} for problem in problems]
    order = states()
    state = next((word for word in order if word in worst), BEHIND.word if errors else SERVING.word)
    todo = [order[state].what_to_do] if order[state].what_to_do else []
    notices = [notice for part in rooms.values() for notice in part.notices(access)]
    notices += ingest.notices() if access.streams is None else []
    followers = _followers(publisher, now)
    lagging: list[Lagging] = [role, ingest]
    disk = _disk(log, access)
    rows = [part.lag_rows() for part in lagging] + [follower["lag_rows"] for follower in followers]
    seconds = [part.lag_seconds() for part in lagging] + [follower["lag_seconds"] for follower in followers]
    return {
        "role": role.role,
        "state": state,
        "errors": errors,
        "warnings": [
            *(notice.text for notice in notices),
            *_warnings(followers),
            *_disk_warnings(disk),
            *_refused_warnings(refused),
        ],
        "what_to_do": [*todo, *(advice for notice in notices for advice in notice.what_to_do)],
        "server_name": server_name,
        "instance": instance,
        "epoch": log.head.epoch,
        "serial": log.head.serial,
        "digest": log.head.digest,
        "trimmed_upto": log.head.trimmed_upto.serial,
        "history": log.history,
        "uuid": log.uuid,
        "lag_rows": max(rows, default=0),
        "lag_seconds": round(max(seconds, default=0.0), 3),
        "holds": publisher.read_gate.describe(),
        "epoch_starts": [
            msgspec.to_builtins(start.seen_by(access.streams)) for start in log.head.epoch_starts
        ],
        "refused": None if access.streams is not None else _refused(refused),
        "followers": followers if access.streams is None else [],
        "streams": _streams(log, table, publisher.read_gate.filter, access),
        "recent": recent_facts(publisher, access, RECENT),
        **(ingest.status() if access.streams is None else NO_INGEST),
        "version": version,
        "uptime_seconds": round(now - started_at, 3),
        "facts_per_second": _rate(publisher, now, started_at),
        "last_fact_at": next((fact.committed_at_ms / 1000 for fact in publisher.ring.recent()), None),
        "disk": disk,
        **{key: value for room in installed_rooms() for key, value in room.absent_status.items()},
        **{key: value for part in rooms.values() for key, value in part.status(access).items()},
    }


def _disk(log: Log, access: Access) -> dict[str, Any] | None:
    usage = log.disk_usage()
    if usage is None:
        return None
    # A program of this machine is nobody's business who may not see all.
    reader = log.checkpoints.oldest_reader if access.streams is None else ""
    return {**usage, "wal_held_seconds": log.checkpoints.held_seconds, "wal_reader": reader}


def _disk_warnings(disk: Mapping[str, Any] | None) -> Iterator[str]:
    """A write-ahead log that another program keeps from being shortened, and a disk that is nearly full."""
    if disk is None:
        return
    if seconds := disk["wal_held_seconds"]:
        reader = disk["wal_reader"]
        yield (
            f"the -wal of the log has {size(disk['wal_bytes'])} and grows: {reader or 'another program'}"
            f" keeps a transaction open in the log's file, for {span(seconds)}; end it"
            + ("" if reader else " (fuser FILE lists the programs)")
        )
    if disk["free_bytes"] < min(LOW_SHARE * disk["disk_bytes"], LOW_BYTES):
        yield (
            f"the log's disk has {size(disk['free_bytes'])} left of {size(disk['disk_bytes'])}: when it is"
            " full appends are refused; free some space, or keep facts for less time (--retain-seconds)"
        )


def _refused(refused: RefusedFacts) -> dict[str, Any]:
    return {
        "facts": len(refused),
        "bytes": refused.size,
        "unkept": [
            {"stream": stream, "writer": writer, **msgspec.structs.asdict(one)}
            for (stream, writer), one in islice(refused.unkept.items(), SHOWN)
        ],
    }


def _refused_warnings(refused: RefusedFacts) -> Iterator[str]:
    if len(refused):
        yield f"{counted(len(refused), 'fact')} could not be read: synrepl refused lists what was sent"
    if unkept := sum(one.facts for one in refused.unkept.values()):
        yield f"{counted(unkept, 'fact')} could not be read, and there was no room to keep what was sent"


def _rate(publisher: Publisher, now: float, started_at: float) -> float:
    """The facts per second that were committed lately."""
    began = max(now - RATE_SECONDS, started_at)
    times = sorted([fact.committed_at_ms for fact in islice(publisher.ring.recent(), RATE_FACTS)])
    if len(times) == RATE_FACTS:
        began = max(began, times[0] / 1000)
    return round((len(times) - bisect_left(times, began * 1000)) / max(now - began, 1.0), 3)


def _warnings(followers: list[dict[str, Any]]) -> Iterator[str]:
    """Return what needs attention elsewhere: followers."""
    if behind := sum(follower["behind"] for follower in followers):
        yield f"{counted(behind, 'follower')} behind"


def recent_facts(
    publisher: Publisher, access: Access, limit: int, streams: frozenset[str] | None = None
) -> list[dict[str, Any]]:
    """Describe the newest facts in memory that the peer may see, newest first, at most `limit` of them.

    `streams` selects streams (None: all). `at` is in Unix seconds, `rows` a number.
    """
    facts = (fact for fact in publisher.ring.recent() if access.sees(fact.stream))
    return [
        {
            "serial": fact.serial or None,
            "stream": fact.stream,
            "writer": fact.writer,
            "token": fact.token,
            "rows": jsontext.count_rows(fact.rows),
            "at": fact.committed_at_ms / 1000,
        }
        for fact in islice((one for one in facts if streams is None or one.stream in streams), limit)
    ]


def _followers(publisher: Publisher, now: float) -> list[dict[str, Any]]:
    described = []
    for follower in publisher.followers:
        sender = follower.sender
        described.append(
            {
                "name": printable(follower.name),
                "dialect": None if follower.dialect is None else follower.dialect.name,
                "connected_seconds": round(now - follower.connected_at, 3),
                "behind": sender is not None and sender.feed.is_behind,
                "lag_rows": 0 if sender is None else publisher.lag.rows(sender.feed.serial),
                "lag_seconds": 0.0 if sender is None else round(publisher.lag.seconds(sender.feed.serial), 3),
                "serial": None if sender is None else sender.feed.serial,
            }
        )
    described.sort(key=lambda entry: (entry["lag_seconds"], entry["lag_rows"]), reverse=True)
    return described


def _streams(log: Log, table: StreamTable, held: Filter, access: Access) -> dict[str, Any]:
    """Every known stream and every stream of the log that a filtered copy holds and the peer may see."""
    positions = log.positions_by_stream()
    if not held.is_open:
        positions = {
            name: {writer: token for writer, token in writers.items() if held.passes(name, writer)}
            for name, writers in positions.items()
            if held.streams is None or name in held.streams
        }
    streams = {
        stream.name: {"writers": positions.pop(stream.name, {}), "kept": not stream.ephemeral}
        for stream in table
        if held.streams is None or stream.name in held.streams
    }
    streams |= {name: {"writers": writers, "kept": True} for name, writers in positions.items()}
    return {name: known for name, known in streams.items() if access.sees(name)}
