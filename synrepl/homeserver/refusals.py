"""What Synapse refuses in a merged configuration: the process does not start. A table, by release.

It is of the keys that are read here. What every release asks for besides (`report_stats`, keys to sign with)
is not.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from synrepl.homeserver.duties import BY_NAME as DUTY
from synrepl.homeserver.duties import DUTIES, STREAM_WRITERS, Duty, named_here, switched_here, writer_names
from synrepl.homeserver.merging import MAIN, ProcessConfig, Template, as_list, as_mapping
from synrepl.homeserver.streams import WRITER_KEYS
from synrepl.html.humanize import listed
from synrepl.wire.dialect import ALWAYS, NEWEST, Release, Span, span
from synrepl.wire.text import printable


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A process does not start: the releases that refuse, the key (and its stream), why, and what to do.

    `lacks` is the key that would mend it: where it is not set at all, a file that was not given may have it.
    `names_main`: what to do names a listener of the main process.
    """

    span: Span
    key: str
    why: str
    remedy: str
    kind: str = "refused_key"
    stream: str = ""
    lacks: str = ""
    names_main: bool = False


KNOWN: Final = Span(until=(NEWEST.release[0], NEWEST.release[1] + 1, 0))
"""The releases that are known here. What none of them has, a newer one may."""

Found = Iterator[Refusal]
Rule = Callable[[ProcessConfig], Found]

MAPPINGS: Final = ("redis", "instance_map", "stream_writers")


def find_refusals(config: ProcessConfig) -> list[Refusal]:
    """What any release refuses in this configuration."""
    return [one for rule in RULES for one in rule(config)]


def refused_by(
    refusals: list[Refusal] | tuple[Refusal, ...], release: Release = NEWEST.release
) -> list[Refusal]:
    """Those of this release."""
    return [one for one in refusals if release in one.span]


# -- newer keys ----------------------------------------------------------------------------------------------


class NewerKey(msgspec.Struct, frozen=True):
    """A key, the file that has it, and the first release that reads it: older ones ignore it."""

    key: str
    file: str
    since: Release


NEWER: Final[Mapping[str, Release]] = {
    "redis": (1, 13, 0),
    "redis.dbid": (1, 78, 0),
    "redis.use_tls": (1, 84, 0),
    "redis.path": (1, 85, 0),
    "redis.password_path": (1, 117, 0),
    "redis.username": (1, 162, 0),
    "instance_map": (1, 14, 0),
    "stream_writers": (1, 14, 0),
    "media_instance_running_background_jobs": (1, 16, 0),
    "federation_sender_instances": (1, 18, 0),
    "pusher_instances": (1, 18, 0),
    "run_background_tasks_on": (1, 22, 0),
    "worker_replication_secret": (1, 25, 0),
    "notify_appservices_from_worker": (1, 59, 0),
    "update_user_directory_from_worker": (1, 59, 0),
    "outbound_federation_restricted_to": (1, 89, 0),
    "worker_replication_secret_path": (1, 126, 0),
}
"""Keys that older releases ignore, by the first that reads them."""


def newer_keys(config: ProcessConfig) -> Iterator[NewerKey]:
    """The keys of a process that not all releases read."""
    for key, since in NEWER.items():
        top, _, below = key.partition(".")
        if config.mapping(top).get(below) if below else config.get(top):
            yield NewerKey(key, config.origin(top), since)


# -- whole keys ----------------------------------------------------------------------------------------------


def _mappings(config: ProcessConfig) -> Found:
    for key in MAPPINGS:
        value = config.get(key)
        if value and not isinstance(value, dict | Template):
            yield Refusal(
                span=ALWAYS,
                key=key,
                why=f"`{key}` is no mapping",
                remedy=f"write `{key}` as `name: value` lines",
            )
    value = config.get("instance_map", {})
    if not value and value != {}:
        yield Refusal(
            span=span("1.82" if value is None else "1.142"),
            key="instance_map",
            why="`instance_map` is empty",
            remedy="indent what is meant to be below `instance_map`, or remove the key",
        )


