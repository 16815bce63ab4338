"""A homeserver's own configuration, read as Synapse reads it.

`merging` reads and merges the files, `duties` and `refusals` say what Synapse does with the result, and
`addresses` where the processes are; here they become one `Homeserver`. No message quotes a value, as any may
be a secret.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from os.path import normpath
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final

import msgspec

from synrepl.base.secret import Secret
from synrepl.config.config_files import read_yaml
from synrepl.errors import ConfigError, suggest
from synrepl.homeserver.addresses import (
    LOOPBACK,
    Elsewhere,
    InstanceEntry,
    MetricsAddress,
    PathMap,
    Target,
    binds_of,
    collide,
    elsewhere,
    entries_of,
    hosts_of,
    match_targets,
    metrics_of,
)
from synrepl.homeserver.duties import BY_NAME as DUTY
from synrepl.homeserver.duties import (
    DOES,
    DUTIES,
    has_media,
    http_listeners,
    stream_writers,
    writer_names,
    writes,
)
from synrepl.homeserver.file_notes import MAX_KEY, notes_on_values
from synrepl.homeserver.findings import Finding, Unseen
from synrepl.homeserver.host_names import find_wrong_hosts
from synrepl.homeserver.merging import (
    MAIN,
    MergedFiles,
    ProcessConfig,
    Replaced,
    Template,
    as_list,
    as_mapping,
    merge_files,
)
from synrepl.homeserver.misplaced import find_misplaced
from synrepl.homeserver.poolers import (
    Pooler,
    find_shared_sessions,
    find_workers_on_sqlite,
    note_poolers,
    note_small_pools,
    take_poolers,
)
from synrepl.homeserver.refusals import (
    REGISTRATION,
    SEVERAL_DATABASES,
    NewerKey,
    Refusal,
    find_refusals,
    newer_keys,
)
from synrepl.html.humanize import counted
from synrepl.small_files import read_small_file
from synrepl.wire.dialect import NEWEST, Release, span
from synrepl.wire.text import printable

MAX_PROCESSES: Final = 500
SCALARS: Final = (str, int, float)
"""The types of values that are read as text. A collection may be large, and is never a valid value here."""

KEYS: Final = (
    *("server_name", "worker_app", "worker_name", "listeners", "worker_listeners", "enable_metrics"),
    *("metrics_port", "metrics_bind_host", "database", "databases", "database_path", "redis", "instance_map"),
    *("stream_writers", "caches", "app_service_config_files", "worker_replication_secret"),
    *("worker_replication_secret_path", "worker_replication_host", "worker_replication_http_port"),
    *("outbound_federation_restricted_to", *REGISTRATION),
    *(key for duty in DUTIES for key in (duty.names, duty.switch) if key),
)
"""The keys that are read."""

MEANT: Final = (
    *("stream_writers", "instance_map", "worker_listeners", "outbound_federation_restricted_to"),
    *(key for duty in DUTIES for key in (duty.names, duty.switch) if key),
)
"""Keys that give a duty to a process. If one is misspelled, another process does it, without a message."""

NAMING: Final = ("worker_app", "worker_name")
OF_WORKERS: Final = (
    *("worker_replication_host", "worker_replication_http_port", "worker_listeners", "worker_main_http_uri"),
)
"""Keys that the main process does not read."""

REDIS: Final = span("1.13")
BY_PORT: Final = span("0.27", "1.84")
"""The releases in which a worker has the main process' port in its own file."""
TCP: Final = span("0.1", "1.67")
"""The releases that exchange lines by way of Redis, and those that do so over TCP."""

_NEAR: Final = 0.9


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the homeserver.

    `file` is where it is configured; empty if only another one's keys name it. `metrics` is None if they are
    not known, and `unmeasured` says why, and what to give. `host` is where other processes reach it; None
    if the files do not say. `duties` are names of `DUTIES`, and `writes` the streams that it writes.
    `listens` are the ports and paths of its listeners for replication, and `serves` the resources of all
    its listeners; None if that is not known. `has_listeners` is false for a main process that listens at
    no port. `holds` are the ports and paths of its other listeners, and whether each is of type http.
    `listens_tcp` are those of the older type, `listens_tls` those with TLS. `lacks_main_port`: it does
    not know the port of the main process. `shares_not` are the duties that it does whole, as no list of
    names is set, and `shares_with` the names of such a list, by the duty; `as_text` are duties of which that
    list is a text, with the file that has it. `done_in`: if several files have its name, those of each duty.
    `has_media` says whether it loads the media repository, and `is_for_media` that it has no other work.
    `secret_mark` tells equal replication secrets from different ones; it is empty without a secret, and None
    if it cannot be read. `says` has marks of what all processes of a homeserver have alike, by the names in
    `ALIKE`, as far as its files say it. `writers` are the `stream_writers` in its files, and `refusals` what
    any release refuses in them.
    """

    name: str
    file: str = ""
    metrics: MetricsAddress | None = None
    unmeasured: str = ""
    host: str | None = None
    duties: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    listens: tuple[int | str, ...] | None = None
    has_listeners: bool = True
    holds: Mapping[int | str, bool] = {}
    listens_tcp: tuple[int, ...] = ()
    listens_tls: frozenset[int] = frozenset()
    serves: frozenset[str] | None = None
    lacks_main_port: bool = False
    shares_not: tuple[str, ...] = ()
    shares_with: Mapping[str, tuple[str, ...]] = {}
    as_text: Mapping[str, str] = {}
    done_in: Mapping[str, tuple[str, ...]] = {}
    has_media: bool = False
    is_for_media: bool = False
    has_redis: bool = True
    secret_mark: str | None = ""
    says: Mapping[str, str] = {}
    writers: Mapping[str, tuple[str, ...]] = {}
    refusals: tuple[Refusal, ...] = ()


class DatabaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The database with the streams: `parameters` of libpq, or the `path` of an SQLite file.

    `allows_locale`: the homeserver starts whatever the locale of the database is (`allow_unsafe_locale`).
    """

    parameters: Secret[dict[str, str]] | None = None
    path: str = ""
    allows_locale: bool = False


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The homeserver's Redis. If `path`, a UNIX socket, is set, `host` and `port` are ignored."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    dbid: int | None = None
    username: str = ""
    password: Secret[str] | None = None
    is_tls: bool = False
    ca_file: str = ""
    ca_path: str = ""
    certificate_file: str = ""
    private_key_file: str = ""


