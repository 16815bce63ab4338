"""What a copy answers that lacks something, or may not be up to date: the table of the manual, tried."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.ports.access import LOCAL
from synrepl.testing.raw import raw_client
from synrepl.testing.replicas import FakeNode
from synrepl.transports.http.server import make_site
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, Dialect
from synrepl.wire.filter import ALL, Filter
from tests.http.builders import CATCH_UP, Answer, Talk
from tests.replication.worlds import World

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "howto" / "replicas.md"

FACT = '["@u'

READS = {
    "rows": "/v1/streams/{stream}/rows",
    "allocated": "/v1/streams/{stream}/allocated",
    "catching up": CATCH_UP + "/{stream}/t?from_token=0&upto_token=2",
    "changelog": "/v1/changelog?streams={stream}",
    "files": f"/v1/files/sha256/{'0' * 64}",
}


def filtered(world: World) -> FakeNode:
    """A copy that lacks the stream that is asked for."""
    _primary(world)
    node = world.node("d", "a", wanted=Filter.of(streams=("push_rules",)))
    world.pass_(3)
    return node


def joining(world: World) -> FakeNode:
    """A replica that has not got its first copy."""
    return world.node("d", "nowhere")


def joining_anew(world: World) -> FakeNode:
    """A replica whose facts its upstream has trimmed away."""
    a, node = _primary(world), world.node("d", "a")
    world.pass_(3)
    a.kill()
    assert node.replica is not None
    node.replica._must_join = "trimmed"
    return node


def stopped(world: World) -> FakeNode:
    """A daemon with another log than its upstream's."""
    _primary(world)
    node = world.node("d")
    world.wrote(node, 2)
    _restart(world, node, upstream="a")
    assert node.replica is not None
    assert "stopped" == node.replica.state
    return node


def fenced(world: World) -> FakeNode:
    """A primary whose replica was promoted."""
    a, b = _primary(world), world.node("b", "a")
    world.pass_(3)
    world.promote(b)
    world.pass_(3)
    assert "fenced" == a.roles.role
    return a


def stale(world: World) -> FakeNode:
    """A replica that has not heard of its upstream for long."""
    a, node = _primary(world), world.node("d", "a")
    world.pass_(3)
    a.kill()
    world.pass_(90, step=1.0)
    return node


def _primary(world: World) -> FakeNode:
    node = world.node("a")
    world.wrote(node, 2)
    return node


def _restart(world: World, node: FakeNode, *, upstream: str) -> None:
    node.kill()
    node.upstream = upstream
    world.start(node)
    world.pass_(3)


STATES: dict[str, Callable[[World], FakeNode]] = {
    "filtered": filtered,
    "joining": joining,
    "joining anew": joining_anew,
    "stopped": stopped,
    "fenced": fenced,
    "stale": stale,
}


def follower_of(world: World, node: FakeNode, dialect: Dialect) -> str:
    """What a follower of this dialect is told of the stream."""
    place = f"{node.name} for {dialect.name}"
    factory = PublisherFactory(
        node.publisher, server_name="hs", dialect=dialect, clock=world.clock, metrics=node.metrics
    )
    world.network.listen(place, factory)
    peer = raw_client(world.network, place)
    world.pass_(0.1)
    if peer.is_connected:
        peer.says("REPLICATE to_device 0" if dialect is LEGACY else "REPLICATE")
        world.pass_(0.2)
    heard = peer.hears()
    assert "SERVER hs" == heard.pop(0)
    if heard and heard[-1].startswith("ERROR"):
        assert 1 == len(heard)
        assert not peer.is_connected
        return "`ERROR`"
    told = [line for line in heard if " to_device " in line]
    # Newer followers fetch what they lack up to there, over HTTP.
    is_true = told and told[-1].split()[0] == "POSITION" and told[-1].split()[-1] == "2"
    return "served" if is_true else "empty" if told else "not a word"


def replica_of(world: World, node: FakeNode) -> str:
    """What becomes of a replica that joins."""
    refusal = node.relays.refuses_join("u", "new", ALL, LOCAL)
    new = world.node("new", node.name)
    world.pass_(3)
    if refusal is not None:
        return f"`{refusal.code}`"
    return "served" if new.log.place == node.log.place else "empty"


def reader_of(world: World, node: FakeNode, path: str) -> str:
    """What a reader over HTTP is told of the stream."""
    site = make_site(
        log=node.log,
        publisher=node.publisher,
        table=node.table,
        metrics=node.metrics,
        clock=world.clock,
        instance="master",
        server_name="hs",
    )
    talk = Talk(site)
    talk.say(f"GET {path.format(stream='to_device')} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    asked: Deferred[Answer] = Deferred()

    def look() -> None:
        if talk.heard.endswith((b"}", b"\n", b"\r\n\r\n")):
            asked.callback(talk.answer())
        else:
            world.clock.callLater(0.01, look)

    look()
    answer = world.done(asked)
    if answer.status in {409, 503}:
        body: dict[str, Any] = answer.json()
        return f"{answer.status} `{body['error'] if 'errcode' not in body else body['errcode']}`"
    if path == READS["files"]:
        assert 404 == answer.status
        return "served"
    assert 200 == answer.status, answer.body
    is_true = FACT.encode() in answer.body or b'"allocated":2' in answer.body
    return "served" if is_true else "empty"


def rows_of_the_manual() -> dict[str, list[str]]:
    """The table, by state."""
    text = MANUAL.read_text().partition("### What a copy answers")[2]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0].strip("`"): cells[1:] for cells in found[: len(STATES)]}


@pytest.mark.parametrize("state", STATES)
def test_a_copy_answers_as_the_manual_says(state: str) -> None:
    """It serves what is true, or refuses; it never says that there is nothing where it does not know."""
    world = World()
    node = STATES[state](world)

    followers = [follower_of(world, node, dialect) for dialect in (LEGACY, MIDDLE, CURRENT)]
    readers = [reader_of(world, node, path) for path in READS.values()]
    answers = [*followers, replica_of(world, node), *readers]

    assert rows_of_the_manual()[state] == answers
    assert "empty" not in answers


def test_the_manual_has_every_state() -> None:
    """And says nothing of others."""
    assert list(STATES) == list(rows_of_the_manual())
    assert not re.search(r"\bempty\b", str(rows_of_the_manual()))
