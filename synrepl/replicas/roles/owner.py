"""What the roles of a daemon need of that daemon."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from synrepl.replication.addresses import Address

if TYPE_CHECKING:
    from synrepl.replicas.replica.replica import Replica


class IRoleOwner(Protocol):
    """The daemon that has a role: it answers what its roles ask, and is told what they change."""

    def follow(self, where: Address | None) -> "Replica":
        """Make a replica that follows this address; with None the upstream in the settings."""

    def may_follow(self, where: Address) -> bool:
        """Whether an address that a peer has told may be followed."""

    def known_daemons(self) -> Sequence[Address]:
        """All daemons known locally: they are notified when this one becomes primary."""

    def listed_daemons(self) -> Sequence[Address]:
        """The daemons that the operator has listed, where they can be asked (`claims.py`)."""

    def replica_address(self, uuid: str) -> Address | None:
        """Where the replica with this uuid can be reached by its lease; None without one."""

    def role_changed(self) -> None:
        """Called after every change of the role, of what it permits, and of which daemons know it."""
