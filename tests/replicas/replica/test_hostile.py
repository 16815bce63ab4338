"""An upstream that tells what is not for terminals."""

import json
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from synrepl.replicas.wire.native import heartbeat_check
from tests.raw_peer import raw_server
from tests.replicas.clusters import FakeCluster
from tests.replicas.replica.test_conversation import connected

ESC = "\x1b[2J\n\u202e"
PLACE = {"epoch": 1, "serial": 0, "digest": "0" * 64}
WELCOME = {
    "history": "h",
    "uuid": "u",
    "instance": "master",
    "server_name": "hs",
    "role": "primary",
    "position": PLACE,
    "trimmed_upto": 0,
}


def texts(value: Any) -> list[str]:
    """All text in it, at any depth."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for one in value.values() for text in texts(one)]
        case list() | tuple():
            return [text for one in value for text in texts(one)]
    return []


@pytest.mark.parametrize(
    "lines",
    [
        [f"ERROR {ESC}".replace("\n", " ")],
        ["REFUSED " + json.dumps({"code": ESC, "message": ESC * 5_00, "retryable": True, "moved_to": ESC})],
        ["WELCOME " + json.dumps(WELCOME | {"role": ESC})],
        ["WELCOME " + json.dumps(WELCOME | {"instance": ESC})],
        ["WELCOME " + json.dumps(WELCOME | {"primary": ESC})],
        ["WELCOME " + json.dumps(WELCOME | {"address": "x" * 5_000})],
        [f"SERVER {ESC}".replace("\n", "")],
        ["BLOCK \x1b[2J 0 0 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"],
        ["WELCOME " + json.dumps(WELCOME), "PEERS " + json.dumps([ESC])],
        ['DIGESTS_ARE {"digests":{"\\u001b[2J":"d"}}'],
    ],
    ids=lambda lines: ascii(lines[-1][:25]),
)
def test_nothing_of_it_reaches_status_or_log_raw(lines: list[str]) -> None:
    """The operator of a replica reads both on a terminal."""
    cluster = FakeCluster()
    peers = raw_server(cluster.network, "evil")
    with capturedLogs() as events:
        b = cluster.node("b", "evil")
        for _ in range(5):
            cluster.pass_(1)
            for peer in peers:
                if peer.is_connected:
                    peer.says(*lines)
        cluster.pass_(1)

    assert peers
    assert b.replica is not None
    logged = [formatEvent(event) for event in events]
    shown = [*texts(b.replica.status()), *logged, *map(str, b.log.notes.values())]
    assert all(text.isprintable() and len(text) < 8_000 for text in shown), shown


def test_heartbeats_that_nobody_takes_stop_the_reading() -> None:
    """Only the bytes of blocks were counted, and a HEARTBEAT has none."""
    connection, conversation, transport = connected()
    check = heartbeat_check(1, 5, "d", 5, 1)
    connection.dataReceived(b"HEARTBEAT 1 5 d 5 1 %b\n" % check.encode() * 100)
    assert "producing" == transport.producerState

    connection.dataReceived(b"HEARTBEAT 1 5 d 5 1 %b\n" % check.encode() * 50_000)
    assert "paused" == transport.producerState
    taken = 0
    while conversation.ready() is not None:
        taken += 1

    assert 50_100 == taken
    assert "producing" == transport.producerState
    connection.connectionLost()
