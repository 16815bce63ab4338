"""Whose log a replica copies: it takes the name of its first upstream, and refuses every other one."""

import dataclasses

import pytest

from synrepl.base.settings import UNNAMED
from synrepl.errors import RemoteProtocolError
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode


def rename(node: FakeNode, name: str) -> None:
    """Restart a node under another server name."""
    node.kill()
    node.settings = dataclasses.replace(node.settings, server_name=name)
    node.start()


def test_a_replica_stores_the_name_of_its_upstream() -> None:
    """A later upstream of another homeserver is refused, and the operator learns why."""
    cluster = FakeCluster()
    a, b = cluster.node("a"), cluster.node("b", "a")
    cluster.pass_(2)
    assert b.replica is not None
    assert ("live", "hs") == (b.replica.state, b.log.notes.get("server_name"))

    rename(a, "other.org")
    cluster.pass_(30)

    assert "refused" == b.replica.state
    assert b.replica.refusal is not None
    assert "wrong_server" == b.replica.refusal.code
    assert "the upstream belongs to other.org, and not to hs as this daemon" in b.replica.why
    assert "hs" == b.log.notes["server_name"]

    rename(a, "hs")
    cluster.pass_(30)
    assert "live" == b.replica.state


def test_an_upstream_without_a_name_gives_none() -> None:
    """It may get one later, and the replica then takes it."""
    cluster = FakeCluster()
    a = cluster.node("a")
    rename(a, UNNAMED)
    b = cluster.node("b", "a")
    cluster.pass_(2)
    assert b.replica is not None
    assert ("live", None) == (b.replica.state, b.log.notes.get("server_name"))

    rename(a, "example.org")
    cluster.pass_(30)

    assert ("live", "example.org") == (b.replica.state, b.log.notes.get("server_name"))


@pytest.mark.parametrize("name", ["", "two words", "a\nPOSITION", "x" * 300])
def test_a_name_that_followers_could_not_be_greeted_with_is_refused(name: str) -> None:
    """It would be sent to them in a line."""
    cluster = FakeCluster()
    cluster.node("a")
    b = cluster.node("b", "a")
    assert b.replica is not None

    with pytest.raises(RemoteProtocolError, match="invalid server_name"):
        b.replica._check_server_name(name).send(None)

    assert "server_name" not in b.log.notes


def test_a_name_of_the_greatest_length_is_stored() -> None:
    """That is 255 characters."""
    name = "x" * 251 + ".org"
    cluster = FakeCluster()
    a = cluster.node("a")
    rename(a, name)
    b = cluster.node("b", "a")
    cluster.pass_(2)

    assert name == b.log.notes.get("server_name")
