"""What a Redis says of itself: INFO, with CLUSTER INFO."""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from synrepl.homeserver.explanation.redis_printed import MUCH, RAISE, RedisPrinted
from synrepl.homeserver.explanation.results import Passage
from synrepl.html.humanize import size
from synrepl.wire.text import printable


class _Figure(msgspec.Struct, frozen=True):
    """A line of INFO: which values are worth a look, what they mean, and what to do."""

    is_odd: Callable[[str], bool]
    means: str
    advice: str


def _is_some(value: str) -> bool:
    return value.isdecimal() and int(value) > 0


OF_ROLE: Final = _Figure(
    lambda value: value == "slave",
    "it is a replica: what is published here reaches the subscribers of this one alone",
    "let all processes of Synapse go to the primary",
)
_FIGURES: Final = {
    "client_output_buffer_limit_disconnections": _Figure(
        _is_some,
        "connections were closed, as they did not read what was published fast enough: a process of Synapse"
        " then connects again, and fetches what it missed",
        f"find the process that is busy (CPU of one core); {RAISE}",
    ),
    "rejected_connections": _Figure(
        _is_some, "connections were refused, as there were maxclients already", "raise maxclients of Redis"
    ),
    "loading": _Figure(lambda value: value == "1", "Redis reads its file, and answers nothing yet", "wait"),
    "master_link_status": _Figure(
        lambda value: value == "down",
        "it is a replica that has lost its primary: what is published at the primary does not come here",
        "let all processes of Synapse go to the primary",
    ),
    "role": OF_ROLE,
    "pubsub_channels": _Figure(
        lambda value: value == "0",
        "nobody is subscribed to any channel: no process of Synapse receives anything over this Redis",
        "compare redis: in the files of all processes: synrepl inspect --files",
    ),
    "rdb_last_bgsave_status": _Figure(
        lambda value: value == "err",
        "the last save failed: Redis refuses writes and PING (MISCONF), unless stop-writes-on-bgsave-error is"
        " no",
        "see the log of Redis for why; Synapse needs nothing that it saves: CONFIG SET save ''",
    ),
    "aof_last_write_status": _Figure(
        lambda value: value == "err",
        "the append-only file could not be written: Redis refuses writes and PING (MISCONF)",
        "make room on its disk; Synapse needs nothing that it saves: CONFIG SET appendonly no",
    ),
    "client_longest_output_list": _Figure(
        lambda value: value.isdecimal() and int(value) >= MANY_WAITING,
        "so many answers or messages wait for one connection, which does not read: they take Redis' memory,"
        " though there may be no key (DBSIZE 0)",
        "find it: redis-cli CLIENT LIST, the largest omem: a MONITOR that was left open (cmd=monitor: CLIENT"
        f" KILL ID), or a busy process of Synapse; {RAISE}",
    ),
    "client_recent_max_output_buffer": _Figure(
        lambda value: value.isdecimal() and int(value) >= MUCH,
        "so many bytes have waited for one connection, which does not read fast enough",
        f"find it: redis-cli CLIENT LIST, the largest omem; {RAISE}",
    ),
    "cluster_enabled": _Figure(
        lambda value: value == "1",
        "it is a node of a Redis Cluster, whose parts a client must know: Synapse's does not",
        "give Synapse a Redis that is no cluster",
    ),
    "cluster_state": _Figure(
        lambda value: value == "fail",
        "the Redis Cluster lacks a part, and refuses commands (CLUSTERDOWN)",
        "see redis-cli CLUSTER NODES for the node that is away; Synapse needs a Redis that is no cluster",
    ),
    "cluster_slots_pfail": _Figure(
        _is_some,
        "so many slots are at nodes that this one does not reach; if cluster_stats_messages_received is 0, it"
        " hears nothing from any of them",
        "open the bus port (port + 10000, or cluster-port) between all nodes; behind NAT or a load balancer"
        " cluster-announce-ip, -port and -bus-port of each",
    ),
    "cluster_slots_assigned": _Figure(
        lambda value: value == "0",
        "no slot is given to any node: the cluster was never made, or nodes.conf was lost",
        "redis-cli --cluster create HOST:PORT ..., or for Synapse a Redis without cluster-enabled",
    ),
    "min_slaves_good_slaves": _Figure(
        lambda value: value == "0",
        "no copy is there: with min-replicas-to-write Redis refuses writes (NOREPLICAS)",
        "CONFIG GET min-replicas-to-write: set 0, as what Synapse keeps there needs no copy",
    ),
    "evicted_keys": _Figure(
        _is_some,
        "keys were removed for memory; Synapse keeps nothing there that it needs, but what is published takes"
        " memory too",
        "give Redis more memory (maxmemory)",
    ),
}
"""Lines of INFO that say something of a homeserver's Redis."""

