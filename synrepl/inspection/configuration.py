"""A homeserver's own configuration, read as Synapse reads it.

Several files and directories are merged: a key at the top of a later file replaces that of an earlier one
whole. A worker's file comes over the shared ones (docs/reference/peers.md#configuration). No message quotes a
value, as any may be a secret.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final

import msgspec

from synrepl.config.files import read_yaml
from synrepl.errors import ConfigError, suggest
from synrepl.ports.secret import Secret
from synrepl.small_files import read_small_file

MAIN: Final = "master"
"""The main process, as the streams call it. In `instance_map` its name is ``main``."""

METRICS_PATH: Final = "/_synapse/metrics"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
EVERYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104 (they are recognized, not bound)
MAX_PROCESSES: Final = 500
SCALARS: Final = (str, int, float)
"""What becomes text. A collection in its place may be large, and is no setting of Synapse's."""


class MetricsAddress(msgspec.Struct, frozen=True):
    """Where a process shows its metrics. `socket` is the path of a UNIX socket, if it listens at one.

    `is_loopback`: only programs on the same machine reach it.
    """

    url: str
    socket: str = ""
    is_loopback: bool = False

    @property
    def shown(self) -> str:
        """The address as a person reads it."""
        return self.socket or self.url


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the homeserver.

    `file` is where it is configured; empty if only `instance_map` or `stream_writers` names it. `metrics` is
    None if the files name none. `host` is where other processes reach it, empty if the files do not say.
    `secret_mark` tells equal replication secrets from different ones, and is empty without a secret.
    """

    name: str
    file: str = ""
    metrics: MetricsAddress | None = None
    host: str = ""
    has_redis: bool = True
    secret_mark: str = ""


class DatabaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The database with the streams: `parameters` of libpq, or the `path` of an SQLite file."""

    parameters: Secret[dict[str, str]] | None = None
    path: str = ""


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The homeserver's Redis. With `path`, a UNIX socket, host and port do not count."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    username: str = ""
    password: Secret[str] | None = None
    is_tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    private_key_file: str = ""


