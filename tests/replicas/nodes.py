"""In-memory daemons that are replicas of each other, built from the real parts."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.logger import Logger

from synrepl.base.access import LOCAL, Keyring
from synrepl.base.history import Appended
from synrepl.base.metrics import Metrics
from synrepl.base.tasks import Tasks
from synrepl.base.time import sleep
from synrepl.errors import NotConnected, StorageError
from synrepl.replicas.command_forwarder import CommandForwarder
from synrepl.replicas.diverged_facts import keep_diverged
from synrepl.replicas.http.replica_handlers import describe_log
from synrepl.replicas.native_client import NativeUpstream
from synrepl.replicas.relay.hello import RelayHello
from synrepl.replicas.relay.leases import Leases
from synrepl.replicas.relay.relay import Relay
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.replica.conversation import IUpstream
from synrepl.replicas.replica.ephemeral_facts import KeptEphemeral
from synrepl.replicas.replica.replica import Replica
from synrepl.replicas.roles.manager import RoleManager
from synrepl.replicas.roles.messages import Claim, HandOver, PeerStatus
from synrepl.replicas.roles.metrics import RoleMetrics
from synrepl.replicas.roles.promotion import Promotion
from synrepl.replicas.roles.role_states import Role
from synrepl.replicas.settings import CopySettings, RelaySettings, UpstreamSettings
from synrepl.replication.addresses import Address
from synrepl.replication.declared_streams import DeclaredStreams
from synrepl.replication.hooks import StoredHere
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.facts import Fact
from synrepl.streams.table import StreamTable
from synrepl.testing.memory_engine import DelayedThread
from synrepl.testing.network import MemoryEndpoint, MemoryLink, Network
from synrepl.transports.credentials import Credentials
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire import jsontext
from synrepl.wire.keepalive import Keepalive
from synrepl.wire.position import LogPosition
from synrepl.wire.session import AUTO
from tests.memory_engine import FaultyEngine

__all__ = ["FakeNode"]

T = TypeVar("T")

RESPONSE_SECONDS: Final = 5.0

KEEPALIVE: Final = Keepalive(ping_seconds=2.0, timeout_seconds=8.0)


@dataclass(frozen=True, kw_only=True)
class NodeSettings(CopySettings, RelaySettings, UpstreamSettings):
    """The settings of a `FakeNode`."""


class FakeNode:
    """A daemon with an in-memory disk, on a `Network`: a primary, or a replica of another node.

    It listens under its `name`, which is also its address. `listed` are other nodes that its operator lists
    beside the upstream. `nodes` holds all nodes by name and replaces HTTP: nodes send each other requests
    through it, as long as `can_reach` allows it; each way takes `request_delay`. `strangers` are the statuses
    of addresses that answer nothing else. `settings` are fields of `NodeSettings`.
    """

    def __init__(
        self,
        network: Network,
        nodes: dict[str, "FakeNode"],
        *,
        name: str,
        upstream: str | Sequence[str] | None = None,
        listed: Sequence[str] = (),
        secret: str | None = None,
        insecure: bool = False,
        table: StreamTable | None = None,
        disk_delay: Callable[[], float] = lambda: 0.0005,
        jitter: Callable[[], float] = lambda: 1.0,
        ring_bytes: int = 8 * 1024 * 1024,
        can_reach: Callable[[str, str], bool] = lambda ours, theirs: True,
        request_delay: Callable[[], float] = lambda: 0.01,
        strangers: Mapping[str, PeerStatus] | None = None,
        role_changed: Callable[["FakeNode"], None] = lambda node: None,
        replica_changed: Callable[["FakeNode"], None] = lambda node: None,
        **settings: Any,
    ) -> None:
        self.name = name
        self.upstream = upstream
        self.listed = list(listed)
        self.engine = FaultyEngine()
        self._base_table = table if table is not None else StreamTable.default()
        self.table = DaemonStreams(self._base_table)
        self.metrics = Metrics(CollectorRegistry())
        self.is_running = False
        self.leftover_facts: list[Fact] = []
        self.paused_seconds = 0.0
        """How long this node was paused, which its clock for timers does not know."""
        self.log: Log
        self.declared: DeclaredStreams
        self.publisher: Publisher
        self.registry: ReplicaRegistry
        self.roles: RoleManager
        self.promotion: Promotion
        self.peers: _PeerClient
        self.commands: CommandForwarder
        self._boots = 0
        self.clock: Any = network.clock
        self._network = network
        self._nodes = nodes
        self._secret = secret
        self._credentials = Credentials(secret, insecure=insecure)
        self.settings = NodeSettings(
            server_name="hs",
            instance_name=name,
            replica_name=name,
            ping_seconds=KEEPALIVE.ping_seconds,
            timeout_seconds=KEEPALIVE.timeout_seconds,
            **settings,
        )
        self._disk_delay = disk_delay
        self._jitter = jitter
        self._ring_bytes = ring_bytes
        self._can_reach = can_reach
        self._request_delay = request_delay
        self._strangers = strangers or {}
        self._role_changed = role_changed
        self._on_replica_changed = replica_changed
        self._threads: list[DelayedThread] = []
        self._tasks = Tasks(Logger(), "a node")
        self._factory: PublisherFactory
        self._abandoned: list[Any] = []
        nodes[name] = self

    @property
    def connected_relays(self) -> list[Relay]:
        """The relays of the replicas that are connected now."""
        return cast(list[Relay], self.registry.connected)

    @property
    def ephemeral(self) -> list[str]:
        """The names of the ephemeral streams."""
        return [stream.name for stream in self.table if stream.ephemeral]

    @property
    def replica(self) -> Replica | None:
        """The replica that follows the upstream; None unless this node is a replica."""
        replica = self.roles.replica
        assert replica is None or isinstance(replica, Replica)
        return replica

    # -- start and stop ------------------------------------------------------------------------------------

    def start(self) -> "Deferred[None]":
        """Open the log, listen, and assume the role; fires when done."""
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        clock = self.clock
        self.metrics = Metrics(CollectorRegistry())
        self.table = DaemonStreams(self._base_table)
        self._threads = [DelayedThread(clock, self._disk_delay) for _ in range(2)]
        self.log = Log(
            self.engine, self._threads[0], self._threads[1], clock, ephemeral=self.ephemeral, logger=Logger()
        )
        await self.log.start()
        self.declared = DeclaredStreams(self.log, self.table, instance=self.name)
        self.publisher = Publisher(
            self.log, self.table, clock, self.metrics, instance="master", ring_bytes=self._ring_bytes
        )
        self.log.subscribe(self.declared.committed)
        self.publisher.follow_log()
        self.declared.subscribers.append(self.publisher.stream_added)
        await self.declared.load()
        self.log.copies.on_replaced(self._read_declared)
        self.log.copies.on_replaced(self.publisher.log_replaced)
        self._boots += 1
        self.commands = CommandForwarder(
            self.publisher.follower_commands,
            clock,
            origin=f"{self.name}-{self._boots}",
            is_active=lambda: self.roles.role == Role.REPLICA,
            dropped=lambda name: self.metrics.commands_dropped.labels(name).inc(),
        )
        self.publisher.follower_commands.forwarders.append(self.commands)
        self.peers = _PeerClient(self)
        self.roles = RoleManager(
            self.log,
            clock,
            name=self.name,
            has_upstream=self.upstream is not None,
            stale_seconds=self.settings.stale_seconds,
            address=lambda: Address(self.name),
            owner=self,
            peers=self.peers,
            metrics=RoleMetrics(self.metrics.registry),
        )
        self.registry = ReplicaRegistry(
            self.log,
            self.publisher,
            clock,
            self.settings,
            self.roles,
            keys=Keyring(self._secret),
        )
        self.promotion = Promotion(
            self.roles,
            self.registry.issued,
            missing_files=self._missing_files,
            steady=lambda: clock.seconds() + self.paused_seconds,
        )
        self.registry.subscribe()
        self.publisher.use(self.roles, StoredHere())
        self.registry.keys.use(self.registry.issued)
        self._factory = PublisherFactory(
            self.publisher,
            server_name=self.settings.server_name,
            dialect=AUTO,
            clock=clock,
            metrics=self.metrics,
            hello=RelayHello(self.registry),
            keepalive=KEEPALIVE,
        )
        self.publisher.read_gate.subscribers.append(self._factory.retire)
        self.log.copies.on_replaced(self._close_followers)
        self._network.listen(self.name, self._factory)
        self.is_running = True
        self.roles.start()

    def _read_declared(self) -> None:
        self._tasks.start(self.declared.load(), "reading the declared streams")

    def make_upstreams(self, where: Address | None) -> list[IUpstream]:
        """Make the upstream at this address (None: the configured ones) for a replica."""
        configured = [self.upstream] if isinstance(self.upstream, str) else list(self.upstream or [""])
        if where is None:
            return list(map(self.make_upstream, configured))
        others = [one for one in configured if one != where.native] if len(configured) > 1 else []
        return list(map(self.make_upstream, [where.native, *others]))

    def make_upstream(self, address: str) -> IUpstream:
        """Make the upstream at this address."""
        return NativeUpstream(
            MemoryEndpoint(self._network, self.name, address),
            self.clock,
            self.metrics,
            self.settings,
            where=Address(address),
            secret=self._credentials,
            address=lambda: self.name,
            keys=lambda: self.registry.issued.digest,
        )

    def may_follow(self, where: Address) -> bool:
        return True

    async def _missing_files(self, upto: int) -> Sequence[Any]:
        return ()

    def follow(self, where: Address | None) -> Replica:
        return Replica(
            self.log,
            self.make_upstreams(where),
            self.clock,
            self.settings,
            ephemeral=KeptEphemeral(self.log),
            keep_leftovers=partial(keep_diverged, self.log, self._keep_leftovers),
            take_keys=self.registry.issued.take,
            jitter=self._jitter,
            on_primary_moved=self.roles.on_primary_moved,
            on_change=self._replica_changed,
            commands=self.commands,
            on_command=self.publisher.broadcast,
            is_own_replica=lambda uuid: self.registry.is_followed_by(uuid),  # noqa: PLW0108  # made later
        )

    def _replica_changed(self) -> None:
        self.publisher.read_gate.changed()
        replica = self.replica
        if replica is not None and replica.state in ("ready", "live"):
            self._tasks.start(self._save_primary(replica), "saving the primary's address")
        self._on_replica_changed(self)

    async def _save_primary(self, replica: Replica) -> None:
        """As `ReplicasPart` does: after a promotion this node must notify the previous primary."""
        if self.log.notes.get("primary_at") != str(replica.primary):
            await self.log.note(primary_at=str(replica.primary))

    def role_changed(self) -> None:
        if self.roles.role == Role.PRIMARY:
            self.commands.hand_back()
            self.registry.issued.lead()
        if self.roles.role == Role.FENCED:
            self.registry.close("this daemon is fenced: another one is primary")
        self._role_changed(self)
        self.publisher.read_gate.changed()

    async def _keep_leftovers(self, pages: Any) -> Path | None:
        kept: list[Fact] = []
        async for facts in pages:
            kept += facts
        # Like a file: all facts or none.
        self.leftover_facts += kept
        return Path("only-here") if kept else None

    def known_daemons(self) -> Sequence[Address]:
        encoded = self.log.notes.get("peers", "[]")
        peers = [Address.parse(text) for text in jsontext.loads(encoded.encode())]
        primary = self.log.notes.get("primary_at")
        return [
            *peers,
            *([Address.parse(primary)] if primary else []),
            *(Address.parse(lease.address) for lease in self.registry.leases.all() if lease.address),
        ]

    def listed_daemons(self) -> Sequence[Address]:
        upstreams = [self.upstream] if isinstance(self.upstream, str) else list(self.upstream or [])
        return [Address(name) for name in dict.fromkeys([*upstreams, *self.listed])]

    def replica_address(self, uuid: str) -> Address | None:
        lease = self.registry.leases[uuid]
        if lease is None or lease.ended_ms is not None:
            return None
        return Address.parse(lease.address) or None

    def _close_followers(self) -> None:
        self._factory.close("the history of this daemon was replaced")

    def kill(self) -> None:
        """Stop at once, as SIGKILL does: committed facts stay, everything else is lost."""
        self.is_running = False
        self._tasks.cancel_all()
        self._network.stop_listening(self.name)
        if hasattr(self, "roles"):
            self.roles.stop()
        if hasattr(self, "promotion"):
            self.promotion.candidate.stop()
        if hasattr(self, "registry"):
            self.registry.halt()
        for thread in self._threads:
            # Keep the pending work alive: freed coroutines would run their cleanup, unlike after a kill.
            self._abandoned.append(list(thread._waiting))
            Deferred.fromCoroutine(thread.stop())
        for link in self.links():
            link.cut()
        if hasattr(self, "commands"):
            self.commands.stop()
        if hasattr(self, "publisher"):
            self.publisher.stop()
        if hasattr(self, "log"):
            self._abandoned.append(self.log.abandon())
        self.engine.crash()

    @property
    def pending_writes(self) -> list[str]:
        """What the writing thread has still to do, in order: the names of the functions."""
        works = [work for work, _ in self._threads[0]._waiting] if self.is_running else []
        return [getattr(getattr(work, "func", work), "__name__", "?") for work in works]

    def cut_power(self, written: int) -> None:
        """Stop at once, with the machine: so many of `pending_writes` are on the disk, and nobody knows."""
        for work, _ in list(self._threads[0]._waiting)[:written]:
            with suppress(StorageError):
                work()
        self.kill()

    def links(self) -> list[MemoryLink]:
        """The open connections of this node."""
        return self._network.links_of(self.name)

    # -- requests ------------------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        facts: Sequence[list[bytes | list[object]]],
        *,
        writer: str = "master",
        key: str | None = None,
    ) -> "Deferred[Appended]":
        """Append facts, each a list of rows, as a POST would."""
        declared = self.table[stream]
        return Deferred.fromCoroutine(
            self._append(stream, writer, [declared.canonical_fact(rows) for rows in facts], key)
        )

    async def _append(self, stream: str, writer: str, facts: list[bytes], key: str | None) -> Appended:
        if not self.is_running:
            raise NotConnected(f"{self.name} is not running")
        return await self.log.append(stream, writer, facts, key=key)

    @property
    def leases(self) -> Leases:
        """The leases of its log."""
        return self.registry.leases


class _PeerClient:
    """`roles.IPeerClient`: calls the other node after a delay, if it can be reached."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.asked: list[str] = []

    async def hand_over(self, address: Address, request: HandOver) -> LogPosition:
        other = await self._reach(address)
        position = await self._wait_for_response(Deferred.fromCoroutine(other.roles.handover.handle(request)))
        await self._reach(address)
        return position

    async def claim(self, address: Address, claim: Claim) -> None:
        other = await self._reach(address)
        secret = self._node._secret
        is_proven = secret is not None and secret == other._secret
        await self._wait_for_response(
            Deferred.fromCoroutine(other.roles.claims.handle(claim, trusted=is_proven))
        )

    async def describe(self, address: Address, *, after: int | None = None) -> PeerStatus:
        self.asked.append(address.native)
        stranger = self._node._strangers.get(address.native)
        if stranger is not None:
            await self._wait_for_transfer()
            return stranger
        other = await self._reach(address)
        said = await self._wait_for_response(
            Deferred.fromCoroutine(describe_log(other.registry, other.promotion, LOCAL, after))
        )
        await self._reach(address)
        return msgspec.json.decode(said, type=PeerStatus)

    async def _wait_for_response(self, response: "Deferred[T]") -> T:
        """Return the response; a node that is killed meanwhile never responds."""
        try:
            return await response.addTimeout(RESPONSE_SECONDS, self._node.clock)
        except TimedOut:
            raise NotConnected(f"no response in {RESPONSE_SECONDS:g} seconds") from None

    async def _wait_for_transfer(self) -> None:
        """Wait until a request has reached its peer; raise if that takes too long."""
        delay = self._node._request_delay()
        await sleep(self._node.clock, min(delay, RESPONSE_SECONDS))
        if delay > RESPONSE_SECONDS:
            raise NotConnected(f"no response in {RESPONSE_SECONDS:g} seconds")

    async def _reach(self, address: Address) -> FakeNode:
        node = self._node
        await self._wait_for_transfer()
        other = node._nodes.get(address.native)
        if other is None or not other.is_running or not node._can_reach(node.name, other.name):
            raise NotConnected(f"cannot reach {address.native}")
        return other
