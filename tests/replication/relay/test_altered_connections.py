"""A man in the middle of a native connection with a secret: nothing that he does is stored or served."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from synrepl.replication.relay.handshake import line_of_upstream
from synrepl.streams.digest import chain
from synrepl.streams.facts import Fact, encode_fact
from synrepl.wire.blocks import encode_block
from synrepl.wire.native import Refused
from tests.replication.clusters import FakeCluster
from tests.replication.nodes import FakeNode

Alter = Callable[[bytes], bytes]


def unchanged(data: bytes) -> bytes:
    return data


class Middle(Protocol):
    """One half of a connection through the man in the middle."""

    transport: Any

    def __init__(self, man: "ManInTheMiddle", way: str) -> None:
        self.other: Middle | None = None
        self._man = man
        self._way = way
        self._waiting = b""

    def dataReceived(self, data: bytes) -> None:
        if data := getattr(self._man, self._way)(data):
            self.pass_on(data)

    def pass_on(self, data: bytes) -> None:
        """Send it to the other side, once there is one."""
        if self.other is None or self.other.transport is None:
            self._waiting += data
        else:
            self.other.transport.write(data)

    def joined(self, other: "Middle") -> None:
        self.other = other
        waiting, self._waiting = self._waiting, b""
        if waiting:
            other.transport.write(waiting)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abortConnection()


class ManInTheMiddle:
    """Listens at `m`, and passes everything on to `a`, as `up` and `down` alter it. Counts connections."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.up: Alter = unchanged
        self.down: Alter = unchanged
        self.connections = 0
        self.to_replica: Middle
        self.to_upstream: Middle
        self._world = cluster
        cluster.network.listen("m", Factory.forProtocol(self._connected))

    def _connected(self) -> Protocol:
        self.connections += 1
        ours, theirs = Middle(self, "up"), Middle(self, "down")
        self.to_replica, self.to_upstream = ours, theirs

        def joined(_: object) -> None:
            ours.joined(theirs)
            theirs.joined(ours)

        self._world.network.connect("m", "a", Factory.forProtocol(lambda: theirs)).addCallback(joined)
        return ours


def attacked(*, secret: str | None = "right") -> tuple[FakeCluster, FakeNode, FakeNode, ManInTheMiddle]:
    """A primary a with some facts, its replica b, and the man between them."""
    cluster = FakeCluster()
    man = ManInTheMiddle(cluster)
    a = cluster.node("a", secret=secret)
    cluster.wrote(a, 3)
    b = cluster.node("b", "m", secret=secret)
    cluster.pass_(2)
    assert a.log.position == b.log.position
    assert b.replica is not None
    assert "live" == b.replica.state
    return cluster, a, b, man


def forged_block(a: FakeNode) -> bytes:
    """One fact after the last one."""
    last = a.engine.facts[-1]
    fields = msgspec.structs.asdict(last) | {
        "serial": last.serial + 1,
        "prev_token": last.token,
        "token": last.token + 1,
        "rows": b'[["@forged:hs"]]',
    }
    digest = chain(fields.pop("digest"), **fields)
    return encode_block("facts", 1, encode_fact(Fact(**fields, digest=digest)))


def stored(node: FakeNode) -> bytes:
    return b"".join(fact.rows for fact in node.engine.facts)


def test_without_a_secret_a_man_in_the_middle_can_add_facts() -> None:
    """What the records are for; on a network, set a secret."""
    cluster, a, b, man = attacked(secret=None)
    man.to_replica.transport.write(forged_block(a))
    cluster.pass_(0.5)

    assert b"@forged:hs" in stored(b)


def changed_once(change: Alter) -> Alter:
    """Change the first chunk only."""
    changing: Iterator[Alter] = iter([change])

    def alter(data: bytes) -> bytes:
        return next(changing, unchanged)(data)

    return alter


def last_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def reordered() -> Alter:
    """Hold the first chunk back until the next one has passed."""
    held: list[bytes] = []

    def alter(data: bytes) -> bytes:
        if not held:
            held.append(data)
            return b""
        data, held[0] = data + held[0], b""
        return data

    return alter


ATTACKS: dict[str, Callable[[], Alter]] = {
    "alters": lambda: changed_once(last_bit),
    "alters the first byte": lambda: changed_once(lambda data: b"\1" + data[1:]),
    "repeats": lambda: changed_once(lambda data: data + data),
    "leaves out": lambda: changed_once(lambda data: b""),
    "adds a line": lambda: changed_once(lambda data: data + b"PING 1\n"),
    "reorders": reordered,
}


def closings(events: Iterable[dict[str, Any]]) -> list[str]:
    texts = [formatEvent(event) for event in events]
    return [text for text in texts if text.startswith("closing ") and "was altered or is out of step" in text]


