"""A daemon that has met no other one: the part of the room until then, which for most daemons is for ever.

It answers what the core asks (`hooks.py`) as a daemon without the room does, and so loads little of the room.
The first that needs more makes the `ReplicasPart`, which answers from then on: a peer that says HELLO, a
request for a route of the room, a reader with a name, an append that waits for replicas.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from synrepl.base.access import LOCAL, Access
from synrepl.base.problems import Problem
from synrepl.daemon.parts import DaemonParts, Part
from synrepl.errors import ReplicationError
from synrepl.replicas.file_copies import IFileCopies
from synrepl.replicas.metrics import ReplicasMetrics
from synrepl.replicas.roles.states import Role
from synrepl.replicas.settings import ReplicasSettings
from synrepl.replication.hooks import Hooks, IAcknowledgements, IForwarding, IHello, ILeases, IRole
from synrepl.wire.acks import Acks

if TYPE_CHECKING:
    from synrepl.base.key_authority import IKeyAuthority
    from synrepl.replicas.channels import IServedChannel
    from synrepl.replicas.part import ReplicasPart
    from synrepl.replicas.relay.registry import ReplicaRegistry
    from synrepl.replicas.roles.manager import RoleManager
    from synrepl.replication.connection import ConnectionOwner

NOTES_OF_ANY_LOG: Final = frozenset({"uuid", "history", "server_name"})
"""The notes of a log whose daemon has met no other one."""

OPENING: Final = frozenset(
    b"ACK CHANNEL DIGESTS HELLO JOIN PUBLISH PUBLISHER_LOST PUBLISH_TO SUBSCRIBE UP".split()
)
"""The commands that only a replica sends (`native_receiver.OPENING`), of which HELLO must be the first."""


def is_alone(daemon: DaemonParts, settings: ReplicasSettings) -> bool:
    """Whether nothing in the settings and in the log tells of another daemon."""
    log = daemon.log
    return not (settings.upstream or settings.acks or log.leases or log.notes.keys() - NOTES_OF_ANY_LOG)


class AlonePart(Part):
    """The part of a daemon that is alone until `meet`: a primary without replicas, leases and issued keys."""

    def __init__(self, daemon: DaemonParts, settings: ReplicasSettings) -> None:
        self._daemon = daemon
        self._settings = settings
        self._numbers = ReplicasMetrics(daemon.registry)
        self._met: ReplicasPart | None = None
        self._part = Part()
        """What answers for this part: one that has nothing to say, until there is `_met`."""
        self.answers = Hooks()
        """Who answers the hooks now."""
        self._files: IFileCopies | None = None
        self._channel: IServedChannel | None = None

    def meet(self) -> "ReplicasPart":
        """Return the part of a daemon among others; the first call makes it, and then it answers for this."""
        if self._met is None:
            from synrepl.replicas.part import ReplicasPart

            met = ReplicasPart(self._daemon, self._settings, self._numbers)
            subscribers = self.answers.role.changed
            self._met = self._part = met
            self.answers = met.hooks()
            if self._files is not None:
                met.use_files(self._files)
            if self._channel is not None:
                met.use_channel(self._channel)
            # As nobody is known, nobody is asked: this daemon is the primary at once, as it was.
            met.roles.start()
            for subscriber in subscribers:
                met.on_role_changed(subscriber)
        return self._met

    def hooks(self) -> Hooks:
        return Hooks(
            role=cast("IRole", _Late(self, "role")),
            forwarding=cast("IForwarding", _Late(self, "forwarding")),
            acknowledgements=cast("IAcknowledgements", _LateAcknowledgements(self, "acknowledgements")),
            leases=cast("ILeases", _LateLeases(self, "leases")),
            keys=cast("IKeyAuthority", _Late(self, "keys")),
            hello=cast("IHello", _LateHello(self, "hello")),
        )

    # -- what handlers need of the room (`served_replicas.IReplicas`) --------------------------------------

    @property
    def roles(self) -> "RoleManager":
        """The role of this daemon among others."""
        return self.meet().roles

    @property
    def relays(self) -> "ReplicaRegistry":
        """The replicas of this daemon."""
        return self.meet().relays

    # -- what other rooms need (`file_copies.ICopiesFiles`, `channels.ICarriesChannel`) --------------------

    def use_files(self, files: IFileCopies) -> None:
        """Copy these files too."""
        self._files = files

    def file_refusal(self) -> ReplicationError | None:
        """Return the error with which uploads are refused now; None if they are taken."""
        return None if self._met is None else self._met.file_refusal()

    def use_channel(self, served: "IServedChannel") -> None:
        """Pass this channel to replicas, and join it with that of the upstream."""
        self._channel = served

    def on_role_changed(self, changed: Callable[[], object]) -> None:
        """Call this function whenever the role, or what is known of the upstream, may have changed."""
        self.answers.role.changed.append(changed)

    @property
    def is_replica(self) -> bool:
        """Whether this daemon follows another one."""
        return self._met is not None and self._met.is_replica

    @property
    def is_fenced(self) -> bool:
        """Whether another daemon is primary, and this one serves nobody."""
        return self._met is not None and self._met.is_fenced

    @property
    def has_met_upstream(self) -> bool:
        """Whether this replica has heard from its upstream, now or before."""
        return self._met is not None and self._met.has_met_upstream

    # -- what the daemon asks of each part -----------------------------------------------------------------

    async def start(self) -> None:
        self._daemon.log.gate.open()

    async def stop(self) -> None:
        if self._met is not None:
            await self._met.stop()

    def reload(self) -> None:
        self._part.reload()

    def state(self) -> str:
        return self._part.state()

    def problems(self) -> Sequence[Problem]:
        return self._part.problems()

    def warnings(self, access: Access = LOCAL) -> Sequence[str]:
        return self._part.warnings(access)

    def what_to_do(self, access: Access = LOCAL) -> Sequence[str]:
        return self._part.what_to_do(access)

    def lag_seconds(self) -> float:
        return self._part.lag_seconds()

    def lag_rows(self) -> int:
        return self._part.lag_rows()

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        if self._met is not None:
            return self._met.status(access)
        address = str(self._daemon.listeners.address())
        return {
            "why": "",
            "name": self._settings.name_of(self._daemon.log.uuid),
            "address": address,
            "primary": address,
            "upstream": None,
            "replicas": [],
            "more_replicas": 0,
            "leases": [],
            "more_leases": 0,
            "unnotified": [],
        }

    def collect(self) -> None:
        if self._met is not None:
            self._met.collect()
            return
        for role in Role:
            self._daemon.metrics.role.labels(role).set(role is Role.PRIMARY)
        self._numbers.collect((), (), None)


class _Late:
    """One of the hooks: that of a daemon alone, and from the meeting on that of the `ReplicasPart`."""

    def __init__(self, part: AlonePart, name: str) -> None:
        self._alone = part
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(self._alone.answers, self._name), attribute)


class _LateAcknowledgements(_Late):
    def check(self, acks: Acks) -> None:
        """See `IAcknowledgements`."""
        self._alone.meet().relays.acknowledgements.check(acks)


class _LateLeases(_Late):
    def renew(self, reader: str, since: int, wait: float, access: Access) -> None:
        """See `ILeases`."""
        self._alone.meet().relays.renew(reader, since, wait, access)


class _LateHello(_Late):
    opening: ClassVar = OPENING

    def serve(self, connection: Any) -> "ConnectionOwner":
        """See `IHello`."""
        self._alone.meet()
        return self._alone.answers.hello.serve(connection)
