"""A follower of a declared stream: it names the stream, and misses nothing."""

import pytest

from synrepl.replication.follower.follower import Follower
from synrepl.streams.catalog import TYPING
from synrepl.streams.declaration import stream_of
from synrepl.streams.declared import DaemonStreams, StreamBody
from synrepl.streams.stream import Stream, row
from synrepl.streams.table import StreamTable
from synrepl.testing import Cluster
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, Dialect


@row
class Package:
    """What a worker declares itself."""

    name: str
    version: str


PACKAGES = Stream("packages", Package, key="name")


@pytest.mark.parametrize("dialect", [LEGACY, MIDDLE, CURRENT], ids=str)
def test_it_gets_what_it_has_a_handler_for(dialect: Dialect) -> None:
    """Typed, also after a lost connection; a follower of everything in the catalog gets nothing of it."""
    columns = {"name": "str", "version": "str"}
    table = DaemonStreams(StreamTable.default())
    table.add(stream_of(StreamBody(name="packages", key="name", columns=columns).declaration()))
    cluster = Cluster(table=table)
    seen: list[tuple[int, Package]] = []
    everything: list[str] = []
    follower = Follower(instance="mirror")
    follower.on(PACKAGES)(lambda updates: seen.extend((updates.token, one) for one in updates.rows))
    connected = cluster.follower(follower, dialect=dialect)
    other = Follower(instance="worker")
    other.on_everything(lambda updates: everything.append(updates.stream))
    cluster.follower(other, dialect=dialect)

    cluster.append("packages", ["twisted", "24.3"])
    for link in connected.links():
        link.cut()
    cluster.append("packages", ["twisted", "24.7"])
    cluster.append(TYPING.name, ["!r:hs", []])
    cluster.settle(30)

    assert [(token, one.version) for token, one in seen] == [(1, "24.3"), (2, "24.7")]
    assert everything == ["typing"]
