"""Processes of a homeserver on the RESP ports of daemons, which take lines as Synapse's do.

A process believes RDATA of a whole stream once one POSITION of it has come, and RDATA names no earlier token:
what is passed after a hole is believed, and the hole stays (docs/reference/peers.md#redis-position). So at
rest each process must have what each other one has committed, whatever was cut, stalled or killed, as far as
its writer is there to say so. There is one daemon, or a primary with replicas; the two connections of a
process may be at different ones. Some processes may be on a Redis still, which the primary is joined with.
The log of the primary must not have a fact with rows that nobody wrote.
``python -m tests.channel.simulation SEED``
"""

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final
from unittest.mock import patch

import hiredis
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from synrepl.channel import ends as channel_ends
from synrepl.channel import served_channel
from synrepl.channel import uplink as channel_uplink
from synrepl.testing.network import MemoryEndpoint, MemoryLink, Network
from tests.channel.simulated_daemons import Daemon
from tests.redis.fake_redis import FakeRedis
from tests.simulation.seeded import STEP_SECONDS, SeededRun

WORLDS: Final = {"channel": "tests.channel.simulation:ChannelSimulation"}
"""What scripts/simulate runs: the module and class of each world."""

RETRY_SECONDS: Final = 0.3

WRITES: Final = {
    "master": ("to_device", "caches"),
    "worker1": ("events", "receipts", "typing", "caches"),
    "worker2": ("events", "receipts"),
    "worker3": (),
}

Source = tuple[str, str]


class Connection(Protocol):
    """One of the two connections of a process."""

    transport: Any

    def __init__(self, process: "Process", *, subscribes: bool) -> None:
        self.is_up = False
        self._process = process
        self._subscribes = subscribes
        self._replies = hiredis.Reader()

    def connectionMade(self) -> None:
        if not self._process.owns(self):
            self.transport.abortConnection()  # of a life before this one
        elif self._subscribes:
            self.ask(b"SUBSCRIBE", b"hs")
        else:
            self.is_up = True
            self._process.joined()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_up = False
        self._process.lost(self)

    def dataReceived(self, data: bytes) -> None:
        self._replies.feed(data)
        while (reply := self._replies.gets()) is not False:
            if not self._subscribes or not isinstance(reply, list):
                continue
            if reply[0] == b"subscribe":
                self.is_up = True
                self._process.joined()
            else:
                self._process.received(reply[2].decode())

    def ask(self, *words: bytes) -> None:
        """Send a request."""
        parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        self.transport.write(b"*%d\r\n%b" % (len(words), parts))