OLD_KEYS: Final = ("worker_replication_host", "worker_replication_http_port", "worker_replication_http_tls")
"""Keys of a worker that 1.88 and newer refuse."""


def _main_entry(config: ProcessConfig) -> str:
    """The statement that names the main process, as far as a worker's merged files say where it is."""
    listener: Mapping[str, Any] = next(
        (
            one
            for one in map(as_mapping, config.list("listeners"))
            for resource in as_list(one.get("resources"))
            if "replication" in as_list(as_mapping(resource).get("names"))
        ),
        {},
    )
    binds = [*as_list(listener.get("bind_addresses")), listener.get("bind_address")]
    is_local = {one for one in binds if one} in ({"127.0.0.1"}, {"::1"}, {"127.0.0.1", "::1"})
    host = config.get("worker_replication_host") or ("localhost" if is_local else "HOST")
    port = config.get("worker_replication_http_port") or listener.get("port") or "PORT"
    tls = ", tls: true" * bool(config.get("worker_replication_http_tls"))
    entry = f"main: {{host: {printable(str(host))}, port: {printable(str(port))}{tls}}}"
    return (
        f"add `{entry}` to instance_map"
        if config.mapping("instance_map")
        else f"set `instance_map: {{{entry}}}` in the shared file"
    ) + (", with HOST and PORT of its listener for replication" if "HOST" in entry or "PORT" in entry else "")


def _old_keys(config: ProcessConfig) -> Found:
    if "worker_replication_port" in config:
        yield Refusal(
            span=span("1.67"),
            key="worker_replication_port",
            why="`worker_replication_port` is of replication over TCP, which is gone",
            remedy="remove it: what went that way goes by Redis, which is enabled"
            if config.mapping("redis").get("enabled")
            else "remove it, and set `redis: {enabled: true}` for all processes",
        )
    remedy = (
        ": instance_map has the main process already"
        if "main" in config.mapping("instance_map")
        else f", and name the main process for all: {_main_entry(config)}"
    )
    keys = [f"`{key}`" for key in OLD_KEYS if config.get(key)]
    if keys and not config.is_main:
        yield Refusal(
            span=span("1.88"),
            key=OLD_KEYS[0],
            why=f"{listed(keys)} {'are no settings' if len(keys) > 1 else 'is no setting'} any more",
            remedy=f"remove {'them' if len(keys) > 1 else 'it'}{remedy}",
            names_main="main" not in config.mapping("instance_map"),
        )


APPS: Final = (
    *("generic_worker", "homeserver", "appservice", "client_reader", "event_creator", "federation_reader"),
    *("federation_sender", "frontend_proxy", "media_repository", "pusher", "synchrotron", "user_dir"),
)


def _start(config: ProcessConfig) -> Found:
    """What is refused at the start, before or after the configuration is read."""
    if config.app and config.app not in [f"synapse.app.{one}" for one in APPS]:
        yield Refusal(
            kind="refused_at_start",
            span=KNOWN,
            key="worker_app",
            why=f"there is no `worker_app` {printable(config.app)}",
            remedy="write `worker_app: synapse.app.generic_worker`",
        )
    redis = config.mapping("redis")
    port = redis.get("port", 6379)
    if redis.get("enabled") and not redis.get("path") and not isinstance(port, int | Template):
        yield Refusal(
            kind="refused_at_start",
            span=ALWAYS,
            key="redis.port",
            why="`redis.port` is no number",
            remedy="write it without quotes",
        )
    if not isinstance(config.get("worker_log_config", ""), str | None):
        yield Refusal(
            span=span("1.57"),
            key="worker_log_config",
            why="`worker_log_config` is no text",
            remedy="name a file",
        )


