"""Hosts in a homeserver's files that are no names of hosts: paths, URLs, and names with a port or a user."""

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv6Address
from typing import Any, Final

from synrepl.homeserver.findings import RESTART_ALL, Finding
from synrepl.homeserver.merging import ProcessConfig, Template, as_mapping
from synrepl.homeserver.refusals import NEWER
from synrepl.html.humanize import several
from synrepl.wire.dialect import Release, release_text, span
from synrepl.wire.text import printable

SOCKET_MAPPED: Final[Release] = (1, 89, 0)
"""The first release with `path` in an entry of `instance_map`."""
_BY_HOST: Final = span("", "1.88")
"""The releases that read `worker_replication_host`."""
UNDERSCORE: Final = "has an underscore, which Twisted refuses in the name of a host"
_PARTS: Final = re.compile(
    r"(?:(?P<scheme>[\w+.-]+)://)?(?:[^/]*@)?(?P<host>\[[^\]]+\]|[^:/@\s,\[\]]+)(?::(?P<port>[0-9]+))?(?:/.*)?"
)
_SOCKET_FILE: Final = re.compile(r"(/.*)/\.s\.PGSQL\.([0-9]+)")


def fault_of(host: Any) -> str:
    """Why this is neither the name of a host nor an address; empty if it may be one, or is not known."""
    if isinstance(host, Template):
        return ""
    if not isinstance(host, str):
        return "is empty" if host is None else "is no text"
    if not host.strip():
        return "is empty"
    if path_in(host):
        return "is the path of a socket"
    if "://" in host:
        return "is a URL"
    if "/" in host or "@" in host:
        return f"has a {'user' if '@' in host else 'path'} in it"
    if re.search(r"\s", host):
        return "has a blank in it"
    if host.startswith("["):
        return "has brackets"
    if ":" in host:
        return "" if _is_ipv6(host) else "has a port in it"
    # matrix-org/synapse#14367. Twisted encodes names by the rules of IDNA.
    return UNDERSCORE if "_" in host else ""


def path_in(host: str) -> str:
    """The path of a UNIX socket that stands in the place of a host; empty if it is something else."""
    bare = re.sub(r"^unix:(?://)?(?=/)", "", host.strip())
    return bare if bare.startswith("/") else ""


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def without_user(host: str) -> str:
    """The host without a user and a password, which a URL may have."""
    return host.rpartition("@")[2]


def _in_parts(host: Any) -> str:
    """The statements that have host and port apart, as far as they are there."""
    found = _PARTS.fullmatch(host.strip()) if isinstance(host, str) else None
    name = found["host"].strip("[]") if found else "HOST"
    if fault_of(name) == UNDERSCORE:
        return "as `host` a name without an underscore (an alias of the container's network), or the address"
    return f"`host: {printable(name)}`" + (f" and `port: {found['port']}`" if found and found["port"] else "")


def _named(key: str, host: Any) -> str:
    """The key with its value, which may have a password."""
    shown = f": {printable(without_user(host))}" if isinstance(host, str) and host.strip() else ""
    return f"`{key}{shown}`"


def find_wrong_hosts(
    configs: Sequence[ProcessConfig], release: Release, given: Release | None
) -> Iterator[Finding]:
    """Yield each wrong host once. `given` is the release that is known; else `release` counts."""
    yield from _of_redis(configs, given)
    yield from _of_instances(configs, given)
    yield from _of_main(configs, release)
    yield from _of_databases(configs)


def _files(found: Iterable[str]) -> str:
    return several(list(dict.fromkeys(found)))


def _of_redis(configs: Sequence[ProcessConfig], given: Release | None) -> Iterator[Finding]:
    by_path = NEWER["redis.path"]
    found: dict[str, tuple[Any, list[str]]] = {}
    for config in configs:
        redis = config.mapping("redis")
        is_by_path = redis.get("path") and (given is None or given >= by_path)
        if redis.get("enabled") and not is_by_path and fault_of(host := redis.get("host", "localhost")):
            found.setdefault(repr(host), (host, []))[1].append(config.origin("redis"))
    for host, files in found.values():
        path = path_in(host) if isinstance(host, str) else ""
        apart = "set `host` and `port` in `redis`, at which Redis listens"
        if path and given is not None and given < by_path:
            remedy = (
                f"{apart}: {release_text(given)} reaches it by TCP alone (`path` is of"
                f" {release_text(by_path)} and newer)"
            )
        elif path:
            remedy = f"remove `host`, and set `path: {printable(path)}` in `redis`"
            if given is None:
                remedy += f", which is of {release_text(by_path)} and newer; older releases: {apart}"
        else:
            remedy = f"write {_in_parts(host)} in `redis`"
            if isinstance(host, str) and host.startswith("rediss://"):
                remedy += f", and `use_tls: true` ({release_text(NEWER['redis.use_tls'])} and newer)"
        yield Finding(
            kind="wrong_host",
            why=f"{_named('redis.host', host)} in {_files(files)} {fault_of(host)}, and Synapse takes it for"
            " the name of a host: no process connects to Redis, they hear nothing of each other, and"
            " requests may wait for it",
            remedy=f"{remedy}; and `password`, if Redis asks for one"
            + ("; without workers Synapse needs no Redis (`enabled: false`)" * (len(configs) == 1)),
            cost=RESTART_ALL,
        )


