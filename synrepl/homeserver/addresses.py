"""Where the processes of a homeserver are: their hosts, their metrics, and the paths of their files.

An address that is not known is none: what is measured at a guess may be another process.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from synrepl.config.config_files import load_yaml
from synrepl.errors import ConfigError
from synrepl.homeserver.merging import MAIN, ProcessConfig, Template, as_list, as_mapping
from synrepl.http_api.route import public_url
from synrepl.wire.dialect import NEWEST, Release, span
from synrepl.wire.text import printable

METRICS_PATH: Final = "/_synapse/metrics"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
EVERYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104 (they are recognized, not bound)
MAX_TARGETS: Final = 5_000


class MetricsAddress(msgspec.Struct, frozen=True):
    """Where a process shows its metrics. `socket` is the path of a UNIX socket, if it listens at one.

    `is_loopback`: only programs on the same machine reach it.
    """

    url: str
    socket: str = ""
    is_loopback: bool = False

    @property
    def shown(self) -> str:
        """The address for messages: the UNIX socket if there is one, else the URL, without a password."""
        return f"unix:{self.socket}" if self.socket else public_url(self.url)


class PathMap(msgspec.Struct, frozen=True):
    """Where paths of the configuration are here: by the longest mapped folder, or else below `root`."""

    root: Path | None = None
    mapped: tuple[tuple[str, str], ...] = ()

    def here(self, path: str) -> str:
        """The path on this machine."""
        for folder, target in sorted(self.mapped, key=lambda one: -len(one[0])):
            inside = path.removeprefix(folder.rstrip("/"))
            if inside != path and (not inside or inside.startswith("/")):
                return target.rstrip("/") + inside
        if self.root is not None and path.startswith("/"):
            return str(self.root / path.lstrip("/"))
        return path


# -- hosts ---------------------------------------------------------------------------------------------------


MAIN_BY_WORKER: Final = span("1.84", "1.88")
"""The releases that add the main process to `instance_map` by a worker's older keys."""


def instances_of(config: ProcessConfig, release: Release) -> dict[str, tuple[Any, Any]]:
    """Host and port in `instance_map` by the name of the process; or no host, and the path of a socket."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, entry in config.mapping("instance_map").items():
        of = as_mapping(entry)
        is_tcp = of.get("host") is not None and of.get("port") is not None
        found[MAIN if name == "main" else str(name)] = (
            (of["host"], of["port"]) if is_tcp else ("", of.get("path"))
        )
    host, port = config.get("worker_replication_host"), config.get("worker_replication_http_port")
    if host and port and not config.is_main and release in MAIN_BY_WORKER:
        found.setdefault(MAIN, (host, port))
    return found


class InstanceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process is, by an entry of `instance_map`: its host ("" of a socket), and the port or path.

    `in_files` are the files that have it, and `callers` the processes that go by it.
    """

    name: str
    host: str
    where: int | str
    is_tls: bool = False
    in_files: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()


def entries_of(configs: Sequence[ProcessConfig]) -> list[InstanceEntry]:
    """The entries by which processes find each other, each once. Nobody goes to itself."""
    found: dict[tuple[str, str, int | str, bool], list[ProcessConfig]] = {}
    for config in configs:
        for name, (host, where) in instances_of(config, NEWEST.release).items():
            if isinstance(where, int | str) and not isinstance(where, Template) and isinstance(host, str):
                map_name = "main" if name == MAIN else name
                is_tls = bool(as_mapping(config.mapping("instance_map").get(map_name)).get("tls"))
                found.setdefault((name, host, where, is_tls), []).append(config)
    entries = []
    for (name, host, where, is_tls), having in found.items():
        callers = [config for config in having if config.name != name]
        if not callers and sum(one[0] == name for one in found) > 1:
            continue
        entries.append(
            InstanceEntry(
                name=name,
                host=host,
                where=where,
                is_tls=is_tls,
                in_files=tuple(dict.fromkeys(one.origin("instance_map") for one in callers or having)),
                callers=tuple(str(one.name) for one in callers),
            )
        )
    return entries