def _secrets(config: ProcessConfig) -> Found:
    secret, path = config.get("worker_replication_secret"), config.get("worker_replication_secret_path")
    if secret and path:
        yield _two("worker_replication_secret", span("1.126"))
    elif secret is not None and not isinstance(secret, str) and not path:
        yield Refusal(
            span=span("1.135"),
            key="worker_replication_secret",
            why="`worker_replication_secret` is no text",
            remedy="put it in quotes",
        )
    redis = config.mapping("redis")
    if not redis.get("enabled"):
        return
    if redis.get("password") and redis.get("password_path"):
        yield _two("redis.password", span("1.117"))
    if redis.get("username") and redis.get("password") is None and not redis.get("password_path"):
        yield Refusal(
            span=span("1.162"),
            key="redis.username",
            why="`redis.username` has no password",
            remedy="set redis.password or redis.password_path",
        )


def _two(key: str, releases: Span) -> Refusal:
    return Refusal(
        span=releases,
        key=key,
        why=f"`{key}` and `{key}_path` are both set",
        remedy="remove one of the two",
    )


# -- the map -------------------------------------------------------------------------------------------------


def _no_main(config: ProcessConfig) -> Found:
    if config.is_main or isinstance(config.get("instance_map"), Template):
        return
    entries = config.mapping("instance_map")
    if "main" in entries:
        return
    has_old = config.get("worker_replication_host") and config.get("worker_replication_http_port")
    spans = [span("1.88")]
    if not has_old:
        spans.append(span("1.84.1", "1.88"))
        if entries:
            spans.append(span("1.84", "1.84.1"))
    for one in spans:
        yield Refusal(
            kind="no_main",
            span=one,
            key="instance_map",
            why="`instance_map` has no `main`: this worker does not know where the main process is",
            remedy=_main_entry(config),
            lacks="instance_map",
            names_main=True,
        )


def _entries(config: ProcessConfig) -> Found:
    for name, entry in config.mapping("instance_map").items():
        shown = f"`instance_map.{printable(str(name))}`"
        if isinstance(entry, Template):
            continue
        for one, why in _bad_entry(entry):
            yield Refusal(
                span=one,
                key="instance_map",
                why=f"{shown} {why}",
                remedy="write it as {host: HOST, port: NUMBER}, or since 1.89 as {path: SOCKET}",
            )


def _bad_entry(entry: Any) -> Iterator[tuple[Span, str]]:
    if not isinstance(entry, dict):
        yield ALWAYS, "is no mapping"
        return
    required, allowed = {"host", "port"}, {"host", "port"}
    if set(entry) != required:
        yield span("", "1.72"), "has other keys than host and port"
    if not required <= set(entry) or set(entry) - {*allowed, "tls"}:
        yield span("1.72", "1.82"), "has other keys than host, port and tls"
    is_tcp = (
        isinstance(entry.get("host"), str)
        and (type(entry.get("port")) is int or isinstance(entry.get("port"), Template))
        and isinstance(entry.get("tls", False), bool | Template)
    )
    if not is_tcp:
        yield span("1.82", "1.89"), "has no host as text and port as number"
        if not isinstance(entry.get("path"), str):
            yield span("1.89"), "has neither host as text and port as number, nor path"


def _restricted(config: ProcessConfig) -> Found:
    names = config.get("outbound_federation_restricted_to")
    if not names or isinstance(names, Template):
        return
    key = "outbound_federation_restricted_to"
    if not config.get("worker_replication_secret") and not config.get("worker_replication_secret_path"):
        yield Refusal(
            span=span("1.89"),
            key=key,
            why=f"`{key}` needs a `worker_replication_secret`",
            remedy="set the same worker_replication_secret for all processes",
            lacks="worker_replication_secret",
        )
    for name in writer_names(names):
        if not _is_mapped(name, config):
            yield Refusal(
                span=span("1.89"),
                key=key,
                why=f"`{key}` names {printable(name)}, which `instance_map` lacks",
                remedy=f"add it to instance_map, or remove it from {key}",
                lacks="instance_map",
            )


