"""The settings of relays, of retention and of a replica's copy."""

import dataclasses
import socket
from collections.abc import ItemsView, Mapping
from types import MappingProxyType
from typing import Any

from synrepl.errors import ConfigError
from synrepl.ports.settings import NameSettings, duration, names, setting, size, switch, word
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
        return f"{host if is_name(host) else self.instance_name}-{uuid[:8]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelaySettings(NameSettings):
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
class RetentionSettings:
    """How long the log keeps facts."""

    retain_seconds: float = setting(
        "7d", "How long the log retains facts that no lease needs.", parse=duration
    )
