"""What a copy answers that lacks something, or may not be up to date: the table of the manual, tried."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.access import LOCAL
from synrepl.files.files import MAX_BYTES, Files
from synrepl.files.metrics import FilesMetrics
from synrepl.files.part import FilesPart
from synrepl.files.store import FileStore
from synrepl.replicas.http.peer_clients import PeerHttp
from synrepl.replicas.part import make_write_forwarder
from synrepl.replicas.wire.native import Hello
from synrepl.replication.hooks import Hooks
from synrepl.replication.refused_facts import RefusedFacts
from synrepl.storage.threads import ImmediateThread
from synrepl.transports.http.api import make_site
from synrepl.transports.http.site_context import SiteContext
from synrepl.transports.settings import ApiSettings
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, Dialect
from synrepl.wire.filter import ALL
from tests.files.builders import checksum
from tests.http.builders import CATCH_UP, Answer, Talk
from tests.raw_peer import raw_client
from tests.replicas.addresses import open_addresses
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "howto" / "replicas.md"

FACT = '["@u'

READS = {
    "rows": "/v1/streams/{stream}/rows",
    "allocated": "/v1/streams/{stream}/allocated",
    "catching up": CATCH_UP + "/{stream}/t?from_token=0&upto_token=2",
    "changelog": "/v1/changelog?streams={stream}",
    "files": f"/v1/files/sha256/{'0' * 64}",
}


FILE = b"a picture"

WRITES = (
    ("POST", "/v1/streams/{stream}/facts", b'{"facts":[[["@new"]]]}'),
    ("POST", "/v1/facts", b'{"appends":[{"stream":"to_device","facts":[[["@new"]]]}]}'),
    ("POST", "/v1/facts", b'{"atomic":true,"appends":[{"stream":"to_device","facts":[[["@new"]]]}]}'),
    ("PUT", f"/v1/files/sha256/{checksum(FILE)}", FILE),
)

WAYS_OUT = {"stopped": "synrepl resync", "fenced": "synrepl resync"}
"""The command that an answer names, by its code."""


def filtered(cluster: FakeCluster) -> FakeNode:
    """A copy that lacks the stream that is asked for."""
    _primary(cluster)
    node = cluster.node("d", "a", upstream_streams=("push_rules",))
    cluster.pass_(3)
    return node


def joining(cluster: FakeCluster) -> FakeNode:
    """A replica that has not got its first copy."""
    return cluster.node("d", "nowhere")


def joining_anew(cluster: FakeCluster) -> FakeNode:
    """A replica whose facts its upstream has trimmed away."""
    a, node = _primary(cluster), cluster.node("d", "a")
    cluster.pass_(3)
    a.kill()
    assert node.replica is not None
    node.replica._must_join = "trimmed"
    return node


def stopped(cluster: FakeCluster) -> FakeNode:
    """A daemon with another log than its upstream's."""
    _primary(cluster)
    node = cluster.node("d")
    cluster.wrote(node, 2)
    _restart(cluster, node, upstream="a")
    assert node.replica is not None
    assert "stopped" == node.replica.state
    return node


def fenced(cluster: FakeCluster) -> FakeNode:
    """A primary whose replica was promoted."""
    a, b = _primary(cluster), cluster.node("b", "a")
    cluster.pass_(3)
    cluster.promote(b)
    cluster.pass_(3)
    assert "fenced" == a.roles.role
    return a


def stale(cluster: FakeCluster) -> FakeNode:
    """A replica that has not heard of its upstream for long."""
    a, node = _primary(cluster), cluster.node("d", "a")
    cluster.pass_(3)
    a.kill()
    cluster.pass_(90, step=1.0)
    return node


def _primary(cluster: FakeCluster) -> FakeNode:
    node = cluster.node("a")
    cluster.wrote(node, 2)
    return node


def _restart(cluster: FakeCluster, node: FakeNode, *, upstream: str) -> None:
    node.kill()
    node.upstream = upstream
    cluster.start(node)
    cluster.pass_(3)


STATES: dict[str, Callable[[FakeCluster], FakeNode]] = {
    "filtered": filtered,
    "joining": joining,
    "joining anew": joining_anew,
    "stopped": stopped,
    "fenced": fenced,
    "stale": stale,
}


def follower_of(cluster: FakeCluster, node: FakeNode, dialect: Dialect) -> str:
    """What a follower of this dialect is told of the stream."""
    position = f"{node.name} for {dialect.name}"
    factory = PublisherFactory(
        node.publisher, server_name="hs", dialect=dialect, clock=cluster.clock, metrics=node.metrics
    )
    cluster.network.listen(position, factory)
    peer = raw_client(cluster.network, position)
    cluster.pass_(0.1)
    if peer.is_connected:
        peer.says("REPLICATE to_device 0" if dialect is LEGACY else "REPLICATE")
        cluster.pass_(0.2)
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