def _is_mapped(name: str, config: ProcessConfig, *, knows_main: bool = True) -> bool:
    """A worker finds the entry `main` as `master`, and no longer as `main`."""
    entries = config.mapping("instance_map")
    if isinstance(name, Template) or isinstance(config.get("instance_map"), Template):
        return True
    if knows_main and not config.is_main and name in ("main", MAIN):
        return name == MAIN and "main" in entries
    return name in entries


# -- writers -------------------------------------------------------------------------------------------------


def _writers(config: ProcessConfig) -> Found:
    for key, value in config.mapping("stream_writers").items():
        shown = f"`stream_writers.{printable(str(key))}`"
        known = STREAM_WRITERS.get(key)
        if known is None:
            yield Refusal(
                span=KNOWN,
                key="stream_writers",
                why=f"{shown} is of no release up to {NEWEST.name}",
                remedy="remove it, or correct its name",
            )
            continue
        if known.known.since > (1, 14, 0):
            yield Refusal(
                span=Span(until=known.known.since),
                key="stream_writers",
                why=f"{shown} is of newer releases",
                remedy="remove it, or upgrade",
            )
        if isinstance(value, Template):
            continue
        stream = next(stream for stream, of in WRITER_KEYS.items() if of == key)
        for one in _wrong_writers(config, shown, key, value):
            yield msgspec.structs.replace(one, stream=stream)


def _wrong_writers(config: ProcessConfig, shown: str, key: str, value: Any) -> Found:
    known = STREAM_WRITERS[key]
    if not isinstance(value, str | list | dict):
        yield Refusal(
            kind="wrong_writers",
            span=known.mapped,
            key="stream_writers",
            why=f"{shown} has no name",
            remedy="name a process, or remove the key: then the main process writes",
        )
        return
    names = writer_names(value)
    count = len(names)
    if known.one is not None and count != 1:
        yield Refusal(
            kind="wrong_writers",
            span=known.one,
            key="stream_writers",
            why=f"{shown} has {count or 'no'} writer{'s' * (count != 1)}, and must have exactly one",
            remedy="name one process, or remove the key: then the main process writes",
        )
    if known.some is not None and not count:
        yield Refusal(
            kind="wrong_writers",
            span=known.some,
            key="stream_writers",
            why=f"{shown} has no writer",
            remedy="name a process, or remove the key: then the main process writes",
        )
    for name in names:
        if name == MAIN:
            continue
        for one, is_mapped in (
            (Span(since=known.mapped.since, until=(1, 84, 0)), _is_mapped(name, config, knows_main=False)),
            (Span(since=max(known.mapped.since, (1, 84, 0))), _is_mapped(name, config)),
        ):
            if not is_mapped and one.since < (one.until or (999, 0, 0)):
                yield Refusal(
                    span=one,
                    key="stream_writers",
                    why=f"{shown} names {printable(name)}, which `instance_map` lacks"
                    + (f": the main process is called {MAIN} there" if name == "main" else ""),
                    remedy=f"add {printable(name)} to instance_map with host and port of its replication"
                    " listener,"
                    " or remove it from stream_writers",
                    lacks="instance_map",
                )


# -- duties --------------------------------------------------------------------------------------------------


def _old_apps(config: ProcessConfig) -> Found:
    for duty in DUTIES:
        if (
            not duty.app
            or duty.name == "media"
            or config.app != duty.app
            or not config.get(duty.switch, True)
        ):
            continue
        why = f"a worker of the kind {duty.app} does not start while `{duty.switch}` is not false"
        yield Refusal(
            kind="refused_at_start",
            span=Span(until=duty.named.since),
            key=duty.switch,
            why=why,
            remedy=f"set `{duty.switch}: false` in the shared file",
            lacks=duty.switch,
        )
        if duty.takes_list and config.get(duty.names) is not None:
            continue
        yield Refusal(
            span=duty.named,
            key=duty.switch,
            why=why,
            remedy=_new_form(duty, config),
            lacks=duty.switch,
        )


