"""A peer that half-closes its connection: it gets what it asked for, as people with netcat expect."""

import json
from typing import Any

import pytest

from synrepl.testing import Cluster
from synrepl.transports.connection import ReplicationProtocol
from tests.raw_peer import RawPeer, raw_client
from tests.replication.listeners import listener

ROW = ["@ada:hs"]


def cluster(facts: int) -> Cluster:
    one = Cluster()
    if facts:
        one._run(one.daemon.append("push_rules", [[ROW]] * facts, writer="master"))
    return one


def connected(one: Cluster) -> tuple[RawPeer, ReplicationProtocol]:
    """Both ends of a connection."""
    factory = listener(one, "own")
    peer = raw_client(one.network, "own")
    one.settle(0.05)
    [protocol] = factory.protocols
    return peer, protocol


def half_closed(one: Cluster, *lines: str) -> RawPeer:
    """A peer that has said these lines, and then closed its half of the connection."""
    peer, protocol = connected(one)
    peer.says(*lines)
    one.settle(0.01)
    protocol.readConnectionLost()
    return peer


def tokens(peer: RawPeer) -> list[int]:
    return [int(line.split(" ")[2]) for line in peer.heard if line.startswith("RDATA push_rules ")]


@pytest.mark.parametrize("request_line", ["REPLICATE push_rules 0", "REPLICATE ALL 0"])
def test_the_backlog_is_sent_before_the_close(request_line: str) -> None:
    """`printf 'REPLICATE push_rules 0\\n' | nc` shows the stream, also with a netcat that half-closes."""
    one = cluster(facts=2_500)

    peer = half_closed(one, request_line)
    one.settle()

    assert list(range(1, 2_501)) == tokens(peer)
    assert "POSITION push_rules 2500" in peer.heard
    assert not peer.is_connected
    assert [] == [line for line in peer.heard if line.startswith("ERROR")]


def test_positions_are_sent_before_the_close() -> None:
    """A current server answers a request with its positions."""
    one = cluster(facts=1)

    peer = half_closed(one, "REPLICATE")
    one.settle()

    assert "POSITION push_rules master 1 1" in peer.heard
    assert not peer.is_connected


def test_two_requests_of_one_stream_are_both_answered() -> None:
    """The second one waits for the next turn."""
    one = cluster(facts=3)

    peer = half_closed(one, "REPLICATE push_rules NOW", "REPLICATE push_rules 1")
    one.settle()

    assert [2, 3] == tokens(peer)
    assert not peer.is_connected


@pytest.mark.parametrize("lines", [[], ["NAME x"], ['INVALIDATE_CACHE get_user_by_id ["@a:hs"]'], ["PING 1"]])
def test_a_peer_without_a_request_is_closed_at_once(lines: list[str]) -> None:
    """Its commands were carried out before."""
    one = cluster(facts=0)

    peer = half_closed(one, *lines)
    one.settle(0.01)

    assert not peer.is_connected
    assert ("INVALIDATE" in "".join(lines)) is bool(one.daemon.log.head.serial)


def test_a_slow_reader_is_not_timed_out() -> None:
    """It can send no PING any more, and reads as fast as it can."""
    one = cluster(facts=3)
    peer, protocol = connected(one)
    protocol.pauseProducing()
    peer.says("PING 1", "REPLICATE push_rules 0")
    one.settle(0.01)
    protocol.readConnectionLost()
    one.clock.pump([1.0] * 120)
    assert peer.is_connected

    protocol.resumeProducing()
    one.settle()

    assert [1, 2, 3] == tokens(peer)
    assert not peer.is_connected


def test_its_loss_reads_as_the_peers_own() -> None:
    """An operator who reads `closed by this process` would look for a cause here."""
    one = cluster(facts=1)
    lost: list[str] = []
    peer, protocol = connected(one)
    peer.says("REPLICATE push_rules 0")
    one.settle(0.01)
    owner: Any = protocol.owner
    owner.closed = lost.append

    protocol.readConnectionLost()
    one.settle()

    assert ["the peer closed the connection"] == lost
    assert json.dumps(ROW, separators=(",", ":")) in peer.heard[-2]
