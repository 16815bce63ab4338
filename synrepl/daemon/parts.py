"""What a daemon gives to its rooms, and what it takes from them."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from synrepl.config import Settings
from synrepl.daemon.listeners import Listeners
from synrepl.ingest.fact_source import IFactSource
from synrepl.ports.access import LOCAL, Access, Keyring
from synrepl.ports.metrics import Metrics
from synrepl.ports.problems import Problem
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.publisher import Publisher
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.storage.log import Log
from synrepl.streams.declared import DaemonStreams
from synrepl.transports.credentials import Credentials


class Part:
    """What a room runs in a daemon; a subclass overrides what it has.

    Parts are made once the log is open, and prepare it before anything reads it. They are started in the
    order in which they were made, before the ports open, and stopped the other way round, after the ports
    have closed.
    """

    fact_source: IFactSource | None = None
    """What brings facts into the log while this daemon is the primary."""

    async def prepare(self) -> None:
        """Prepare the log, before anything has read it. Raises `ReplicationError`."""

    async def start(self) -> None:
        """Start. Raises `ConfigError` if a setting cannot be used."""

    def stop(self) -> Awaitable[None] | None:
        """Stop."""

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        """Its keys of the status, as far as a peer with these rights may see them."""
        return {}

    def problems(self) -> Sequence[Problem]:
        """The errors of the status, first those that make the daemon not ready."""
        return ()

    def warnings(self, access: Access = LOCAL) -> Sequence[str]:
        """What needs attention elsewhere, each in a line."""
        return ()

    def collect(self) -> None:
        """Set the metrics that are read only when they are asked for."""


@dataclass(frozen=True, kw_only=True)
class DaemonParts:
    """The core's parts of a daemon that is starting: the log is open, the ports are not."""

    settings: Settings
    reactor: Any
    table: DaemonStreams
    registry: CollectorRegistry
    """Where a room registers its metrics."""
    metrics: Metrics
    keyring: Keyring
    credentials: Credentials
    log: Log
    publisher: Publisher
    declared: DeclaredStreams
    refused: RefusedFacts
    listeners: Listeners
    rooms: Mapping[str, Part]
    """The parts that were made before, by the names of their rooms."""