def _new_form(duty: Duty, config: ProcessConfig) -> str:
    name = printable(config.name)
    names = f"[{name}]" if duty.takes_list else name
    return f"set `{duty.names}: {names}` in the shared file, and `worker_app: synapse.app.generic_worker`"


def _contradictions(config: ProcessConfig) -> Found:
    for duty in (DUTY["appservices"], DUTY["user_directory"]):
        new, old = named_here(duty, config), switched_here(duty, config)
        if (
            new is not None
            and old is not None
            and new != old
            and not isinstance(config.get(duty.names), Template)
        ):
            yield Refusal(
                span=duty.named,
                key=duty.switch,
                why=f"`{duty.switch}` and `{duty.names}` contradict each other",
                remedy=f"remove `{duty.switch}` from {config.origin(duty.switch)}",
            )


def _lists(config: ProcessConfig) -> Found:
    for duty in DUTIES:
        value = config.get(duty.names)
        if duty.takes_list and value is not None and not isinstance(value, list | str | dict):
            yield Refusal(
                span=duty.named,
                key=duty.names,
                why=f"`{duty.names}` is no list",
                remedy=f"write it as `{duty.names}: [NAME]`",
            )


# -- listeners -----------------------------------------------------------------------------------------------

TYPES: Final[Mapping[str, Span]] = {
    "http": ALWAYS,
    "manhole": ALWAYS,
    "metrics": span("0.31"),
    "replication": span("", "1.67"),
}
OF_RESOURCES: Final = span("1.28")
"""1.28.0 and newer ones were read. An older one may refuse it as well."""
RESOURCES: Final[Mapping[str, Span]] = {
    **dict.fromkeys(
        ("client", "consent", "federation", "keys", "media", "metrics", "openid", "replication", "static"),
        ALWAYS,
    ),
    "health": span("1.78"),
}


def _listeners(config: ProcessConfig) -> Found:
    for key in ("listeners", "worker_listeners"):
        value = config.get(key, [])
        if not isinstance(value, list | Template):
            yield Refusal(
                span=ALWAYS, key=key, why=f"`{key}` is no list", remedy="begin each entry with a dash"
            )
            continue
        for number, listener in enumerate(value if isinstance(value, list) else ()):
            for one, why in _bad_listener(listener, has_metrics=bool(config.get("enable_metrics"))):
                yield Refusal(
                    span=one,
                    key=key,
                    why=f"`{key}`, number {number + 1}: {why}",
                    remedy="correct it, or remove it",
                )


def _bad_listener(listener: Any, *, has_metrics: bool = False) -> Iterator[tuple[Span, str]]:
    if not isinstance(listener, dict):
        yield ALWAYS, "it is no mapping"
        return
    kind, port, path = listener.get("type"), listener.get("port"), listener.get("path")
    if not isinstance(kind, Template):
        known = TYPES.get(kind) if isinstance(kind, str) else None
        yield from _outside(known, f"no type {printable(str(kind))}")
    if not isinstance(port, int | Template):
        yield span("", "1.81"), "it has no port"
        if port is not None or not isinstance(path, str):
            yield span("1.81"), "it has neither a port nor a path"
    elif path and port:
        yield span("1.81"), "it has a port and a path"
    if isinstance(port, int) and not 0 <= port <= 65535:
        yield ALWAYS, f"there is no port {port}"
    if isinstance(path, str) and not port and (kind == "manhole" or (kind == "metrics" and has_metrics)):
        yield span("1.81"), f"what is of type {kind} has no `path`, but a port"
    if kind == "http":
        resources = listener.get("resources") or ()
        if isinstance(resources, int | float):
            yield ALWAYS, "its resources are no list"
        elif isinstance(resources, str | dict) and not isinstance(resources, Template):
            yield OF_RESOURCES, "its resources are no list: begin each with a dash"
        for resource in as_list(resources):
            if others := [str(one) for one in as_mapping(resource) if one not in ("names", "compress")]:
                yield (
                    OF_RESOURCES,
                    f"a resource has other keys than names and compress ({printable(others[0])})",
                )
            names = as_mapping(resource).get("names") or ()
            if isinstance(names, int | float):
                yield ALWAYS, "the names of a resource are no list"
            elif isinstance(names, str) and not isinstance(names, Template):
                yield OF_RESOURCES, f"the names of a resource are no list: write [{printable(names)}]"
            for name in as_list(names):
                if isinstance(name, str) and not isinstance(name, Template):
                    yield from _outside(RESOURCES.get(name), f"no resource {printable(name)}")