class Process:
    """A process of Synapse: what it writes, and what it believes to have of the others."""

    def __init__(self, run: "ChannelSimulation", name: str, writes: Sequence[str]) -> None:
        self.name = name
        self.writes = writes
        self.is_running = False
        self.has: defaultdict[Source, set[int]] = defaultdict(set)
        self.typing: dict[str, int] = {}
        """The newest token of each room."""
        self.is_on_redis = False
        self._run = run
        self._at: dict[Source, int] = {}
        self._published: dict[str, int] = {}
        self._has_announced = False
        self._connected: set[str] = set()
        self._batches: dict[str, list[str]] = {}
        self._typing_token = 0
        self._subscriber: Connection | None = None
        self._publisher: Connection | None = None

    def start(self) -> None:
        """Begin where the database stands."""
        self.is_running = True
        self._has_announced = False
        self._connected.clear()
        self._batches.clear()
        self.typing, self._typing_token = {}, 0
        self._at = {source: max(tokens) for source, tokens in self._run.database.items() if tokens}
        self.has = defaultdict(set, {source: set(tokens) for source, tokens in self._run.database.items()})
        self._published = {stream: self._at.get((stream, self.name), 0) for stream in self.writes}
        self._connect(subscribes=True)
        self._connect(subscribes=False)

    def kill(self) -> None:
        """End at once."""
        self.is_running = False
        self._subscriber = self._publisher = None
        for link in self._run.network.links_of(self.name):
            link.cut()

    # -- its connections -----------------------------------------------------------------------------------

    def owns(self, connection: Connection) -> bool:
        """Whether this is a connection of its present life."""
        return connection in (self._subscriber, self._publisher)

    def _connect(self, *, subscribes: bool) -> None:
        if not self.is_running or (self._subscriber if subscribes else self._publisher) is not None:
            return
        connection = Connection(self, subscribes=subscribes)
        if subscribes:
            self._subscriber = connection
        else:
            self._publisher = connection
        factory = Factory.forProtocol(lambda: connection)
        factory.noisy = False
        endpoint = MemoryEndpoint(self._run.network, self.name, self._run.port_for(self))
        endpoint.connect(factory).addErrback(lambda _: self.lost(connection))

    def lost(self, connection: Connection) -> None:
        """One of the connections was lost, or could not be made: it is made again after a moment."""
        subscribes = connection is self._subscriber
        if not subscribes and connection is not self._publisher:
            return
        if subscribes:
            self._subscriber = None
            self._has_announced = False
            self._connected.clear()
            self._batches.clear()
        else:
            self._publisher = None
        self._run.clock.callLater(RETRY_SECONDS, lambda: self._connect(subscribes=subscribes))

    def joined(self) -> None:
        """Ask all others for their positions, and say its own: once a subscription, with both connections.

        A process whose publisher alone is lost says nothing of that.
        """
        connections = (self._subscriber, self._publisher)
        if not self._has_announced and all(one is not None and one.is_up for one in connections):
            self._has_announced = True
            self._say("REPLICATE ")
            self._announce()

    def _say(self, *lines: str) -> None:
        if self._publisher is not None and self._publisher.is_up:
            for line in lines:
                self._publisher.ask(b"PUBLISH", b"hs", line.encode())

    def _announce(self) -> None:
        tokens = {**self._published, **({"typing": self._typing_token} if "typing" in self.writes else {})}
        self._say(*(f"POSITION {stream} {self.name} {at} {at}" for stream, at in tokens.items()))

    # -- writing -------------------------------------------------------------------------------------------

    def write(self, stream: str, rows: int) -> None:
        """Commit a fact of so many rows, and publish it if it is connected: else it moves on."""
        if stream == "typing":
            self._typing_token += 1
            room = f"!r{self._typing_token % 5}"
            self.typing[room] = token = self._typing_token
        else:
            token = self._run.commit(stream, self.name, rows)
            self.has[stream, self.name].add(token)
            self._at[stream, self.name] = self._published[stream] = token
            room = ""
        if self._subscriber is None or not self._subscriber.is_up:
            return
        lines = [f"RDATA {stream} {self.name} batch {token}/{n}" for n in range(1, rows)]
        self._say(*lines, f"RDATA {stream} {self.name} {token} {room or f'{token}/{rows}'}")

    # -- reading -------------------------------------------------------------------------------------------

    def received(self, line: str) -> None:
        """Take a line as Synapse's handler does."""
        name, *words = line.split(" ")
        if name == "REPLICATE":
            self._announce()
        elif name == "POSITION" and words[1] != self.name:
            self._on_position(words[0], words[1], int(words[3]))
        elif name == "RDATA" and words[1] != self.name:
            self._on_rdata(*words[:4])

    def _sort(self, source: Source) -> str:
        """By what lines are sorted: by their stream alone, whoever wrote them.

        So on a Redis rows of two writers may end up in one batch, and the POSITION of one lets rows of the
        other be believed. Nobody can mend that there; who is on the Redis sorts better here.
        """
        return " ".join(source) if self.is_on_redis else source[0]

    def _on_position(self, stream: str, writer: str, token: int) -> None:
        source = (stream, writer)
        # What was collected is fetched now.
        self._batches.pop(self._sort(source), None)
        self._connected.add(self._sort(source))
        if stream == "typing":
            if token < self._at.get(source, 0):
                self.typing = {}
            self._run.fetch_typing(self, writer)
        else:
            self.has[source] |= {
                one for one in self._run.database[source] if self._at.get(source, 0) < one <= token
            }
            token = max(token, self._at.get(source, 0))
        self._at[source] = token

    def _on_rdata(self, stream: str, writer: str, word: str, row: str) -> None:
        batch = self._sort((stream, writer))
        rows = self._batches.setdefault(batch, [])
        rows.append(row)
        if word == "batch":
            return
        self._batches[batch] = []
        token, source = int(word), (stream, writer)
        if batch not in self._connected or token <= self._at.get(source, 0):
            return
        self._at[source] = token
        if stream == "typing":
            self.typing[row] = token
            return
        if rows != self._run.rows_of(source, token):
            self._run.broken(f"{self.name} took {rows} as {stream} {token} of {writer}")
        self.has[source].add(token)


