"""A daemon and its workers in memory, built from the real parts."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal

from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.history import Appended
from synrepl.base.interfaces import IClock, SaveablePosition
from synrepl.base.metrics import Metrics
from synrepl.base.time import sleep
from synrepl.caches.registry import CacheRegistry
from synrepl.errors import NotConnected, ReplicationError
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, MissedFacts, Updates
from synrepl.replication.serving.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.memory_engine import DelayedThread, MemoryEngine
from synrepl.testing.network import MemoryEndpoint, MemoryLink, Network
from synrepl.transports.http.row_routes import read_page
from synrepl.transports.tcp import FollowerFactory, PublisherFactory
from synrepl.wire import jsontext
from synrepl.wire.dialect import CURRENT, MIDDLE, Dialect
from synrepl.wire.session import AUTO


class MemoryPositions:
    """Positions in memory that outlive their worker, as a file does."""

    def __init__(self) -> None:
        self.saved: SaveablePosition = {}

    def load(self) -> SaveablePosition:
        return {stream: dict(writers) for stream, writers in self.saved.items()}

    def save(self, positions: SaveablePosition) -> None:
        self.saved = {stream: dict(writers) for stream, writers in positions.items()}


@dataclass(eq=False, repr=False)
class FakeDaemon:
    """The real log and publisher, with a disk in memory, behind a `Network`.

    It listens at two addresses: `name` detects the dialect, ``<name>-middle`` speaks the middle one. The
    `log_options` are further arguments of its log.
    """

    network: Network
    _: KW_ONLY
    name: str = "daemon"
    table: StreamTable = field(default_factory=StreamTable.default)
    disk_delay: Callable[[], float] = lambda: 0.0005
    ring_bytes: int = 8 * 1024 * 1024
    instance: str = "master"
    engine: MemoryEngine = field(default_factory=MemoryEngine)
    log_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock: Any = self.network.clock
        self.addresses: dict[str, Dialect | None] = {self.name: AUTO, f"{self.name}-middle": MIDDLE}
        self.metrics = Metrics(CollectorRegistry())
        self.is_running = False
        self.log: Log
        self.publisher: Publisher
        self._threads: list[DelayedThread] = []
        self._factories: list[PublisherFactory] = []

    def address_for(self, dialect: Dialect) -> str:
        """The address for followers of this dialect."""
        told = {dialect: address for address, dialect in self.addresses.items()}
        return told.get(dialect, self.name)

    def start(self) -> "Deferred[None]":
        """Open the log and listen. Fires when both are done."""
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        clock = self.clock
        self.metrics = Metrics(CollectorRegistry())
        self._threads = [DelayedThread(clock, self.disk_delay) for _ in range(2)]
        self.log = Log(
            self.engine,
            self._threads[0],
            self._threads[1],
            clock,
            **{
                "ephemeral": [stream.name for stream in self.table if stream.ephemeral],
                "unordered": [stream.name for stream in self.table if not stream.ordered],
                "any_writer": [stream.name for stream in self.table if stream.any_writer],
                "logger": Logger(),
                **self.log_options,
            },
        )
        await self.log.start()
        self.publisher = Publisher(
            self.log, self.table, clock, self.metrics, instance=self.instance, ring_bytes=self.ring_bytes
        )
        self.publisher.follow_log()
        self._factories = []
        for address, dialect in self.addresses.items():
            factory = PublisherFactory(
                self.publisher, server_name="hs", dialect=dialect, clock=clock, metrics=self.metrics
            )
            self.network.listen(address, factory)
            self._factories.append(factory)
        self.is_running = True

    def kill(self) -> None:
        """Kill the daemon as SIGKILL does: only committed facts remain."""
        self.is_running = False
        for address in self.addresses:
            self.network.stop_listening(address)
        self.publisher.stop()
        for thread in self._threads:
            Deferred.fromCoroutine(thread.stop())
        self._abandoned = self.log.abandon()
        for address in self.addresses:
            for link in self.network.links_of(address):
                link.cut()
        self.engine.crash()

    def append(
        self, stream: str, facts: Iterable[Sequence[Any]], *, writer: str = "master"
    ) -> "Deferred[Appended]":
        """Append facts, each a sequence of rows, typed or JSON arrays."""
        canonical = self.table[stream].canonical_fact
        return self.log.append(stream, writer, [canonical(rows) for rows in facts])


@dataclass(eq=False, repr=False)
class DirectCatchUp:
    """Fetches missing rows from a `FakeDaemon` page by page, with a delay; fails while `is_broken`."""

    daemon: FakeDaemon
    clock: IClock
    delay: Callable[[], float]
    page_rows: int = 100
    is_broken: bool = False
    requests: int = 0

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """Fetch one page, with the code that serves HTTP. Raises `NotConnected` if broken or not running."""
        self.requests += 1
        await sleep(self.clock, self.delay())
        if self.is_broken or not self.daemon.is_running:
            raise NotConnected("connection refused")
        log = self.daemon.log
        page = await read_page(
            log,
            self.daemon.table[stream],
            writer,
            after=after,
            upto=upto,
            limit=self.page_rows,
            texts=jsontext.split,
        )
        await sleep(self.clock, self.delay())
        if self.is_broken or self.daemon.log is not log:
            raise NotConnected("connection lost")
        updates = map(jsontext.split, page.updates)
        rows = ((int(token), row) for token, row in updates)
        return MissedFacts.of_rows(rows, page.upto, limited=page.limited, lost=page.lost)


@dataclass(eq=False, repr=False)
class ConnectedFollower:
    """A follower of any kind, connected to a `FakeDaemon` over a `Network`, as in a worker's process."""

    network: Network
    daemon: FakeDaemon
    follower: Follower
    _: KW_ONLY
    dialect: Dialect = CURRENT
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))

    def __post_init__(self) -> None:
        self.name = self.follower.instance
        self._factory = FollowerFactory(
            self.follower,
            dialect=self.dialect,
            expected_server="hs",
            clock=self.network.clock,
            metrics=self.metrics,
        )
        self._factory.jitter = 0.0  # the simulation is the only source of chance
        self._endpoint = MemoryEndpoint(self.network, self.name, self.daemon.address_for(self.dialect))

    def start(self) -> None:
        """Connect, and reconnect until `stop`."""
        self._factory.connect(self._endpoint)

    def stop(self) -> None:
        """Stop in order: positions are saved."""
        self._factory.stop()
        self.follower.stop()

    def kill(self) -> None:
        """Kill the worker as SIGKILL does: its positions are those of the last save."""
        self.follower.server.saver.store = None
        self.follower.stop()
        self._factory.stop()
        for link in self.links():
            link.cut()

    def links(self) -> list[MemoryLink]:
        """The open connections of this worker."""
        return self.network.links_of(self.name)


