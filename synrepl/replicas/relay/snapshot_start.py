"""The start of a copy: of a new one, or of one that was interrupted."""

import secrets

import msgspec

from synrepl.base.access import Access
from synrepl.base.history import BEGINNING, LogSnapshot
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.wire.native import Hello, Join, Joining
from synrepl.storage.log import Log
from synrepl.wire.position import LogPosition


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
