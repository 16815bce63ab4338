"""The replicas of a daemon: admission, connections, leases and their status."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.access import Access, Keyring, Right
from synrepl.base.history import READER_PREFIX, Lease
from synrepl.base.interfaces import IClock
from synrepl.base.response_errors import ErrorResponse, OwnResponse
from synrepl.base.rights import command_operation, missing_right
from synrepl.base.tasks import Tasks
from synrepl.base.time import ExpiryClock
from synrepl.daemon.other_daemons import IServedChannel, NoChannel
from synrepl.errors import LocalProtocolError, ReplicationError, StorageError
from synrepl.replicas.acknowledgements import Acknowledgements
from synrepl.replicas.command_receiver import CommandReceiver
from synrepl.replicas.issued_keys import IssuedKeys, keys_block
from synrepl.replicas.promises import PromisedReplica, PromiseKeeper
from synrepl.replicas.relay.leases import MAX_LEASES, Leases
from synrepl.replicas.relay.unfinished_copies import UnfinishedCopies, is_backup
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.settings import RelaySettings
from synrepl.replication.addresses import Address
from synrepl.replication.serving.admission import ReaderPosition, history_mismatch, position_mismatch
from synrepl.replication.serving.command_lines import line_of
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.streams.catalog import ATOMIC_APPENDS
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import Command
from synrepl.wire.text import identity_error

if TYPE_CHECKING:
    from synrepl.replicas.relay.interfaces import IRelay
    from synrepl.replicas.wire.native import Hello, Refused, Subscribe

NOT_READY: Final = "this daemon is a replica, and its own copy is not complete yet"

MAX_PEERS: Final = 50
IDLE_SECONDS: Final = 60.0
"""An up-to-date replica is shown as idle when nothing was committed for longer than this."""

PRESENT_SECONDS: Final = 15.0
"""A reader over HTTP counts as connected for this time after a request and the `wait` of the request."""

REPLICA_STATES: Final = {
    "live": "connected and up to date",
    "idle": "connected and up to date; nothing was written for a while",
    "behind": "connected, but missing facts or still joining",
    "lost": "not connected",
    "moved": "not connected: it is the primary now, or a replica of the primary",
    "never seen": "a lease was made for it, but it never connected",
    "ended": "its lease has ended: it may have to join again, or it was dropped and is refused",
}
"""The states of a replica on the list. Operators see these words."""


class ReaderRefused(OwnResponse, ReplicationError):
    """A reader of the changelog, or a future replica, cannot have a lease."""

    def __init__(self, refused: "Refused") -> None:
        super().__init__(refused.message)
        self._refused = refused

    def response(self) -> ErrorResponse:
        more: dict[str, Any] = msgspec.to_builtins(self._refused)
        return ErrorResponse(more.pop("code"), more.pop("message"), more=more)


@dataclass(eq=False, repr=False)
class ReplicaRegistry:
    """Serves replicas: decides about admission, keeps their leases, and reports their states.

    Leases expire by `expiry`; None: by `clock`. `channel` returns the channel that is passed to replicas.
    """

    log: Log
    publisher: Publisher
    clock: IClock
    settings: RelaySettings
    roles: RoleManager
    _: KW_ONLY
    keys: Keyring = field(default_factory=Keyring)
    expiry: ExpiryClock | None = None
    channel: Callable[[], IServedChannel] = NoChannel
    _logger = Logger()

    def __post_init__(self) -> None:
        self.connected: list[IRelay] = []
        self.tasks = Tasks(self._logger, "relays")
        self._http_readers: dict[str, float] = {}
        self._asked_beyond: dict[str, tuple[int, float]] = {}
        """By uuid of replicas that had more than this log: their serial, and when they first said so."""
        self.leases = Leases(
            self.log,
            self.clock,
            self.settings,
            present=self.present,
            expiry=self.expiry or ExpiryClock(self.clock, self.clock.seconds),
        )
        self._unfinished = UnfinishedCopies(self.log, self.leases)
        self.promises = PromiseKeeper(
            self.log, instance=self.settings.instance_name, replicas=self._registered_replicas
        )
        self.acknowledgements = Acknowledgements(
            self.clock,
            self.promises,
            self.tasks,
            replicas=lambda: [one for one in self.connected if one.is_subscribed and not is_backup(one.uuid)],
            is_primary=lambda: self.roles.role == Role.PRIMARY,
            defaults=self.settings.acks,
        )
        self.issued = IssuedKeys(
            self.log,
            self.keys,
            self.clock,
            self.tasks,
            refusal=self._write_refusal,
            doubt=self._doubt_of_keys,
        )
        self.command_receiver = CommandReceiver(
            self.publisher.follower_commands,
            self.publisher.metrics,
            self.clock,
            broadcast=lambda command, source: self.publisher.broadcast(command, but=source),
        )

    def subscribe(self) -> None:
        """Hear of commands, issued keys, and copies that replace the log."""
        self.publisher.broadcast_subscribers.append(self._on_relayed)
        self.issued.subscribers.append(self._on_keys)
        self.log.copies.on_replaced(self.promises.forget)
        self.log.copies.on_replaced(self.leases.reload)

    def _registered_replicas(self) -> list[PromisedReplica]:
        """All replicas that may acknowledge: the registered ones, whether they are connected or not.

        One that is only expected (`leases add`) has no copy. Of several with one name it is the one that was
        seen last: the others have lost their disks. A backup is no replica: it serves nobody.
        """
        newest: dict[str, Lease] = {}
        for lease in self.leases.all():
            if (
                lease.registered
                and not is_backup(lease.uuid)
                and lease.ended_ms is None
                and lease.seen_ms is not None
            ):
                known = newest.get(lease.name)
                if known is None or _last_seen(known) < _last_seen(lease):
                    newest[lease.name] = lease
        return [PromisedReplica(lease.uuid, lease.name, lease.address) for _, lease in sorted(newest.items())]

    def detach(self, relay: "IRelay") -> None:
        """Forget a relay whose connection has ended."""
        if relay in self.connected:
            self.connected.remove(relay)
        if relay.uuid and relay.is_known:
            self.leases.touch(relay.uuid)

    def present(self) -> set[str]:
        """The uuids of all replicas with a connection, and of readers with a recent HTTP request."""
        now = self.clock.seconds()
        self._http_readers = {uuid: until for uuid, until in self._http_readers.items() if until > now}
        return {relay.uuid for relay in self.connected if relay.is_known} | self._http_readers.keys()

    def is_followed_by(self, uuid: str) -> bool:
        """Whether the replica with this uuid has subscribed here, and is still connected."""
        return any(relay.uuid == uuid and relay.is_subscribed for relay in self.connected)

    def note_http_reader(self, uuid: str, seconds: float) -> None:
        """Count a reader over HTTP as connected for this many seconds from now."""
        self._http_readers[uuid] = self.clock.seconds() + seconds

    def disconnect(self, uuid: str, why: str) -> None:
        """Close the native connections of this replica. Its admission is decided again if it reconnects."""
        for relay in list(self.connected):
            if relay.uuid == uuid and relay.is_known:
                relay.connection.fail(why)

    def recheck(self) -> None:
        """Close native connections of replicas whose key was revoked or changed. HTTP checks each request."""
        for relay in list(self.connected):
            if relay.is_known and relay.has_lost_key:
                relay.connection.fail("the replica's key was revoked or changed")

    def close(self, why: str) -> None:
        """Send ERROR on every native connection of a replica, and close it."""
        for relay in list(self.connected):
            relay.connection.fail(why)

    def stop(self) -> "Deferred[None]":
        """Stop all tasks, and save the leases. Fires when they are saved."""
        self.halt()
        return Deferred.fromCoroutine(self.leases.save())

    def halt(self) -> None:
        """Stop all tasks and timers, without saving leases."""
        self.tasks.cancel_all()
        self.command_receiver.stop()
        self.leases.stop()

    def lowest(self) -> int | None:
        """Return the serial after which a reader still needs all facts; None without such readers."""
        return self.leases.lowest()

    def renew(self, reader: str, since: int, wait: float, access: Access) -> None:
        """Make or renew the lease of a named changelog reader, which has everything up to `since`.

        Raises `ReaderRefused` at the limit of leases, and if the lease is that of another key.
        """
        uuid = f"{READER_PREFIX}{reader}"
        lease = self.leases[uuid]
        if (refused := self.owner_refusal(uuid, access)) is not None:
            raise ReaderRefused(refused)
        if lease is None or lease.ended_ms is not None or since < lease.serial:
            if (refused := self.lease_limit_refusal(uuid, registered=False, key=access.key)) is not None:
                raise ReaderRefused(refused)
            self.leases.make(uuid, reader, registered=False, serial=since, key=access.key)
        else:
            self.leases.advance(uuid, since)
        self.note_http_reader(uuid, wait + PRESENT_SECONDS)

    def _doubt_of_keys(self) -> str:
        """Why an issued key may have been revoked without this daemon's knowledge; empty if it would know."""
        replica, seconds = self.roles.replica, self.settings.stale_seconds
        if replica is None or self.settings.trust_stale_keys:
            return ""
        heard = replica.freshness.heard_seconds_ago
        if heard is not None and heard <= seconds:
            return ""
        since = "since its start" if heard is None else f"for {heard:.0f} seconds"
        return f"this replica has not heard from its upstream {since}"

    def _write_refusal(self) -> StorageError | None:
        return self.log.gate.refusal("keys")

    def _on_keys(self) -> None:
        self.recheck()
        block = keys_block(self.issued.all)
        for relay in list(self.connected):
            relay.send_keys(block)

    def _on_relayed(self, command: Command, source: object) -> Iterator[None]:
        """Pass a command for all processes on to native replicas, except the one that sent it."""
        if any(relay is not source for relay in self.connected):
            try:
                line = line_of(command)
            except LocalProtocolError as error:
                self._logger.warn(
                    "cannot pass {name} on to replicas: {why}", name=command.NAME, why=error.why
                )
                return
            for relay in list(self.connected):
                if relay is not source and not relay.send_down(type(command), line):
                    self.publisher.metrics.commands_dropped.labels(command.NAME).inc()
                yield

    async def subscription_refusal(
        self, replica: "Hello", request: "Subscribe", access: Access, *, relay: "IRelay | None" = None
    ) -> "Refused | None":
        """Return why this subscription is refused; None if it is admitted.

        `relay` is that of the replica's connection; any other one is a duplicate. `roles` is notified of a
        later epoch.
        """
        if (refused := self._access_refusal(replica, request.filter, access)) is not None:
            return refused
        reader = _reader_position(replica.listed_name, request, access)
        if (mismatch := history_mismatch(self.log, reader)) is not None:
            if mismatch.code == "other_history":
                return refusal(mismatch.code, mismatch.message)
            self.roles.rivals.on_higher_epoch(request.position.epoch, reader.name, replica.address)
            return self._refusal(mismatch.code, mismatch.message)
        if (refused := self._copy_refusal(replica, request.filter)) is not None:
            return refused
        if (mismatch := await position_mismatch(self.log, reader)) is not None:
            if mismatch.code == "ahead" and self._may_catch_up_with(replica.uuid, reader.serial):
                why = f"{mismatch.message}; this daemon is a replica, and may not have these facts yet"
                return self._refusal(mismatch.code, why, retryable=True)
            return self._refusal(mismatch.code, mismatch.message)
        return self._limit_refusal(replica, access, relay)

    def _may_catch_up_with(self, uuid: str, serial: int) -> bool:
        """Whether the facts that this replica has, and this log lacks, may still come from the primary.

        Another replica of the primary got them first, if there are such facts at all. They must come before
        what the primary says of itself a moment after this question.
        """
        replica = self.roles.replica
        if replica is None:
            return False
        asked = self._asked_beyond.get(uuid)
        if asked is None or asked[0] != serial:
            if len(self._asked_beyond) >= MAX_LEASES:
                self._asked_beyond.clear()
            asked = self._asked_beyond[uuid] = (serial, self.clock.seconds())
        complete_at = replica.complete_at
        return complete_at is None or complete_at < asked[1] + self.settings.heartbeat_seconds

    def join_refusal(
        self, replica: "Hello", query: Filter, access: Access, *, relay: "IRelay | None" = None
    ) -> "Refused | None":
        """Return why this replica may not copy the facts that `query` selects; None if it may."""
        return (
            self._access_refusal(replica, query, access)
            or self._copy_refusal(replica, query)
            or self._limit_refusal(replica, access, relay)
        )

    def _access_refusal(self, replica: "Hello", query: Filter, access: Access) -> "Refused | None":
        if (refused := self.identity_refusal(replica.uuid, replica.listed_name)) is not None:
            return refused
        if (refused := self.owner_refusal(replica.uuid, access, name=replica.listed_name)) is not None:
            return refused
        from synrepl.replicas.wire.native import Subscribe

        # A request for a copy and one for what follows take the same.
        if why := missing_right(access, command_operation(Subscribe), query.streams):
            return refusal("no_rights", why)
        # This log is about to be replaced by a copy.
        return None if self.roles.is_whole else refusal("not_ready", NOT_READY)

    def owner_refusal(self, uuid: str, access: Access, *, name: str = "") -> "Refused | None":
        """Return why this peer may not use the lease of `uuid`, or this name of a replica; None if it may.

        A lease belongs to the key that made it, and a name to the key of that name. Only a key with the right
        `administer` may use others.
        """
        if Right.ADMINISTER in access.rights:
            return None
        if name and access.name != name and self.keys.has_own_key(name):
            why = f"the name {name} belongs to another key: set replica_name, or prove the key {name}"
            return refusal("no_rights", why)
        lease = self.leases[uuid]
        if lease is None or lease.key is None or access.key in (lease.key, lease.name):
            return None
        ways_out = f"synrepl leases drop {lease.name} and synrepl leases add {lease.name} give it to any key"
        return refusal("no_rights", f"lease {lease.name} belongs to another key: {ways_out}")

    def _copy_refusal(self, replica: "Hello", query: Filter) -> "Refused | None":
        from synrepl.replicas.wire.native import ATOMIC

        if ATOMIC not in replica.capabilities and self.log.linear_position(ATOMIC_APPENDS.name):
            why = "this log has atomic appends, which the replica's release may divide: update the replica"
            return refusal("version", why)
        if self.roles.role == Role.FENCED:
            return self._refusal("read_only", "this daemon is fenced: another one is primary")
        if self.leases.is_dropped(replica.uuid):
            why = f"{replica.listed_name} was dropped from the list of replicas"
            return refusal("unknown", f"{why}; synrepl leases add admits it again")
        if query.within(self.publisher.read_gate.filter):
            return None
        return refusal("filtered", "this daemon has only some streams or writers, and not all requested ones")

    def _limit_refusal(self, replica: "Hello", access: Access, relay: "IRelay | None") -> "Refused | None":
        refused = self.lease_limit_refusal(replica.uuid, registered=replica.registered, key=access.key)
        if refused is not None:
            return refused
        for other in self.connected:
            if other is not relay and other.uuid == replica.uuid and other.is_serving:
                why = f"{replica.listed_name} is already connected (state: {other.state})"
                return refusal("duplicate", why)
        return None

    async def retain(
        self, replica: "Hello", serial: int, access: Access, *, is_copying: bool = False
    ) -> None:
        """Make or renew the lease of an admitted replica: it needs the facts after this serial.

        One that is not copying has everything before it. A new lease is on disk before the replica has a
        copy: no promise to appends may leave out a replica that could be promoted (`replicas/promises.py`).
        Raises `StorageError`.
        """
        known = self.leases[replica.uuid]
        self.leases.make(
            replica.uuid,
            replica.listed_name,
            registered=replica.registered,
            serial=serial,
            address=replica.address,
            key=access.key,
        )
        # What says that a copy is unfinished is on disk before the lease.
        await (self._unfinished.begin if is_copying else self._unfinished.end)(replica.uuid)
        if known is None or known.ended_ms is not None:
            await self.leases.save()

    def identity_refusal(self, uuid: str, name: str, address: str = "") -> "Refused | None":
        """Return why a replica cannot have this identity; None if it can."""
        why = identity_error(uuid, name, address)
        return refusal("bad_name", why) if why else None

    def lease_limit_refusal(
        self, uuid: str, *, registered: bool = True, key: str | None = None
    ) -> "Refused | None":
        """Return why no lease can be made for this reader, which proved `key`; None if one can."""
        why = self.leases.limit_reached(uuid, registered=registered, key=key)
        return refusal("too_many", why) if why else None

    def _refusal(self, code: str, message: str, *, retryable: bool | None = None) -> "Refused":
        # Only a fenced daemon redirects its replicas: those of a replica stay with it.
        moved_to = str(self.roles.primary) if self.roles.role == Role.FENCED else ""
        return refusal(
            code,
            message,
            moved_to=moved_to,
            epoch=self.log.head.epoch,
            serial=self.log.head.serial,
            retryable=retryable,
        )

    def peers(self, *, excluding: str) -> list[str]:
        """At most `MAX_PEERS` addresses of registered replicas, without that of the uuid `excluding`."""
        found = self.leases.addresses()[: MAX_PEERS + 1]
        return [address for address, uuid in found if uuid != excluding][:MAX_PEERS]

    def status(self) -> list[dict[str, Any]]:
        """The status of every replica with a lease, even an ended one, the worst first.

        A named reader of the changelog is no replica, though it has a lease: nobody misses it.
        """
        relays = {relay.uuid: relay for relay in self.connected if relay.is_known}
        elsewhere = self._replicas_elsewhere()
        described = [
            self._describe(lease, relays.get(lease.uuid), elsewhere)
            for lease in self.leases.all()
            if not is_backup(lease.uuid)
            and (lease.uuid in relays or not lease.uuid.startswith(READER_PREFIX))
        ]
        order = ["ended", "lost", "behind", "never seen", "moved", "live", "idle"]
        described.sort(key=lambda one: (order.index(one["state"]), -one["lag_rows"]))
        return described

    def backups(self) -> list[dict[str, Any]]:
        """The status of every backup with a lease, the newest first; not of one whose copy is not complete.

        `age_seconds` is how long ago a backup last had everything, as far as is known here.
        """
        now = self.clock.seconds()
        relays = {relay.uuid: relay for relay in self.connected if relay.is_known}
        described: list[dict[str, Any]] = []
        for lease in self.leases.all():
            if not is_backup(lease.uuid) or lease.uuid in self._unfinished:
                continue
            is_connected = lease.uuid in relays
            absent = 0.0 if is_connected or lease.seen_ms is None else now - lease.seen_ms / 1000
            age = max(absent, self.publisher.lag.seconds(lease.serial))
            described.append(
                {
                    "uuid": lease.uuid,
                    "name": lease.name,
                    "key": lease.key,
                    "serial": lease.serial,
                    "age_seconds": round(max(0.0, age), 3),
                    "is_connected": is_connected,
                }
            )
        described.sort(key=lambda one: one["age_seconds"])
        return described

    def _replicas_elsewhere(self) -> list[Address]:
        """The addresses of the primary and of the upstream's replicas; none if this daemon is primary."""
        if self.roles.role == Role.PRIMARY:
            return []
        peers = msgspec.json.decode(self.log.notes.get("peers", "[]"), type=list[str])
        return [self.roles.primary, *map(Address.parse, peers)]

    def _describe(self, lease: Lease, relay: "IRelay | None", elsewhere: Sequence[Address]) -> dict[str, Any]:
        lag_rows = max(0, self.log.head.serial - lease.serial)
        if lease.ended_ms is not None:
            state = "ended"
        elif lease.seen_ms is None:
            state = "never seen"
        elif relay is None:
            address = Address.parse(lease.address)
            state = "moved" if any(address.is_same(one) for one in elsewhere) else "lost"
        elif lag_rows or relay.state != "live":
            state = "behind"
        else:
            state = "idle" if self.log.head_age() > IDLE_SECONDS else "live"
        return {
            "uuid": lease.uuid,
            "name": lease.name,
            "state": state,
            "registered": lease.registered,
            "key": lease.key,
            "relay": relay.state if relay is not None else None,
            "serial": lease.serial,
            "sent": relay.sent.serial if relay is not None else None,
            "lag_rows": lag_rows,
            "lag_seconds": round(self.publisher.lag.seconds(lease.serial), 3) if lag_rows else 0.0,
            "seen": None if lease.seen_ms is None else lease.seen_ms / 1000,
            "address": lease.address,
            "why": lease.reason or (relay.why if relay is not None else ""),
        }

    def describe_leases(self) -> list[dict[str, Any]]:
        """The status of every lease: first active ones, those that retain most of the log first."""
        present = self.present()
        return [
            {
                "uuid": lease.uuid,
                "name": lease.name,
                "registered": lease.registered,
                "key": lease.key,
                "serial": lease.serial,
                "held_bytes": self.leases.held_bytes(lease.uuid),
                "used": round(self.leases.used_share(lease, present), 4),
                "ends_after_seconds": self.leases.allowed_seconds(lease),
                "ended": None if lease.ended_ms is None else lease.ended_ms / 1000,
                "reason": lease.reason,
            }
            for lease in self.leases.all()
        ]


def refusal(code: str, message: str, **more: Any) -> "Refused":
    """Make a refusal of this kind, with this message. `more` are other fields of `Refused`."""
    # Imported on use, as above: a daemon that no replica has asked does not load what they speak.
    from synrepl.replicas.wire import native

    return native.refusal(code, message, **more)


def _last_seen(lease: Lease) -> tuple[int, str]:
    return lease.seen_ms or 0, lease.uuid


def _reader_position(name: str, request: "Subscribe", access: Access) -> ReaderPosition:
    # The other fields of `Subscribe` have the same names in `ReaderPosition`.
    fields = msgspec.structs.asdict(request)
    position = fields.pop("position")
    del fields["filter"], fields["check"]
    return ReaderPosition(
        name=name,
        serial=position.serial,
        epoch=position.epoch,
        digest=position.digest,
        seen=access.streams,
        **fields,
    )