def _of_instances(configs: Sequence[ProcessConfig], given: Release | None) -> Iterator[Finding]:
    found: dict[tuple[str, str], list[str]] = {}
    for config in configs:
        for name, entry in config.mapping("instance_map").items():
            of = as_mapping(entry)
            # Without a port the entry is refused, or its path counts. What is no text is refused.
            if of.get("port") is not None and isinstance(host := of.get("host"), str) and fault_of(host):
                found.setdefault((str(name), host), []).append(config.origin("instance_map"))
    for (name, host), files in found.items():
        key = f"instance_map.{printable(name)}"
        path = path_in(host)
        if path and (given is None or given >= SOCKET_MAPPED):
            remedy = f"write `{{path: {printable(path)}}}` at {key}, without host and port" + (
                f" ({release_text(SOCKET_MAPPED)} and newer)" if given is None else ""
            )
        elif path:
            remedy = (
                f"set host and port at {key}, at which that process listens for replication"
                f" (`path` is of {release_text(SOCKET_MAPPED)} and newer)"
            )
        else:
            remedy = f"write {_in_parts(host)} at {key}" + (
                ", and `tls: true`" if host.startswith("https://") else ""
            )
        yield Finding(
            kind="wrong_host",
            why=f"{_named(f'{key}.host', host)} in {_files(files)} {fault_of(host)}, and Synapse takes it for"
            " the name of a host: requests of other processes to it fail",
            remedy=remedy,
            cost=RESTART_ALL,
        )


def _of_main(configs: Sequence[ProcessConfig], release: Release) -> Iterator[Finding]:
    """Hosts of the main process by the older key of workers; newer releases refuse it."""
    found: dict[str, list[ProcessConfig]] = {}
    key = "worker_replication_host"
    for config in configs if release in _BY_HOST else ():
        host = config.get(key)
        if not config.is_main and isinstance(host, str) and fault_of(host):
            found.setdefault(host, []).append(config)
    for host, of in found.items():
        parts = "`host: HOST`" if path_in(host) else _in_parts(host)
        for old, new in (("`host", f"`{key}"), ("`port", "`worker_replication_http_port")):
            parts = parts.replace(old, new)
        yield Finding(
            kind="wrong_host",
            process=str(of[0].name) if len(of) == 1 else "",
            count=len(of),
            why=f"{_named(key, host)} in {_files(one.origin(key) for one in of)} {fault_of(host)}, and"
            " Synapse takes it for the name of a host: the main process is not reached",
            remedy=f"write {parts}"
            + (", the name or the address of the main process' host" if path_in(host) else ""),
            cost=RESTART_ALL,
        )


def _of_databases(configs: Sequence[ProcessConfig]) -> Iterator[Finding]:
    """Hosts of PostgreSQL: libpq takes the folder of a socket too, and several hosts with commas."""
    found: dict[str, list[str]] = {}
    for config in configs:
        many = config.mapping("databases")
        key = "databases" if many else "database"
        for one in many.values() if many else [config.mapping("database")]:
            database = as_mapping(one)
            host = as_mapping(database.get("args")).get("host")
            if database.get("name") != "psycopg2" or not isinstance(host, str) or isinstance(host, Template):
                continue
            if any(map(_libpq_fault, host.split(","))):
                found.setdefault(host, []).append(config.origin(key))
    for host, files in found.items():
        why = next(filter(None, map(_libpq_fault, host.split(","))))
        socket = _SOCKET_FILE.fullmatch(path_in(host))
        parts = f"`host: {printable(socket[1])}` and `port: {socket[2]}`" if socket else _in_parts(host)
        yield Finding(
            kind="wrong_host",
            why=f"{_named('host', host)} of the database in {_files(files)} {why}, and libpq takes it for the"
            f" {'folder of a socket' if path_in(host) else 'name of a host'}: no process reaches the"
            " database",
            remedy=f"write {parts} in `args`",
            cost=RESTART_ALL,
        )


def _libpq_fault(host: str) -> str:
    """Why libpq takes it for no host. Its names may have an underscore."""
    if host.startswith("/"):
        return "is the socket, and not its folder" if _SOCKET_FILE.fullmatch(host) else ""
    fault = "" if not host or host.startswith("@") else fault_of(host)
    return "" if fault == UNDERSCORE else fault
