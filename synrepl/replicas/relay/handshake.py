"""The answer to a replica's HELLO, and the start of a snapshot."""

import secrets
from typing import Final

import msgspec

from synrepl.base.access import Access
from synrepl.base.history import BEGINNING, LogPosition, LogSnapshot
from synrepl.base.rights import command_operation, missing_right
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.wire.native import (
    CHANNEL,
    OWN_CAPABILITIES,
    VERSION,
    Channel,
    Hello,
    Join,
    Joining,
    Publish,
    Welcome,
)
from synrepl.storage.log import Log

HANDSHAKE_REFUSALS: Final = ("version", "bad_name", "no_rights")
"""The codes of a REFUSED before WELCOME."""


class SnapshotStart(msgspec.Struct, frozen=True):
    """What to send: `joining`, facts after `at`, and `snapshot` (None: the replica has the metadata)."""

    joining: Joining
    at: LogPosition
    snapshot: LogSnapshot | None


async def start_snapshot(
    registry: ReplicaRegistry, replica: Hello, request: Join, access: Access
) -> SnapshotStart:
    """Start a copy for this replica, or resume its interrupted one. Raises StorageError.

    A resumed copy with metadata needs no snapshot. From now on the replica's lease retains the copy's facts.
    """
    log = registry.log
    lease, trimmed_upto = registry.leases[replica.uuid], log.head.trimmed_upto
    is_leased = lease is not None and lease.ended_ms is None
    position = request.position
    resumed = position is not None and is_leased and await _can_resume(log, request.join, position)
    # Renew the lease before the snapshot is taken, so that none of its facts can be trimmed.
    at_serial = lease.serial if resumed and lease is not None else trimmed_upto.serial
    await registry.retain(replica, at_serial, access, is_copying=True)
    snapshot = None
    if not resumed or not request.has_meta:
        snapshot = (await log.copies.snapshot()).seen_by(access.streams)
        trimmed_upto = snapshot.trimmed_upto
    at = position if resumed and position is not None else BEGINNING
    joining = Joining(
        join=request.join if resumed else f"{log.history}/{trimmed_upto.serial}/{secrets.token_hex(16)}",
        history=log.history,
        position=snapshot.position if snapshot is not None else at,
        trimmed_upto=trimmed_upto,
        after=at.serial,
        resumed=resumed,
    )
    return SnapshotStart(joining, at, snapshot)


async def _can_resume(log: Log, join: str, position: LogPosition) -> bool:
    """Whether an interrupted copy can resume: it is of this log, and nothing was trimmed since."""
    history, _, rest = join.partition("/")
    trimmed_upto = rest.partition("/")[0]
    if history != log.history or trimmed_upto != str(log.head.trimmed_upto.serial):
        return False
    if not 0 <= position.serial <= log.head.serial:
        return False
    return position.serial == 0 or await log.reads.digest(position.serial) == position.digest


def make_welcome(registry: ReplicaRegistry, access: Access) -> Welcome:
    """Return this daemon's identity, role, history and position. `GET /v1/replication` sends it too.

    Of the streams that a filtered copy holds, only those that the peer may see are named.
    """
    log = registry.log
    return Welcome(
        history=log.history,
        uuid=log.uuid,
        instance=registry.settings.instance_name,
        server_name=registry.settings.server_name_of(log.notes),
        role=registry.roles.role,
        position=log.position,
        trimmed_upto=log.head.trimmed_upto.serial,
        filter=registry.publisher.read_gate.filter.narrowed(access.streams),
        address=str(registry.roles.address()),
        primary=str(registry.roles.primary),
        version=VERSION,
        capabilities=(*OWN_CAPABILITIES, CHANNEL) if _passes_channel(registry, access) else OWN_CAPABILITIES,
        tables=tuple(sorted(name for name in log.table_streams if access.sees(name))),
        floor=log.head.floor,
        path=() if registry.roles.replica is None else registry.roles.replica.path,
    )


def _passes_channel(registry: ReplicaRegistry, access: Access) -> bool:
    """Whether the replica may join the channel of this daemon."""
    if not registry.channel().is_served:
        return False
    return not any(missing_right(access, command_operation(one)) for one in (Channel, Publish))