def replica_of(cluster: FakeCluster, node: FakeNode) -> str:
    """What becomes of a replica that joins."""
    refusal = node.registry.join_refusal(Hello(uuid="u", name="new"), ALL, LOCAL)
    new = cluster.node("new", node.name)
    cluster.pass_(3)
    if refusal is not None:
        return f"`{refusal.code}`"
    return "served" if new.log.position == node.log.position else "empty"


def ask(
    cluster: FakeCluster, node: FakeNode, method: str, path: str, body: bytes = b"", **options: Any
) -> Answer:
    """What the site of this node answers."""
    site = make_site(
        SiteContext(
            log=node.log,
            publisher=node.publisher,
            table=node.table,
            metrics=node.metrics,
            clock=cluster.clock,
            settings=ApiSettings(server_name="hs"),
            declared=node.declared,
            refused=RefusedFacts(node.log, node.table, node.metrics, instance=node.name),
            **options,
        )
    )
    talk = Talk(site)
    head = f"{method} {path.format(stream='to_device')} HTTP/1.1\r\nHost: localhost\r\n"
    talk.say(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    asked: Deferred[Answer] = Deferred()

    def look() -> None:
        if talk.heard.endswith((b"}", b"\n", b"\r\n\r\n")):
            asked.callback(talk.answer())
        else:
            cluster.clock.callLater(0.01, look)

    look()
    return cluster.done(asked)


def reader_of(cluster: FakeCluster, node: FakeNode, path: str) -> str:
    """What a reader over HTTP is told of the stream."""
    answer = ask(cluster, node, "GET", path)
    if answer.status in {409, 503}:
        body: dict[str, Any] = answer.json()
        return f"{answer.status} `{body['error'] if 'errcode' not in body else body['errcode']}`"
    if path == READS["files"]:
        assert 404 == answer.status
        return "served"
    assert 200 == answer.status, answer.body
    is_true = FACT.encode() in answer.body or b'"allocated":2' in answer.body
    return "served" if is_true else "empty"


class Above:
    """Where a replica brings files."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        self.sent.append(sha256)

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        raise AssertionError(sha256)


def writer_of(cluster: FakeCluster, node: FakeNode, method: str, path: str, body: bytes, folder: Path) -> str:
    """What becomes of something that is written here."""
    is_replica = node.replica is not None
    above = Above()
    files = Files(
        node.log,
        FileStore(folder, seconds=cluster.clock.seconds),
        ImmediateThread(),
        cluster.clock,
        fetch=above if is_replica else None,
        refusal=node.roles.file_refusal,
        is_primary=lambda: node.roles.is_primary,
        logger=Logger(),
    )
    cluster.done(Deferred.fromCoroutine(files.start()))
    http = PeerHttp(cluster.clock, open_addresses())
    passing = make_write_forwarder(node.log, node.roles, files.wait_for, http)
    part = FilesPart(files, FilesMetrics(CollectorRegistry()), max_bytes=MAX_BYTES)
    rooms = {"files": part}
    hooks = Hooks(role=node.roles, forwarding=passing)
    answer = ask(cluster, node, method, path, body, rooms=rooms, hooks=hooks)
    cluster.done(Deferred.fromCoroutine(files.stop()))
    if above.sent:
        assert 201 == answer.status
        return "passed on"
    assert answer.status in {409, 503}, answer.body
    code = answer.json()["error"]
    if is_replica and code == "upstream_away":
        # No HTTP leads to the primaries of these nodes.
        return "passed on"
    if code == "not_primary":
        assert answer.json()["moved_to"]
    if code in WAYS_OUT:
        assert WAYS_OUT[code] in answer.json()["message"], answer.json()["message"]
        assert answer.json()["moved_to"]
    return f"{answer.status} `{code}`"


def rows_of_the_manual() -> dict[str, list[str]]:
    """The table, by state."""
    text = MANUAL.read_text().partition("### What a copy answers")[2]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0].strip("`"): cells[1:] for cells in found[: len(STATES)]}


@pytest.mark.parametrize("state", STATES)
def test_a_copy_answers_as_the_manual_says(state: str, tmp_path: Path) -> None:
    """It serves what is true, or refuses; it never says that there is nothing where it does not know."""
    cluster = FakeCluster()
    node = STATES[state](cluster)

    followers = [follower_of(cluster, node, dialect) for dialect in (LEGACY, MIDDLE, CURRENT)]
    readers = [reader_of(cluster, node, path) for path in READS.values()]
    writers = [writer_of(cluster, node, *asked, tmp_path / str(n)) for n, asked in enumerate(WRITES)]
    answers = [*followers, replica_of(cluster, node), *readers, *writers]

    assert rows_of_the_manual()[state] == answers
    assert "empty" not in answers


def test_the_manual_has_every_state() -> None:
    """And says nothing of others."""
    assert list(STATES) == list(rows_of_the_manual())
    assert not re.search(r"\bempty\b", str(rows_of_the_manual()))
