"""Parts of the handshake with a replica, and the start of a snapshot, for all transports.

On a native connection both ends prove the secret by HMAC, without sending it or comparing clocks.
"""

import hmac
import secrets
from typing import Final

import msgspec

from synrepl.ports.history import BEGINNING, LogPosition, LogSnapshot
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.storage.log import Log
from synrepl.wire.native import OWN_CAPABILITIES, Hello, Join, Joining, Welcome

REPLICA: Final = "synrepl replica"
PRIMARY: Final = "synrepl primary"


def nonce() -> str:
    """Return a new random string of 32 hexadecimal digits."""
    return secrets.token_hex(16)


def proof(secret: str, side: str, nonces: tuple[str, str], uuid: str, name: str) -> str:
    """Return the proof of one side: an HMAC-SHA256 in hexadecimal, with the secret as key.

    It covers `side` (`REPLICA` or `PRIMARY`), both nonces (the replica's last), the replica's uuid and name.
    """
    text = "\n".join((side, *nonces, uuid, name))
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


def proves(
    received: str, secret: str | None, side: str, nonces: tuple[str, str], uuid: str, name: str
) -> bool:
    """Whether `received` is the `proof` with this secret, False if that is None. Runs in constant time."""
    expected = proof(secret if secret is not None else nonce(), side, nonces, uuid, name)
    return hmac.compare_digest(received.encode(), expected.encode()) and secret is not None


class SnapshotStart(msgspec.Struct, frozen=True):
    """What to send: `joining`, facts after `at`, and `snapshot` (None: the replica has the metadata)."""

    joining: Joining
    at: LogPosition
    snapshot: LogSnapshot | None


async def start_snapshot(registry: ReplicaRegistry, replica: Hello, request: Join) -> SnapshotStart:
    """Start a copy for this replica, or resume its interrupted one. Raises StorageError.

    A resumed copy with metadata needs no snapshot. From now on the replica's lease retains the copy's facts.
    """
    log = registry.log
    lease, trimmed_upto = registry.leases[replica.uuid], log.trimmed_upto
    is_leased = lease is not None and lease.ended_ms is None
    position = request.position
    resumed = position is not None and is_leased and await _can_resume(log, request.join, position)
    # Renew the lease before the snapshot is taken, so that none of its facts can be trimmed.
    registry.retain(replica, lease.serial if resumed and lease is not None else trimmed_upto.serial)
    snapshot = None
    if not resumed or not request.has_meta:
        snapshot = await log.snapshot()
        trimmed_upto = snapshot.trimmed_upto
    at = position if resumed and position is not None else BEGINNING
    joining = Joining(
        join=request.join if resumed else f"{log.history}/{trimmed_upto.serial}/{nonce()}",
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
    if history != log.history or trimmed_upto != str(log.trimmed_upto.serial):
        return False
    if not 0 <= position.serial <= log.serial:
        return False
    return position.serial == 0 or await log.digest_at(position.serial) == position.digest


def make_welcome(registry: ReplicaRegistry, *, proof: str) -> Welcome:
    """Return this daemon's identity, role, history and position. HTTP sends the same fields as WELCOME."""
    log = registry.log
    return Welcome(
        proof=proof,
        history=log.history,
        uuid=log.uuid,
        instance=registry.settings.instance_name,
        server_name=registry.settings.server_name_of(log.notes),
        role=registry.roles.role,
        position=log.position,
        trimmed_upto=log.trimmed_upto.serial,
        filter=registry.publisher.holdings.filter,
        address=str(registry.roles.address()),
        primary=str(registry.roles.primary),
        capabilities=OWN_CAPABILITIES,
    )
