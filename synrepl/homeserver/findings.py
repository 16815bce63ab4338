"""What an inspection finds: kinds with stable names, and what it could not see."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

RESTART_ALL: Final = "a restart of all processes: clients reconnect, and nothing is lost"
RESTART_ONE: Final = "a restart of that process alone"
RESTART_WITH_MAIN: Final = (
    "a restart of that process and of the main process: clients reconnect, and nothing is lost"
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong.

    `kind` is one of `KINDS`. `stream` (the name on the wire), `writer` and `process` are empty if it is not
    about one. `position` is the token that it is about; `since_seconds` and `count` say for how long, and how
    many; each is None if it is not known. `why` is what was seen, `remedy` what to do, `cure` the statement
    or command that does it, and `cost` what that costs; `command` shows it again. These three may be empty.
    """

    kind: str
    stream: str = ""
    writer: str = ""
    process: str = ""
    position: int | None = None
    since_seconds: float | None = None
    count: int | None = None
    why: str
    remedy: str
    cure: str = ""
    cost: str = ""
    command: str = ""


class Unseen(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the inspection could not look at: what, why, and what to give."""

    what: str
    why: str


KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "never_announced": "a writer stores positions of a stream, and announces nothing on Redis",
        "not_received": "a process lacks what others had at the look before",
        "held": "ids are taken, or rows committed, and the writer's position stands still",
        "database_unreachable": "the homeserver's database cannot be asked",
        "redis_unreachable": "the homeserver's Redis cannot be asked",
        "redis_replica": "the homeserver's Redis is a replica: what is published there stays there",
        "waiting_for_lock": "a session of the database waits for a lock, or a table is locked for everybody",
        "writer_not_running": "a configured writer does not run, and all wait for an id that was given up",
        "sequence_behind_positions": "a sequence is below stored positions: the homeserver does not start",
        "sequence_behind_tables": "a sequence is below the rows of its tables",
        "counter_behind_table": "a sequence of no stream is below the rows of its table: new rows fail",
        "sequence_unused": "the first id would be 1, which all readers count as seen",
        "silent_process": "a process is there, and does not answer",
        "not_connected": "a process has no connection to Redis",
        "fewer_subscribers": "fewer processes listen on Redis than the configuration has",
        "different_secrets": "processes have different replication secrets",
        "different_settings": "processes have different names of the homeserver, or of its database",
        "no_redis": "a worker's configuration has no Redis",
        "name_twice": "two processes have one name",
        "unknown_process": "a duty, a stream or `instance_map` names a process that no file is of",
        "done_twice": "several processes do what one does for all, or what they do not share",
        "text_for_list": "a list of names is a text, whose letters Synapse takes for the names",
        "different_lists": "processes have different lists of who sends, or pushes",
        "does_nothing": "a process is named for work that no key leaves to it; of another name it is a note",
        "media_not_served": "a process has media and no listener for it, or a listener for it and no media",
        "wrong_port": "`instance_map` has an address at which that process does not listen for replication",
        "replaced_key": "a key that another file, or the same, has again: what is lost makes it say nothing",
        "ignored_key": "a key that the release does not read yet",
        "workers_on_sqlite": "workers share an SQLite file, in which no process tells others of its caches",
        "no_listeners": "the main process listens nowhere: it serves nobody (a note)",
        "no_main_port": "a worker of before 1.84 has work, and no port of the main process",
        "wrong_host": "a host of Redis, a process or the database is a path, a URL, or has a port in it",
        "port_twice": "two processes of one machine, or two listeners of one, are at one port or socket",
        "pooled_sessions": "a pooler shares the connections that Synapse has set up for itself",
        "no_main": "the `instance_map` of a worker has no `main`",
        "wrong_writers": "a key of `stream_writers` has several writers where one is allowed, or none",
        "refused_key": "a key that the release refuses: the process does not start",
        "misspelled_key": "a key that is no setting, and like one that says who does what, or lists workers",
        "misplaced_key": "a key of caches at a level where Synapse does not look for it",
        "refused_at_start": "a key that is read, and with which the process ends as it starts",
        "mixed_releases": "processes are of different releases: the older ones cannot read all",
        "different_writers": "processes have different `stream_writers`",
        "unknown_writer": "a process writes a stream, and the configuration does not say so",
        "appservice_down": "an application service does not accept its transactions",
        "appservices_behind": "the sender of application services is behind the events",
        "federation_behind": "the federation sender is behind the events",
        "pushers_failing": "pushers of several gateways fail, none succeeded since, or all do; else a note",
    }
)
"""The kinds of findings, with what each means. A kind keeps its name."""

_RESTART = "a restart of that process: its clients connect again"
COSTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "never_announced": _RESTART,
        "not_received": _RESTART,
        "not_connected": _RESTART,
        "held": "what the session did in its transaction is undone, and its program sees an error",
        "waiting_for_lock": "what the session did in its transaction is undone, and its program sees an"
        " error",
        "writer_not_running": "its start; or a restart of all processes, if stream_writers is changed",
        "fewer_subscribers": "its start; what waited for it comes late, and typing of meanwhile is lost",
        "silent_process": _RESTART,
        "unknown_writer": "a restart of all processes: clients connect again, and nothing is lost",
        "name_twice": _RESTART,
        "mixed_releases": _RESTART,
        "database_unreachable": "nothing: no process can write until then",
        "redis_unreachable": "nothing: processes connect again, and fetch what they missed",
        "redis_replica": "a restart of the processes whose redis: changes: clients connect again",
        "federation_behind": "a restart of the sender: it goes on where it was",
        "appservice_down": "nothing: transactions that wait are sent in order",
        "pushers_failing": "nothing: what was not pushed is not pushed again",
        "sequence_behind_positions": "the homeserver is stopped meanwhile; numbers are skipped, and no"
        " row changes",
        "sequence_behind_tables": "the homeserver is stopped meanwhile; numbers are skipped, and no row"
        " changes",
        "sequence_unused": "one number is skipped",
        "counter_behind_table": "numbers are skipped, and no row changes",
    }
)
"""What the cure of a finding costs, by its kind, unless the finding says it."""


def with_cost(finding: Finding) -> Finding:
    """The finding with what its cure costs."""
    cost = finding.cost or COSTS.get(finding.kind, "")
    return finding if finding.cost == cost else msgspec.structs.replace(finding, cost=cost)


NOTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ignored_file": "a file that Synapse ignores, as it holds no settings, or as its name ends with .yml",
        "newer_release": "a release that is newer than those that are known here",
        "federates_with_nobody": "a list of the homeservers that are let is empty, or has a pattern",
        "cache_memory": "what the caches of all processes may have together",
        "event_cache": "how many events are cached, by the factors that are set",
        "low_cache_factor": "a factor of all caches below the default",
        "caches_not_expired": "caches of this release that do not expire by time, though it is set",
        "needs_jemalloc": "limits of caches that count in a process with jemalloc alone",
        "connections": "more connections of all processes together than PostgreSQL has by default",
        "pooler": "a database at the port of a pooler whose mode is not known",
        "small_pool": "a pooler has fewer connections than the processes may open",
        "unknown_key": "a key that is no setting of any release that is known",
        "check_switched_off": "what is not checked, as the configuration leaves it to nobody that was given",
        "replaced_key": "a key that another file, or the same, has again, without all that was in it",
        "unmeasured": "a process whose metrics cannot be read: they are at no known address, or switched off",
        "different_settings": "processes have different addresses of the database, or of Redis",
        "no_positions": "metrics of a release that shows no positions of streams in them",
        "wrong_port": "a process does not listen where others look for it, unless something leads there",
        "loopback_only": "a process listens for replication at loopback, and others go to another host",
        "ignored_key": "a key of workers, where there is none, or a factor of a cache that is not there",
        "no_database": "no file that was given names a database",
        "no_name": "the file of a worker has no name: what is started with it has one name",
        "no_main_port": "a worker of before 1.84 has no port of the main process",
        "does_nothing": "a process has no duty, no stream, and no listener for requests",
        "media_jobs_twice": "several processes run the background jobs of media",
        "media_not_served": "no process that was given has media",
        "unread_registration": "the file of an application service that cannot be read",
        "pushers_failing": "pushers of some gateways fail, while others succeed",
    }
)
"""The kinds of notes, which are not wrong."""
