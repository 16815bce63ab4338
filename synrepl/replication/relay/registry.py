"""All relays of a daemon: who may be served, who is, and what each holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.errors import LocalProtocolError
from synrepl.ports.access import Access, Keyring, Right
from synrepl.ports.history import EpochStart, Lease
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks
from synrepl.replication.command_forwarder import line_of
from synrepl.replication.holdings import held
from synrepl.replication.relay.interfaces import RelayFeed, ServedLog
from synrepl.replication.relay.leases import Leases, LeaseTerms
from synrepl.replication.relay.refusals import refusal
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from synrepl.wire.grammar import Command
from synrepl.wire.native import Refusal, Subscription, WirePosition
from synrepl.wire.peer_names import identity_error
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.replication.relay.relay import Relay, RelayConnection

__all__ = ["ReplicaRegistry"]

MAX_PEERS: Final = 50
IDLE_SECONDS: Final = 60.0
"""Nothing new for so long, and a replica that holds all there is counts as idle."""


class ReplicaRegistry:
    """Serves replicas: judges what each asks for, keeps its lease, and tells how it is doing.

    `role` says ``primary``, ``replica`` or ``fenced``, `address` where this daemon is, `primary` where the
    primary is, `moved_to` where it went if this one is fenced, `ready` why no copy can be given, if that is
    so. `promoting` says whether this daemon asks its primary to hand over. `on_higher_epoch` is called with
    the epoch, name and address of a replica that stands in a later epoch than this log, and with whether
    it proved a key that may administer.
    """

    _logger = Logger()

    def __init__(
        self,
        log: ServedLog,
        feeding: RelayFeed,
        clock: IClock,
        *,
        instance: str,
        server_name: str,
        keys: Keyring | None = None,
        terms: LeaseTerms | None = None,
        heartbeat_seconds: float = 1.0,
        role: Callable[[], str] = lambda: "primary",
        ready: Callable[[], str] = lambda: "",
        address: Callable[[], str] = lambda: "",
        primary: Callable[[], str] = lambda: "",
        moved_to: Callable[[], str] = lambda: "",
        promoting: Callable[[], bool] = lambda: False,
        on_higher_epoch: Callable[[int, str, str, bool], None] = lambda epoch, name, address, trusted: None,
    ) -> None:
        self.log = log
        self.feeding = feeding
        self.clock = clock
        self.instance = instance
        self.server_name = server_name
        self.keys = keys if keys is not None else Keyring()
        self.heartbeat_seconds = heartbeat_seconds
        self.role = role
        self.ready = ready
        self.address = address
        self.primary = primary
        self.moved_to = moved_to
        self.promoting = promoting
        self.on_higher_epoch = on_higher_epoch
        self.connected: list[Relay] = []
        self.tasks = Tasks(self._logger, "relays")
        self._http_readers: dict[str, float] = {}
        self.leases = Leases(log, clock, terms or LeaseTerms(), present=self.present)
        self._news: list[Deferred[None]] = []
        self._woken: Any = None
        feeding.on_broadcast(self._relayed)
        log.subscribe(self._committed)
        log.on_epoch_started(self.wake_soon)
        log.on_replaced(self.leases.reload)

    # -- connections ---------------------------------------------------------------------------------------

    def attach(self, connection: "RelayConnection") -> "Relay":
        """A connection said HELLO, or soon will."""
        from synrepl.replication.relay.relay import Relay

        relay = Relay(self, connection)
        self.connected.append(relay)
        return relay

    def detach(self, relay: "Relay") -> None:
        """It has gone."""
        if relay in self.connected:
            self.connected.remove(relay)
        if relay.uuid and relay.is_known:
            self.leases.seen(relay.uuid)

    def present(self) -> set[str]:
        """The uuids of all readers that are there just now."""
        now = self.clock.seconds()
        self._http_readers = {uuid: until for uuid, until in self._http_readers.items() if until > now}
        return {relay.uuid for relay in self.connected if relay.is_known} | self._http_readers.keys()

    def asked_over_http(self, uuid: str, seconds: float) -> None:
        """A reader over HTTP was heard of; it counts as there for so long."""
        self._http_readers[uuid] = self.clock.seconds() + seconds

    def hang_up(self, uuid: str, why: str) -> None:
        """Close the connections of this replica; when it comes again it is judged anew."""
        for relay in list(self.connected):
            if relay.uuid == uuid and relay.is_known:
                relay.connection.fail(why)

    def recheck(self) -> None:
        """Close the connections of replicas whose key was revoked or changed."""
        for relay in list(self.connected):
            if relay.is_known and relay.has_lost_key:
                relay.connection.fail("its key was revoked or changed")

    def close(self, why: str) -> None:
        """Tell every replica ERROR, and close."""
        for relay in list(self.connected):
            relay.connection.fail(why)

    def stop(self) -> "Deferred[None]":
        """Stop all that is under way, and keep the leases as they are now."""
        self.halt()
        return Deferred.fromCoroutine(self.leases.save())

    def halt(self) -> None:
        """Stop all that is under way."""
        self.tasks.cancel_all()
        if self._woken is not None and self._woken.active():
            self._woken.cancel()
        self.leases.stop()

    # -- news ----------------------------------------------------------------------------------------------

    async def news(self) -> None:
        """Returns when something was committed, or may have been."""
        waiter: Deferred[None] = Deferred()
        self._news.append(waiter)
        await waiter

    def wake(self) -> None:
        """Let everybody look again: an epoch has begun, or a connection has room."""
        self._woken = None
        waiting, self._news = self._news, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(None)

    def wake_soon(self) -> None:
        """`wake`, in a moment."""
        if self._news and self._woken is None:
            self._woken = self.clock.callLater(0, self.wake)

    def _relayed(self, command: Command, source: object) -> None:
        """Pass a command for all processes on to the replicas, but to the one it is from."""
        if any(relay is not source for relay in self.connected):
            try:
                line = line_of(command)
            except LocalProtocolError as error:
                self._logger.warn("{name} cannot be passed on: {why}", name=command.NAME, why=error.why)
                return
            for relay in list(self.connected):
                if relay is not source and not relay.tell_down(line):
                    self.feeding.metrics.commands_dropped.labels(command.NAME).inc()

    def _committed(self, facts: Sequence[Fact]) -> None:
        if not facts[0].serial:
            relays = [relay for relay in self.connected if relay.state == "live"]
            if relays:
                from synrepl.replication.relay.fact_blocks import EPHEMERAL

                data = EPHEMERAL.lines(facts)
                for relay in relays:
                    relay.show_ephemeral(facts, data)
            return
        # After all other watchers, so that the ring has these facts.
        self.wake_soon()

    # -- who may be served ---------------------------------------------------------------------------------

    async def judge(
        self,
        uuid: str,
        name: str,
        asked: Subscription,
        access: Access,
        *,
        registered: bool = True,
        address: str = "",
    ) -> Refusal | None:
        """Why this cannot be served, if it cannot be. The one place that decides it, for every transport.

        `address` is where the replica says that it is.
        """
        log, position = self.log, asked.position
        if (unfit := self.unfit(uuid, name)) is not None:
            return unfit
        if (why := _forbidden(access, asked.filter)) != "":
            return refusal("no_rights", why)
        if (why := self.ready()) != "":
            # What is here just now is not what it will be a copy of.
            return refusal("not_ready", why)
        if asked.history != log.history:
            why = f"{name} is a copy of the log {printable(asked.history)}, this one is {log.history}"
            return refusal("other_history", why)
        if position.epoch > log.epoch:
            may_administer = access.is_proven and not access.lacks(Right.ADMINISTER)
            self.on_higher_epoch(position.epoch, name, address, may_administer)
            return self._refuse(
                "other_epoch", f"{name} is in epoch {position.epoch}, this daemon in {log.epoch}"
            )
        if self.role() == "fenced":
            return self._refuse("read_only", "this daemon is fenced: another one is primary")
        if self.leases.is_dropped(uuid):
            return refusal("unknown", f"{name} was dropped from the list of replicas")
        if not asked.filter.within(self.filter()):
            return refusal("filtered", "this daemon has only some streams or writers, and not all of these")
        head, begun = log.position, asked.epoch_start
        same = [epoch_start for epoch_start in log.epoch_starts if begun == _began(epoch_start)]
        if begun is not None and not any(
            (epoch_start.stream, epoch_start.token) == (asked.lost_stream, asked.lost_upto)
            for epoch_start in same
        ):
            why = f"{name} says that epoch {begun.epoch} began at serial {begun.serial}: not here"
            if same:
                why = (
                    f"epoch {begun.epoch} began for another reason at {name}: facts were lost at one of both"
                )
            return self._refuse("fork", why)
        parted = next(
            (epoch_start for epoch_start in log.epoch_starts if epoch_start.epoch > position.epoch), None
        )
        if parted is not None and parted.serial < position.serial:
            return self._refuse(
                "fork",
                f"{name} has serial {position.serial} of epoch {position.epoch}; "
                f"it ended at {parted.serial} here",
            )
        if position.serial > head.serial:
            return self._refuse(
                "ahead",
                f"{name} is at serial {position.serial}, this log ends at {head.serial}",
            )
        if position.serial < log.trimmed_upto.serial:
            if begun and asked.began_ms and asked.began_ms not in [epoch_start.at_ms for epoch_start in same]:
                return self._refuse("fork", f"{name} began epoch {begun.epoch} at another time")
            return self._refuse(
                "trimmed",
                f"{name} is at serial {position.serial}, this log begins after {log.trimmed_upto.serial}",
            )
        known = head.digest if position.serial == head.serial else await log.digest_at(position.serial)
        if known is not None and known != position.digest:
            return self._refuse("fork", f"the histories differ at serial {position.serial}")
        if (late := self._ahead(asked.clock)) is not None:
            return self._refuse("ahead", late)
        return self.too_many(uuid, registered=registered)

    def unfit(self, uuid: str, name: str, address: str = "") -> Refusal | None:
        """Why a replica cannot be known by these, if it cannot be."""
        why = identity_error(uuid, name, address)
        return refusal("bad_name", why) if why else None

    def too_many(self, uuid: str, *, registered: bool = True) -> Refusal | None:
        """Why no lease can be made for this reader, if none can be."""
        why = self.leases.refuses(uuid, registered=registered)
        return refusal("too_many", why) if why else None

    def _refuse(self, code: str, message: str) -> Refusal:
        # Who follows a replica goes on doing so: only a fenced daemon sends its replicas away.
        moved_to = self.moved_to() if self.role() == "fenced" else ""
        return refusal(code, message, moved_to=moved_to, epoch=self.log.epoch, serial=self.log.serial)

    def _ahead(self, clock: Mapping[str, Mapping[str, int]]) -> str | None:
        for stream, writers in clock.items():
            reached = self.log.positions(stream)
            for writer, token in writers.items():
                here = reached.get(writer, 0)
                if token > here:
                    what = f"{printable(stream)} of {printable(writer)}"
                    return f"it has {what} up to {token}, this log up to {here}"
        return None

    def refuses_join(
        self, uuid: str, name: str, wanted: Filter, access: Access, *, registered: bool = True
    ) -> Refusal | None:
        """Why no copy can be given, if none can be."""
        if (unfit := self.unfit(uuid, name)) is not None:
            return unfit
        if (why := _forbidden(access, wanted)) != "":
            return refusal("no_rights", why)
        if self.role() == "fenced":
            return self._refuse("read_only", "this daemon is fenced: another one is primary")
        if (why := self.ready()) != "":
            return refusal("not_ready", why)
        if self.leases.is_dropped(uuid):
            return refusal("unknown", f"{name} was dropped from the list of replicas")
        if not wanted.within(self.filter()):
            return refusal("filtered", "this daemon has only some streams or writers, and not all of these")
        return self.too_many(uuid, registered=registered)

    def duplicate_of(self, relay: "Relay") -> "Relay | None":
        """The other, living connection of the same replica."""
        return next(
            (
                one
                for one in self.connected
                if one is not relay and one.uuid == relay.uuid and one.is_known and one.is_serving
            ),
            None,
        )

    def peers(self, *, but: str) -> list[str]:
        """Where the replicas are, but for this one."""
        found = self.leases.addresses()[: MAX_PEERS + 1]
        return [address for address, uuid in found if uuid != but][:MAX_PEERS]

    def duplicate(self, uuid: str, name: str) -> Refusal | None:
        """Why this cannot be served over HTTP, if the same replica is connected natively, and alive."""
        other = next((one for one in self.connected if one.uuid == uuid and one.is_serving), None)
        if other is None:
            return None
        return refusal("duplicate", f"{name} is connected already, and {other.state}")

    def filter(self) -> Filter:
        """What this daemon has itself: everything, unless it is a replica that wanted only some."""
        return held(self.log.notes)

    # -- what to know about them ---------------------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        """Every replica ever known, those that are worst off first."""
        relays = {relay.uuid: relay for relay in self.connected if relay.is_known}
        present = self.present()
        described = [
            self._describe(lease, relays.get(lease.uuid), is_there=lease.uuid in present)
            for lease in self.leases.all()
        ]
        order = ["ended", "lost", "behind", "never seen", "live", "idle"]
        described.sort(key=lambda one: (order.index(one["state"]), -one["lag_rows"]))
        return described

    def _describe(self, lease: Lease, relay: "Relay | None", *, is_there: bool) -> dict[str, Any]:
        lag_rows = max(0, self.log.serial - lease.serial)
        if lease.ended_ms is not None:
            state = "ended"
        elif lease.seen_ms is None:
            state = "never seen"
        elif not is_there:
            state = "lost"
        elif lag_rows or (relay is not None and relay.state != "live"):
            state = "behind"
        else:
            state = "idle" if self.log.head_age() > IDLE_SECONDS else "live"
        return {
            "uuid": lease.uuid,
            "name": lease.name,
            "state": state,
            "registered": lease.registered,
            "relay": relay.state if relay is not None else "http" if is_there else None,
            "serial": lease.serial,
            "sent": relay.sent.serial if relay is not None else None,
            "lag_rows": lag_rows,
            "lag_seconds": round(self.feeding.lag_seconds_at(lease.serial), 3) if lag_rows else 0.0,
            "seen": None if lease.seen_ms is None else lease.seen_ms / 1000,
            "address": lease.address,
            "why": lease.reason or (relay.why if relay is not None else ""),
        }

    def describe_leases(self) -> list[dict[str, Any]]:
        """Every lease, those that hold most back first."""
        present = self.present()
        return [
            {
                "uuid": lease.uuid,
                "name": lease.name,
                "registered": lease.registered,
                "serial": lease.serial,
                "held_bytes": self.leases.held_bytes(lease.uuid),
                "used": round(self.leases.share(lease, present), 4),
                "ends_after_seconds": self.leases.terms.seconds(lease),
                "ended": None if lease.ended_ms is None else lease.ended_ms / 1000,
                "reason": lease.reason,
            }
            for lease in self.leases.all()
        ]


def _forbidden(access: Access, wanted: Filter) -> str:
    return access.lacks(Right.REPLICATE) or access.hides(wanted.streams)


def _began(epoch_start: EpochStart) -> WirePosition:
    return WirePosition(epoch_start.epoch, epoch_start.serial, epoch_start.digest)