def hosts_of(configs: Sequence[ProcessConfig]) -> dict[str, str]:
    """Return the hosts that the files name for processes, by the name of the process."""
    found: dict[str, str] = {}
    for config in configs:
        for name, entry in config.mapping("instance_map").items():
            if host := _host(as_mapping(entry).get("host")):
                found.setdefault(MAIN if name == "main" else str(name), host)
    for config in configs:
        if not config.is_main and (host := _host(config.get("worker_replication_host"))):
            found.setdefault(MAIN, host)
    return found


class Elsewhere(NamedTuple):
    """Whether the files name other hosts than this one: of processes, or of anything (database, Redis)."""

    processes: bool
    anything: bool


def elsewhere(configs: Sequence[ProcessConfig]) -> Elsewhere:
    """What of the homeserver is on other hosts: then 127.0.0.1 may not be where a process is."""
    processes: list[Any] = list(hosts_of(configs).values())
    others: list[Any] = []
    for config in configs:
        processes += [as_mapping(entry).get("host") for entry in config.mapping("instance_map").values()]
        redis = config.mapping("redis")
        others += [redis.get("host")] if redis.get("enabled") and not redis.get("path") else []
        databases = [config.mapping("database"), *map(as_mapping, config.mapping("databases").values())]
        others += [as_mapping(one.get("args")).get("host") for one in databases]
    return Elsewhere(_any_other(processes), _any_other(processes + others))


def _any_other(hosts: Sequence[Any]) -> bool:
    # A socket is a path.
    return any(isinstance(one, str) and one not in LOOPBACK and not one.startswith("/") for one in hosts)


def _host(value: Any) -> str:
    return value if isinstance(value, str) and not isinstance(value, Template) else ""


# -- metrics in the files ------------------------------------------------------------------------------------


def metrics_of(
    config: ProcessConfig, host: str, *, away: Elsewhere, paths: PathMap
) -> tuple[MetricsAddress | None, bool]:
    """The address that is easiest to reach, and whether the process listens for metrics at all."""
    found = list(_metrics(config, host, away=away, paths=paths))
    known = [one for one in found if one is not None]
    known.sort(key=lambda one: one.is_loopback and host not in (*LOOPBACK, ""))
    return (known[0] if known else None), bool(found)


def _metrics(
    config: ProcessConfig, host: str, *, away: Elsewhere, paths: PathMap
) -> Iterator[MetricsAddress | None]:
    for listener in map(as_mapping, config.list("listeners" if config.is_main else "worker_listeners")):
        if _shows_metrics(listener):
            # A worker shows them by a listener of type http although they are switched off.
            is_off = not config.get("enable_metrics") and (config.is_main or listener.get("type") != "http")
            yield from [None] if is_off else _addresses(listener, host, away=away, paths=paths)
    if (port := config.get("metrics_port")) and config.is_main:
        bind = config.get("metrics_bind_host") or "127.0.0.1"
        found = _addresses({"port": port, "bind_addresses": [bind]}, host, away=away, paths=paths)
        yield from found if config.get("enable_metrics") else [None]


def binds_of(listener: Mapping[str, Any]) -> list[str]:
    """The addresses that a listener is bound to; "" for all of the machine."""
    binds = [*as_list(listener.get("bind_addresses")), listener.get("bind_address")]
    return [one for one in binds if isinstance(one, str)] or [""]


def collide(one: str, other: str) -> bool:
    """Whether two listeners at one port of one machine, bound to these addresses, exclude each other."""
    both = {"127.0.0.1" if bind == "localhost" else bind for bind in (one, other)}
    # As Twisted binds it, :: takes IPv4 as well.
    if len(both) == 1 or both & {"", "::"}:
        return True
    return bool(both & {*EVERYWHERE}) and not any(":" in bind for bind in both)


def _shows_metrics(listener: Mapping[str, Any]) -> bool:
    if listener.get("type") == "metrics":
        return True
    resources = [as_mapping(one) for one in as_list(listener.get("resources"))]
    return any("metrics" in as_list(resource.get("names")) for resource in resources)