MANY_WAITING: Final = 1000
"""The fewest answers that wait for a connection which does not keep up."""

_NO_CLUSTER: Final = "give Synapse a Redis that is no cluster"
_SAVES_NOTHING: Final = (
    "Synapse needs nothing that Redis saves: CONFIG SET save ''; its log tells why it could not"
)
_TO_LOG_IN: Final = "compare redis: password in the files of all processes with requirepass of Redis"
_TO_MASTER: Final = "let all processes of Synapse go to the primary"
_REFUSED: Final = {
    "OOM": ("there was more than maxmemory, and new values were refused", "raise maxmemory"),
    "MISCONF": ("Redis could not save, and refused writes", _SAVES_NOTHING),
    "NOPERM": ("a user may not use that command or channel (ACL)", "redis-cli ACL LOG tells who, and what"),
    "NOAUTH": ("no password was sent", _TO_LOG_IN),
    "WRONGPASS": ("a wrong password was sent", _TO_LOG_IN),
    "READONLY": ("something wrote at a replica", _TO_MASTER),
    "CLUSTERDOWN": ("the cluster lacks a part", _NO_CLUSTER),
    "NOREPLICAS": ("too few copies were there", "CONFIG SET min-replicas-to-write 0"),
    "MOVED": ("a client that knows no cluster asked one", _NO_CLUSTER),
}
"""What Redis refused, by the names under Errorstats."""

_FIGURE: Final = re.compile(
    r"(?P<name>errorstat_[A-Z]{2,20}|[a-z_0-9]{3,60}):(?P<space> ?)(?P<value>\S{1,200})\s*\Z"
)
_SECTION: Final = re.compile(
    r"#\s*(?:Server|Clients|Memory|Persistence|Stats|Replication|CPU|Keyspace|Commandstats|Errorstats|Modules|Latencystats|Cluster)\s*\Z"
)
_BOUNDED: Final = {
    "connected_clients": (
        "maxclients",
        "nearly all connections are taken: new ones are refused",
        "raise maxclients of Redis; CLIENT LIST tells who has them",
    ),
    "used_memory": (
        "maxmemory",
        "nearly all memory is taken: new values are refused (OOM), or old ones removed",
        "raise maxmemory; where DBSIZE is small, buffers take it: CLIENT LIST, the largest omem",
    ),
}
"""Lines of INFO that are bounded by another one: what it means if they are near it, and what to do."""
NEAR: Final = 0.9
_BIG: Final = 256 * 1024 * 1024
"""The fewest bytes of memory of which it is told where they are."""
_PARTS: Final = {
    "mem_clients_normal": (
        "what waits for clients, and what they sent",
        "redis-cli CLIENT LIST: the largest tot-mem, omem, qbuf; maxmemory-clients (7 and newer)",
    ),
    "mem_clients_slaves": ("what waits for copies", "client-output-buffer-limit replica; is a copy slow?"),
    "mem_cluster_links": (
        "what waits for other nodes of the Cluster, to each of which every PUBLISH goes",
        "cluster-link-sendbuf-limit bounds it; give Synapse a Redis that is no cluster",
    ),
    "mem_replication_backlog": ("what is kept for copies that come back", "lower repl-backlog-size"),
    "mem_aof_buffer": ("what waits for the append-only file", "a slow disk; Synapse needs appendonly no"),
}
"""Where the memory of a Redis is that is no data: what that is, and what to do."""