def _outside(known: Span | None, why: str) -> Iterator[tuple[Span, str]]:
    if known is None:
        yield KNOWN, f"there is {why}"
        return
    if known.since > (0, 31, 0):
        yield Span(until=known.since), f"there is {why} yet"
    if known.until is not None:
        yield Span(since=known.until), f"there is {why} any more"


# -- caches --------------------------------------------------------------------------------------------------

AUTOTUNING: Final = ("max_cache_memory_usage", "target_cache_memory_usage", "min_cache_ttl")
"""What `cache_autotuning` needs, all of it."""


def _caches(config: ProcessConfig) -> Found:
    caches = config.mapping("caches")
    factors = caches.get("per_cache_factors") or {}
    if not isinstance(factors, dict | Template):
        yield _bad_caches("per_cache_factors", "it is no mapping", "write `name: factor` lines below it")
    for name, factor in {"global_factor": caches.get("global_factor", 1), **as_mapping(factors)}.items():
        if type(factor) not in (int, float, Template):
            key = name if name == "global_factor" else f"per_cache_factors.{printable(str(name))}"
            yield _bad_caches(key, "it is no number", "write a number, as 0.5, without quotes")
    tuning = caches.get("cache_autotuning")
    lacks = [one for one in AUTOTUNING if isinstance(tuning, dict) and tuning.get(one) is None]
    if tuning and lacks:
        yield _bad_caches(
            "cache_autotuning", f"it lacks {listed(lacks)}", "set all three, or remove it", "1.60"
        )


def _bad_caches(key: str, why: str, remedy: str, since: str = "1.14") -> Refusal:
    return Refusal(span=span(since), key="caches", why=f"`caches: {key}`: {why}", remedy=remedy)


ENGINES: Final = ("psycopg2", "sqlite3")
_LIBPQ: Final = frozenset(
    (
        *("host", "hostaddr", "port", "dbname", "database", "user", "password", "passfile", "require_auth"),
        *("channel_binding", "connect_timeout", "client_encoding", "options", "application_name"),
        *("fallback_application_name", "keepalives", "keepalives_idle", "keepalives_interval"),
        *("keepalives_count", "tcp_user_timeout", "replication", "gssencmode", "sslmode", "requiressl"),
        *("sslnegotiation", "sslcompression", "sslcert", "sslkey", "sslkeylogfile", "sslpassword"),
        *("sslcertmode", "sslrootcert", "sslcrl", "sslcrldir", "sslsni", "requirepeer"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "min_protocol_version"),
        *("max_protocol_version", "krbsrvname", "gsslib", "gssdelegation", "scram_client_key"),
        *("scram_server_key", "oauth_issuer", "oauth_client_id", "oauth_client_secret", "oauth_scope"),
        *("service", "servicefile", "target_session_attrs", "load_balance_hosts", "dsn"),
        *("connection_factory", "cursor_factory", "async", "async_"),
    )
)
"""What psycopg2 and the PostgreSQL library up to 18 take. Twisted takes what begins with ``cp_``."""


