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
    begin: LogPosition
    at: LogPosition
    resumed: bool
    snapshot: LogSnapshot | None


async def copy_begins(
    relays: IReplicaRegistry, uuid: str, name: str, asked: JoinRequest, *, registered: bool, address: str
) -> SnapshotStart:
    """Take a snapshot for this replica, or find where its copy goes on; from here on a lease holds it."""
    log = relays.log
    lease, begin = relays.leases[uuid], log.begin
    is_held = lease is not None and lease.ended_ms is None
    place = None if asked.place is None else said_place(asked.place)
    resumed = place is not None and is_held and await _goes_on(log, asked.join, place)
    # Before the snapshot is taken, so that nothing it refers to can be trimmed.
    held = lease.serial if resumed and lease is not None else begin.serial
    relays.leases.make(uuid, name, registered=registered, serial=held, address=address)
    snapshot = None
    if not resumed or not asked.has_meta:
        snapshot = await log.snapshot()
        begin = snapshot.begin
    at = place if resumed and place is not None else BEGINNING
    return SnapshotStart(
        join=asked.join if resumed else f"{log.history}/{begin.serial}/{nonce()}",
        of=snapshot.place if snapshot is not None else at,
        begin=begin,
        at=at,
        resumed=resumed,
        snapshot=snapshot,
    )


async def _goes_on(log: ServedLog, join: str, place: LogPosition) -> bool:
    """Whether a copy that was cut off can go on: it is of this log, and nothing was trimmed since."""
    history, _, rest = join.partition("/")
    begin = rest.partition("/")[0]
    if history != log.history or begin != str(log.begin.serial):
        return False
    if not 0 <= place.serial <= log.serial:
        return False
    return place.serial == 0 or await log.digest_at(place.serial) == place.digest


class WelcomeBuilder:
    """What a daemon says of itself."""

    def __init__(self, relays: IReplicaRegistry) -> None:
        self._relays = relays

    def welcome(self, *, proof: str) -> WelcomeBody:
        """Who it is, which history it has, and where that begins and stands."""
        relays, log = self._relays, self._relays.log
        place = log.place
        return WelcomeBody(
            proof=proof,
            history=log.history,
            uuid=log.uuid,
            instance=relays.instance,
            server_name=relays.server_name,
            role=relays.role(),
            place=standing(place),
            begin=log.begin.serial,
            filter=relays.filter(),
            address=relays.address(),
            primary=relays.primary(),
            capabilities=SPOKEN,
        )