def _of_memory(counts: dict[str, int]) -> list[tuple[str, str]]:
    """What the figures of memory tell together, each with what to do."""
    used, peak = counts.get("used_memory", 0), counts.get("used_memory_peak", 0)
    told = []
    if (over := counts.get("used_memory_overhead", 0)) >= max(_BIG, used // 2):
        name = max(_PARTS, key=lambda part: counts.get(part, 0))
        what, advice = _PARTS[name]
        said = f"used_memory is {size(used)}, of which {size(over)} is no data (used_memory_overhead)"
        if counts.get(name, 0) >= over // 4:
            told.append((f"{said}; {size(counts[name])} of it is {name}: {what}.", advice))
        else:
            told.append(
                (f"{said}.", "redis-cli MEMORY STATS and CLIENT LIST (omem, qbuf, tot-mem) tell what")
            )
    if peak >= max(4 * used, 4 * _BIG):
        said = (
            f"It had {size(peak)} at most (used_memory_peak), and has {size(used)} now: much was deleted, or"
            " many messages waited for subscribers that did not read in time."
        )
        told.append((said, "when it grows again: redis-cli CLIENT LIST, the largest omem"))
    if used >= _BIG and 0 < counts.get("used_memory_rss", 0) < 0.9 * used:
        said = (
            "A part of Redis' memory is swapped out (used_memory_rss is below used_memory): its answers wait"
            " for the disk."
        )
        told.append((said, "free memory of its host, or maxmemory well below it; a restart takes it back"))
    return told


_KNOWN: Final = (
    *("used_memory_peak", "used_memory_overhead", *_PARTS),
    *(
        "redis_version",
        "blocked_clients",
        "tcp_port",
        "used_memory_human",
        "used_memory_rss",
        "maxmemory_policy",
    ),
    *("cluster_slots_ok", "cluster_slots_fail", "cluster_known_nodes", "cluster_size"),
    *("cluster_current_epoch", "cluster_my_epoch"),
    *(f"cluster_stats_messages_{what}" for what in ("sent", "received", "ping_sent", "pong_received")),
    *("mem_fragmentation_ratio", *_BOUNDED, *(one[0] for one in _BOUNDED.values()), *_FIGURES),
)


class RedisInfo(RedisPrinted):
    """The lines of INFO so far. One without a section before it must be one that is known here."""

    kind = "redis_info"
    command = "redis-cli info"
    odd: dict[str, str] = {}
    refused: dict[str, str] = {}
    counts: dict[str, int] = {}
    is_open: bool = False

    def takes(self, line: str, number: int) -> bool:
        text = line.strip("> \t\r")
        if _SECTION.match(text):
            self.is_open = True
            return True
        found = _FIGURE.match(text)
        if found is None or not ((self.is_open and not found["space"]) or found["name"] in _KNOWN):
            self.is_open = self.is_open and not text
            return False
        self.add(number)
        what = found["name"].removeprefix("errorstat_")
        if what in _REFUSED:
            self.refused = {**self.refused, what: found["value"].removeprefix("count=")}
        if found["name"] in _KNOWN and found["value"].isdecimal() and len(found["value"]) < 20:
            self.counts = {**self.counts, found["name"]: int(found["value"])}
        figure = _FIGURES.get(found["name"])
        if figure is not None and figure.is_odd(found["value"]):
            self.odd = {**self.odd, found["name"]: found["value"]}
        return True

    def passage(self) -> Passage | None:
        if not self.count:
            return None
        words = [f"{name}:{printable(value)}: {_FIGURES[name].means}." for name, value in self.odd.items()]
        full = [
            (name, bound, *told)
            for name, (bound, *told) in _BOUNDED.items()
            if self.counts.get(bound, 0) and self.counts.get(name, 0) >= NEAR * self.counts[bound]
        ]
        words += [
            f"{name} is {self.counts[name]} of {self.counts[bound]} ({bound}): {means}."
            for name, bound, means, _ in full
        ]
        words += [
            f"{what} was answered since Redis started ({printable(count)} in all): {_REFUSED[what][0]}."
            for what, count in self.refused.items()
        ]
        memory = _of_memory(self.counts)
        words += [said for said, _ in memory]
        words = words or ["What a Redis says of itself (INFO): nothing that is looked at here is odd in it."]
        advice = list(
            dict.fromkeys(
                [
                    *(_FIGURES[name].advice for name in self.odd),
                    *(told for *_, told in full),
                    *(told for _, told in memory),
                    *(_REFUSED[what][1] for what in self.refused),
                ]
            )
        )
        return self.told(words, advice, "look" if advice else "")
