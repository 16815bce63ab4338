"""The settings of replicas, and of those who serve them."""

import dataclasses
import socket
from collections.abc import ItemsView, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from synrepl.base.history import RESTORED_PREFIX
from synrepl.base.settings import NameSettings, duration, names, setting, size, switch, text, word
from synrepl.errors import ConfigError
from synrepl.key_rules import exposure, url_exposure
from synrepl.replication.addresses import Address
from synrepl.transports.endpoints import is_private
from synrepl.transports.settings import ConnectionSettings, client_endpoints
from synrepl.wire.acks import Acks
from synrepl.wire.filter import Filter
from synrepl.wire.text import is_name


def stream_acks(value: Any) -> Mapping[str, Acks]:
    """Parse the setting `acks`: texts such as ``push_rules=1``, or a table of them. Raises `ConfigError`."""
    entries = value.items() if isinstance(value, Mapping) else ([value] if isinstance(value, str) else value)
    if not isinstance(entries, (list, tuple, ItemsView)):
        raise ConfigError(f"must be a list of STREAM=ACKS, not {value!r}")
    parsed: dict[str, Acks] = {}
    for entry in entries:
        stream, is_pair, acks = entry.partition("=") if isinstance(entry, str) else (entry[0], "=", entry[1])
        if not is_pair or stream in parsed:
            raise ConfigError(f"must be STREAM=ACKS, once for each stream, not {entry!r}")
        try:
            parsed[word(stream)] = acks if isinstance(acks, Acks) else Acks.parse(str(acks))
        except ValueError as error:
            raise ConfigError(f"{stream}: {error}") from None
    return MappingProxyType(parsed)


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
class CopySettings(NameSettings):
    """What a replica copies, and under which name."""

    upstream_streams: tuple[str, ...] | None = setting(
        None,
        "The streams that a replica copies, comma-separated. None: all.",
        parse=names,
        metavar="STREAMS",
        example="[events, receipts]",
    )
    upstream_writers: tuple[str, ...] | None = setting(
        None,
        "The writers whose facts a replica copies, comma-separated. None: all.",
        parse=names,
        metavar="WRITERS",
        example="[master]",
    )
    replica_name: str | None = setting(
        None,
        "The name under which a replica registers at its upstream. None: the name of its host and the start"
        " of its uuid.",
        parse=word,
        example="paris",
    )
    resync_on_fork: bool = setting(
        False,
        "Let this replica join its upstream again by itself after a fork, or if its upstream lacks its facts"
        " or has another log. The facts that only it has are written to a file first.",
        parse=switch,
    )

    @property
    def query(self) -> Filter:
        """The facts to request from the upstream."""
        return Filter.of(streams=self.upstream_streams, writers=self.upstream_writers)

    def name_of(self, uuid: str) -> str:
        """Return the name of the replica with this uuid on its upstream's list of replicas."""
        if self.replica_name is not None:
            return self.replica_name
        # Not the instance: that of most daemons is master, which reads as a role.
        host = socket.gethostname().partition(".")[0]
        return f"{host if is_name(host) else self.instance_name}-{uuid.removeprefix(RESTORED_PREFIX)[:8]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StalenessSettings(NameSettings):
    """When a replica is stale, and what it refuses then."""

    stale_seconds: float = setting(
        "60s",
        "A replica that was last up to date longer ago than this is stale, hence not ready (/readyz), as is"
        " one that has not compared its copy with its upstream since the start.",
        parse=duration,
    )
    trust_stale_keys: bool = setting(
        False,
        "Let issued keys write and administer at a replica that has not heard from its upstream for"
        " stale_seconds, and does not know whether they were revoked.",
        parse=switch,
    )
    refuse_stale_reads: bool = setting(
        False, "Let a replica that is not ready answer reads with 503 and Retry-After.", parse=switch
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelaySettings(StalenessSettings):
    """How replicas are served, and how much of the log a disconnected reader retains."""

    heartbeat_seconds: float = setting("1s", "The time between two heartbeats to replicas.", parse=duration)
    lease_seconds: float | None = setting(
        None,
        "How long the lease of a disconnected reader keeps the log from being trimmed."
        " None: an hour for anonymous readers, 7 days for registered ones.",
        parse=duration,
        example="1h",
    )
    lease_bytes: int = setting("1GiB", "How much of the log a lease may retain.", parse=size)

    backup_seconds: float | None = setting(
        None,
        "The status has a problem while the newest backup (synrepl backup) is older than this."
        " None: it has none.",
        parse=duration,
        example="26h",
    )
    acks: Mapping[str, Acks] = setting(
        MappingProxyType({}),
        "How many replicas must have an appended fact on disk before it is answered: STREAM=NUMBER,"
        " or STREAM=NAME,NAME for certain replicas. An append may ask for other ones. May be repeated.",
        parse=stream_acks,
        metavar="STREAM=ACKS",
        kind="list",
        example="[push_rules=1]",
    )

    def allowed_seconds(self, *, registered: bool) -> float:
        """Return the longest absence of a reader with a lease, in seconds."""
        return self.lease_seconds or (7 * 24 * 3600.0 if registered else 3600.0)


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
class ReplicasSettings(CopySettings, RelaySettings, UpstreamSettings):
    """All settings of the room."""


def check_settings(built: Any) -> None:
    """Raise `ConfigError` if the settings of a replica contradict each other, or would show its key."""
    if not built.upstream and (built.upstream_streams or built.upstream_writers):
        raise ConfigError("--upstream-streams and --upstream-writers need --upstream: set it, or remove them")
    for where in built.upstream_addresses if built.secret is not None and not built.insecure else ():
        why = url_exposure(where.http, insecure=False) if where.http else ""
        if where.native and not is_private(where.native):
            why = exposure(where.native, is_private=False, insecure=False)
        if why:
            raise ConfigError(f"--upstream: {why}")
