"""Parts of the handshake with a replica, and the start of a snapshot.

On a native connection both ends prove the secret (`ports.proofs`), without sending it or comparing clocks.
The proofs cover the lines of the handshake as they were sent, so that nobody in between can alter them.
Without TLS the bytes after the handshake travel in records (`wire.records`), whose keys come from the same
lines.
"""

import secrets
from typing import Final

import msgspec

from synrepl.ports.access import Access
from synrepl.ports.history import BEGINNING, LogPosition, LogSnapshot
from synrepl.ports.proofs import IProofs
from synrepl.ports.rights import command_operation, refusal
from synrepl.replication.relay.registry import ReplicaRegistry
from synrepl.storage.log import Log
from synrepl.wire.codec import codec_of
from synrepl.wire.dialect import NATIVE
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.native import CHANNEL, OWN_CAPABILITIES, Channel, Hello, Join, Joining, Publish, Welcome

REPLICA_SIDE: Final = "synrepl replica"
PRIMARY_SIDE: Final = "synrepl primary"

HANDSHAKE_REFUSALS: Final = ("version", "bad_name", "no_rights")
"""The codes of a REFUSED before WELCOME, which nothing authenticates."""


class Greetings(msgspec.Struct, frozen=True):
    """The lines HELLO and CHALLENGE of one connection, without their ends. They have the nonces of both ends,
    so that no other connection has the same lines.
    """

    hello: bytes
    challenge: bytes


def nonce() -> str:
    """Return a new random string of 32 hexadecimal digits."""
    return secrets.token_hex(16)


def line_of_replica(command: Command) -> bytes:
    """Return the line, without its end, in which a replica sends this command."""
    return codec_of(NATIVE, ours=CLIENT, theirs=SERVER).format(command)


def line_of_upstream(command: Command) -> bytes:
    """Return the line, without its end, in which an upstream sends this command."""
    return codec_of(NATIVE, ours=SERVER, theirs=CLIENT).format(command)


def proof(proofs: IProofs, side: str, greetings: Greetings, welcome: bytes = b"") -> str:
    """Return the proof of our side (`REPLICA_SIDE` or `PRIMARY_SIDE`) in hexadecimal.

    The proof of a primary also covers its line WELCOME, which is passed `without_proof`.
    """
    return proofs.prove(f"{side} proof", greetings.hello, greetings.challenge, welcome).hex()


def proves(received: str, proofs: IProofs, side: str, greetings: Greetings, welcome: bytes = b"") -> bool:
    """Whether `received` is the `proof` of the other side. Runs in constant time."""
    try:
        found = bytes.fromhex(received)
    except ValueError:
        return False
    return proofs.is_proof(found, f"{side} proof", greetings.hello, greetings.challenge, welcome)


def record_key(proofs: IProofs, side: str, greetings: Greetings) -> bytes:
    """Return the key of the records that this side sends on this connection."""
    return proofs.session_key(f"{side} records", greetings.hello, greetings.challenge, b"")


def without_proof(welcome: bytes, proof: str) -> bytes:
    """Return a line WELCOME as it was before its `proof` was set."""
    return welcome.replace(b'"proof":"%b"' % proof.encode(), b'"proof":""', 1)


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
    await registry.retain(replica, at_serial, access)
    snapshot = None
    if not resumed or not request.has_meta:
        snapshot = (await log.copies.snapshot()).seen_by(access.streams)
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
    if history != log.history or trimmed_upto != str(log.head.trimmed_upto.serial):
        return False
    if not 0 <= position.serial <= log.head.serial:
        return False
    return position.serial == 0 or await log.reads.digest(position.serial) == position.digest


def make_welcome(registry: ReplicaRegistry, access: Access, *, proof: str) -> Welcome:
    """Return this daemon's identity, role, history and position. `GET /v1/replication` sends it too.

    Of the streams that a filtered copy holds, only those that the peer may see are named.
    """
    log = registry.log
    return Welcome(
        proof=proof,
        history=log.history,
        uuid=log.uuid,
        instance=registry.settings.instance_name,
        server_name=registry.settings.server_name_of(log.notes),
        role=registry.roles.role,
        position=log.position,
        trimmed_upto=log.head.trimmed_upto.serial,
        filter=registry.publisher.holdings.filter.narrowed(access.streams),
        address=str(registry.roles.address()),
        primary=str(registry.roles.primary),
        capabilities=(*OWN_CAPABILITIES, CHANNEL) if _passes_channel(registry, access) else OWN_CAPABILITIES,
        tables=tuple(sorted(name for name in log.table_streams if access.sees(name))),
        path=() if registry.roles.replica is None else registry.roles.replica.path,
    )


def _passes_channel(registry: ReplicaRegistry, access: Access) -> bool:
    """Whether the replica may join the channel of this daemon."""
    if registry.channel() is None:
        return False
    return not any(refusal(access, command_operation(one)) for one in (Channel, Publish))