SEVERAL_DATABASES: Final = span("1.7")
"""The releases that know `databases`. They read `database_path` only where no other key is set."""


def _databases(config: ProcessConfig) -> Found:
    """The driver of each database, and what is passed on to it."""
    several = config.mapping("databases")
    for key in ("database", "database_path"):
        if several and config.get(key) and not isinstance(config.get(key), Template):
            yield Refusal(
                span=SEVERAL_DATABASES,
                key="databases",
                why=f"`databases` and `{key}` are both set",
                remedy="remove the one whose data is not the homeserver's",
            )
    named = [(f"databases: {name}", one) for name, one in several.items()]
    for key, one in named or [("database", config.mapping("database"))]:
        database = as_mapping(one)
        engine, arguments = database.get("name"), as_mapping(database.get("args"))
        where = "databases" if several else "database"
        if isinstance(engine, str) and engine not in ENGINES:
            yield _bad_database(
                where,
                f"`{key}: name`: Synapse has no driver {printable(engine)}",
                f"write {' or '.join(ENGINES)}",
                releases=KNOWN,
            )
        for name in arguments if engine == "psycopg2" else ():
            value = arguments[name]
            if name in ("cp_min", "cp_max") and not isinstance(value, int | Template):
                yield _bad_database(where, f"`{key}: args: {name}` is no number", "write it without quotes")
            elif isinstance(name, str) and not name.startswith("cp_") and name not in _LIBPQ:
                yield _bad_database(
                    where,
                    f"`{key}: args: {printable(name)}`: PostgreSQL's library has no such option, and makes no"
                    " connection with it",
                    "remove it; how many connections a process has are cp_min and cp_max",
                    releases=KNOWN,
                )


def _bad_database(key: str, why: str, remedy: str, *, releases: Span = ALWAYS) -> Refusal:
    return Refusal(kind="refused_at_start", span=releases, key=key, why=why, remedy=remedy)


# -- registration --------------------------------------------------------------------------------------------

_CHECKS: Final = ("registration_requires_token", "registrations_require_3pid", "enable_registration_captcha")
REGISTRATION: Final = (
    *("enable_registration", "disable_registration", "enable_registration_without_verification", *_CHECKS),
)
"""Keys that say whether anybody may register without a check."""


def _is_any(value: Any, words: Collection[str]) -> bool:
    """Whether a switch of registration is one of these words. Texts are read as truth values are."""
    return not isinstance(value, Template) and str(value).lower() in words


_YES: Final = frozenset(("true", "yes", "on", "1", "y", "t"))
_NO: Final = frozenset(("false", "no", "off", "0", "n", "f"))


def _registration(config: ProcessConfig) -> Found:
    """Open registration. Told of the main process alone, which has the key: workers read it from there."""
    if "disable_registration" in config:
        switch, words = "disable_registration", _NO
    else:
        switch, words = "enable_registration", _YES
    without = config.get("enable_registration_without_verification")
    is_checked = isinstance(without, Template) or _is_any(without, _YES) or any(map(config.get, _CHECKS))
    if not config.is_main or is_checked or not _is_any(config.get(switch), words):
        return
    yield Refusal(
        kind="refused_at_start",
        span=span("1.56"),
        key=switch,
        why=f"`{switch}: {str(config.get(switch)).lower()}` lets everybody register without a check (workers"
        " refuse that as well from 1.140 on)",
        remedy=f"set one of {', '.join(_CHECKS)} (if another file has it, give that one as well), or"
        " `enable_registration: false`; enable_registration_without_verification: true only where nobody else"
        " comes",
    )


RULES: Final[tuple[Rule, ...]] = (
    _mappings,
    _old_keys,
    _start,
    _secrets,
    _no_main,
    _entries,
    _restricted,
    _writers,
    _old_apps,
    _contradictions,
    _lists,
    _listeners,
    _caches,
    _databases,
    _registration,
)
