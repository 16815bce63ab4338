"""The part of replicas of a daemon in memory, as handlers, the status and hooks see it."""

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.base.access import LOCAL, Access
from synrepl.base.problems import Notice, Problem
from synrepl.daemon.parts import Part
from synrepl.replicas.described import describe, notices, own_readers
from synrepl.replicas.http.served_replicas import INativeTransport
from synrepl.replicas.relay.hello import RelayHello
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.promotion import Promotion
from synrepl.replicas.write_forwarder import WriteForwarder
from synrepl.replication.hooks import Alone, Hooks, StoredHere

__all__ = ["ServedReplicas", "Stale", "forwarded"]


async def _no_files(upto: int) -> Sequence[Any]:
    return ()


class ServedReplicas(Part):
    """These roles and this registry; without a forwarder, appends are stored here."""

    def __init__(
        self, roles: RoleManager, registry: ReplicaRegistry, forwarder: WriteForwarder | None = None
    ) -> None:
        self.roles = roles
        self.registry = registry
        self.promotion = Promotion(roles, registry.issued, missing_files=_no_files)
        self.native_transports: dict[str, INativeTransport] = {}
        self._forwarder = forwarder

    def hooks(self) -> Hooks:
        return Hooks(
            role=self.roles,
            forwarding=self._forwarder or StoredHere(),
            acknowledgements=self.registry.acknowledgements,
            leases=self.registry,
            keys=self.registry.issued,
            hello=RelayHello(self.registry),
        )

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        return describe(self.roles, self.registry, access)

    def notices(self, access: Access = LOCAL) -> Sequence[Notice]:
        replicas, leases = self.registry.status(), self.registry.describe_leases()
        return list(notices(own_readers(replicas, access), own_readers(leases, access)))

    def options(self) -> dict[str, Any]:
        """The context of a site that has this part."""
        return {"hooks": self.hooks(), "rooms": {"replicas": self}}


class Stale(Alone, Part):
    """A copy that lacks something; it `refuses` reads if it is told to."""

    WHY = "stale: this copy may lack the facts of the last 61 seconds"

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__()
        self._refuses = refuses

    def staleness(self) -> str:
        return self.WHY if self._refuses else ""

    def problems(self) -> list[Problem]:
        return [Problem(self.WHY, 0.0, not_ready=True)]

    def options(self) -> dict[str, Any]:
        """The context of a site that has this part."""
        return {"hooks": Hooks(role=self), "rooms": {"replicas": self}}


def forwarded(forwarder: WriteForwarder) -> Hooks:
    """The hooks of a replica with this forwarder, and nothing else."""
    return Hooks(forwarding=forwarder)
