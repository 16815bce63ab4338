"""Daemons that are copies of each other, on a clock that is moved by hand."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar
from typing import Protocol as TypingProtocol

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from synrepl.base.history import Appended
from synrepl.replicas.wire.blocks import Payload
from synrepl.replicas.wire.native import VERSION, Hello, Subscribe, Welcome
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.network import Network
from synrepl.wire.position import LogPosition
from tests.replicas.nodes import FakeNode
from tests.replicas.wire.block_buffer import BlockBuffer

__all__ = ["RawReplica", "FakeCluster"]

T = TypeVar("T")


class FakeCluster:
    """Nodes on one network. Those that were `made` end with their test (`tests/replicas/conftest.py`)."""

    made: ClassVar[list["FakeCluster"]] = []

    def __init__(self, *, delay: Callable[[], float] = lambda: 0.001, **network: Any) -> None:
        self.clock = HeapClock()
        self.network = Network(self.clock, delay=delay, **network)
        self.nodes: dict[str, FakeNode] = {}
        self.numbers = 0
        FakeCluster.made.append(self)

    def node(self, name: str, upstream: str | None = None, *, start: bool = True, **options: Any) -> FakeNode:
        """A daemon; it runs, unless that is to wait."""
        node = FakeNode(self.network, self.nodes, name=name, upstream=upstream, **options)
        if start:
            self.start(node)
        return node

    def start(self, node: FakeNode) -> None:
        """Let it run."""
        started = node.start()
        self.pass_(0.05)
        assert started.called

    def chain(self, **options: Any) -> tuple[FakeNode, FakeNode, FakeNode]:
        """a, its replica b, and c, a replica of b; all whole, and each lists the others."""
        options = {"listed": ["a", "b", "c"]} | options
        made = (
            self.node("a", **options),
            self.node("b", "a", **options),
            self.node("c", "b", **options),
        )
        self.pass_(3)
        return made

    def pass_(self, seconds: float, *, step: float = 0.01) -> None:
        """Let time pass."""
        self.clock.pump([step] * max(1, round(seconds / step)))

    def append(
        self, node: FakeNode, count: int = 1, *, stream: str = "to_device", key: str | None = None
    ) -> "Deferred[Appended]":
        """Facts that nobody has said before; some time later they are kept."""
        facts: list[Any] = []
        for _ in range(count):
            self.numbers += 1
            facts.append([[f"@u{self.numbers}"]])
        return node.append(stream, facts, key=key)

    def wrote(self, node: FakeNode, count: int = 1, **options: Any) -> Appended:
        """The same, waited for."""
        return self.done(self.append(node, count, **options))

    def done(self, asked: "Deferred[T]", seconds: float = 5) -> T:
        """What it gives, within this time; its error is raised."""
        results: list[Any] = []
        asked.addBoth(results.append)
        for _ in range(round(seconds * 100)):
            if results:
                break
            self.clock.advance(0.01)
        assert results, f"nothing came in {seconds} seconds"
        if isinstance(results[0], Failure):
            results[0].raiseException()
        given: T = results[0]
        return given

    def promote(
        self, node: FakeNode, *, force: bool = False, lose_acknowledged: bool = False, seconds: float = 5
    ) -> None:
        """Make it primary."""
        promoting = node.promotion.promote(force=force, lose_acknowledged=lose_acknowledged)
        self.done(Deferred.fromCoroutine(promoting), seconds)

    def resync(self, node: FakeNode) -> bool:
        """Tell it to give up what only it has."""
        return self.done(Deferred.fromCoroutine(node.roles.resync()))

    def raw(self, to: str, *, name: str = "raw") -> "RawReplica":
        """A replica whose words are said one by one."""
        replica = RawReplica()
        factory = Factory.forProtocol(lambda: replica)
        self.network.connect(name, to, factory)
        self.pass_(0.05)
        return replica


class Passing(TypingProtocol):
    """Lets time pass."""

    def pass_(self, seconds: float) -> None:
        """Let so many seconds pass."""


class RawReplica(Protocol):
    """Says what a test says, and remembers what it heard."""

    transport: Any

    def __init__(self) -> None:
        self.heard: list[bytes | Payload] = []
        self.is_lost = False
        self._reader = BlockBuffer()

    def dataReceived(self, data: bytes) -> None:
        for run in self._reader.runs(data):
            self.heard += [run] if isinstance(run, Payload) else run

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        self.is_lost = True

    def say(self, *lines: str) -> None:
        """These lines."""
        self.transport.write("".join(f"{line}\n" for line in lines).encode())

    def wait(self, cluster: Passing, seconds: int) -> None:
        """Let this time pass, and send PING as every replica does."""
        for _ in range(0, seconds, 5):
            self.say("PING 1")
            cluster.pass_(5)

    def tell(self, word: str, message: Any) -> None:
        """A word and what belongs to it."""
        self.transport.write(word.encode() + b" " + msgspec.json.encode(message) + b"\n")

    def lines(self, word: str) -> list[bytes]:
        """What was said with this word."""
        return [
            line.partition(b" ")[2]
            for line in self.heard
            if isinstance(line, bytes) and line.split(b" ")[0] == word.encode()
        ]

    def blocks(self, kind: str) -> list[Payload]:
        """The blocks of this kind."""
        return [one for one in self.heard if isinstance(one, Payload) and one.kind == kind]

    def refusal(self) -> dict[str, Any]:
        """Why it was refused."""
        (said,) = self.lines("REFUSED")
        told: dict[str, Any] = msgspec.json.decode(said)
        return told

    def greet(
        self,
        cluster: Passing,
        *,
        uuid: str = "raw-uuid",
        name: str = "raw",
        secret: str | None = None,
        **hello: Any,
    ) -> Welcome | None:
        """Be known; None if that did not work. `hello` are further fields of HELLO."""
        said_before = len(self.lines("WELCOME"))
        fields: dict[str, Any] = {"version": VERSION, "secret": secret or ""} | hello
        self.tell("HELLO", Hello(uuid=uuid, name=name, **fields))
        cluster.pass_(0.05)
        said = self.lines("WELCOME")[said_before:]
        return msgspec.json.decode(said[-1], type=Welcome) if said else None

    def subscribe(
        self, cluster: Passing, welcome: Welcome, position: LogPosition | None = None, **other: Any
    ) -> None:
        """Ask for what comes after a place."""
        asked: dict[str, Any] = {"history": welcome.history, "position": position or welcome.position} | other
        self.tell("SUBSCRIBE", Subscribe(**asked))
        cluster.pass_(0.1)


def codes(refusals: Sequence[dict[str, Any]]) -> list[str]:
    """Of some refusals."""
    return [one["code"] for one in refusals]
