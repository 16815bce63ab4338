"""What a HELLO opens: the peer is a replica, or means to become one, and is served by a relay."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from synrepl.replicas.relay.replica_registry import ReplicaRegistry

if TYPE_CHECKING:
    from synrepl.replicas.relay.interfaces import IRelay
    from synrepl.replicas.relay.relay import Relay
    from synrepl.transports.connection import ReplicationProtocol

OPENING: Final = frozenset(
    b"HELLO JOIN SUBSCRIBE ACK UP DIGESTS CHANNEL PUBLISH PUBLISH_TO PUBLISHER_LOST".split()
)
"""The names of the commands that only a replica sends, of which HELLO must be the first."""


class RelayHello:
    """Serves the replicas that connect, each by a relay of this registry (`hooks.IHello`)."""

    opening: ClassVar[Collection[bytes]] = OPENING

    def __init__(self, registry: ReplicaRegistry) -> None:
        self._registry = registry

    @property
    def connected(self) -> "Sequence[IRelay]":
        """The relays of the open connections."""
        return self._registry.connected

    def serve(self, connection: "ReplicationProtocol") -> "Relay":
        """Serve the replica at the other end of a connection, in the native dialect."""
        # Imported on use: most daemons have no replicas, and need not load relays and their blocks.
        from synrepl.replicas.native_receiver import speak_native
        from synrepl.replicas.relay.relay import attach

        speak_native(connection)
        return attach(self._registry, connection)

    def recheck(self) -> None:
        """Close the connections of replicas whose key was revoked or changed."""
        self._registry.recheck()

    def close(self, why: str) -> None:
        """Send ERROR on every connection, and close it."""
        self._registry.close(why)
