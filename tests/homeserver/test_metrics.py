"""Pages of metrics, and what is read of them."""

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from synrepl.homeserver.addresses import MetricsAddress
from synrepl.homeserver.configuration import Process
from synrepl.homeserver.looks import release_of
from synrepl.homeserver.metrics import MAX_BYTES, MAX_LINE, MetricsPage, MetricsScraper, is_here

PAGE = b"""# HELP synapse_storage_stream_current_position Current position
# TYPE synapse_storage_stream_current_position gauge
synapse_storage_stream_current_position{server_name="hs",stream_name="receipts"} 12.0
synapse_storage_stream_current_position{stream_name="backfill",server_name="hs"} 3.0
synapse_replication_tcp_resource_stream_updates_total{stream_name="receipts"} 7.0 1700000000
synapse_replication_tcp_resource_stream_updates_created{stream_name="receipts"} 1.7e9
synapse_replication_tcp_protocol_inbound_rdata_count_total{name="a \\" b",stream_name="caches"} 1e3
synapse_replication_tcp_resource_total_connections{server_name="hs"} 1.0
synapse_replication_tcp_resource_total_connections_per_second 5
synapse_notifier_wait_for_stream_token_timeouts{stream="to_device"} 2
synapse_storage_stream_current_position nonsense
synapse_build_info{osversion="Linux",pythonversion="3.12.3",version="1.163.2 (b=x)"} 1.0
python_gc 5
"""


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_the_names_needed_are_read(step: int) -> None:
    """Wherever the page is cut; labels in any order; counters with and without their ending."""
    page = MetricsPage()
    for start in range(0, len(PAGE), step):
        page.receive(PAGE[start : start + step])
    look = page.look(5.0)

    assert {"receipts": 12, "backfill": 3} == look.positions
    assert {"receipts": 7} == look.sent
    assert {"caches": 1000} == look.received
    assert look.connections == 1
    assert {"to_device": 2} == look.timeouts
    assert look.release == "1.163.2 (b=x)"


def test_a_counter_that_is_printed_twice_counts_once() -> None:
    """Releases up to 1.72 print the old form, and the new one below it. Of two connections it is the sum."""
    page = MetricsPage()
    for ending in (b"", b"_total"):
        for connection in (b"3", b"4"):
            labels = b'{name="%s",stream_name="caches"} %s.0\n' % (connection, connection)
            page.receive(b"synapse_replication_tcp_protocol_inbound_rdata_count" + ending + labels)

    assert {"caches": 7} == page.look(0.0).received


@pytest.mark.parametrize(
    ("text", "is_of_synapse"),
    [
        (b'node_cpu_seconds_total{cpu="0"} 5\n', False),
        (b"<html>login</html>\n", False),
        (b"", False),
        (b'synapse_build_info{version="1.157.1"} 1\n', True),
        (b"synapse_replication_tcp_resource_total_connections 1.0\n", True),
    ],
)
def test_a_page_of_another_program_was_not_seen(text: bytes, is_of_synapse: bool) -> None:
    """As a login page, or an exporter at that port."""
    page = MetricsPage()
    page.receive(text)

    assert is_of_synapse == (not page.look(0.0).trouble)


def test_the_release_of_a_page() -> None:
    """Two pages of one homeserver that was upgraded in part."""
    found = []
    for release in ("1.151.0", "1.163.2"):
        page = MetricsPage()
        page.receive((Path(__file__).parent / f"cases/mixed-releases/metrics-{release}.txt").read_bytes())
        found.append(release_of(page.look(0.0).release))

    assert [(1, 151, 0), (1, 163, 2)] == found


def test_a_head_without_an_end_is_given_up() -> None:
    """Not kept: whatever listens there may send what it likes."""
    reactor = MemoryReactorClock()
    address = MetricsAddress(url="http://127.0.0.1:9/_synapse/metrics")
    found: list[Any] = []
    work = MetricsScraper(reactor).look(Process(name="w1", file="w1.yaml", metrics=address))
    Deferred.fromCoroutine(work).addBoth(found.append)
    protocol: Any = reactor.tcpClients[0][2].buildProtocol(None)
    protocol.makeConnection(StringTransport())
    protocol.dataReceived(b"HTTP/1.1 200 OK\r\n")
    for _ in range(10):
        protocol.dataReceived(b"X-Filler: " + b"a" * 10_000)
    protocol.connectionLost(Failure(ConnectionDone()))

    assert "the head of the response has more than 65536 bytes" in found[0].trouble


def test_an_older_release_has_no_positions() -> None:
    """None, not zero."""
    look = MetricsPage().look(5.0)

    assert look.positions is None
    assert look.connections is None
    assert look.release == ""


def test_a_page_without_an_end() -> None:
    """It is given up."""
    page = MetricsPage()
    piece = b"x" * (1024 * 1024)
    for _ in range(MAX_BYTES // len(piece)):
        page.receive(piece)

    with pytest.raises(ValueError, match="more than 64 MiB"):
        page.receive(piece)
    assert len(page._rest) <= MAX_LINE


def test_addresses_of_this_machine() -> None:
    """Only those can be bound."""
    assert is_here("127.0.0.1")
    assert is_here("localhost")
    assert not is_here("192.0.2.1")  # for documents only
    assert not is_here("no-such-host.invalid")
