"""How a copy, and a conversation, begin: the same for every transport."""

import msgspec

from synrepl.ports.history import BEGINNING, LogPosition, LogSnapshot
from synrepl.replication.relay.interfaces import IReplicaRegistry, ServedLog
from synrepl.replication.relay.proof import nonce
from synrepl.replication.wire_positions import said_place, standing
from synrepl.wire.native import SPOKEN, JoinRequest, WelcomeBody

__all__ = ["SnapshotStart", "WelcomeBuilder", "copy_begins"]


class SnapshotStart(msgspec.Struct, frozen=True):
    """A copy of `of` is to be sent: the facts after `at`, then `snapshot`, unless that is there already."""

    join: str
    of: LogPosition
    trimmed_upto: LogPosition
    at: LogPosition
    resumed: bool
    snapshot: LogSnapshot | None


async def copy_begins(
    relays: IReplicaRegistry, uuid: str, name: str, asked: JoinRequest, *, registered: bool, address: str
) -> SnapshotStart:
    """Take a snapshot for this replica, or find where its copy goes on; from here on a lease holds it."""
    log = relays.log
    lease, trimmed_upto = relays.leases[uuid], log.trimmed_upto
    is_held = lease is not None and lease.ended_ms is None
    position = None if asked.position is None else said_place(asked.position)
    resumed = position is not None and is_held and await _goes_on(log, asked.join, position)
    # Before the snapshot is taken, so that nothing it refers to can be trimmed.
    held = lease.serial if resumed and lease is not None else trimmed_upto.serial
    relays.leases.make(uuid, name, registered=registered, serial=held, address=address)
    snapshot = None
    if not resumed or not asked.has_meta:
        snapshot = await log.snapshot()
        trimmed_upto = snapshot.trimmed_upto
    at = position if resumed and position is not None else BEGINNING
    return SnapshotStart(
        join=asked.join if resumed else f"{log.history}/{trimmed_upto.serial}/{nonce()}",
        of=snapshot.position if snapshot is not None else at,
        trimmed_upto=trimmed_upto,
        at=at,
        resumed=resumed,
        snapshot=snapshot,
    )


async def _goes_on(log: ServedLog, join: str, position: LogPosition) -> bool:
    """Whether a copy that was cut off can go on: it is of this log, and nothing was trimmed since."""
    history, _, rest = join.partition("/")
    trimmed_upto = rest.partition("/")[0]
    if history != log.history or trimmed_upto != str(log.trimmed_upto.serial):
        return False
    if not 0 <= position.serial <= log.serial:
        return False
    return position.serial == 0 or await log.digest_at(position.serial) == position.digest


class WelcomeBuilder:
    """What a daemon says of itself."""

    def __init__(self, relays: IReplicaRegistry) -> None:
        self._relays = relays

    def welcome(self, *, proof: str) -> WelcomeBody:
        """Who it is, which history it has, and where that begins and stands."""
        relays, log = self._relays, self._relays.log
        position = log.position
        return WelcomeBody(
            proof=proof,
            history=log.history,
            uuid=log.uuid,
            instance=relays.instance,
            server_name=relays.server_name,
            role=relays.role(),
            position=standing(position),
            trimmed_upto=log.trimmed_upto.serial,
            filter=relays.filter(),
            address=relays.address(),
            primary=relays.primary(),
            capabilities=SPOKEN,
        )
