"""Status: this daemon's own report, problems first. It can be built even while errors persist."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from synrepl.html.humanize import counted
from synrepl.ports.interfaces import IClock
from synrepl.replication.publisher import Publisher
from synrepl.replication.relay.leases import WARN_AT
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from synrepl.wire.filter import Filter
from synrepl.wire.text import printable

STATES: Final = {
    "failing": "facts cannot be stored, or stored facts cannot be read; readable facts are still sent",
    "stopped": "this copy is ahead of its upstream, or its history differs: an operator must decide (resync)",
    "fenced": "another daemon is primary; this one refuses appends",
    "joining": "this replica has no complete copy yet, and answers no reads",
    "stale": "this replica was last up to date longer ago than --stale-seconds and may lack newer facts; its"
    " facts are still sent",
    "handing over": "another daemon is becoming primary; appends are refused for a moment",
    "behind": "an upstream, a table or Redis cannot be read, facts or files are missing, or there is another"
    " error; stored facts are still sent",
    "serving": "appends are accepted (a replica forwards them to its primary), and facts are sent",
}
"""The values of `state`, the most severe first."""

SHOWN: Final = 200
"""Replicas and leases listed, those in the worst state first; the rest are counted."""

REPLICA_TROUBLES: Final = ("ended", "lost", "behind")
"""The states of replicas that need attention, the worst first. A ``never seen`` replica may still connect."""

BEHIND_SECONDS: Final = 1.0
"""A replica that is fewer seconds behind than this needs no attention."""

RECENT: Final = 20
"""The number of newest facts listed."""


class StatusPart(Protocol):
    """A part of the daemon that has a section in the status, such as the files."""

    def status(self) -> dict[str, Any]:
        """The section."""

    def problems(self) -> list[tuple[str, float]]:
        """Problems, each with its start in Unix seconds."""


class StatusSource(StatusPart, Protocol):
    """A part of the daemon that receives facts: ingest, or replication."""

    def not_ready_reasons(self) -> list[tuple[str, float]]:
        """The reasons this daemon may be missing data, each with its start in Unix seconds."""

    def lag_seconds(self) -> float:
        """Seconds since this daemon was last up to date with its sources, or its upstream."""

    def lag_rows(self) -> int:
        """The number of facts that are known to be missing."""


NO_INGEST: Final[dict[str, Any]] = {"tables": [], "writers": [], "redis": None, "following": [], "stuck": []}
NO_REPLICATION: Final[dict[str, Any]] = {
    "role": "primary",
    "state": "",
    "name": "",
    "holds": "",
    "upstream": None,
    "replicas": [],
    "leases": [],
    "epoch_starts": [],
}


def build_status(
    *,
    log: Log,
    publisher: Publisher,
    table: StreamTable,
    ingest: StatusSource | None,
    replication: StatusSource | None,
    files: StatusPart | None = None,
    clock: IClock,
    instance: str,
    server_name: str,
    started_at: float,
    version: str,
) -> dict[str, Any]:
    """The status as a JSON object. Times are in Unix seconds, durations in seconds.

    A lag is the worst of this daemon's own lag, behind its sources or its upstream, and its followers' lags.
    """
    now = clock.seconds()
    is_healthy, why = log.healthy
    errors = [] if is_healthy else [{"what": f"log: {why}", "since": round(log.failing_since(), 3)}]
    replicated = dict(NO_REPLICATION if replication is None else replication.status())
    state = replicated.pop("state")
    if errors:
        state = "failing"
    troubles = [] if replication is None else [*replication.not_ready_reasons(), *replication.problems()]
    for part in (ingest, files):
        troubles += [] if part is None else part.problems()
    errors += [{"what": what, "since": round(since, 3)} for what, since in troubles]
    followers = _followers(publisher, now)
    lagging = [part for part in (ingest, replication) if part is not None]
    section = files.status() if files is not None else None
    rows = [part.lag_rows() for part in lagging] + [follower["lag_rows"] for follower in followers]
    seconds = [part.lag_seconds() for part in lagging] + [follower["lag_seconds"] for follower in followers]
    return {
        "role": "primary",
        "state": state or ("behind" if errors else "serving"),
        "errors": errors,
        "warnings": list(_warnings(replicated, followers, section)),
        "server_name": server_name,
        "instance": instance,
        "epoch": log.epoch,
        "serial": log.serial,
        "digest": log.digest,
        "trimmed_upto": log.trimmed_upto.serial,
        "history": log.history,
        "uuid": log.uuid,
        "lag_rows": max(rows, default=0),
        "lag_seconds": round(max(seconds, default=0.0), 3),
        **_bounded(replicated),
        "files": section,
        "followers": followers,
        "streams": _streams(log, table, publisher.holdings.filter),
        "recent": _recent(publisher),
        **(ingest.status() if ingest is not None else NO_INGEST),
        "version": version,
        "uptime_seconds": round(now - started_at, 3),
    }


def _bounded(status: Mapping[str, Any]) -> dict[str, Any]:
    """The same status with at most `SHOWN` replicas and leases, and the number of the rest."""
    shown = dict(status)
    for kind in ("replicas", "leases"):
        shown[kind] = status[kind][:SHOWN]
        shown[f"more_{kind}"] = len(status[kind]) - len(shown[kind])
    return shown


def _warnings(
    replicated: Mapping[str, Any], followers: list[dict[str, Any]], files: Mapping[str, Any] | None
) -> Iterator[str]:
    """Return what needs attention elsewhere: replicas, leases, followers, quarantined files."""
    states = Counter(
        replica["state"]
        for replica in replicated["replicas"]
        # Under load a replica is always a moment behind.
        if replica["state"] != "behind" or replica["lag_seconds"] >= BEHIND_SECONDS
    )
    counts = [(states[state], state) for state in REPLICA_TROUBLES if states[state]]
    if counts:
        (first, state), *others = counts
        others_text = (f", {count:,} {other}" for count, other in others)
        yield f"{counted(first, 'replica')} {state}{''.join(others_text)}"
    if used := sum(lease["ended"] is None and lease["used"] >= WARN_AT for lease in replicated["leases"]):
        yield f"{counted(used, 'lease')} nearly used up"
    if behind := sum(follower["behind"] for follower in followers):
        yield f"{counted(behind, 'follower')} behind"
    if files is not None and files["quarantined"]:
        yield f"{counted(files['quarantined'], 'file')} quarantined"


def _recent(publisher: Publisher) -> list[dict[str, Any]]:
    return [
        {
            "serial": fact.serial or None,
            "stream": fact.stream,
            "writer": fact.writer,
            "token": fact.token,
            "rows": jsontext.count_rows(fact.rows),
            "at": fact.committed_at_ms / 1000,
        }
        for fact in publisher.ring.recent(RECENT)
    ]


def _followers(publisher: Publisher, now: float) -> list[dict[str, Any]]:
    described = []
    for follower in publisher.followers:
        reader = follower.reader
        described.append(
            {
                "name": printable(follower.name),
                "dialect": None if follower.dialect is None else follower.dialect.name,
                "connected_seconds": round(now - follower.connected_at, 3),
                "behind": reader is not None and reader.is_behind,
                "lag_rows": 0 if reader is None else publisher.lag_rows(reader),
                "lag_seconds": 0.0 if reader is None else round(publisher.lag_seconds_at(reader.serial), 3),
                "serial": None if reader is None else reader.serial,
            }
        )
    described.sort(key=lambda entry: (entry["lag_seconds"], entry["lag_rows"]), reverse=True)
    return described


def _streams(log: Log, table: StreamTable, held: Filter) -> dict[str, Any]:
    """Every known stream, and every stream of the log, limited to those that a filtered copy holds."""
    positions = {
        name: {writer: token for writer, token in writers.items() if held.passes(name, writer)}
        for name, writers in log.positions_by_stream().items()
        if held.streams is None or name in held.streams
    }
    streams = {
        stream.name: {"writers": positions.pop(stream.name, {}), "kept": not stream.ephemeral}
        for stream in table
        if held.streams is None or stream.name in held.streams
    }
    streams |= {name: {"writers": writers, "kept": True} for name, writers in positions.items()}
    return streams
