"""What a daemon gives to its rooms, and what it takes from them."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from synrepl.base.access import LOCAL, Access, Keyring
from synrepl.base.metric_values import IRegistry
from synrepl.base.metrics import Metrics
from synrepl.base.problems import Notice, Problem
from synrepl.base.time import ExpiryClock
from synrepl.config import Settings
from synrepl.daemon.listeners import Listeners
from synrepl.daemon.other_daemons import IOtherDaemons
from synrepl.errors import ConfigError
from synrepl.ingest.channel_host import IChannelHost
from synrepl.ingest.fact_source import IFactSource
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.hooks import Hooks, IRole
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.stored_bytes import IStoredBytes
from synrepl.storage.log import Log
from synrepl.streams.declared import DaemonStreams
from synrepl.transports.credentials import Credentials


class Part:
    """What a room runs in a daemon; a subclass overrides what it has.

    Parts are made once the log is open, before anything has read it. They are started before the ports open,
    and stopped after the ports have closed, in the order in which they were made. They are started the other
    way round: a room is made after those on which it builds, and these begin to act when it is there.
    """

    fact_source: IFactSource | None = None
    """What brings facts into the log while this daemon is the primary."""

    async def start(self) -> None:
        """Start. Raises `ConfigError` if a setting cannot be used."""

    def stop(self) -> Awaitable[None] | None:
        """Stop."""

    def hooks(self) -> Hooks | None:
        """What it answers in place of a daemon alone; None if it leaves that to others."""
        return None

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        """Its keys of the status, as far as a peer with these rights may see them."""
        return {}

    def problems(self) -> Sequence[Problem]:
        """The errors of the status, first those that make the daemon not ready."""
        return ()

    def notices(self, access: Access = LOCAL) -> Sequence[Notice]:
        """What needs attention elsewhere."""
        return ()

    def channel_host(self) -> IChannelHost | None:
        """Its channel, as a source of facts in the place of that on a Redis; None if it serves none."""
        return None

    def stored_bytes(self) -> IStoredBytes | None:
        """The bytes that it stores under their checksums; None if it stores none."""
        return None

    def other_daemons(self) -> IOtherDaemons | None:
        """Its connections to other daemons, for rooms that are made after it; None if it has none."""
        return None

    def collect(self) -> None:
        """Set the metrics that are read only when they are asked for."""


def hooks_of(parts: Iterable[Part]) -> Hooks:
    """Return who answers what concerns other daemons. Raises `ConfigError` if two rooms would."""
    found = [hooks for part in parts if (hooks := part.hooks()) is not None]
    if len(found) > 1:
        raise ConfigError("two of the installed rooms answer for the other daemons of the log: remove one")
    return found[0] if found else Hooks()


@dataclass(frozen=True, kw_only=True)
class DaemonParts:
    """The core's parts of a daemon that is starting: the log is open, the ports are not."""

    settings: Settings
    reactor: Any
    table: DaemonStreams
    registry: IRegistry
    """Where a room registers its metrics."""
    metrics: Metrics
    keyring: Keyring
    credentials: Credentials
    log: Log
    publisher: Publisher
    declared: DeclaredStreams
    refused: RefusedFacts
    listeners: Listeners
    expiry: ExpiryClock
    """By which leases and old facts expire."""
    rooms: Mapping[str, Part]
    """The parts that were made before, by the names of their rooms."""

    @property
    def role(self) -> IRole:
        """What this daemon is among those of its log, as one of these parts tells; alone if none does."""
        return hooks_of(self.rooms.values()).role

    @property
    def other_daemons(self) -> IOtherDaemons | None:
        """The connections to other daemons that one of these parts makes; None if none does."""
        found = (part.other_daemons() for part in self.rooms.values())
        return next((one for one in found if one is not None), None)
