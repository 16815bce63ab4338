"""What this daemon says about itself: the worst part first, and answers even while errors stand."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from synrepl.ports.interfaces import IClock, ILog
from synrepl.replication.publisher import Publisher
from synrepl.streams import jsontext
from synrepl.streams.table import StreamTable
from synrepl.wire.filter import Filter
from synrepl.wire.text import printable

__all__ = [
    "STATES",
    "StatusIngest",
    "StatusReplication",
    "StatusFiles",
    "StatusLog",
    "build_status",
]

STATES: Final = {
    "failing": "facts cannot be made durable, or what is kept cannot be read, just now; what can be is sent",
    "stopped": "this replica's history has parted from its upstream's: an operator must decide (resync)",
    "fenced": "another daemon is primary; this one takes no facts",
    "joining": "this replica has no whole copy yet, and answers no reads",
    "stale": "this replica had everything longer ago than it is allowed to (--stale-seconds), and may lack"
    " what came since; what it has is still sent",
    "handing over": "another daemon is about to become primary; no facts are taken for a moment",
    "behind": "an upstream, a table or Redis cannot be read just now, or facts or files are missing; what is"
    " kept is still sent",
    "serving": "facts are taken, by a replica for its primary, and sent",
}
"""The words that `state` can be, the worst first."""

SHOWN: Final = 200
"""Replicas and leases that are shown, those that are worst off first; the others are counted."""

RECENT: Final = 20
"""How many of the newest facts are shown."""


class StatusLog(ILog, Protocol):
    """What is asked of the log beside its contract."""

    @property
    def healthy(self) -> tuple[bool, str]:
        """Whether the log can be expected to work; if not, why."""

    def failing_since(self) -> float:
        """When it was last known to work, if it is not healthy."""

    def head_age(self) -> float:
        """Seconds since a group was last committed, or since the start."""

    def positions_by_stream(self) -> dict[str, dict[str, int]]:
        """The positions of every stream that has any facts."""


class StatusIngest(Protocol):
    """What is asked of all that brings facts in."""

    def status(self, now: float) -> dict[str, Any]:
        """How each is doing: `tables`, `writers`, `redis`, `following`, and who is `stuck`."""

    def problems(self) -> list[tuple[str, float]]:
        """Current problems, each with its start in Unix seconds."""

    def not_ready_reasons(self) -> list[tuple[str, float]]:
        """Reasons this daemon may be missing data; each is one of `problems` too."""

    def is_followed(self, stream: str) -> bool:
        """Whether the facts of this stream come from a table."""

    def lag_seconds(self) -> float:
        """How long ago it had all that was told."""

    def lag_rows(self) -> int:
        """How many tokens are known to be missing."""


class StatusReplication(Protocol):
    """What is asked of what makes a daemon a primary, or a replica."""

    def status(self) -> dict[str, Any]:
        """What it is, and how it and its replicas are doing: `role`, `name`, `upstream`, `replicas`,
        `leases`, `turns`."""

    def state(self) -> str:
        """A word of `STATES`; empty if nothing is wrong."""

    def not_ready_reasons(self) -> list[tuple[str, float]]:
        """Reasons this daemon may be missing data, each with its start in Unix seconds."""

    def problems(self) -> list[tuple[str, float]]:
        """What else is wrong."""

    def lag_seconds(self) -> float:
        """How long ago this copy had everything."""

    def lag_rows(self) -> int:
        """How many facts it is known to lack."""


class StatusFiles(Protocol):
    """What is asked of the files by checksum."""

    def status(self) -> dict[str, Any]:
        """How they are doing."""

    def problems(self) -> list[tuple[str, float]]:
        """What is wrong with them, in words, and since when, in Unix seconds."""


NO_SOURCES: Final[dict[str, Any]] = {
    "tables": [],
    "writers": [],
    "redis": None,
    "following": [],
    "stuck": [],
}
NO_COPIES: Final[dict[str, Any]] = {
    "role": "primary",
    "name": "",
    "holds": "",
    "upstream": None,
    "replicas": [],
    "leases": [],
    "epoch_starts": [],
}


def build_status(
    *,
    log: StatusLog,
    publisher: Publisher,
    table: StreamTable,
    bringing: StatusIngest | None,
    copies: StatusReplication | None,
    files: StatusFiles | None = None,
    clock: IClock,
    instance: str,
    server_name: str,
    started_at: float,
    version: str,
) -> dict[str, Any]:
    """The status as JSON has it. Times are in seconds; lags are the worst of this daemon's own, behind what
    it hears or follows, and of its followers'.
    """
    now = clock.seconds()
    errors = _errors(log)
    state = "failing" if errors else copies.state() if copies is not None else ""
    for what, since in _problems(bringing, copies, files):
        errors.append({"what": what, "since": round(since, 3)})
    followers = _followers(publisher, now)
    lagging = [part for part in (bringing, copies) if part is not None]
    rows = [part.lag_rows() for part in lagging] + [follower["lag_rows"] for follower in followers]
    seconds = [part.lag_seconds() for part in lagging] + [follower["lag_seconds"] for follower in followers]
    return {
        "role": "primary",
        "state": state or ("behind" if errors else "serving"),
        "errors": errors,
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
        **_bounded(copies.status() if copies is not None else NO_COPIES),
        "files": files.status() if files is not None else None,
        "followers": followers,
        "streams": _streams(log, table, publisher.holdings.filter),
        "recent": _recent(publisher),
        **(bringing.status(now) if bringing is not None else NO_SOURCES),
        "version": version,
        "uptime_seconds": round(now - started_at, 3),
    }


def _bounded(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same with up to `SHOWN` replicas and leases, and how many more there are."""
    shown = dict(told)
    for what in ("replicas", "leases"):
        shown[what] = told[what][:SHOWN]
        shown[f"more_{what}"] = len(told[what]) - len(shown[what])
    return shown


def _problems(
    bringing: StatusIngest | None, copies: StatusReplication | None, files: StatusFiles | None
) -> list[tuple[str, float]]:
    """All that is wrong, but for the log; the worst first."""
    found = [] if copies is None else [*copies.not_ready_reasons(), *copies.problems()]
    if bringing is not None:
        found += bringing.problems()
    if files is not None:
        found += files.problems()
    return found


def _recent(publisher: Publisher) -> list[dict[str, Any]]:
    """The newest facts, the newest first, without their rows."""
    return [
        {
            "serial": fact.serial or None,
            "stream": fact.stream,
            "writer": fact.writer,
            "token": fact.token,
            "rows": len(jsontext.split(fact.rows)),
            "at": fact.committed_at_ms / 1000,
        }
        for fact in publisher.ring.recent(RECENT)
    ]


def _errors(log: StatusLog) -> list[dict[str, Any]]:
    """What is wrong, the worst first. `since` is when it was last known to be right, in Unix seconds."""
    is_healthy, why = log.healthy
    return [] if is_healthy else [{"what": f"log: {why}", "since": round(log.failing_since(), 3)}]


def _followers(publisher: Publisher, now: float) -> list[dict[str, Any]]:
    """Whoever is furthest behind first."""
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
                "lag_seconds": 0.0 if reader is None else round(publisher.lag_seconds(reader), 3),
                "serial": None if reader is None else reader.serial,
            }
        )
    described.sort(key=lambda one: (one["lag_seconds"], one["lag_rows"]), reverse=True)
    return described


def _streams(log: StatusLog, table: StreamTable, held: Filter) -> dict[str, Any]:
    """Every stream known here, and every one that the log holds. A copy that holds only some streams or
    writers names no others."""
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