class LeftIn(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's file with the listeners of the main process.

    `keys` are a worker's, the first of which makes it one. `has_replication`: one of those listeners has the
    resource, or it is not known.
    """

    file: str
    keys: tuple[str, ...]
    has_replication: bool


class MisspelledKey(msgspec.Struct, frozen=True):
    """A key that is no setting, and its file. `meant` is the setting that it is like; empty of a list of
    workers. `fits`: its value may be one of that setting.
    """

    key: str
    file: str
    meant: str = ""
    fits: bool = True


class Homeserver(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say of a homeserver. Its `server_name` is empty if they are a part of them.

    `writers` are the configured writers of each stream, by the name in `stream_writers`; a stream that is not
    there is written by the main process. `named` are the names that duties, `stream_writers` and
    `instance_map` have, each with the keys and the file that name it. `instances` are the entries of
    `instance_map`, which may differ by the process. `proxies` are those through which others talk to other
    servers. `old_ports` are ports of the main process by a worker's older keys: its name, the key, the host
    and the port. `replaced` are keys that say nothing, as another
    file has them again, and `newer` those that not all releases know. `appservices` are the ids of
    configured application services, and None if not all of them are known. `pushes` says whether any
    process does. `twice` are files that have a process' name in common, by the name. `unnamed` are files
    without a `worker_name`, by the `worker_app` that Synapse takes for the name then. `shared_ports` are
    those of two processes on one machine, or of two listeners of one: the port, the first process, the
    second, and its file. `misspelled` are keys that are no settings. `read_by_main` are files of workers in a
    folder of the main process, each with the key that makes it a worker's. `left_in` is a worker's file with
    the listeners of the main process, if no file is the main process'. `in_values` are keys of caches at the
    wrong level, hosts that are none, and databases whose connections a pooler shares. `unread` is what could
    not be read of the files, and `notes` what is worth a note. `release` is the one that was given, and
    `has_workers` says whether the file of a worker was, and `has_unknown_names` whether a template's mark was
    left in the name of one.
    """

    server_name: str
    database: DatabaseSettings | None
    redis: RedisSettings | None
    processes: tuple[Process, ...]
    writers: Mapping[str, tuple[str, ...]] = {}
    named: Mapping[str, tuple[str, ...]] = {}
    instances: tuple[InstanceEntry, ...] = ()
    proxies: frozenset[str] = frozenset()
    old_ports: tuple[tuple[str, str, str, int], ...] = ()
    replaced: tuple[Replaced, ...] = ()
    newer: tuple[NewerKey, ...] = ()
    appservices: tuple[str, ...] | None = ()
    pushes: bool = True
    twice: Mapping[str, tuple[str, ...]] = {}
    unnamed: Mapping[str, tuple[str, ...]] = {}
    shared_ports: tuple[tuple[int | str, str, str, str], ...] = ()
    misspelled: tuple[MisspelledKey, ...] = ()
    read_by_main: tuple[tuple[str, str], ...] = ()
    left_in: LeftIn | None = None
    in_values: tuple[Finding, ...] = ()
    unread: tuple[Unseen, ...] = ()
    notes: tuple[Finding, ...] = ()
    release: Release | None = None
    has_workers: bool = False
    has_unknown_names: bool = False

    def process(self, name: str) -> Process | None:
        """The process of this name."""
        return next((one for one in self.processes if one.name == name), None)

    def is_main_doing(self, duty: str) -> bool:
        """Whether the main process has this duty."""
        main = self.process(MAIN)
        return main is not None and duty in main.duties


def read_homeserver(
    paths: Sequence[Path],
    workers: Sequence[Path] = (),
    *,
    metrics: Mapping[str, str] | None = None,
    targets: Sequence[Target] = (),
    path_map: PathMap | None = None,
    release: Release | None = None,
    takes_part: bool = False,
) -> Homeserver:
    """Read the configuration in these files and directories, in order, as `release` does, or the newest.

    `metrics` are URLs of metrics by the name of the process; they count more than `targets` of Prometheus,
    and these more than what the files say. `takes_part`: files without the server_name are read too. Raises
    `ConfigError`, whose text says which file and what to give. A `pgbouncer.ini` among the files or beside
    them is read too.
    """
    rest, poolers = take_poolers([*paths, *workers])
    if poolers and not rest:
        raise ConfigError(
            f"{poolers[0].file} is a file of PgBouncer, and says nothing of a homeserver: give it beside its"
            f" files: --homeserver homeserver.yaml --homeserver {poolers[0].file}"
        )
    paths = [path for path in paths if path in rest] or paths
    workers = [path for path in workers if path in rest]
    merged = merge_files(paths, KEYS, workers, takes_part=takes_part)
    loader = _ConfigurationLoader(
        merged, dict(metrics or {}), targets, path_map or PathMap(), release, poolers
    )
    return loader.read()


class _ConfigurationLoader:
    """Makes a `Homeserver` of merged files."""

    def __init__(
        self,
        merged: MergedFiles,
        metrics: dict[str, str],
        targets: Sequence[Target],
        paths: PathMap,
        release: Release | None,
        poolers: Sequence[Pooler],
    ) -> None:
        self._merged = merged
        self._configs = merged.processes
        self._main = merged.processes[0]
        self._metrics = metrics
        self._targets = targets
        self._paths = paths
        self._poolers = poolers
        self._given_release = release
        self._release = release or NEWEST.release
        self._salt = token_bytes(16)
        self._unread: list[Unseen] = []
        self._notes: list[Finding] = []
        self._hosts = hosts_of(self._configs)
        self._entries = entries_of(self._configs)

    def read(self) -> Homeserver:
        for file, kind in self._merged.around:
            self._miss(
                file, f"it is {kind}, and no configuration of Synapse: give the file that Synapse gets"
            )
        for file in self._merged.ignored:
            self._note(
                "ignored_file", f"{file} holds no settings, and Synapse ignores it", "look what it is for"
            )
        for file in self._merged.passed_over:
            why = f"{file} ends with .yml, and of a folder Synapse reads files that end with .yaml alone"
            self._note("ignored_file", why, "rename it, if it has settings of Synapse")
        if not self._server_name():
            self._miss(
                "configuration",
                "no file that was given has a `server_name`, without which no process starts: they are a part"
                " of the configuration. What is missing, who does what, and whether processes agree was not"
                " judged; give all files of each process",
            )
        misspelled = tuple(dict.fromkeys(self._misspelled()))
        misplaced = find_misplaced(self._configs)
        told = frozenset((*(one.key for one in misspelled), *misplaced))
        self._notes += notes_on_values(self._configs, self._release, told=told)
        for one in self._merged.unfilled:
            self._miss(
                "configuration",
                f"{one.file}: {one.key} has the variable {one.variable} left in: its value is not known;"
                " give the file as the process has it",
            )
        self._notes += note_poolers(self._configs, self._poolers)
        self._notes += note_small_pools(self._configs, self._poolers)
        for lost in self._merged.replaced:
            if not self._is_wrong(lost):
                self._note("replaced_key", lost.why, lost.remedy)
        named = self._named()
        files: dict[str, list[str]] = {}
        unnamed: dict[str, list[str]] = {}
        for config in self._configs:
            files.setdefault(str(config.name), []).append(config.file)
            if not config.is_main and "worker_name" not in config:
                unnamed.setdefault(str(config.name), []).append(config.file)
        names = list(dict.fromkeys([*files, *([] if MAIN in files else [MAIN]), *named]))
        if unknown := [name for name in self._metrics if name not in names]:
            hint = suggest(unknown[0], names)
            raise ConfigError(f"--metrics names {unknown[0]}, which is no process of the homeserver{hint}")
        if len(names) > MAX_PROCESSES:
            raise ConfigError(f"the files name {len(names)} processes, and at most {MAX_PROCESSES} are read")
        targets, left = match_targets(self._targets, names)
        for why in left:
            self._miss("metrics", why)
        given = {**targets, **self._metrics}
        away = elsewhere(self._configs)
        by_name = {config.name: config for config in reversed(self._configs)}
        writers = stream_writers(self._main)
        processes = [
            self._process(by_name[name], given, away=away)
            if name in by_name
            else Process(
                name=name,
                metrics=MetricsAddress(given[name]) if name in given else None,
                host=self._hosts.get(name),
                writes=tuple(writes(name, writers, self._release)),
            )
            for name in names
        ]
        processes = list(self._without_doubles(processes))
        self._note_checks_switched_off()
        self._say_what_workers_lack(unnamed)
        self._say_what_is_not_reached()
        for process in processes:
            if process.file and process.unmeasured:
                self._note("unmeasured", process.unmeasured, "", process=process.name)
        return Homeserver(
            server_name=self._server_name(),
            database=self._database(),
            redis=self._redis(),
            processes=tuple(processes),
            writers=writers,
            named={name: tuple(of) for name, of in named.items()},
            instances=tuple(self._entries),
            old_ports=tuple(self._old_ports()),
            replaced=tuple(filter(self._is_wrong, self._merged.replaced)),
            newer=tuple(dict.fromkeys(one for config in self._configs for one in newer_keys(config))),
            proxies=frozenset(
                name
                for config in self._configs
                for name in writer_names(config.get("outbound_federation_restricted_to"))
            ),
            appservices=self._appservices(),
            pushes=self._is_done("pushers"),
            twice={
                name: tuple(of)
                for name, of in files.items()
                if len(of) > 1 and not any(isinstance(config.name, Template) for config in self._configs)
            },
            unnamed={name: tuple(of) for name, of in unnamed.items()},
            shared_ports=tuple(self._shared_ports(away)),
            misspelled=misspelled,
            read_by_main=tuple(self._merged.read_by_main) if self._main.is_main else (),
            left_in=None if self._main.is_main else self._left_in(),
            in_values=(
                *misplaced.values(),
                *find_wrong_hosts(self._configs, self._release, self._given_release),
                *find_shared_sessions(self._configs, self._poolers),
                *find_workers_on_sqlite(self._configs),
            ),
            unread=tuple(self._unread),
            notes=tuple(self._notes),
            release=self._given_release,
            has_workers=any(not config.is_main for config in self._configs),
            has_unknown_names=any(isinstance(config.name, Template) for config in self._configs),
        )

    def _left_in(self) -> LeftIn | None:
        """The file with the listeners of the main process and keys of a worker, if there is one."""
        for config in self._configs:
            for key in NAMING:
                has_key = config.app if key == "worker_app" else config.get(key)
                file = config.origin(key)
                if has_key and "listeners" in config and file == config.origin("listeners"):
                    own = ["worker_name", *OF_WORKERS] if key == "worker_app" else OF_WORKERS
                    others = [one for one in own if one in config]
                    return LeftIn(
                        file=file,
                        keys=(key, *(one for one in others if config.origin(one) == file)),
                        has_replication=_has_replication(config.get("listeners")),
                    )
        return None

    def _misspelled(self) -> Iterator[MisspelledKey]:
        for config in self._configs:
            for key in config.values:
                if key in KEYS or key in MEANT or not isinstance(key, str) or len(key) >= MAX_KEY:
                    continue
                if _lists_workers(key, config.get(key)):
                    yield MisspelledKey(key, config.origin(key))
                    continue
                for meant in difflib.get_close_matches(key, MEANT, 1, _NEAR):
                    fits = may_be_value(meant, config.get(key))
                    yield MisspelledKey(key, config.origin(key), meant, fits=fits)

    def _server_name(self) -> str:
        names = [config.get("server_name") for config in self._configs]
        return next((name for name in names if isinstance(name, str)), "")

    # -- processes -----------------------------------------------------------------------------------------

    def _process(self, config: ProcessConfig, given: Mapping[str, str], *, away: Elsewhere) -> Process:
        name = config.name
        metrics, unmeasured = self._measured(config, given, away=away)
        return Process(
            # Shown, and sent as JSON; that it has a mark in it is `has_unknown_names`.
            name=str(name),
            file=config.file,
            metrics=metrics,
            unmeasured=unmeasured,
            host=self._hosts.get(name),
            duties=tuple(sorted(duty.name for duty in DUTIES if duty.has(config, self._release))),
            writes=tuple(writes(name, stream_writers(config), self._release)),
            listens=self._listens(config),
            has_listeners=_has_listeners(config),
            holds=self._holds(config),
            listens_tcp=tuple(
                one["port"]
                for one in map(as_mapping, config.list("listeners"))
                if one.get("type") == "replication" and isinstance(one.get("port"), int)
            ),
            listens_tls=frozenset(
                where
                for listener, _ in http_listeners(config)
                if listener.get("tls") and isinstance(where := listener.get("port"), int)
            ),
            serves=self._serves(config),
            lacks_main_port=not config.is_main
            and self._release in BY_PORT
            and not config.get("worker_replication_http_port"),
            shares_not=tuple(
                duty.name
                for duty in DUTIES
                if not duty.is_of_one and not config.get(duty.names) and duty.has(config, self._release)
            ),
            shares_with={
                duty.name: names for duty in DUTIES if (names := duty.shares_with(config, self._release))
            },
            as_text={
                duty.name: config.origin(duty.names)
                for duty in DUTIES
                if duty.shares_with(config, self._release)
                and isinstance(value := config.get(duty.names), str)
                and not isinstance(value, Template)
            },
            done_in=self._done_in(name),
            has_media=has_media(config),
            is_for_media=config.app == DUTY["media"].app,
            has_redis=bool(config.mapping("redis").get("enabled")),
            secret_mark=self._secret_mark(config),
            says=self._says(config),
            writers=stream_writers(config),
            refusals=tuple(
                one
                for one in find_refusals(config)
                if self._server_name() or not one.lacks or one.lacks in config.values
            ),
        )

    def _done_in(self, name: str) -> dict[str, tuple[str, ...]]:
        """The files of each duty, if several have this name: each is started with its own."""
        of = [config for config in self._configs if config.name == name]
        if len(of) < 2 or name == MAIN or isinstance(name, Template):
            return {}
        return {
            duty.name: tuple(config.file for config in of if duty.has(config, self._release))
            for duty in DUTIES
        }

    def _measured(
        self, config: ProcessConfig, given: Mapping[str, str], *, away: Elsewhere
    ) -> tuple[MetricsAddress | None, str]:
        """Where the metrics of a process are; or None, and why."""
        name = config.name
        if name in given:
            return MetricsAddress(given[name]), ""
        host = self._hosts.get(name, "")
        metrics, listens = metrics_of(config, host, away=away, paths=self._paths)
        give = f"give --metrics {printable(name)}=URL, or --targets FILE"
        if not listens:
            why = f"its files name no metrics (a listener of type metrics, and enable_metrics: true); {give}"
        elif metrics is None and not (config.get("enable_metrics") or self._shows_by_http(config)):
            why = "it has a listener for metrics, and enable_metrics is not true in its files"
        elif metrics is None:
            why = f"it shows metrics, and the files do not say on which host it runs; {give}"
        else:
            why = ""
        return metrics, why

    def _shows_by_http(self, config: ProcessConfig) -> bool:
        """Whether it is a worker that shows metrics by a listener of type http: it does so in any case."""
        return not config.is_main and any("metrics" in names for _, names in http_listeners(config))

    def _without_doubles(self, processes: Sequence[Process]) -> Iterator[Process]:
        """No two processes are at one address: then neither is known."""
        at: dict[str, list[str]] = {}
        for one in processes:
            if one.metrics is not None:
                at.setdefault(one.metrics.shown, []).append(one.name)
        for one in processes:
            names = [] if one.metrics is None else at[one.metrics.shown]
            if one.metrics is None or len(names) < 2:
                yield one
                continue
            others = ", ".join(printable(name) for name in names if name != one.name)
            yield msgspec.structs.replace(
                one,
                metrics=None,
                unmeasured=f"{one.metrics.shown} would be that of {others} as well; give --metrics"
                f" {printable(one.name)}=URL, or --targets FILE",
            )

    def _listens(self, config: ProcessConfig) -> tuple[int | str, ...] | None:
        key = "listeners" if config.is_main else "worker_listeners"
        # Without the key the main process has others, by older keys; of a part of the files any may have it.
        if (config.is_main or not self._server_name()) and key not in config:
            return None
        found: list[int | str] = []
        for listener, names in http_listeners(config):
            where = listener.get("path") or listener.get("port")
            if isinstance(where, Template) or any(isinstance(name, Template) for name in names):
                return None
            if "replication" in names and isinstance(where, int | str):
                found.append(where)
        return tuple(found)

    def _holds(self, config: ProcessConfig) -> dict[int | str, bool]:
        """The ports and paths of listeners without the resource replication; whether each is of type http."""
        found: dict[int | str, bool] = {}
        for listener in map(as_mapping, config.list("listeners" if config.is_main else "worker_listeners")):
            where = listener.get("path") or listener.get("port")
            if isinstance(where, int | str) and not isinstance(where, Template):
                found[where] = listener.get("type") == "http"
        for where in self._listens(config) or ():
            found.pop(where, None)
        return found

    def _serves(self, config: ProcessConfig) -> frozenset[str] | None:
        """The resources of its listeners; None if one is not known."""
        key = "listeners" if config.is_main else "worker_listeners"
        found = [name for _, names in http_listeners(config) for name in names]
        is_unknown = isinstance(config.get(key), Template) or any(isinstance(one, Template) for one in found)
        return None if is_unknown or (config.is_main and key not in config) else frozenset(found)

    def _is_wrong(self, lost: Replaced) -> bool:
        """Whether what was lost is needed. Workers may serve what the main process does not."""
        has_workers = any(not config.is_main for config in self._configs)
        return bool(lost.times) or (lost.is_wrong and not (lost.key == "listeners" and has_workers))

    def _old_ports(self) -> Iterator[tuple[str, str, str, int]]:
        """Workers with a port of the main process by an older key that counts: name, key, host, port."""
        tcp = "worker_replication_port"
        # Lines go over TCP where Redis does not take them.
        by_tcp = self._release in TCP and not self._main.mapping("redis").get("enabled")
        for config in self._configs:
            keys = [] if "main" in config.mapping("instance_map") else ["worker_replication_http_port"]
            for key in keys + [tcp] * by_tcp:
                if not config.is_main and isinstance(port := config.get(key), int) and port:
                    yield config.name, key, str(config.get("worker_replication_host") or ""), port

    def _named(self) -> dict[str, list[str]]:
        """The names that keys give, each with those keys and the files that have them."""
        found: dict[str, dict[str, list[str]]] = {}

        def add(name: Any, key: str, config: ProcessConfig) -> None:
            if isinstance(name, str) and not isinstance(name, Template) and name:
                files = found.setdefault(name, {}).setdefault(key, [])
                if (file := config.origin(key.partition(".")[0])) not in files:
                    files.append(file)

        for config in self._configs:
            for name in config.mapping("instance_map"):
                add(MAIN if name == "main" else name, "instance_map", config)
            for key, names in stream_writers(config).items():
                for name in names:
                    add(name, f"stream_writers.{printable(key)}", config)
            for duty in DUTIES:
                if self._release in duty.named:
                    for name in duty.named_by(config):
                        add(name, duty.names, config)
        return {
            name: [
                f"{key} in {files[0]}"
                + (f" and {counted(len(files) - 1, 'other file', 'other files')}" if len(files) > 1 else "")
                for key, files in keys.items()
            ]
            for name, keys in found.items()
        }

    def _is_done(self, name: str) -> bool:
        """Whether any process does this; a process may also be one whose file was not given."""
        duty = next(one for one in DUTIES if one.name == name)
        return any(duty.has(config, self._release) or bool(duty.named_by(config)) for config in self._configs)

    def _note_checks_switched_off(self) -> None:
        """Note each check of `CHECKS` that no process makes, since the configuration leaves it to none."""
        for duty, what in CHECKS.items():
            one = next(one for one in DUTIES if one.name == duty)
            keys = (one.names, one.switch)
            if self._is_done(duty) or not (self._main.is_main or any(key in self._main for key in keys)):
                continue
            key = one.names if self._main.get(one.names) is not None else one.switch
            self._note(
                "check_switched_off",
                f"no process that was given {DOES[duty]}, and {what} not checked: `{key}` in"
                f" {self._main.origin(key)} leaves it to none",
                "if a process is meant to, set"
                + (
                    f" `{one.names}: [NAME]` in the shared file"
                    if self._release in one.named
                    else f" `worker_app: {one.app}` in its file"
                )
                + "; if one does, give its file with --worker",
            )

    def _say_what_workers_lack(self, unnamed: Mapping[str, Sequence[str]]) -> None:
        """Name keys of workers where there is none, and files of workers without a name."""
        keys = [key for key in OF_WORKERS if self._main.get(key)]
        if keys and len(self._configs) == 1 and self._main.is_main:
            self._note(
                "ignored_key",
                f"{' and '.join(f'`{key}`' for key in keys)} in {self._main.origin(keys[0])}: workers read"
                " it, and no worker was given; the main process ignores it",
                "remove it, or give the files of the workers",
            )
        for app, files in unnamed.items():
            if len(files) == 1 and (self._main.is_main or not self._left_in()):
                self._note(
                    "no_name",
                    f"{files[0]} has no `worker_name`, and Synapse calls the process {printable(app)}: all"
                    " that are started with this file have one name",
                    "give each process a file with a `worker_name` of its own",
                    process=app,
                )

    def _say_what_is_not_reached(self) -> None:
        """Name the listeners at loopback of processes that others go to at another host."""
        at: dict[str, set[Any]] = {}
        for entry in self._entries:
            at.setdefault(entry.name, set()).add(entry.where)
        older = [config.get("worker_replication_http_port") for config in self._configs]
        at.setdefault(MAIN, set()).update(port for port in older if isinstance(port, int))
        for config in self._configs:
            host = self._hosts.get(config.name, "")
            for listener, names in http_listeners(config):
                where = listener.get("port")
                is_meant = (
                    "replication" in names
                    and isinstance(where, int | str)
                    and where in at.get(config.name, ())
                )
                if is_meant and host not in ("", *LOOPBACK) and set(binds_of(listener)) <= {*LOOPBACK}:
                    self._note(
                        "loopback_only",
                        f"{printable(config.name)} listens for replication at {where} of this machine alone,"
                        f" and the others go to the host {printable(host)}: other machines and containers do"
                        " not reach it",
                        "set bind_addresses of that listener, as ['0.0.0.0'] in a container; or the host to"
                        " localhost, if all processes run here",
                        process=config.name,
                    )

    def _shared_ports(self, away: Elsewhere) -> Iterator[tuple[int | str, str, str, str]]:
        """Ports and sockets with two listeners: of one process, or of two if all are on one host."""
        is_one_machine = not away.processes and self._hosts.get(MAIN) in LOOPBACK
        seen: dict[int | str, list[tuple[str, str]]] = {}
        for config in self._configs:
            own: dict[int | str, set[str]] = {}
            doubled: dict[int | str, None] = {}
            for listener in _all_listeners(config):
                port, path = listener.get("port"), listener.get("path")
                if isinstance(path, str) and not isinstance(path, Template) and not port:
                    port = normpath(path)
                elif not isinstance(port, int):
                    continue
                if port:
                    binds = {""} if isinstance(port, str) else set(binds_of(listener))
                    if any(collide(bind, mine) for bind in own.get(port, ()) for mine in binds):
                        doubled[port] = None
                    own.setdefault(port, set()).update(binds)
            for port in doubled:
                yield port, config.name, config.name, config.file
            for port, binds in own.items() if is_one_machine else ():
                others = [
                    name
                    for name, bind in seen.get(port, ())
                    if name != config.name and any(collide(bind, mine) for mine in binds)
                ]
                if others:
                    yield port, others[0], config.name, config.file
                seen.setdefault(port, []).extend((config.name, bind) for bind in binds)

    def _secret_mark(self, config: ProcessConfig) -> str | None:
        names = "worker_replication_secret", "worker_replication_secret_path"
        secret = self._secret(config.values, *names, config.origin(names[1]))
        if secret is None:
            return None if any(isinstance(config.get(name), str) for name in names) else ""
        return sha256(self._salt + secret.encode()).hexdigest()

    def _says(self, config: ProcessConfig) -> dict[str, str]:
        """What is to be the same for all, by the name in `ALIKE`: marks, as any value may be a secret."""
        found: dict[str, str] = {}

        def add(what: str, *values: Any) -> None:
            if not any(isinstance(value, Template) for value in values):
                text = "\0".join("" if value is None else str(value) for value in values)
                found[what] = sha256(self._salt + text.encode()).hexdigest()

        if isinstance(name := config.get("server_name"), str):
            add("server_name", name)
        database = config.mapping("database")
        if database and not config.get("databases"):
            given = as_mapping(database.get("args"))
            at = database.get("name"), given.get("host"), given.get("port")
            add("database: args: host", *at)
            # libpq takes the name of the user where none is given.
            name = given.get("database") or given.get("dbname") or given.get("user")
            add("database: args: database", *at, name)
        redis = redis_settings(config)
        if redis is not None:
            add("redis", *((redis.path,) if redis.path else (redis.host, redis.port)))
        return found

    def _secret(self, config: Mapping[str, Any], name: str, path_name: str, file: str) -> str | None:
        """The secret in the file, or in the file that it names; None without one."""
        if isinstance(value := config.get(name), str):
            return None if isinstance(value, Template) else value
        path = config.get(path_name)
        if not isinstance(path, str) or isinstance(path, Template):
            return None
        path = self._paths.here(path)
        try:
            return read_small_file(path).decode().strip()
        except (ConfigError, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, ConfigError) else f"{path} is not text"
            self._miss(
                "configuration",
                f"{file}: {path_name}: {why}: run as a user that may read it, or say where it is with"
                " --root or"
                " --map",
            )
            return None

    # -- the other parts -----------------------------------------------------------------------------------

    def _database(self) -> DatabaseSettings | None:
        main = self._main
        several = main.mapping("databases")
        if several:
            candidates = [as_mapping(one) for one in several.values()]
            database = next(
                (one for one in candidates if _has_main_store(one)),
                {},
            )
        else:
            database = main.mapping("database")
        arguments = dict(as_mapping(database.get("args")))
        if any(isinstance(value, Template) for value in arguments.values()):
            return None
        kind = database.get("name", "sqlite3")
        if kind == "psycopg2":
            parameters = {
                "dbname" if name == "database" else str(name): str(value)
                for name, value in arguments.items()
                if not str(name).startswith("cp_") and isinstance(value, SCALARS)
            }
            allows = bool(database.get("allow_unsafe_locale"))
            return DatabaseSettings(parameters=Secret(parameters), allows_locale=allows)
        if kind != "sqlite3":
            self._miss("database", "the database is neither psycopg2 nor sqlite3: it is not examined")
            return None
        path = main.get("database_path")
        if not path or (database and self._release in SEVERAL_DATABASES):
            path = arguments.get("database")
        if not isinstance(path, str) or path == ":memory:":
            self._miss("database", "the files name no database: it is not examined")
            if self._server_name() and not any(map(main.get, DATABASE_KEYS)):
                self._note(
                    "no_database",
                    "no file that was given has `database`, `databases` or `database_path`: without one, and"
                    " without a path by its option -d, Synapse does not start",
                    "give the file that has it as well, or set `database`",
                )
            return None
        return DatabaseSettings(path=self._paths.here(path))

    def _is_over_tcp(self) -> bool:
        """Whether the processes exchange lines without a Redis, as releases up to 1.66 can."""
        kinds = [as_mapping(one).get("type") for one in self._main.list("listeners")]
        return self._release not in REDIS or (self._release in TCP and "replication" in kinds)

    def _redis(self) -> RedisSettings | None:
        found = redis_settings(self._main)
        redis = self._main.mapping("redis")
        if found is None:
            if not redis.get("enabled") and len(self._configs) > 1 and not self._is_over_tcp():
                self._miss(
                    "Redis",
                    "`redis` is not enabled in the files: without it workers hear of nothing: set"
                    " `redis: {enabled: true}` in the shared file, or name the file that has it",
                )
            return None
        password = self._secret(redis, "password", "password_path", self._main.origin("redis"))
        return msgspec.structs.replace(
            found,
            password=None if password is None else Secret(password),
            **{name: self._paths.here(getattr(found, name)) for name in REDIS_PATHS},
        )

    def _appservices(self) -> tuple[str, ...] | None:
        """The ids of application services; None if a file cannot be read: all that the database has count."""
        found: list[str] | None = []
        for path in self._main.list("app_service_config_files"):
            try:
                entry = read_yaml(Path(self._paths.here(path) if isinstance(path, str) else ""))
            except ConfigError as error:
                self._note(
                    "unread_registration",
                    f"an application service: {error}: its states and transactions are read from the"
                    " database",
                    "say where its file is with --root or --map",
                )
                found = None
                continue
            if found is not None and isinstance(name := entry.get("id"), str):
                found.append(name)
        return None if found is None else tuple(found)

    def _miss(self, what: str, why: str) -> None:
        one = Unseen(what=what, why=why)
        if one not in self._unread:
            self._unread.append(one)

    def _note(self, kind: str, why: str, remedy: str, *, process: str = "") -> None:
        self._notes.append(Finding(kind=kind, process=str(process), why=why, remedy=remedy))


ALIKE: Final = ("server_name", "database: args: database", "database: args: host", "redis")
"""What all processes of a homeserver have alike. Of the last two one may have another way to the same."""

DATABASE_KEYS: Final = ("database", "databases", "database_path")


def _has_main_store(database: Mapping[str, Any]) -> bool:
    """Whether one of several databases has the streams; without `data_stores` it has all."""
    stores = database.get("data_stores")
    return stores is None or "main" in as_list(stores)


def may_be_value(key: str, value: Any) -> bool:
    """Whether the value is of the type that this key of `MEANT` has; none may be filled in yet."""
    if value is None or isinstance(value, Template):
        return True
    if key in ("stream_writers", "instance_map"):
        return isinstance(value, dict)
    if any(key == duty.switch for duty in DUTIES):
        return isinstance(value, bool)
    # Names of processes, or listeners.
    return isinstance(value, str | list | dict)


_OF_WORKERS: Final = re.compile(r"(?:\w+_)?workers|workers?_(?:list|configs?|instances)")
"""Names of a list of workers, as tools that start them call it."""


def _lists_workers(key: str, value: Any) -> bool:
    """Whether the value of a key that is no setting is a list of workers."""
    entries = list(value.values()) if isinstance(value, dict) else as_list(value)
    named = [one for entry in entries for one in as_mapping(entry) if str(one).startswith("worker_")]
    # Keys with x- are for anchors of YAML.
    return bool(entries) and not key.startswith("x-") and bool(named or _OF_WORKERS.fullmatch(key))


def _has_replication(listeners: Any) -> bool:
    """Whether one of these listeners has the resource, or a template's mark hides what it has."""
    found = [listeners]
    for key in ("resources", "names"):
        found += [as_mapping(one).get(key) for many in found for one in as_list(many)]
    words = [word for one in found for word in (one, *as_list(one))]
    return any(isinstance(word, Template) or word == "replication" for word in words)


def _all_listeners(config: ProcessConfig) -> Iterator[Mapping[str, Any]]:
    """The listeners of a process, also those by older keys."""
    yield from map(as_mapping, config.list("listeners" if config.is_main else "worker_listeners"))
    if config.is_main and (port := config.get("metrics_port")):
        # Synapse listens there also if `enable_metrics` is not set, and serves nothing.
        yield {"port": port, "bind_address": config.get("metrics_bind_host") or "127.0.0.1"}
    manhole = config.get("manhole" if config.is_main else "worker_manhole")
    if isinstance(manhole, int):
        yield {"port": manhole, "bind_address": "127.0.0.1"}


def _has_listeners(config: ProcessConfig) -> bool:
    """Whether a process listens anywhere, as far as is known. A worker need not."""
    # A value of another type is refused.
    return not config.is_main or bool(config.get("bind_port")) or config.get("listeners", []) != []


CHECKS: Final = {"federation": "federation is", "pushers": "the pushers are"}
"""The duties whose progress is checked, as a person calls them."""

REDIS_PATHS: Final = ("path", "ca_file", "ca_path", "certificate_file", "private_key_file")


def redis_settings(config: ProcessConfig) -> RedisSettings | None:
    """The Redis of a process, without its password; None if it has none, or where it is is not known."""
    redis = config.mapping("redis")
    enabled = redis.get("enabled")
    # What is left in of a template may be anything; of a login it is missed when it is asked for.
    if not enabled or any(
        isinstance(redis.get(name), Template) for name in ("enabled", "host", "port", "path")
    ):
        return None

    def text(name: str, default: str = "") -> str:
        value = redis.get(name)
        return value if isinstance(value, str) and not isinstance(value, Template) else default

    given, dbid = redis.get("port", 6379), redis.get("dbid")
    port = int(given) if isinstance(given, int) or (isinstance(given, str) and given.isdecimal()) else 6379
    if not 0 < port < 65536:
        port = 6379
    return RedisSettings(
        host=text("host", "localhost"),
        port=port,
        path=text("path"),
        dbid=dbid if type(dbid) is int else None,
        username=text("username"),
        is_tls=bool(redis.get("use_tls")),
        ca_file=text("ca_file"),
        ca_path=text("ca_path"),
        certificate_file=text("certificate_file"),
        private_key_file=text("private_key_file"),
    )