@pytest.mark.parametrize("way", ["down", "up"])
@pytest.mark.parametrize("how", ATTACKS)
def test_an_altered_connection_is_closed_and_told_once(how: str, way: str) -> None:
    """In both directions. The replica then connects again, and has everything that was written."""
    cluster, a, b, man = attacked()
    setattr(man, way, ATTACKS[how]())
    with capturedLogs() as events:
        for _ in range(2):
            cluster.wrote(a, 1)
            cluster.pass_(1)

    assert 1 == len(closings(events)), [formatEvent(event) for event in events]
    assert 2 == man.connections
    cluster.pass_(5)
    assert a.log.position == b.log.position
    assert 5 == len(b.engine.facts)


def test_a_block_that_is_added_is_not_stored() -> None:
    """It was stored and served, and the replica then stopped, as it was ahead."""
    cluster, a, b, man = attacked()
    with capturedLogs() as events:
        man.to_replica.transport.write(forged_block(a))
        cluster.pass_(1)

    assert 1 == len(closings(events))
    assert b"@forged:hs" not in stored(b)
    assert b.replica is not None
    cluster.pass_(5)
    assert "live" == b.replica.state


def test_what_is_sent_back_to_its_writer_is_not_believed() -> None:
    """The two directions have keys of their own."""
    cluster, a, _, man = attacked()
    heard: list[bytes] = []

    def overhear(data: bytes) -> bytes:
        heard.append(data)
        return data

    man.up = overhear
    cluster.wrote(a, 1)
    cluster.pass_(0.5)
    assert heard
    with capturedLogs() as events:
        man.to_replica.transport.write(heard[0])
        cluster.pass_(0.5)

    assert 1 == len(closings(events))


@pytest.mark.parametrize("kept", [1, 30, 200])
def test_a_truncated_record_is_not_delivered(kept: int) -> None:
    """The end of the connection may be anywhere."""
    cluster, a, b, man = attacked()
    before = len(b.engine.facts)
    man.down = lambda data: data[:kept]
    cluster.append(a, 5)
    cluster.pass_(0.02)
    man.to_replica.transport.abortConnection()
    man.down = unchanged
    cluster.pass_(0.001)

    assert before == len(b.engine.facts)
    cluster.pass_(5)
    assert a.log.position == b.log.position


@pytest.mark.parametrize(
    ("way", "old", "new"),
    [
        ("up", b'"name":"b"', b'"name":"x"'),
        ("up", b'"address":"b"', b'"address":"x"'),
        ("up", b'"peers"', b'"pears"'),
        ("down", b'"proof":true', b'"proof":false'),
        ("down", b'"version":1', b'"version":2'),
        ("down", b'"role":"primary"', b'"role":"replica"'),
        ("down", b'"trimmed_upto":0', b'"trimmed_upto":9'),
        ("down", b'"address":"a -"', b'"address":"x -"'),
        ("down", b'"peers"', b'"pears"'),
        ("down", b'"serial":3', b'"serial":9'),
        ("down", b"WELCOME {", b"WELCOME { "),
    ],
)
def test_nothing_in_the_handshake_can_be_altered(way: str, old: bytes, new: bytes) -> None:
    """The proofs cover the lines as they were sent."""
    cluster = FakeCluster()
    man = ManInTheMiddle(cluster)
    replaced = [0]

    def alter(data: bytes) -> bytes:
        replaced[0] += old in data
        return data.replace(old, new)

    setattr(man, way, alter)
    a = cluster.node("a", secret="right")
    cluster.wrote(a, 3)
    b = cluster.node("b", "m", secret="right")
    cluster.pass_(2)

    assert b.replica is not None
    assert replaced[0]
    assert b.replica.welcome is None
    assert "the proof is wrong" in b.replica.why or "could not prove" in b.replica.why
    assert 0 == b.log.head.serial


@pytest.mark.parametrize("code", ["fork", "trimmed", "ahead", "no_rights"])
def test_a_made_up_refusal_changes_nothing(code: str) -> None:
    """Nothing authenticates a refusal before WELCOME; `fork` would stop the replica for good."""
    cluster, a, b, man = attacked()
    made_up = Refused(code=code, message="x", retryable=False, moved_to="tcp:evil:1 http://evil:2")
    refused = line_of_upstream(made_up)
    man.to_replica.transport.abortConnection()
    man.down = lambda data: refused + b"\n" if b"CHALLENGE" in data else data
    cluster.pass_(3)

    assert b.replica is not None
    assert f"REFUSED {code} is not valid before WELCOME" in b.replica.why
    assert "disconnected" == b.replica.state
    man.down = unchanged
    cluster.wrote(a, 1)
    cluster.pass_(15)
    assert a.log.position == b.log.position


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_peer_without_records_is_refused(way: str) -> None:
    """There is no downgrade: who knows no key cannot go on in plain lines, and who strips them neither."""
    cluster, _, _, man = attacked()
    with capturedLogs() as events:
        to = man.to_replica if way == "down" else man.to_upstream
        to.transport.write(b"HEARTBEAT 1 3 d 3 0 00000000\n" if way == "down" else b"ACK 1 3 0\n")
        cluster.pass_(0.5)

    (closing,) = closings(events)
    assert closing.endswith("the peer must send records of 1 to 65536 bytes after the handshake")