def _addresses(
    listener: Mapping[str, Any], host: str, *, away: Elsewhere, paths: PathMap
) -> Iterator[MetricsAddress | None]:
    """The addresses of a listener; None for one that is not known."""
    if isinstance(path := listener.get("path"), str) and listener.get("type") != "metrics":
        socket = paths.here(path)
        known = not isinstance(path, Template)
        yield MetricsAddress(f"http://localhost{METRICS_PATH}", socket, is_loopback=True) if known else None
        return
    port = listener.get("port")
    if not isinstance(port, int) or not 0 < port < 65536:
        yield None
        return
    scheme = "https" if listener.get("tls") and listener.get("type") == "http" else "http"
    for bind in binds_of(listener):
        is_loopback, at = bind in LOOPBACK, bind
        if bind in EVERYWHERE:
            at = host or ("" if away.anything else "127.0.0.1")
        elif bind == "localhost":
            at = "127.0.0.1"
        if not at or isinstance(bind, Template) or (is_loopback and away.processes and not host):
            yield None
            continue
        yield MetricsAddress(f"{scheme}://{bracketed(at)}:{port}{METRICS_PATH}", is_loopback=is_loopback)


def bracketed(host: str) -> str:
    """The host as it is in a URL."""
    return f"[{host}]" if ":" in host else host


# -- targets of Prometheus -----------------------------------------------------------------------------------


class Target(msgspec.Struct, frozen=True):
    """A target of Prometheus: its URL, its host, and the names that its labels give it."""

    url: str
    host: str
    names: frozenset[str]


def read_targets(path: Path) -> list[Target]:
    """Read a file of targets (``file_sd_configs``), or a configuration of Prometheus with static ones.

    Raises `ConfigError`.
    """
    content = load_yaml(path)  # JSON is YAML.
    if isinstance(content, dict):
        jobs = [as_mapping(one) for one in as_list(content.get("scrape_configs"))]
        groups = [(job, as_mapping(one)) for job in jobs for one in as_list(job.get("static_configs"))]
    else:
        groups = [({}, as_mapping(one)) for one in as_list(content)]
    found = [target for job, group in groups for target in _targets(job, group)]
    if not found:
        raise ConfigError(
            f"{path}: no targets: expected a list of {{targets: [HOST:PORT], labels: ...}} as for"
            " file_sd_configs,"
            " or scrape_configs with static_configs"
        )
    if len(found) > MAX_TARGETS:
        raise ConfigError(f"{path}: more than {MAX_TARGETS:,} targets")
    return found


def _targets(job: Mapping[str, Any], group: Mapping[str, Any]) -> Iterator[Target]:
    labels = {"job": job.get("job_name"), **as_mapping(group.get("labels"))}
    path = labels.get("__metrics_path__") or job.get("metrics_path") or METRICS_PATH
    scheme = labels.get("__scheme__") or job.get("scheme") or "http"
    names = {str(one) for one in labels.values() if isinstance(one, str | int)}
    # As in Synapse's own example: the kind of the process as the job, and its number.
    kind, index = labels.get("job"), labels.get("index")
    if kind is not None and index is not None:
        names |= {f"{kind}{between}{index}" for between in ("", "-", "_")}
    for target in as_list(group.get("targets")):
        if isinstance(target, str) and "/" not in target and target:
            host = target.rpartition(":")[0].strip("[]") or target
            yield Target(f"{scheme}://{target}{path}", host, frozenset(names))


def match_targets(targets: Sequence[Target], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The URL of each process that exactly one target is of, by its name; and what is left out, in words."""
    found: dict[str, str] = {}
    left: list[str] = []
    for name in names:
        called = {name, "main"} if name == MAIN else {name}
        of = [one.url for one in targets if one.names & called]
        if not of:
            of = [one.url for one in targets if one.host in called]
        urls = sorted(set(of))
        if len(urls) == 1:
            found[name] = urls[0]
        elif urls:
            left.append(f"{len(urls)} targets are of {printable(name)}: give --metrics {printable(name)}=URL")
    return found, left
