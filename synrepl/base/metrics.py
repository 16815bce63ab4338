"""All metrics that synrepl exports."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from synrepl.base.metric_values import Counter, Gauge, IRegistry
from synrepl.streams.facts import Fact
from synrepl.wire import jsontext
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

if TYPE_CHECKING:
    # Imported on use: with the first scrape.
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    # Not imported at run time: a daemon has no caches, and need not load their code.
    from synrepl.caches.registry import CacheRegistry

POSITION_WRITERS: Final = 100
"""The number of writers of one stream that get their own series."""
MAX_CACHES: Final = 500
"""The number of cache names that get their own counter: peers choose the names."""
MAX_NAME: Final = 100
"""The most characters of a cache name that gets a counter of its own."""
OTHERS: Final = "(others)"
"""The label of all further writers and caches."""


class Metrics:
    """The metrics of a process, created once and passed to its parts.

    Labels come from closed sets or are bounded, as peers choose the names of writers (`POSITION_WRITERS`) and
    of invalidated caches (`MAX_CACHES`). All names start with ``synrepl_``; a counter's name ends with
    ``_total``.
    """

    def __init__(self, registry: IRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.registry = registry
        self.position = gauge(
            "stream_position",
            f"Position of the writer. In a stream with more than {POSITION_WRITERS} writers, the others share"
            f" the writer {OTHERS}, with the highest of their positions.",
            ["stream", "writer"],
        )
        self.lag_seconds = gauge(
            "replication_lag_seconds",
            "Seconds since the process furthest behind was up to date: this one or one of its followers.",
        )
        self.lag_rows = gauge("replication_lag_rows", "Facts that the process furthest behind lacks.")
        self.gaps_detected = counter("gaps_detected", "Gaps found: facts were missing.")
        self.gaps_repaired = counter("gaps_repaired", "Gaps repaired: the missing facts were fetched.")
        self.gaps_lost = counter("gaps_lost", "Gaps given up: the facts are nowhere, or cannot be read.")
        self.rows = counter("rows", "Rows taken into the log, whether read or not.", ["stream"])
        self.channel_conflicts = counter(
            "channel_conflicts",
            "Messages of other processes on Redis under this process's name, or in a stream that it alone may"
            " write. They are ignored.",
        )
        self.stream_bytes = counter("stream_bytes", "Bytes of the rows taken into the log.", ["stream"])
        self.invalidations = counter(
            "invalidations_seen", "Cache invalidations taken into the log, by name.", ["cache"]
        )
        bytes_by_direction = counter("bytes", "Bytes over replication connections (not HTTP).", ["direction"])
        self.bytes_in = bytes_by_direction.labels("in")
        self.bytes_out = bytes_by_direction.labels("out")
        self.connections = gauge("connections", "Open replication connections.")
        self.send_buffer = gauge("send_buffer_bytes", "Unsent bytes of followers' and replicas' connections.")
        self.reconnects = counter("reconnects", "Attempts to reconnect (to Redis: those that succeeded).")
        self.commands = counter("commands_received", "Commands received.", ["command"])
        self._cache_names: set[str] = set()
        self.commands_dropped = counter(
            "commands_dropped",
            "Commands that could not be forwarded: no connection, a full buffer, invalid, too long, or"
            " unknown to the peer's release.",
            ["command"],
        )
        self.commands_unread = counter(
            "commands_unread",
            "Commands dropped from the feed (GET /v1/commands) before a client acknowledged them.",
            ["command"],
        )
        self.errors_sent = counter("errors_sent", "Connections closed with ERROR.")
        self.catch_up_requests = counter(
            "catch_up_requests", "Pages of missed rows that were fetched (out) or served (in).", ["direction"]
        )
        self.catch_up_failures = counter("catch_up_failures", "Fetches of missed rows that failed.")
        self.readers_behind = gauge("readers_behind", "Followers now reading from the log.")
        self.readers_demoted = counter(
            "readers_demoted", "Live followers that fell back to reading from the log."
        )
        self.readers_promoted = counter("readers_promoted", "Followers that went live after reading the log.")
        self.facts_withheld = counter(
            "facts_withheld", "Facts not sent, since the follower's release has no form for them.", ["stream"]
        )
        self.rows_refused = counter(
            "rows_refused", "Refused rows: no known release writes them in this form.", ["stream"]
        )
        self.facts_refused = counter(
            "facts_refused",
            "Refused rows and POSITIONs from a channel or a followed server, of a stream that takes none from"
            " there.",
            ["stream"],
        )
        self.refused_facts = gauge("refused_facts", "Facts that could not be read, kept as they were sent.")
        self.refused_unkept = counter(
            "refused_unkept", "Facts that could not be read, and that there was no room to keep.", ["stream"]
        )
        self.facts_appended = counter("facts_appended", "Facts taken into the log, also ephemeral ones.")
        self.oldest_unfinished_id_age = gauge(
            "oldest_unfinished_id_age_seconds",
            "Age of the writer's oldest id that is reserved and not finished.",
            ["stream", "writer"],
        )
        self.epoch = gauge("epoch", "The epoch of the log.")
        self.serial = gauge("serial", "The last serial of the log.")
        self.begin_serial = gauge("begin_serial", "The serial up to which the log is trimmed.")
        self.log_bytes = gauge(
            "log_bytes",
            "Bytes of a log in SQLite: its file, and wal, its write-ahead log.",
            ["part"],
        )
        self.disk_free = gauge("disk_free_bytes", "Bytes left on the disk of a log in SQLite.")
        self.wal_held = gauge(
            "wal_held_seconds",
            "How long another program keeps the write-ahead log of a log in SQLite from being shortened.",
        )
        self.role = gauge("role", "1 for this daemon's current role: primary, replica or fenced.", ["role"])
        self.turns = TurnNumbers()
        registry.register(self.turns)
        self.caches = CacheNumbers()
        registry.register(self.caches)

    def watch_caches(self, caches: "CacheRegistry") -> None:
        """Export the counters of these caches, read at each collection."""
        self.caches.watched = caches

    def count_commands(self, commands: Iterable[Command | RdataRun]) -> None:
        """Count received commands, by name."""
        counts: dict[str, int] = {}
        for command in commands:
            name, count = ("RDATA", len(command.rows)) if isinstance(command, RdataRun) else (command.NAME, 1)
            counts[name] = counts.get(name, 0) + count
        for name, count in counts.items():
            self.commands.labels(name).inc(count)

    def count_facts(self, facts: Sequence[Fact]) -> None:
        """Count the bytes of committed facts by stream, and cache invalidations by cache."""
        sizes: dict[str, int] = {}
        for fact in facts:
            sizes[fact.stream] = sizes.get(fact.stream, 0) + len(fact.rows)
            if fact.stream == "caches":
                for row in jsontext.split(fact.rows):
                    self.invalidations.labels(self._cache(row)).inc()
        for stream, size in sizes.items():
            self.stream_bytes.labels(stream).inc(size)

    def _cache(self, row: bytes) -> str:
        name = row[2 : row.index(b'"', 2)].decode("ascii", "replace")
        if name not in self._cache_names:
            if len(self._cache_names) >= MAX_CACHES or len(name) > MAX_NAME:
                return OTHERS
            self._cache_names.add(name)
        return name


_COUNTED: Final = {
    "hits": "Values served from the cache.",
    "misses": "Values that had to be computed.",
    "evictions": "Values dropped to make room.",
    "invalidations": "Invalidations applied.",
}


class CacheNumbers:
    """Exports a worker's cache counters, read at collection so that the caches stay fast."""

    def __init__(self) -> None:
        self.watched: CacheRegistry | None = None

    def collect(self) -> "Iterator[CounterMetricFamily | GaugeMetricFamily]":
        """Yield the counters and sizes of the watched caches."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        caches = {} if self.watched is None else self.watched.caches
        for name, what in _COUNTED.items():
            counter = CounterMetricFamily(f"synrepl_cache_{name}", what, labels=["cache"])
            for cache, info in caches.items():
                counter.add_metric([cache], getattr(info, name))
            yield counter
        entries = GaugeMetricFamily("synrepl_cache_entries", "Cached values.", labels=["cache"])
        for cache, info in caches.items():
            entries.add_metric([cache], info.entries)
        yield entries
        unknown = CounterMetricFamily(
            "synrepl_cache_unknown_invalidations", "Invalidations that match no cache or alias."
        )
        if self.watched is not None:
            unknown.add_metric([], sum(self.watched.unknown.values()))
        yield unknown


TURN_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""The upper bounds of the histogram of turns."""


