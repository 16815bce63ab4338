"""Interfaces of a relay: the connection that it uses, and what the registry of replicas needs of it."""

from typing import TYPE_CHECKING, Protocol

from synrepl.base.limited_logger import LimitedLogger
from synrepl.replication.connection import Connection
from synrepl.wire.grammar import Command
from synrepl.wire.position import LogPosition

if TYPE_CHECKING:
    from synrepl.replicas.relay.relay_states import RelayState


class RelayConnection(Connection, Protocol):
    """A connection to a replica. `logger` logs lines that the peer can cause."""

    logger: LimitedLogger

    @property
    def is_local(self) -> bool:
        """Whether the replica is on this machine."""

    @property
    def certified_name(self) -> str | None:
        """The common name of the replica's TLS certificate; None without a certificate."""

    def close(self) -> None:
        """Close, once all written bytes are sent."""

    def authenticated(self) -> None:
        """Note that the replica has completed the handshake."""


class IRelay(Protocol):
    """What the registry needs of the relay of one connection."""

    connection: RelayConnection
    uuid: str
    name: str
    why: str
    acknowledged: int
    """The replica has everything up to this serial on disk."""

    @property
    def state(self) -> "RelayState":
        """What the relay does."""

    @property
    def is_known(self) -> bool:
        """Whether the handshake is complete, and the replica neither refused nor disconnected since."""

    @property
    def is_serving(self) -> bool:
        """Whether a copy or subscription was requested, and not refused, and the connection is up."""

    @property
    def is_subscribed(self) -> bool:
        """Whether the replica has subscribed, and is still connected."""

    @property
    def has_lost_key(self) -> bool:
        """Whether the keys have changed so that the replica must authenticate again."""

    @property
    def sent(self) -> LogPosition:
        """Everything selected up to this position was sent."""

    @property
    def is_whole_copy(self) -> bool:
        """Whether the replica copies all streams and writers."""

    def holds(self, stream: str, writer: str) -> bool:
        """Whether the replica copies this writer's facts of this stream."""

    def send_peers(self) -> None:
        """Send a subscribed replica the addresses of others, if they changed and it supports `peers`."""

    def send_keys(self, block: bytes) -> None:
        """Send a subscribed replica this block with all issued keys."""

    def send_down(self, command: type[Command], line: bytes) -> bool:
        """Send a command for all processes, if the replica has subscribed. False if there is no space."""