class ChannelSimulation(SeededRun):
    """One seeded run. `run` raises `Broken` if a promise is."""

    MODULE = "tests.channel.simulation"

    def __init__(self, seed: int, *, seconds: float = 10.0) -> None:
        super().__init__(seed, seconds)
        chance = self.chance
        slow = chance.choice([0.002, 0.02, 0.1])
        self.network = Network(
            self.clock,
            delay=lambda: chance.uniform(0.0005, slow),
            piece=self._piece,
            buffer_bytes=chance.choice([200, 2_000, 60_000]),
        )
        self.database: defaultdict[Source, dict[int, int]] = defaultdict(dict)
        """Of each stream and writer: the tokens that were committed, and their numbers of rows."""
        self._sequences: defaultdict[str, int] = defaultdict(int)
        self._max_waiting = chance.choice([300, 2_000, 100_000])
        self.processes = {name: Process(self, name, writes) for name, writes in WRITES.items()}
        self._disk = random.Random(f"disk {seed}")
        self.is_durable = self._disk.random() < 0.3
        self.only_durable = self._disk.random() < 0.3
        self._stored: set[tuple[Source, int]] = set()
        self._known: defaultdict[Source, int] = defaultdict(int)
        self._batches: defaultdict[Source, list[str]] = defaultdict(list)
        tree = random.Random(f"tree {seed}")
        self.daemons = [Daemon(self, f"resp{n}") for n in range(tree.choice([1, 1, 2, 2, 3]))]
        self.primary = self.daemons[0]
        self._is_chain = tree.random() < 0.5
        self.redis = FakeRedis(self.network) if tree.random() < 0.35 else None
        if self.redis is not None:
            for process in self.processes.values():
                process.is_on_redis = tree.random() < 0.5
        self._tree = tree
        self._down: set[str] = set()

    # -- what the processes share --------------------------------------------------------------------------

    def commit(self, stream: str, writer: str, rows: int) -> int:
        """Commit a fact; return its token."""
        self._sequences[stream] += 1
        self._count += rows
        self.database[stream, writer][self._sequences[stream]] = rows
        return self._sequences[stream]

    def rows_of(self, source: Source, token: int) -> list[str]:
        """The rows of a fact."""
        count = self.database[source].get(token, 0)
        return [f"{token}/{n}" for n in range(1, count + 1)]

    def fetch_typing(self, reader: Process, writer: str) -> None:
        """Give a process what the writer has in memory, over HTTP."""
        if self.processes[writer].is_running:
            reader.typing = dict(self.processes[writer].typing)

    def broken(self, what: str) -> None:
        """A promise is broken."""
        self._fail(what)

    # -- what the daemons share ----------------------------------------------------------------------------

    def is_stored(self, source: Source, token: int) -> bool:
        """Whether the log has a fact on disk."""
        return (source, token) in self._stored

    def upstream_of(self, daemon: Daemon) -> Daemon:
        """Whom this replica follows: the primary, or the other replica, if that follows the primary."""
        others = [one for one in self.daemons if one not in (daemon, self.primary)]
        is_second = bool(others) and self.daemons.index(daemon) > self.daemons.index(others[0])
        return others[0] if self._is_chain and is_second else self.primary

    def port_for(self, process: Process) -> str:
        """Where a process finds a daemon: mostly at the primary, as behind a moving address."""
        if process.is_on_redis:
            return "redis"
        running = [one for one in self.daemons if one.is_running] or self.daemons
        if self.primary in running and self._tree.random() < 0.4:
            return self.primary.name
        return self._tree.choice(running).name

    # -- running -------------------------------------------------------------------------------------------

    def run(self) -> "ChannelSimulation":
        """Bad luck for a while, then peace until everybody has everything; then look."""
        with (
            self._observed(),
            patch.object(channel_ends, "MAX_WAITING", self._max_waiting),
            patch.object(served_channel, "MANY", 2),
            patch.object(channel_uplink, "MAX_WAITING", self._max_waiting),
        ):
            for daemon in self.daemons:
                daemon.start()
            for process in self.processes.values():
                process.start()
            self._pass(2)
            end = self.clock.seconds() + self._seconds
            while self.clock.seconds() < end:
                self._write()
                self._bad_luck()
                self._end_outages()
                self.clock.advance(STEP_SECONDS)
            self._end_outages(all_of_them=True)
            self._note("peace")
            # The last question for a position comes after half a minute.
            self._pass(45)
            for _ in range(5):
                if self._is_done():
                    break
                # Some networks are slow, and carry what waited.
                self._pass(45)
            self._check()
            for daemon in self.daemons:
                daemon.stop()
        return self

    @property
    def demotions(self) -> int:
        """How often a subscriber did not read what waited for it."""
        return sum(one.demotions for one in self.daemons)

    @property
    def held_back(self) -> int:
        """Rows that were not passed."""
        return sum(one.held_back for one in self.daemons)

    @property
    def overflows(self) -> int:
        """How often an upstream did not read what waited for it."""
        return sum(one.overflows for one in self.daemons)

    def _pass(self, seconds: float) -> None:
        self.clock.pump([STEP_SECONDS * 5] * round(seconds / STEP_SECONDS / 5))

    def ingest(self, lines: Sequence[bytes]) -> None:
        """Store rows after a while; sometimes it takes longer than anybody waits."""
        stored: list[tuple[Source, int]] = []
        for line in lines:
            if line.startswith(b"RDATA "):
                _, stream, writer, token, row = line.decode().split(" ")
                rows = self._batches[stream, writer]
                rows.append(row)
                if token != "batch":
                    del self._batches[stream, writer]
                    if stream != "typing" and rows != self.rows_of((stream, writer), int(token)):
                        self.broken(f"the log took {rows} as {stream} {token} of {writer}")
                    stored.append(((stream, writer), int(token)))
            elif line.startswith(b"POSITION "):
                _, stream, writer, _, token = line.decode().split(" ")
                self.clock.callLater(self._disk.uniform(0.01, 0.5), self._fetch, (stream, writer), int(token))
        seconds = 7.0 if self._disk.random() < 0.01 else self._disk.uniform(0.001, 0.05)
        self.clock.callLater(seconds, self._store, stored)

    def is_caught_up(self, source: Source, token: int) -> bool:
        """Whether the log of the primary has all of a source."""
        return self._known[source] >= token

    def _fetch(self, source: Source, upto: int) -> None:
        """The log has got what it lacked, from the writer."""
        self._known[source] = max(self._known[source], upto)
        self._store([(source, token) for token in self.database[source] if token <= upto])

    def _store(self, facts: list[tuple[Source, int]]) -> None:
        self._stored.update(facts)
        for daemon in self.daemons:
            if daemon.is_running:
                daemon.server.committed()

    # -- what happens --------------------------------------------------------------------------------------

    def _write(self) -> None:
        for process in self.processes.values():
            if process.is_running and process.writes and self.chance.random() < 0.15:
                stream = self.chance.choice(process.writes)
                rows = 1 if stream in ("typing", "caches") else self.chance.choice([1, 1, 2, 4])
                process.write(stream, rows)

    def _bad_luck(self) -> None:
        for chance, happen in (
            (0.006, self._cut),
            (0.003, self._stall),
            (0.002, self._kill_process),
            (0.002, self._cut_bridge),
            (0.001, self._kill_redis),
            (0.0015 * len(self.daemons), self._kill_daemon),
        ):
            if self.chance.random() < chance:
                happen()

    def _cut(self) -> None:
        link = self._some_link()
        if link is not None:
            self._note(f"a connection of {link.client._name} is cut")
            link.cut()

    def _stall(self) -> None:
        link = self._some_link()
        if link is not None:
            self._note(f"a connection of {link.client._name} stalls")
            link.stall()
            self._until_later(self.chance.uniform(0.1, 3), link.go_on)

    def _some_link(self) -> MemoryLink | None:
        names = [name for one in self.daemons for name in (one.name, f"{one.name}!")]
        links = [link for name in names for link in self.network.links_of(name)]
        return self.chance.choice(links) if links else None

    def _kill_process(self) -> None:
        process = self.chance.choice(list(self.processes.values()))
        if process.is_running:
            self._note(f"{process.name} is killed")
            process.kill()
            if process.is_on_redis and self._tree.random() < 0.6:
                self._note(f"{process.name} moves from Redis to the daemons")
                process.is_on_redis = False
            self._until_later(self.chance.uniform(0.05, 2), process.start)

    def _cut_bridge(self) -> None:
        links = self.network.links_of(f"{self.primary.name}#")
        if links:
            self._note("a connection of the bridge is cut")
            self.chance.choice(links).cut()

    def _kill_redis(self) -> None:
        if self.redis is not None and "redis" not in self._down:
            self._note("Redis is killed")
            self._down.add("redis")
            self.redis.kill()
            self._until_later(self.chance.uniform(0.05, 2), self._start_redis)

    def _start_redis(self) -> None:
        assert self.redis is not None
        self._down.discard("redis")
        self.redis.start()

    def _kill_daemon(self) -> None:
        daemon = self.chance.choice(self.daemons)
        if not daemon.is_running:
            return
        self._note(f"{daemon.name} is killed")
        daemon.stop()
        others = [one for one in self.daemons if one.is_running]
        if daemon is self.primary and others and self.chance.random() < 0.7:
            self._until_later(self.chance.uniform(0.01, 1), self._promote)
        self._until_later(self.chance.uniform(0.05, 2), daemon.start)

    def _promote(self) -> None:
        running = [one for one in self.daemons if one.is_running]
        if self.primary not in running and running:
            self.primary = self.chance.choice(running)
            self._batches.clear()
            self._note(f"{self.primary.name} is promoted")
            for daemon in running:
                daemon.take_role()

    # -- the promises --------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        return all(
            tokens.keys() <= process.has[source]
            for process in self.processes.values()
            for source, tokens in self.database.items()
        )

    def _check(self) -> None:
        self._check_failures()
        for process in self.processes.values():
            for source, tokens in self.database.items():
                if missing := sorted(tokens.keys() - process.has[source]):
                    self._fail(
                        f"{process.name} lacks {missing[:5]} of {source}, at {process._at.get(source)}"
                    )
            typing = self.processes["worker1"].typing
            if process.typing != typing:
                self._fail(f"{process.name} has the typing {process.typing}, not {typing}")


if __name__ == "__main__":
    ChannelSimulation.main(int(sys.argv[1]))