class TurnNumbers:
    """Exports the duration of the reactor's turns. Prometheus' own histogram would take twice as long."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.longest_cpu_seconds = 0.0
        """The most CPU time of the reactor's thread in one turn."""
        self._counts = [0] * (len(TURN_SECONDS) + 1)
        self._sum = 0.0
        self._is_restarting = False

    def restart(self) -> None:
        """Forget all turns up to now, and the current one when it ends."""
        self._reset()
        self._is_restarting = True

    def count(self, seconds: float, cpu_seconds: float) -> None:
        """Count a turn with its wall time, and the CPU time of its thread (0 if it is not the longest)."""
        if self._is_restarting:
            self._reset()
            return
        self._counts[bisect_left(TURN_SECONDS, seconds)] += 1
        self._sum += seconds
        self.longest_cpu_seconds = max(self.longest_cpu_seconds, cpu_seconds)

    def collect(self) -> "Iterator[HistogramMetricFamily | GaugeMetricFamily]":
        """Yield the histogram of wall times, and the longest CPU time."""
        from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily

        turns = HistogramMetricFamily(
            "synrepl_reactor_turn_seconds",
            "Turns of the reactor by their wall time: in a turn nobody else is served.",
        )
        total, buckets = 0, []
        for bound, count in zip((*map(str, TURN_SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        turns.add_metric([], buckets, self._sum)
        yield turns
        longest = GaugeMetricFamily(
            "synrepl_reactor_turn_cpu_seconds_max",
            "The most CPU time that the reactor used in one turn since this daemon was ready.",
        )
        longest.add_metric([], self.longest_cpu_seconds)
        yield longest
