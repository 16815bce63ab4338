"""Notes on values in a homeserver's files that Synapse takes without a word; without I/O.

Each is of one key, whatever process reads it. What is refused is in `refusals`.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from synrepl.caches.names import all_names, names_of, plain_name
from synrepl.homeserver.findings import Finding
from synrepl.homeserver.merging import ProcessConfig, as_list, as_mapping
from synrepl.html.humanize import counted, listed, several, size
from synrepl.wire.dialect import NEWEST, Release, release_text, span
from synrepl.wire.text import printable

MAX_KEY: Final = 80
FIRST_READ: Final = (1, 0, 0)
"""The first release whose settings are known."""
MAX_NAMED: Final = 10
"""The most unknown keys of a file that are named."""


def notes_on_values(
    configs: Sequence[ProcessConfig], release: Release, *, told: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Yield what is worth a note. `told` are unknown keys that a finding names."""
    if release >= FIRST_READ:
        yield from _unknown_keys(configs, told)
    yield from _nobody_let(configs)
    yield from _factors_without_cache(configs, release)
    yield from _low_factors(configs)
    yield from _events_kept(configs, release)
    yield from _never_expired(configs, release)
    yield from _old_expiry(configs)
    yield from _autotuning(configs)
    yield from _memory_of_caches(configs)
    yield from _connections(configs)


# -- keys ----------------------------------------------------------------------------------------------------


def _unknown_keys(configs: Sequence[ProcessConfig], told: frozenset[str]) -> Iterator[Finding]:
    """Keys that no release which was read knows: at the top, and below the keys whose names are all known."""
    by_file: dict[str, dict[str, None]] = {}
    known = setting_names()
    sections = {name.partition(".")[0] for name in known if "." in name}
    for config in configs:
        for key, value in config.values.items():
            # Keys that begin with x-, a point or _ are for anchors of YAML.
            if not isinstance(key, str) or key in told or key.startswith(("x-", ".", "_")):
                continue
            section = key.removeprefix("worker_") if key == "worker_listeners" else key
            below = [value, *as_list(value)] if section in sections else []
            wrong = [
                f"{section}.{name}"
                for one in below
                for name in as_mapping(one)
                if isinstance(name, str) and f"{section}.{name}" not in {*known, *told}
            ]
            for name in [key] if key not in known else wrong:
                by_file.setdefault(config.origin(key), {}).setdefault(name)
    for file, keys in by_file.items():
        named = [f"`{printable(key, limit=MAX_KEY)}`{_meant(key)}" for key in list(keys)[:MAX_NAMED]] + (
            [f"{len(keys) - MAX_NAMED} more"] if len(keys) > MAX_NAMED else []
        )
        are = "are no settings" if len(keys) > 1 else "is no setting"
        yield Finding(
            kind="unknown_key",
            why=f"{listed(named)} in {file} {are} of Synapse as far as is known (releases up to"
            f" {NEWEST.name} were read): it ignores {'them' if len(keys) > 1 else 'it'}, and says nothing",
            remedy="correct or remove it; settings of a module go below `modules`, those of another program"
            " into its own file",
        )


_ELSEWHERE: Final = {
    "redis.db": "redis.dbid",
    "redis.database": "redis.dbid",
    "redis.ssl": "redis.use_tls",
    "redis.tls": "redis.use_tls",
    "redis.socket": "redis.path",
    "redis.unix_socket": "redis.path",
}
"""Keys as other programs have them, and that of Synapse."""
_ONE_REDIS: Final = (
    " (Synapse takes one `host` and `port`, or `path`, and knows neither Sentinel nor a cluster)"
)
_ADDRESSES: Final = (
    "url",
    "uri",
    "sentinels",
    "sentinel",
    "sentinel_hosts",
    "cluster",
    "nodes",
    "master_name",
)


