"""What a HELLO opens: the peer is a replica, or means to become one, and is served by a relay.

It is admitted, or refused, in these steps:

1. `RelayHello.serve` gives the connection to a `Relay` (`relay.py`), which has a table of states.
2. HELLO: `Authenticator.admit` (`authenticator.py`) refuses an old version (`version`), an invalid name
   (`bad_name`), a key that is not known or may not replicate, and a name or a lease that belongs to another
   key (`no_rights`). The others get WELCOME (`make_welcome`).
3. JOIN: `Relay._join` asks `ReplicaRegistry.join_refusal` (`replica_registry.py`), which refuses streams that
   the key may not see, and what this daemon cannot give: it has no whole copy yet, is fenced, has fewer
   streams, or has dropped the replica from its list; then more leases than there may be, and a replica that
   is connected already. `start_snapshot` (`snapshot_start.py`) says what a copy begins with.
4. SUBSCRIBE: the same, and the replica's position is compared with the log
   (`replication/serving/admission.py`): `trimmed`, `ahead`, `fork`, `other_history`.
5. A refusal is one line, REFUSED with a code (`replicas/error_codes.py`); then the connection is closed.
6. At the replica `NativeConversation._receive` (`native_client.py`) reads the line, and `Replica._on_refused`
   (`replica/replica.py`) decides. It shows code and reason in the status. The replica joins again if it was
   `trimmed`, asks another upstream if one is named, stops for an operator if the histories differ, and else
   tries again: seldom, if the code says that only an operator can change that.
"""

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
