"""The settings of the sources of facts."""

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from synrepl.base.settings import setting, text, word
from synrepl.errors import ConfigError
from synrepl.ingest.write_policy import StreamWrite, read_writes
from synrepl.storage.settings import LogSettings
from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.settings import ConnectionSettings, client_endpoints


def parse_instance_map(value: Any) -> Mapping[str, str]:
    """Parse a table of instance names to HTTP addresses: URLs, or tables as in Synapse's configuration.

    Missing rows of a writer are fetched from its address (docs/reference/peers.md#http-catchup).
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a table of instance names and HTTP addresses, not {value!r}")
    return MappingProxyType({word(name): _instance_url(name, where) for name, where in value.items()})


def _instance_url(name: str, where: Any) -> str:
    if isinstance(where, Mapping):
        return _synapse_url(name, where)
    if not isinstance(where, str) or not re.match(r"https?://[^/\s]", where):
        raise ConfigError(
            f"must give {name} an HTTP address such as http://localhost:9101"
            f" or a table of host, port and tls, not {where!r}"
        )
    return where


def _synapse_url(name: str, where: Mapping[Any, Any]) -> str:
    if "path" in where:
        raise ConfigError(
            f"has the Unix socket {where['path']!r} for {name}, but rows are fetched by HTTP over TCP: give"
            f" {name} a TCP replication listener, and set its host and port"
        )
    unknown = sorted(str(key) for key in where if key not in ("host", "port", "tls"))
    host, port, tls = where.get("host"), where.get("port"), where.get("tls", False)
    is_port = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536
    is_host = isinstance(host, str) and re.fullmatch(r"[^/\s@?#\[\]]+", host)
    if unknown or not (is_host and is_port and isinstance(tls, bool)):
        raise ConfigError(
            f"has {dict(where)!r} for {name}, which is not a table of host, port (1 to 65535) and tls (true"
            " or false; default false), such as {host: localhost, port: 9101}"
        )
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in str(host) else host}:{port}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestSettings(ConnectionSettings, LogSettings):
    """The sources of facts besides HTTP."""

    redis: RedisAddress | None = setting(
        None,
        "The Redis of the deployment, whose replication channel this daemon follows: redis://host:6379,"
        " rediss://host, redis+unix:///path or redis+sentinel://host1,host2/service. Options follow in the"
        " query: ?password_file=, ?ca_file= ...",
        parse=lambda value: RedisAddress.parse(text(value)),
        metavar="URL",
        example="redis://localhost:6379",
    )
    redis_writes: tuple[StreamWrite, ...] = setting(
        (),
        "The streams that this daemon publishes on the channel of the homeserver's processes, that of"
        " --redis as that of --resp: comma-separated, or all. None: the daemon only subscribes.",
        parse=read_writes,
        metavar="STREAMS",
        example="[caches]",
    )
    follow: tuple[str, ...] = setting(
        (),
        "A replication server to follow, as a worker does, as a Twisted client endpoint string."
        " May be repeated.",
        parse=client_endpoints,
        metavar="ENDPOINT",
        kind="list",
        example="[tcp:old.example:9092]",
    )
    instance_map: Mapping[str, str] = setting(
        MappingProxyType({}),
        "The HTTP addresses to fetch the missing rows of other writers from, by instance name: each a URL, or"
        " `host`, `port` and `tls` as in Synapse. The daemon's own name is ignored.",
        parse=parse_instance_map,
        metavar="TABLE",
        kind="file",
        example="{persister1: http://localhost:9101, persister2: {host: localhost, port: 9102, tls: false}}",
    )

    @property
    def channel_writes(self) -> tuple[StreamWrite, ...]:
        """What this daemon publishes on the channel, whoever carries it: Redis, or a room in its place."""
        return self.redis_writes

    @property
    def has_channel(self) -> bool:
        """Whether this daemon is a member of a channel of Synapse's processes: on a Redis, or that of a room.

        The settings of a room that has a channel override this.
        """
        return self.redis is not None
