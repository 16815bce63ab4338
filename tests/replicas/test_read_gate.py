"""Followers of a copy that does not hold everything: nothing is claimed that is not there."""

import pytest

from synrepl.wire.dialect import CURRENT, LEGACY, Dialect
from tests.raw_peer import RawPeer, raw_client
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode


def follower(cluster: FakeCluster, node: FakeNode, *lines: str) -> RawPeer:
    """A hand-spoken follower of this node that has said these lines, past the greeting."""
    peer = raw_client(cluster.network, node.name)
    cluster.pass_(0.1)
    assert ["SERVER hs"] == peer.hears()
    peer.says(*lines)
    cluster.pass_(0.2)
    return peer


def filtered(
    *, streams: tuple[str, ...] | None = None, writers: tuple[str, ...] | None = None
) -> tuple[FakeCluster, FakeNode, FakeNode]:
    """A primary with facts of two streams by two writers, and a copy of some of that."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 2)
    cluster.wrote(a, 3, stream="push_rules")
    cluster.done(a.append("push_rules", [[["@late"]]], writer="other"))
    d = cluster.node("d", "a", upstream_streams=streams, upstream_writers=writers)
    cluster.pass_(3)
    return cluster, a, d


class TestFilteredCopy:
    """It has some streams or writers only."""

    def test_a_legacy_follower_is_refused_a_stream_by_name(self) -> None:
        """With a POSITION it would take all its facts for read."""
        cluster, _, d = filtered(streams=("to_device",))
        peer = follower(cluster, d, "REPLICATE push_rules 0")

        assert ["ERROR unknown stream push_rules: this copy holds only to_device"] == peer.hears()
        assert not peer.is_connected

    def test_a_legacy_follower_gets_what_is_held(self) -> None:
        """Also when it asks for all there is."""
        cluster, _, d = filtered(streams=("to_device",))
        named = follower(cluster, d, "REPLICATE to_device 0")
        everything = follower(cluster, d, "REPLICATE ALL NOW")

        assert [f'RDATA to_device {n} ["@u{n}"]' for n in (1, 2)] + ["POSITION to_device 2"] == named.hears()
        assert ["POSITION to_device 2"] == everything.hears()

    def test_a_newer_follower_hears_nothing_of_other_streams(self) -> None:
        """As of streams that a release does not know: no POSITION, from which it would go on."""
        cluster, a, d = filtered(streams=("to_device",))
        peer = follower(cluster, d, "NAME w", "REPLICATE")
        cluster.wrote(a, 1, stream="push_rules")
        cluster.wrote(a, 1)
        cluster.pass_(0.2)

        told = [line for line in peer.hears() if line.split()[1] in ("push_rules", "to_device")]
        assert told == ["POSITION to_device master 2 2", 'RDATA to_device master 3 ["@u7"]']

    def test_a_newer_follower_hears_nothing_of_other_writers(self) -> None:
        """The positions of all writers came with the copy; their facts did not."""
        cluster, _, d = filtered(writers=("other",))
        peer = follower(cluster, d, "NAME w", "REPLICATE")

        told = [line for line in peer.hears() if "push_rules" in line or "master" in line]
        assert ["POSITION push_rules other 4 4"] == told

    @pytest.mark.parametrize("asked", ["REPLICATE push_rules 0", "REPLICATE ALL NOW"])
    def test_a_legacy_follower_is_refused_where_writers_are_missing(self, asked: str) -> None:
        """One token stands for all writers of a stream."""
        cluster, _, d = filtered(writers=("other",))
        peer = follower(cluster, d, asked)

        (told,) = peer.hears()
        assert told.startswith("ERROR unknown stream")
        assert told.endswith(
            "only facts of the writer other, and the follower's release cannot tell writers apart"
        )


class TestJoiningReplica:
    """It has no whole copy: what it has says nothing of what there is."""

    @pytest.mark.parametrize("asked", ["REPLICATE to_device 0", "REPLICATE ALL NOW", "REPLICATE"])
    def test_a_follower_is_told_so_and_closed(self, asked: str) -> None:
        """A POSITION of 0 would be taken for a stream without facts."""
        cluster = FakeCluster()
        b = cluster.node("b", "nowhere")
        peer = follower(cluster, b, "NAME w", asked)

        assert ["ERROR this replica has no whole copy yet (joining): ask nowhere"] == peer.hears()
        assert not peer.is_connected

    def test_it_is_served_once_the_copy_is_whole(self) -> None:
        """Followers try again by themselves."""
        cluster = FakeCluster()
        a = cluster.node("a")
        cluster.wrote(a, 1)
        b = cluster.node("b", "a")
        cluster.pass_(3)
        peer = follower(cluster, b, "REPLICATE to_device 0")

        assert ['RDATA to_device 1 ["@u1"]', "POSITION to_device 1"] == peer.hears()

    def test_a_replica_that_joins_anew_serves_the_copy_that_it_has(self) -> None:
        """It was whole when it was taken; the status says that another one is on its way."""
        cluster = FakeCluster()
        a, b = cluster.node("a"), cluster.node("b", "a")
        cluster.wrote(a, 2)
        cluster.pass_(3)
        assert b.replica is not None
        before = b.replica.rejoin_reason
        a.kill()
        b.replica._must_join = "trimmed"
        peer = follower(cluster, b, "REPLICATE to_device 1")

        assert ['RDATA to_device 2 ["@u2"]', "POSITION to_device 2"] == peer.hears()
        assert "" == before
        assert "joining again (trimmed): the old copy is served until the new one is complete" == (
            b.replica.rejoin_reason
        )


def test_a_reader_knows_no_stream_that_it_may_not_see() -> None:
    """What its key hides is told like what the copy lacks: not at all."""
    _, a, d = filtered(streams=("to_device",))
    seen = frozenset({"to_device", "push_rules"})

    def names(node: FakeNode, dialect: Dialect) -> set[str]:
        return {stream.name for stream in node.publisher.encoder_for(dialect, seen)[0].streams()}

    for dialect in (LEGACY, CURRENT):
        assert seen == names(a, dialect)
        assert {"to_device"} == names(d, dialect)
