"""What a client may cost: requests take turns, and what is held of all clients is bounded."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.base.access import Key, Right
from synrepl.channel.publisher_limits import MAX_OF_PUBLISHER
from synrepl.channel.resp import server
from synrepl.channel.resp.commands import COMMANDS, MANY, RespCommand
from synrepl.channel.resp.connection import REQUESTS_AT_ONCE, RespConnection
from synrepl.channel.resp.server import OVERFULL_SECONDS
from tests.channel.test_connection import FULL, Client, Site

COSTLY_REQUESTS = [
    "SUBSCRIBE hs",
    "INFO",
    "AUTH x",
    "HELLO 2",
    "PUBSUB NUMSUB hs",
    "COMMAND",
    "COMMAND DOCS",
    "COMMAND INFO get",
    "CLIENT LIST",
    "MGET" + " k" * 62,
    "DEL" + " k" * 9,
]

UNFINISHED = b"*3\r\n$7\r\nPUBLISH\r\n$2\r\nhs\r\n$1000000\r\n"


def array(*words: str) -> bytes:
    """A request."""
    parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{parts}".encode()


def turn(site: Site) -> None:
    """Make one turn of the reactor: the calls that are due, but not those that they make due."""
    for call in [call for call in site.clock.calls if call.getTime() <= site.clock.seconds()]:
        site.clock.calls.remove(call)
        call.called = 1
        call.func(*call.args, **call.kw)


def of(client: Client) -> RespConnection:
    """The connection of a client."""
    assert isinstance(client.protocol, RespConnection)
    return client.protocol


def costly(commands: Mapping[bytes, RespCommand]) -> set[str]:
    """The names of those that are costly, or have a subcommand that is."""
    return {name.decode() for name, one in commands.items() if one.is_costly or costly(one.subcommands)}


def test_what_is_costly_is_tried_here() -> None:
    """A reset ends the subscriptions, as often as they are made; it needs a password to go on."""
    tried = {words.split()[0] for words in COSTLY_REQUESTS if len(words.split()) <= MANY}
    assert tried | {"RESET"} == costly(COMMANDS)


@pytest.mark.parametrize("words", COSTLY_REQUESTS)
def test_one_costly_request_is_answered_in_a_turn(words: str) -> None:
    """62 kB of SUBSCRIBE took 8.6 seconds of one turn."""
    site = Site(FULL)
    client = site.client("f")
    one = len(client.ask(*words.split()))
    client.protocol.dataReceived(array(*words.split()) * 5)
    sizes = [len(client.transport.value())]
    assert client.transport.producerState == "paused"
    for _ in range(4):
        turn(site)
        sizes.append(len(client.transport.value()))

    assert sizes == [one, 2 * one, 3 * one, 4 * one, 5 * one]
    turn(site)
    assert client.transport.producerState == "producing"


def test_cheap_requests_are_answered_together_up_to_a_number() -> None:
    """In a turn that has time, all of them; else these, and others have their turn."""
    site = Site()
    client, other = site.client(), site.client()
    site.server.queue.run_later(lambda: None)  # others wait
    client.protocol.dataReceived(b"PING\r\n" * (REQUESTS_AT_ONCE + 10))
    other.protocol.dataReceived(b"PING\r\n")
    assert client.transport.value() == b""
    turn(site)
    assert client.transport.value() == b"+PONG\r\n" * REQUESTS_AT_ONCE
    assert other.transport.value() == b"+PONG\r\n"
    turn(site)
    assert client.transport.value() == b"+PONG\r\n" * (REQUESTS_AT_ONCE + 10)


def test_nothing_is_answered_to_a_client_that_does_not_read() -> None:
    """It is asked for again by nobody: what was sent waits."""
    site = Site()
    client = site.client()
    client.protocol.dataReceived(array("INFO") * 3)
    of(client).pauseProducing()
    answered = len(client.transport.value())
    for _ in range(5):
        turn(site)
    assert len(client.transport.value()) == answered
    assert client.transport.producerState == "paused"

    of(client).resumeProducing()
    assert client.heard().count("# synrepl") == 3
    assert client.transport.producerState == "producing"


def test_large_replies_are_few_in_a_turn() -> None:
    """A value may have a mebibyte."""
    site = Site()
    client = site.client()
    client.ask("SET", "k", "v" * 100_000)
    site.server.queue.run_later(lambda: None)
    client.protocol.dataReceived(array("GET", "k") * 10)
    turn(site)
    assert client.transport.value().count(b"vv\r\n") == 1


def test_the_last_lines_of_a_lost_client_are_published() -> None:
    """They were received; the publisher is lost after them."""
    site = Site()
    client = site.client()
    lines = [f"REMOTE_SERVER_UP {number}" for number in range(200)]
    client.protocol.dataReceived(array("INFO") + b"".join(array("PUBLISH", "hs", line) for line in lines))
    client.protocol.connectionLost()
    assert site.ingested == []
    turn(site)
    assert len(site.ingested) == REQUESTS_AT_ONCE
    client.heard()

    assert [line.decode() for line in site.ingested] == lines
    assert not site.server.connections
    assert not site.channel.publishers


@pytest.mark.parametrize("is_closed_by_us", [True, False])
def test_a_lost_client_ends_once(is_closed_by_us: bool) -> None:
    """Also if the daemon closes what it still answers, or the log does not keep up."""
    site = Site()
    client = site.client()
    client.protocol.dataReceived(array("INFO") * 3)
    of(client).hold()
    client.protocol.connectionLost()
    client.heard()
    assert of(client) in site.server.connections
    if is_closed_by_us:
        site.server.close("this daemon is fenced")
    else:
        of(client).release()
    client.heard()
    assert not site.server.connections
    assert site.metrics.connections.value == 0


def test_a_client_that_is_closed_before_its_turn_ends() -> None:
    """And lost before that turn, too."""
    site = Site()
    client = site.client()
    client.protocol.dataReceived(array("INFO") * 3)
    site.server.close("this daemon is fenced")
    client.protocol.connectionLost()
    client.heard()
    assert not site.server.connections
    assert site.metrics.connections.value == 0


def test_the_key_that_holds_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections with little each were never disconnected, and whoever published a long row was."""
    monkeypatch.setattr(server, "MAX_HELD", 3_000_000)
    site = Site(
        Key(name="reader", secret="r", rights=frozenset({Right.READ})),
        Key(name="writer", secret="w", rights=frozenset({Right.READ, Right.WRITE})),
    )
    crowd = [site.client("reader", "r") for _ in range(60)]
    writer = site.client("writer", "w")
    for client in crowd:
        client.protocol.dataReceived(b"*1\r\n$60000\r\n" + bytes(52_000))

    writer.protocol.dataReceived(UNFINISHED + bytes(400_000))

    assert not writer.is_closed
    assert any(client.is_closed for client in crowd)


