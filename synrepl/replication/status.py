"""What this daemon says about itself: the worst part first, and answers even while errors stand."""

from typing import Any, Final, Protocol

from synrepl.ports.interfaces import IClock, ILog
from synrepl.replication.publisher import Publisher
from synrepl.streams.table import StreamTable

__all__ = ["STATES", "DescribedLog", "DescribedSources", "DescribedTables", "describe"]

STATES: Final = {
    "serving": "facts are taken and sent",
    "failing": "facts cannot be made durable just now; what is kept is still sent",
    "behind": "a table or Redis cannot be read just now, or facts are missing; what is kept is still sent",
}
"""The words that `state` can be."""


class DescribedLog(ILog, Protocol):
    """What is asked of the log beside its contract."""

    @property
    def healthy(self) -> tuple[bool, str]:
        """Whether appends can be expected to work; if not, why."""

    def head_age(self) -> float:
        """Seconds since a group was last committed, or since the start."""

    def clock(self) -> dict[str, dict[str, int]]:
        """The positions of every stream that has any facts."""


class DescribedTables(Protocol):
    """What is asked of whoever follows tables."""

    def describe(self, now: float) -> dict[str, Any]:
        """How each stream is doing (`tables`), and what the writers tell (`writers`)."""

    def troubles(self) -> list[tuple[str, float]]:
        """What is wrong, in words, and when it was last right, in Unix seconds."""

    def is_followed(self, stream: str) -> bool:
        """Whether the facts of this stream come from a table."""


class DescribedSources(Protocol):
    """What is asked of all that facts are heard from."""

    def describe(self) -> dict[str, Any]:
        """How each is doing (`redis`, `following`), and who is `stuck`."""

    def troubles(self) -> list[tuple[str, float]]:
        """What is wrong, in words, and since when, in Unix seconds."""

    def reasons(self) -> list[tuple[str, float]]:
        """Of these, why what is here is not all there is."""

    def lag_seconds(self) -> float:
        """How long ago it had all that was told."""

    def lag_rows(self) -> int:
        """How many tokens are known to be missing."""


def describe(
    *,
    log: DescribedLog,
    publisher: Publisher,
    table: StreamTable,
    tables: DescribedTables | None,
    sources: DescribedSources | None,
    clock: IClock,
    instance: str,
    server_name: str,
    started_at: float,
    version: str,
) -> dict[str, Any]:
    """The status as JSON has it. Times are in seconds; lags are those of the follower furthest behind."""
    now = clock.seconds()
    errors = _errors(log, now)
    is_failing = bool(errors)
    for what, since in tables.troubles() if tables is not None else ():
        errors.append({"what": what, "since": round(since, 3)})
    for what, since in sources.troubles() if sources is not None else ():
        errors.append({"what": what, "since": round(since, 3)})
    lag_rows, lag_seconds = (sources.lag_rows(), sources.lag_seconds()) if sources is not None else (0, 0.0)
    followers = _followers(publisher, now)
    return {
        "role": "primary",
        "state": "failing" if is_failing else "behind" if errors else "serving",
        "errors": errors,
        "server_name": server_name,
        "instance": instance,
        "epoch": log.epoch,
        "serial": log.serial,
        "digest": log.digest,
        "lag_rows": max(lag_rows, *(follower["lag_rows"] for follower in followers), 0),
        "lag_seconds": round(max(lag_seconds, *(follower["lag_seconds"] for follower in followers), 0.0), 3),
        "upstream": None,
        "replicas": [],
        "leases": [],
        "followers": followers,
        "streams": _streams(log, table),
        **(tables.describe(now) if tables is not None else {"tables": [], "writers": []}),
        **(sources.describe() if sources is not None else {"redis": None, "following": [], "stuck": []}),
        "version": version,
        "uptime_seconds": round(now - started_at, 3),
    }


def _errors(log: DescribedLog, now: float) -> list[dict[str, Any]]:
    """What is wrong, the worst first. `since` is when it was last known to be right, in Unix seconds."""
    is_healthy, why = log.healthy
    return [] if is_healthy else [{"what": f"log: {why}", "since": round(now - log.head_age(), 3)}]


def _followers(publisher: Publisher, now: float) -> list[dict[str, Any]]:
    """Whoever is furthest behind first."""
    described = []
    for follower in publisher.followers:
        reader = follower.reader
        described.append(
            {
                "name": follower.name,
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


def _streams(log: DescribedLog, table: StreamTable) -> dict[str, Any]:
    """Every stream known here, and every one that the log holds."""
    positions = log.clock()
    streams = {
        stream.name: {"writers": positions.pop(stream.name, {}), "kept": not stream.ephemeral}
        for stream in table
    }
    streams |= {name: {"writers": writers, "kept": True} for name, writers in positions.items()}
    return streams