class Homeserver(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say of a homeserver.

    `writers` are the configured writers of each stream, by the name in `stream_writers`; a stream that is not
    there is written by the main process. `appservices` are the ids of configured application services, and
    `federates` and `pushes` say whether any process sends federation or pushes. `twice` are files that have a
    process' name in common, by the name. `notes` are what could not be read of the files.
    """

    server_name: str
    database: DatabaseSettings | None
    redis: RedisSettings | None
    processes: tuple[Process, ...]
    writers: Mapping[str, tuple[str, ...]] = {}
    appservices: tuple[str, ...] = ()
    federates: bool = True
    pushes: bool = True
    twice: Mapping[str, tuple[str, ...]] = {}
    notes: tuple[str, ...] = ()

    def process(self, name: str) -> Process | None:
        """The process of this name."""
        return next((one for one in self.processes if one.name == name), None)


def read_homeserver(
    paths: Sequence[Path], workers: Sequence[Path] = (), *, metrics: Mapping[str, str] | None = None
) -> Homeserver:
    """Read the configuration in these files and directories, and that of each worker.

    `metrics` are URLs of metrics by the name of the process; they count more than what the files say.
    Raises `ConfigError`, whose text says which file and what to give.
    """
    shared_files = list(_files(paths))
    shared = _merged(shared_files)
    if not isinstance(shared.get("server_name"), str):
        names = ", ".join(str(path) for path in paths)
        raise ConfigError(f"{names}: no server_name: this is not the configuration of a homeserver")
    return _ConfigurationLoader(shared, str(shared_files[-1]), workers, dict(metrics or {})).read()


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        try:
            found = sorted(one for one in path.iterdir() if one.name.endswith(".yaml") and one.is_file())
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        if not found:
            raise ConfigError(f"{path} has no *.yaml file: name the homeserver's configuration files")
        yield from found


def _merged(files: Iterable[Path]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path in files:
        merged.update(read_yaml(path))
    return merged


class _ConfigurationLoader:
    """Reads the shared configuration, and each worker's over it."""

    def __init__(
        self, shared: dict[str, Any], shared_file: str, workers: Sequence[Path], metrics: dict[str, str]
    ) -> None:
        self._shared = shared
        self._shared_file = shared_file
        self._workers = workers
        self._metrics = metrics
        self._salt = token_bytes(16)
        self._notes: list[str] = []
        self._instances = self._instance_map()

    def read(self) -> Homeserver:
        shared = self._shared
        configured = [self._process(shared, MAIN, self._shared_file)]
        for file in _files(self._workers):
            merged = {**shared, **_merged([file])}
            name = merged.get("worker_name")
            if merged.get("worker_app") in (None, "synapse.app.homeserver"):
                name = MAIN
            elif not isinstance(name, str) or not name:
                raise ConfigError(f"{file}: no worker_name: this is not the configuration of a worker")
            if name == MAIN:
                # The main process may have a file of its own over the shared ones.
                configured[0] = self._process(merged, MAIN, str(file))
                self._shared = {**shared, **merged}
            else:
                configured.append(self._process(merged, name, str(file)))
        files: dict[str, list[str]] = {}
        for one in configured:
            files.setdefault(one.name, []).append(one.file)
        processes = {one.name: one for one in configured}
        writers = self._writers()
        for name in [*self._instances, *(name for names in writers.values() for name in names)]:
            if name not in processes:
                metrics = self._given_metrics(name)
                processes[name] = Process(name=name, metrics=metrics, host=self._host(name))
        if unknown := [name for name in self._metrics if name not in processes]:
            hint = suggest(unknown[0], list(processes))
            raise ConfigError(f"--metrics names {unknown[0]}, which is no process of the homeserver{hint}")
        if len(processes) > MAX_PROCESSES:
            raise ConfigError(
                f"the files name {len(processes)} processes, and at most {MAX_PROCESSES} are read"
            )
        return Homeserver(
            server_name=shared["server_name"],
            database=self._database(),
            redis=self._redis(),
            processes=tuple(processes.values()),
            writers=writers,
            appservices=self._appservices(),
            federates=bool(shared.get("federation_sender_instances"))
            or shared.get("send_federation") is not False,
            pushes=bool(shared.get("pusher_instances")) or shared.get("start_pushers") is not False,
            twice={name: tuple(of) for name, of in files.items() if len(of) > 1},
            notes=tuple(self._notes),
        )

    # -- processes -----------------------------------------------------------------------------------------

    def _process(self, config: dict[str, Any], name: str, file: str) -> Process:
        return Process(
            name=name,
            file=file,
            metrics=self._given_metrics(name) or self._configured_metrics(config, name),
            host=self._host(name),
            has_redis=_mapping(config.get("redis")).get("enabled") is True,
            secret_mark=self._secret_mark(config, file),
        )

    def _instance_map(self) -> dict[str, Mapping[str, Any]]:
        entries = _mapping(self._shared.get("instance_map"))
        return {MAIN if name == "main" else str(name): _mapping(entry) for name, entry in entries.items()}

    def _host(self, name: str) -> str:
        host = self._instances.get(name, {}).get("host", "")
        return host if isinstance(host, str) else ""

    def _given_metrics(self, name: str) -> MetricsAddress | None:
        url = self._metrics.get(name)
        return None if url is None else MetricsAddress(url=url)

    def _configured_metrics(self, config: dict[str, Any], name: str) -> MetricsAddress | None:
        """The address that is easiest to reach."""
        found = [
            address
            for listener in _list(config.get("listeners" if name == MAIN else "worker_listeners"))
            if _shows_metrics(_mapping(listener))
            for address in self._addresses(_mapping(listener), name)
        ]
        if port := config.get("metrics_port"):
            host = config.get("metrics_bind_host") or "127.0.0.1"
            found += self._addresses({"port": port, "bind_addresses": [host], "type": "metrics"}, name)
        if found and config.get("enable_metrics") is not True:
            self._notes.append(f"{name} listens for metrics, and enable_metrics is not true in its files")
        found.sort(key=lambda one: one.is_loopback and self._host(name) not in (*LOOPBACK, ""))
        return found[0] if found else None

    def _addresses(self, listener: Mapping[str, Any], name: str) -> Iterator[MetricsAddress]:
        if isinstance(path := listener.get("path"), str):
            yield MetricsAddress(url=f"http://localhost{METRICS_PATH}", socket=path, is_loopback=True)
            return
        port = listener.get("port")
        if not isinstance(port, int) or not 0 < port < 65536:
            return
        scheme = "https" if listener.get("tls") is True else "http"
        binds = listener.get("bind_addresses") or []
        if isinstance(single := listener.get("bind_address"), str):
            binds = [*_list(binds), single]
        for bind in _list(binds) or [""]:
            if not isinstance(bind, str):
                continue
            is_loopback = bind in LOOPBACK
            host = bind
            if bind in EVERYWHERE:
                host = self._host(name) or "127.0.0.1"
            elif bind == "localhost":
                host = "127.0.0.1"
            shown = f"[{host}]" if ":" in host else host
            yield MetricsAddress(url=f"{scheme}://{shown}:{port}{METRICS_PATH}", is_loopback=is_loopback)

    def _secret_mark(self, config: Mapping[str, Any], file: str) -> str:
        secret = self._secret(config, "worker_replication_secret", "worker_replication_secret_path", file)
        return "" if secret is None else sha256(self._salt + secret.encode()).hexdigest()

    def _secret(self, config: Mapping[str, Any], name: str, path_name: str, file: str) -> str | None:
        """The secret in the file, or in the file that it names; None without one."""
        if isinstance(value := config.get(name), str):
            return value
        path = config.get(path_name)
        if not isinstance(path, str):
            return None
        try:
            return read_small_file(path).decode().strip()
        except (ConfigError, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, ConfigError) else f"{path} is not text"
            self._notes.append(f"{file}: {path_name}: {why}: run as a user that may read it")
            return None

    # -- the other parts -----------------------------------------------------------------------------------

    def _writers(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for stream, names in _mapping(self._shared.get("stream_writers")).items():
            listed = [names] if isinstance(names, str) else _list(names)
            found[str(stream)] = tuple(
                MAIN if one == "main" else str(one) for one in listed if isinstance(one, SCALARS)
            )
        return found

    def _database(self) -> DatabaseSettings | None:
        shared = self._shared
        several = _mapping(shared.get("databases"))
        if several:
            candidates = [_mapping(one) for one in several.values()]
            database = next(
                (one for one in candidates if "main" in _list(one.get("data_stores", ["main", "state"]))), {}
            )
        else:
            database = _mapping(shared.get("database"))
        arguments = dict(_mapping(database.get("args")))
        kind = database.get("name", "sqlite3")
        if kind == "psycopg2":
            parameters = {
                "dbname" if name == "database" else str(name): str(value)
                for name, value in arguments.items()
                if not str(name).startswith("cp_") and isinstance(value, SCALARS)
            }
            return DatabaseSettings(parameters=Secret(parameters))
        if kind != "sqlite3":
            self._notes.append("the database is neither psycopg2 nor sqlite3: it is not examined")
            return None
        path = shared.get("database_path") or arguments.get("database")
        if not isinstance(path, str) or path == ":memory:":
            self._notes.append("the files name no database: it is not examined")
            return None
        return DatabaseSettings(path=path)

    def _redis(self) -> RedisSettings | None:
        redis = _mapping(self._shared.get("redis"))
        if redis.get("enabled") is not True:
            return None
        password = self._secret(redis, "password", "password_path", self._shared_file)

        def text(name: str, default: str = "") -> str:
            value = redis.get(name)
            return value if isinstance(value, str) else default

        port = redis.get("port", 6379)
        return RedisSettings(
            host=text("host", "localhost"),
            port=port if isinstance(port, int) and 0 < port < 65536 else 6379,
            path=text("path"),
            username=text("username"),
            password=None if password is None else Secret(password),
            is_tls=redis.get("use_tls") is True,
            ca_file=text("ca_file"),
            certificate_file=text("certificate_file"),
            private_key_file=text("private_key_file"),
        )

    def _appservices(self) -> tuple[str, ...]:
        found = []
        for path in _list(self._shared.get("app_service_config_files")):
            try:
                entry = read_yaml(Path(path if isinstance(path, str) else ""))
            except ConfigError as error:
                self._notes.append(f"an application service: {error}")
                continue
            if isinstance(name := entry.get("id"), str):
                found.append(name)
        return tuple(found)


def _shows_metrics(listener: Mapping[str, Any]) -> bool:
    if listener.get("type") == "metrics":
        return True
    resources = [_mapping(one) for one in _list(listener.get("resources"))]
    return any("metrics" in _list(resource.get("names")) for resource in resources)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
