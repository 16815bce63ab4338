"""Every number synrepl exports."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

if TYPE_CHECKING:
    # A daemon has none, and need not have all that makes them in memory.
    from synrepl.caches import CacheInfo, CacheRegistry

__all__ = ["OTHERS", "POSITION_WRITERS", "Metrics"]

POSITION_WRITERS: Final = 100
"""Writers of one stream that have a series of their own."""
OTHERS: Final = "(others)"
"""The label of all further ones."""


class Metrics:
    """Built once a process and handed down. Labels come from closed sets, never from users, rooms or peers'
    names; writers, which name themselves, are bounded (`POSITION_WRITERS`).

    A counter's name gets ``_total``; all begin with ``synrepl_``.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="synrepl", registry=registry)
        gauge = partial(Gauge, namespace="synrepl", registry=registry)
        self.registry = registry
        self.position = gauge(
            "stream_position",
            f"Token reached. Of a stream with more writers than {POSITION_WRITERS}, the others share the"
            f" writer {OTHERS}: the highest token that any of them has reached.",
            ["stream", "writer"],
        )
        self.lag_seconds = gauge(
            "replication_lag_seconds",
            "How long ago the one furthest behind (this process or one of its followers) had everything.",
        )
        self.lag_rows = gauge("replication_lag_rows", "Facts that the one furthest behind still lacks.")
        self.gaps_detected = counter("gaps_detected", "Times that facts were found to be missing.")
        self.gaps_repaired = counter("gaps_repaired", "Times that missing facts were fetched.")
        self.gaps_lost = counter("gaps_lost", "Times that missing facts could not be had, and were given up.")
        self.rows = counter(
            "rows", "Rows taken into the log (direction in), whoever reads them.", ["stream", "direction"]
        )
        self.stream_bytes = counter("stream_bytes", "Bytes of rows taken into the log.", ["stream"])
        self.invalidations = counter(
            "invalidations_seen", "Cache invalidations taken into the log, by the name they say.", ["cache"]
        )
        self.bytes = counter("bytes", "Bytes over connections.", ["direction"])
        self.bytes_in = self.bytes.labels("in")
        self.bytes_out = self.bytes.labels("out")
        self.connections = gauge("connections", "Open replication connections.")
        self.send_buffer = gauge("send_buffer_bytes", "Bytes waiting in the transports of all connections.")
        self.reconnects = counter("reconnects", "Times that a lost connection was opened again.")
        self.commands = counter("commands_received", "Commands received.", ["command"])
        self._commands: dict[str, Counter] = {}
        self.commands_dropped = counter(
            "commands_dropped",
            "Commands that were to be passed on, up or down, and were not: no connection, no room, or no word"
            " for them.",
            ["command"],
        )
        self.commands_unread = counter(
            "commands_unread",
            "Commands that fell out of the feed (GET /v1/commands) before anybody acknowledged them.",
            ["command"],
        )
        self.errors_sent = counter("errors_sent", "Peers told ERROR and closed.")
        self.catch_up_requests = counter(
            "catch_up_requests", "Pages of missed rows fetched or served.", ["direction"]
        )
        self.catch_up_failures = counter("catch_up_failures", "Fetches of missed rows that failed.")
        self.readers_behind = gauge("readers_behind", "Followers now reading from the log.")
        self.readers_demoted = counter(
            "readers_demoted", "Times that a follower fell back to reading from the log."
        )
        self.readers_promoted = counter("readers_promoted", "Times that such a follower went live again.")
        self.facts_withheld = counter(
            "facts_withheld", "Facts that a follower's release has no way to be told of.", ["stream"]
        )
        self.rows_refused = counter(
            "rows_refused", "Rows received that no known release writes so.", ["stream"]
        )
        self.facts_appended = counter("facts_appended", "Facts made durable.")
        self.oldest_unfinished_id_age = gauge(
            "oldest_unfinished_id_age_seconds",
            "Age of the oldest id reserved but not finished.",
            ["stream", "writer"],
        )
        self.epoch = gauge("epoch", "The epoch of the log.")
        self.serial = gauge("serial", "The last serial of the log.")
        self.begin_serial = gauge("begin_serial", "The serial up to which the log was trimmed.")
        self.role = gauge("role", "1 for what this daemon is: primary, replica or fenced.", ["role"])
        self.claims_refused = counter(
            "claims_refused", "Claims of other daemons to be primary that were refused.", ["code"]
        )
        self.later_epochs = counter(
            "later_epochs", "Replicas refused since they know a later epoch than this primary."
        )
        self.replicas = gauge("replicas", "Replicas known here, by how they are doing.", ["state"])
        self.lease_used = gauge("lease_used_ratio", "Of the lease that is used up most, how much; 1 ends it.")
        self.join_remaining = gauge("catchup_remaining_rows", "Serials that a joining replica still lacks.")
        self.files_stored = gauge("files_stored", "Files kept here.")
        self.files_stored_bytes = gauge("files_stored_bytes", "Bytes of the files kept here.")
        self.files_wanted = gauge("files_wanted", "Files that are to be fetched.")
        self.files_failing = gauge("files_failing", "Files of these that could not be fetched so far.")
        self.files_quarantined = gauge("files_quarantined", "Files that were found damaged, and put aside.")
        self.caches = CacheNumbers()
        registry.register(self.caches)

    def watch_caches(self, caches: "CacheRegistry") -> None:
        """Show the numbers of these caches, as they are when they are asked for."""
        self.caches.watched = caches

    def count_commands(self, commands: Iterable[Command | RdataRun]) -> None:
        """Count what came over a connection, by command."""
        for command in commands:
            name = "RDATA" if isinstance(command, RdataRun) else command.NAME
            counter = self._commands.get(name)
            if counter is None:
                counter = self._commands[name] = self.commands.labels(name)
            counter.inc(len(command.rows) if isinstance(command, RdataRun) else 1)


_COUNTED: Final[tuple[tuple[str, str, "Callable[[CacheInfo], int]"], ...]] = (
    ("hits", "Values given without computing them.", lambda info: info.hits),
    ("misses", "Values that had to be computed.", lambda info: info.misses),
    ("evictions", "Values dropped to make room.", lambda info: info.evictions),
    ("invalidations", "Invalidations applied.", lambda info: info.invalidations),
)


class CacheNumbers(Collector):
    """What a worker's caches have counted, read when it is asked for: counting itself costs them enough."""

    def __init__(self) -> None:
        self.watched: CacheRegistry | None = None

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Each number of each cache."""
        caches = {} if self.watched is None else self.watched.caches
        for name, what, count in _COUNTED:
            counter = CounterMetricFamily(f"synrepl_cache_{name}", what, labels=["cache"])
            for cache, info in caches.items():
                counter.add_metric([cache], count(info))
            yield counter
        entries = GaugeMetricFamily("synrepl_cache_entries", "Values held.", labels=["cache"])
        for cache, info in caches.items():
            entries.add_metric([cache], info.entries)
        yield entries
        unknown = CounterMetricFamily(
            "synrepl_cache_unknown_invalidations", "Invalidations that name no cache and no alias here."
        )
        if self.watched is not None:
            unknown.add_metric([], sum(self.watched.unknown.values()))
        yield unknown