class FakeWorker(ConnectedFollower):
    """A real follower that records the facts that it applied, and its events.

    With a `subscriber`, facts are not recorded: it is called with this worker and each fact.
    """

    def __init__(
        self,
        network: Network,
        daemon: FakeDaemon,
        *,
        name: str = "worker",
        dialect: Dialect = CURRENT,
        streams: Iterable[Stream[Any]] | None = None,
        positions: MemoryPositions | None = None,
        start: Literal["latest", "earliest"] = "latest",
        delay: Callable[[], float] = lambda: 0.001,
        page_rows: int = 100,
        caches: CacheRegistry | None = None,
        subscriber: "Callable[[FakeWorker, Updates[Any]], Awaitable[None] | None] | None" = None,
    ) -> None:
        self.applied: list[Updates[Any]] = []
        self.events: list[FollowerEvent] = []
        metrics = Metrics(CollectorRegistry())
        self.catch_up = DirectCatchUp(daemon, network.clock, delay, page_rows=page_rows)
        follower = Follower(
            instance=name,
            clock=network.clock,
            streams=daemon.table,
            positions=positions,
            catch_up=self.catch_up,
            start=start,
            metrics=metrics,
            caches=caches,
        )
        record = self.applied.append if subscriber is None else partial(subscriber, self)
        if streams is None:
            follower.on_everything(record)
        else:
            for stream in streams:
                follower.on(stream)(record)
        follower.on_event(self.events.append)
        super().__init__(network, daemon, follower, dialect=dialect, metrics=metrics)

    def tokens(self, stream: str) -> list[int]:
        """The tokens of a stream, in the order in which they were applied."""
        return [updates.token for updates in self.applied if updates.stream == stream]

    def errors(self) -> list[str]:
        """The texts of error events."""
        return [event.text for event in self.events if event.kind == "error"]


class Cluster:
    """A daemon and its workers on one fake clock.

    >>> from synrepl.streams import TYPING, Typing
    >>> cluster = Cluster()
    >>> worker = cluster.worker(streams=[TYPING])
    >>> appended = cluster.append("typing", Typing(room_id="!room:hs", user_ids=["@ada:hs"]))
    >>> worker.tokens("typing")
    [1]

    The method `follower` connects a follower of your own. Streams of your own are in the daemon's `table`:
    ``Cluster(table=StreamTable.default() | {BADGES})``. The other arguments are those of `FakeDaemon`.
    """

    def __init__(self, *, table: StreamTable | None = None, **daemon: Any) -> None:
        self.clock = HeapClock()
        self.network = Network(self.clock)
        self.daemon = FakeDaemon(self.network, table=table or StreamTable.default(), **daemon)
        self.workers: list[FakeWorker] = []
        self._run(self.daemon.start())

    def worker(self, **options: Any) -> FakeWorker:
        """Create a worker and connect it."""
        worker = FakeWorker(
            self.network, self.daemon, **{"name": f"worker{len(self.workers) + 1}", **options}
        )
        self.workers.append(worker)
        worker.start()
        self.settle()
        return worker

    def follower(self, follower: Follower, *, dialect: Dialect = CURRENT) -> ConnectedFollower:
        """Connect a follower; if it has no clock or source of missing facts, it gets those of the cluster."""
        catch_up = DirectCatchUp(self.daemon, self.clock, lambda: 0.001)
        follower.server.complete(self.clock, catch_up)
        connected = ConnectedFollower(self.network, self.daemon, follower, dialect=dialect)
        connected.start()
        self.settle()
        return connected

    def append(self, stream: str, *facts: Any, writer: str = "master") -> Appended:
        """Append facts of one row each, typed or a JSON array. Run the clock for a second after it."""
        appended: Appended = self._run(self.daemon.append(stream, [[fact] for fact in facts], writer=writer))
        self.settle()
        return appended

    def settle(self, seconds: float = 1.0) -> None:
        """Advance the clock by so many seconds, in small steps."""
        self.clock.pump([0.001] * int(seconds * 1000))

    def _run(self, work: "Deferred[Any]") -> Any:
        results: list[Any] = []
        work.addBoth(results.append)
        for _ in range(1000):
            if results:
                break
            self.clock.advance(0.001)
        if not results:
            raise ReplicationError("the operation did not finish within a second of the fake clock")
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]