def _meant(key: str) -> str:
    section, _, name = key.rpartition(".")
    if key in _ELSEWHERE:
        return f" (it is `{_ELSEWHERE[key]}`)"
    if section == "redis" and name in _ADDRESSES:
        return _ONE_REDIS
    if section and name in setting_names():
        return " (it is a key at the top, not below another one)"
    known = [one.rpartition(".") for one in setting_names()]
    of_same = [last for first, _, last in known if first == section]
    within = [first for first, _, last in known if last == name and first]
    if not section and len(within) == 1:
        return f" (it is a key below `{within[0]}`)"
    near = (
        difflib.get_close_matches(name, sorted(of_same), 1, 0.8 if section else 0.9)
        if len(name) < MAX_KEY
        else []
    )
    return f" (did you mean {section and section + '.'}{near[0]}?)" if near else ""


@cache
def setting_names() -> frozenset[str]:
    """The settings that Synapse has at the top of its configuration, and below some of them, with a point.

    ``setting_names.txt`` has what 16 releases from 1.0.0 to 1.163.2 ask their configuration for: at most 16
    releases apart, but 1.0.0 and 1.20.0. What only a release between them had is not there.
    """
    text = resources.files(__package__).joinpath("setting_names.txt").read_text("utf-8")
    return frozenset(text.split())


