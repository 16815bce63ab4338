"""The settings of connections, and of the HTTP API."""

import dataclasses
import re
from typing import Any

from synrepl.base.notes import Notes
from synrepl.base.settings import (
    NameSettings,
    duration,
    duration_or_zero,
    names,
    setting,
    size,
    text,
    word,
)
from synrepl.errors import ConfigError, suggest
from synrepl.transports.endpoints import check_client, check_server
from synrepl.wire.dialect import Dialect
from synrepl.wire.keepalive import Keepalive


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
class ApiSettings(ConnectionSettings):
    """What the HTTP API accepts, and the host names of the daemon."""

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
