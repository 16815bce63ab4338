"""The settings of connections, of the connection to the upstream, and of the HTTP API."""

import dataclasses
import re
from typing import Any
from urllib.parse import urlsplit

from synrepl.errors import ConfigError, suggest
from synrepl.ports.notes import Notes
from synrepl.ports.settings import (
    NameSettings,
    duration,
    duration_or_zero,
    names,
    setting,
    size,
    switch,
    text,
    word,
)
from synrepl.replication.addresses import Address
from synrepl.transports.endpoints import check_client, check_server
from synrepl.wire.dialect import Dialect
from synrepl.wire.session import Keepalive


def endpoint(value: Any) -> str:
    """Parse a Twisted server endpoint string."""
    description = text(value)
    if description.isdigit():
        raise ConfigError(
            f"must be an endpoint string: for port {description} use tcp:{description}:interface=127.0.0.1"
        )
    check_server(description)
    return description


def endpoints(value: Any) -> tuple[str, ...]:
    """Parse one or more server endpoint strings."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)) or not several:
        raise ConfigError(f"must be an endpoint string or a list of them, not {value!r}")
    return tuple(map(endpoint, several))


def client_endpoints(value: Any) -> tuple[str, ...]:
    """Parse any number of client endpoint strings."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)):
        raise ConfigError(f"must be a client endpoint string or a list of them, not {value!r}")
    for description in map(text, several):
        check_client(description)
    return tuple(several)


def parse_dialect(value: Any) -> Dialect | None:
    """Parse a dialect; None means auto."""
    if value == "auto":
        return None
    given = text(value)
    try:
        return Dialect.parse(given)
    except ConfigError as error:
        if re.fullmatch(r"0\.[\d.]+", given):
            raise ConfigError(f"cannot be {given}: {error}") from error
        hint = suggest(given, ("auto", "legacy", "middle", "current", "native"))
        raise ConfigError(
            f"must be auto, legacy, middle, current, native or a release such as 1.83, not {given!r}{hint}"
        ) from error


def parse_upstreams(value: Any) -> tuple[str, ...]:
    """Parse any number of addresses of other daemons (`parse_upstream`)."""
    several = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(several, (list, tuple)):
        raise ConfigError(f"must be an address of a daemon or a list of them, not {value!r}")
    found = tuple(map(parse_upstream, several))
    if len(set(found)) < len(found):
        raise ConfigError(f"has an address twice: {next(one for one in found if found.count(one) > 1)}")
    return found


def parse_upstream(value: Any) -> str:
    """Parse the HTTP address of another daemon, or a client endpoint string for its listener."""
    where = text(value)
    if where.startswith(("http://", "https://")):
        try:
            parts = urlsplit(where)
            is_url = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            raise ConfigError(
                f"must be a URL such as http://hs.example:9093 or http://[::1]:9093, not {where!r}"
            )
        if parts.username is not None:
            raise ConfigError("contains a user name: set the secret with --secret-file")
        return where.rstrip("/")
    client_endpoints(where)
    return where


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionSettings(NameSettings):
    """The dialect of connections, and their timeouts."""

    dialect: Dialect | None = setting(
        "auto",
        "The dialect of connections: auto, legacy, middle, current, native (replicas only) or a release."
        " auto cannot tell middle from current.",
        parse=parse_dialect,
        metavar="DIALECT",
    )
    ping_seconds: float = setting("5s", "The time after which an idle connection sends PING.", parse=duration)
    timeout_seconds: float = setting(
        "25s", "The time after which a silent connection is closed.", parse=duration
    )
    request_seconds: float = setting(
        "30s",
        "The time within which a new follower must send REPLICATE or PING; 0: none, for people with netcat.",
        parse=duration_or_zero,
    )

    @property
    def keepalive(self) -> Keepalive:
        """PING and timeouts of a connection."""
        return Keepalive(
            ping_seconds=self.ping_seconds,
            timeout_seconds=self.timeout_seconds,
            request_seconds=self.request_seconds,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpstreamSettings(ConnectionSettings):
    """The connection of a replica to its upstream."""

    upstream: tuple[str, ...] = setting(
        (),
        "Makes this daemon a replica of the daemon at this address: http://host:9093 (all over HTTP) or"
        " a Twisted client endpoint string such as tcp:host:9092 (native). May be repeated: daemons of one"
        " log in order of preference, of which one is followed.",
        parse=parse_upstreams,
        metavar="URL",
        kind="list",
        example="tls:primary.example:9092",
    )
    anonymous: bool = setting(
        False,
        "Do not register this replica: its upstream then retains the log for it for only an hour by default.",
        parse=switch,
    )

    @property
    def upstream_addresses(self) -> list[Address]:
        """The addresses of the upstreams; empty without one."""
        return [
            Address(http=where) if where.startswith(("http://", "https://")) else Address(native=where)
            for where in self.upstream
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApiSettings(ConnectionSettings):
    """What the HTTP API accepts, and the host names of the daemon."""

    refuse_stale_reads: bool = setting(
        False, "Let a replica that is not ready answer reads with 503 and Retry-After.", parse=switch
    )
    advertise: str | None = setting(
        None,
        "The host name that other daemons connect to this one by. None: that of its listeners.",
        parse=word,
        metavar="HOST",
        example="paris.example",
    )
    allowed_hosts: tuple[str, ...] | None = setting(
        None,
        "Host names with dots that HTTP clients use for this daemon, comma-separated. Without a secret,"
        " requests for other host names are refused, against DNS rebinding.",
        parse=names,
        example="[replication.example.org]",
    )
    max_body_bytes: int = setting("64MiB", "The size limit of the body of an HTTP request.", parse=size)

    def hosts(self, notes: Notes) -> set[str]:
        """Return the host names, in lower case, of a daemon with these `notes` in its log."""
        name = self.server_name_of(notes)
        names = (name.rpartition(":")[0] or name, *(self.allowed_hosts or ()), self.advertise or "")
        return {name.lower() for name in names}