def _nobody_let(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """A list of the servers that are let, as people write it to let all: empty, or with a pattern."""
    key = "federation_domain_whitelist"
    for file, one in dict.fromkeys(
        (config.origin(key), one)
        for config in configs
        for one in config.list(key)
        if isinstance(one, str) and "*" in one
    ):
        yield Finding(
            kind="federates_with_nobody",
            why=f"{printable(one)} in `{key}` of {file} is no pattern: names are compared as they are"
            " written, so that it lets nobody",
            remedy=f"write each name in full; to federate with all, remove `{key}`: only without it all are"
            " let. It is read at the start of each process",
        )
    for file in dict.fromkeys(config.origin(key) for config in configs if config.get(key) == []):
        yield Finding(
            kind="federates_with_nobody",
            why=f"`{key}` in {file} is an empty list: no other homeserver is let, so that nothing is sent to"
            " any, asked of any, or accepted from any",
            remedy=f"right if that is meant; to federate with all, remove `{key}`: only without it all are"
            " let. It is read at the start of each process",
        )


# -- caches --------------------------------------------------------------------------------------------------


def _factors_without_cache(configs: Sequence[ProcessConfig], release: Release) -> Iterator[Finding]:
    """The factors of caches that other releases have."""
    at = {plain_name(name) for name in names_of(release)}
    others = {plain_name(name): name for name in all_names()}
    for file, name in dict.fromkeys(
        (config.origin("caches"), str(name))
        for config in configs
        for name in as_mapping(config.mapping("caches").get("per_cache_factors"))
    ):
        if (known := others.get(plain_name(name))) is not None and known not in at:
            has = " and ".join(map(str, dict.fromkeys(one.span for one in all_names()[known])))
            yield Finding(
                kind="ignored_key",
                why=f"`caches: per_cache_factors: {printable(name)}` in {file}: Synapse"
                f" {release_text(release)} has no such cache ({has}), and the factor no effect",
                remedy="remove it, or name the cache that has come in its place",
            )


DEFAULT_FACTOR: Final = 0.5
MAX_FACTOR: Final = 1_000_000
"""No factor of anybody's: a larger one is not computed with."""


def _low_factors(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """A factor below the default, as people set it to save memory."""
    for file, factor in dict.fromkeys(
        (config.origin("caches"), config.mapping("caches").get("global_factor")) for config in configs
    ):
        if isinstance(factor, int | float) and factor < DEFAULT_FACTOR:
            yield Finding(
                kind="low_cache_factor",
                why=f"`caches: global_factor` in {file} is less than the default, {DEFAULT_FACTOR}: what is"
                " not kept is read from the database again and again, requests wait for each other, and CPU"
                " and memory often get worse by it, not better",
                remedy="if they are high, raise it: Synapse's documentation says that lowering makes this"
                " worse, and names 2.0 as a beginning",
            )


_EVENTS_BY_FACTOR: Final = span("1.28")
"""Releases whose factors change the cache of events as well: read in 1.28, 1.56, 1.85, 1.109 and 1.163."""
DEFAULT_EVENTS: Final = "10K"


def _events_kept(configs: Sequence[ProcessConfig], release: Release) -> Iterator[Finding]:
    """How many events are cached, where the files have any of the keys that are multiplied for it."""
    if release not in _EVENTS_BY_FACTOR:
        return
    found: dict[str, list[str]] = {}
    for config in configs:
        caches = config.mapping("caches")
        factors = {plain_name(name): one for name, one in as_mapping(caches.get("per_cache_factors")).items()}
        is_own = "getevent" in factors
        factor = factors.get("getevent", caches.get("global_factor", DEFAULT_FACTOR))
        given = config.get("event_cache_size", DEFAULT_EVENTS)
        entries = _bytes(given)
        is_said = is_own or "global_factor" in caches or "event_cache_size" in config
        if not (is_said and entries and type(factor) in (int, float) and 0 < factor < MAX_FACTOR):
            continue
        by = "per_cache_factors: getEvent" if is_own else "global_factor"
        unset = "" if is_own or "global_factor" in caches else ", which is not set"
        default = "" if "event_cache_size" in config else ", the default"
        found.setdefault(
            f"up to {int(entries * factor):,} events: `event_cache_size` ({given}{default}) times {factor}"
            f" (`caches: {by}`{unset})",
            [],
        ).append(config.name)
    for text, names in found.items():
        who = "each process" if len(names) == len(configs) else several(list(map(str, names)))
        yield Finding(
            kind="event_cache",
            why=f"the cache of events (*getEvent*) of {who} has {text}",
            remedy="a factor of its own is `caches: per_cache_factors: getEvent`; in the environment"
            " SYNAPSE_CACHE_FACTOR_GETEVENT counts before these",
        )


_EXEMPT: Final = span("1.44", "1.64")
"""Releases in which some caches do not expire, whatever is set."""
_BY_DEFAULT: Final = span("1.53")
"""Releases in which caches expire by default; from 1.38 on they can."""
_EXPIRY: Final = ("expiry_time", "expire_caches", "cache_entry_ttl")


def _never_expired(configs: Sequence[ProcessConfig], release: Release) -> Iterator[Finding]:
    """Of configurations with settings of caches: those of nobody who asks after them have none."""
    for file, is_set in dict.fromkeys(
        (config.origin("caches"), any(map(config.mapping("caches").get, _EXPIRY)))
        for config in configs
        if config.mapping("caches")
    ):
        if is_set and release in _EXEMPT:
            yield Finding(
                kind="caches_not_expired",
                why="who is in a room and which rooms a user is in (get_users_in_room, get_rooms_for_user,"
                " get_rooms_for_user_with_stream_ordering, get_users_who_share_room_with_user) does not"
                f" expire by time in {release_text(release)}, whatever `caches` in {file} says: these caches"
                " grow up to their size, above all in processes that serve /sync",
                remedy=f"update to {release_text(_EXEMPT.until or NEWEST.release)} or newer, where they do;"
                " a small factor for these in `per_cache_factors` keeps them small until then",
            )
        elif not is_set and release not in _BY_DEFAULT:
            yield Finding(
                kind="caches_not_expired",
                why=f"`caches` in {file} has no `expiry_time`: in {release_text(release)} what is kept stays"
                " until its cache is full, and the memory of a process only grows until then",
                remedy=("set `caches: expiry_time: 30m`, or " if release >= (1, 38, 0) else "")
                + f"update to {release_text(_BY_DEFAULT.since)} or newer, where they expire after 30 min",
            )


def _old_expiry(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """The old key beside those that came in its place, and a target above its limit."""
    for file, caches in {config.origin("caches"): config.mapping("caches") for config in configs}.items():
        newer = [key for key in ("expire_caches", "cache_entry_ttl") if key in caches]
        if caches.get("expiry_time") and newer:
            yield Finding(
                kind="replaced_key",
                why=f"`caches: expiry_time` in {file} counts, and not {listed([f'`{key}`' for key in newer])}"
                " beside it: it is the older key for the same (1.163 was read)",
                remedy="remove `expiry_time`, and write `expire_caches: true` and `cache_entry_ttl: 30m`",
            )
        tuning = as_mapping(caches.get("cache_autotuning"))
        limit, target = (_bytes(tuning.get(f"{key}_cache_memory_usage")) for key in ("max", "target"))
        if 0 < limit < target:
            yield Finding(
                kind="cache_memory",
                why=f"`caches: cache_autotuning` in {file}: target_cache_memory_usage is above"
                " max_cache_memory_usage: caches are emptied above the limit, and only until there is less"
                " than the target, so that it ends as soon as it begins",
                remedy="set the target to less than the limit, as 1792M for 2048M",
            )


def _autotuning(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """Limits that only count where the memory is counted, which no file says."""
    files = dict.fromkeys(
        config.origin("caches") for config in configs if config.mapping("caches").get("cache_autotuning")
    )
    if files:
        yield Finding(
            kind="needs_jemalloc",
            why=f"`caches: cache_autotuning` in {several([*files])} counts only in a process that has"
            " jemalloc loaded: one without it keeps no limit, and says nothing of it",
            remedy="the image for Docker has it; elsewhere set LD_PRELOAD to libjemalloc.so.2 for each"
            " process. The limits are of all that the process has allocated, not of the caches alone",
        )


def _memory_of_caches(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """What the caches of all processes may have together: the limit is of each."""
    limits = [
        _bytes(as_mapping(config.mapping("caches").get("cache_autotuning")).get("max_cache_memory_usage"))
        for config in configs
    ]
    if len(limits) > 1 and all(limits):
        yield Finding(
            kind="cache_memory",
            why=f"`caches: cache_autotuning` in {configs[0].origin('caches')}: the max_cache_memory_usage is"
            f" that of each process, and that of these {len(limits)} together is {size(sum(limits))}",
            remedy="see that the machine has it; set less for all, or for a process in its own file",
        )


def _bytes(value: Any) -> int:
    """A size as Synapse reads it, such as 2048M; 0 for anything else."""
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)", str(value), re.ASCII)
    return int(found[1]) * 1024 ** " KMGT".index(found[2] or " ") if found is not None else 0


# -- the database --------------------------------------------------------------------------------------------

DEFAULT_POOL: Final = 5
"""Twisted's, which counts where `cp_max` is not set."""
DEFAULT_CONNECTIONS: Final = 97
"""PostgreSQL's default max_connections, without those that it keeps for superusers."""


def _connections(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """What all processes may open together, if a PostgreSQL with its defaults has not as many."""
    pools = []
    for config in configs:
        databases = [as_mapping(one) for one in config.mapping("databases").values()]
        for one in databases or [config.mapping("database")]:
            pool = as_mapping(one.get("args")).get("cp_max", DEFAULT_POOL)
            if one.get("name") == "psycopg2" and type(pool) is int:
                pools.append(pool)
    if sum(pools) > DEFAULT_CONNECTIONS:
        yield Finding(
            kind="connections",
            why=f"{counted(len(configs), 'process', 'processes')} may open {sum(pools)} connections to"
            " PostgreSQL together (`cp_max` of each, and of each database): it has 100, unless its"
            " max_connections was raised",
            remedy=f"set max_connections of PostgreSQL to {sum(pools)} and what other programs need, or lower"
            " cp_max in `database: args`; behind a pooler the sum is of its clients",
        )