def test_what_all_clients_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that holds most is disconnected: small requests of others go on."""
    monkeypatch.setattr(server, "MAX_HELD", 3_000_000)
    site = Site()
    clients = [site.client() for _ in range(8)]
    small = site.client()
    small.protocol.dataReceived(UNFINISHED[:-20])
    for number, client in enumerate(clients):
        client.protocol.dataReceived(UNFINISHED + bytes(400_000 + number))

    assert [client.is_closed for client in clients] == [False] * 7 + [True]
    assert b"unfinished requests together" in clients[-1].transport.value()
    assert not small.is_closed
    (problem,) = site.server.problems()
    assert "unfinished requests" in problem.text
    site.clock.advance(OVERFULL_SECONDS)
    assert site.server.problems() == []
    for client in (*clients, small):
        client.protocol.connectionLost()
    assert site.server.held_bytes == 0


def test_batches_that_are_not_complete_count() -> None:
    """They are held by the channel."""
    site = Site()
    client = site.client()
    client.ask("PUBLISH", "hs", "RDATA events w batch [1]")
    assert site.server.held_bytes == len("RDATA events w batch [1]")
    client.ask("PUBLISH", "hs", "RDATA events w 5 [1]")
    assert site.server.held_bytes == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3_000)), max_size=40))
def test_the_count_is_what_is_held(pieces: Sequence[tuple[int, int]]) -> None:
    """Whatever comes from whom, in whatever pieces."""
    site = Site()
    clients = [site.client() for _ in range(3)]
    streams = [b"".join(array("PUBLISH", "hs", "x" * size) for size in range(0, 2_000, 97)) for _ in clients]
    for number, size in pieces:
        data, streams[number] = streams[number][:size], streams[number][size:]
        clients[number].protocol.dataReceived(data)
        assert site.server.held_bytes == sum(of(client).held_bytes for client in clients) < 5_000
    for client in clients:
        client.protocol.connectionLost()
        client.heard()
    assert site.server.held_bytes == 0
    assert MAX_OF_PUBLISHER > len(site.channel.publishers) == 0
