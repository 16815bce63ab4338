"""Pages of metrics are scraped over TCP and over UNIX sockets, and what does not answer is told."""

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.interfaces import IReactorTime
from twisted.trial.unittest import TestCase
from twisted.web.resource import Resource
from twisted.web.server import Site

from synrepl.homeserver import metrics
from synrepl.homeserver.addresses import MetricsAddress
from synrepl.homeserver.configuration import Process
from synrepl.homeserver.looks import MetricsLook
from synrepl.homeserver.metrics import MetricsScraper

PATH = "/_synapse/metrics"


class Page(Resource):
    """The metrics of a process."""

    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        """One position, if the path is right."""
        if request.path != PATH.encode():
            request.setResponseCode(404)
            return b""
        return b'synapse_storage_stream_current_position{stream_name="receipts"} 12.0\n'


class MetricsScraperTests(TestCase):
    """Against a real server."""

    async def look(self, address: MetricsAddress, host: str = "") -> MetricsLook:
        """One look at a process that is configured so."""
        assert IReactorTime.providedBy(reactor)
        return await MetricsScraper(reactor).look(Process(name="w1", metrics=address, host=host))

    def listen(self, socket: str = "") -> Any:
        """Serve the page: at a port, or at a path."""
        server: Any = reactor
        if socket:
            port = server.listenUNIX(socket, Site(Page()))
        else:
            port = server.listenTCP(0, Site(Page()), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return port

    async def test_metrics_are_read_over_tcp(self) -> None:
        """As most processes show them."""
        port = self.listen().getHost().port
        found = await self.look(MetricsAddress(url=f"http://127.0.0.1:{port}{PATH}", is_loopback=True))

        self.assertEqual({"receipts": 12}, found.positions)

    async def test_all_processes_at_once(self) -> None:
        """Each by its name."""
        port = self.listen().getHost().port
        address = MetricsAddress(url=f"http://127.0.0.1:{port}{PATH}", is_loopback=True)
        processes = [
            Process(name="master", metrics=address),
            Process(name="w1", file="w1.yaml", unmeasured="give --metrics w1=URL"),
            Process(name="w2"),
        ]
        found = await MetricsScraper(reactor).look_at(processes)

        self.assertEqual({"master", "w1", "w2"}, set(found))
        self.assertEqual({"receipts": 12}, found["master"].positions)
        self.assertIn("give --metrics w1=URL", found["w1"].trouble)
        self.assertIn("add --worker FILE", found["w2"].trouble)

    async def test_over_a_unix_socket(self) -> None:
        """A listener with a `path`."""
        folder = tempfile.mkdtemp()  # short: the path of a socket has 107 bytes
        self.addCleanup(shutil.rmtree, folder)
        path = str(Path(folder) / "metrics.sock")
        self.listen(path)
        found = await self.look(MetricsAddress(url=f"http://localhost{PATH}", socket=path, is_loopback=True))

        self.assertEqual(("", {"receipts": 12}), (found.trouble, found.positions))

    async def test_a_unix_socket_that_is_not_there(self) -> None:
        """Its process does not run."""
        found = await self.look(MetricsAddress(url=f"http://localhost{PATH}", socket="/nowhere.sock"))

        self.assertIsNone(found.positions)
        self.assertIn("/nowhere.sock", found.trouble)

    async def test_a_port_that_is_closed(self) -> None:
        """Told apart from a process of another machine, whose loopback is not this one."""
        port = self.listen()
        number = port.getHost().port
        await port.stopListening()
        address = MetricsAddress(url=f"http://127.0.0.1:{number}{PATH}", is_loopback=True)
        here, there = await self.look(address), await self.look(address, host="192.0.2.1")

        self.assertTrue(here.is_refused)
        self.assertIn("it does not run", here.trouble)
        self.assertFalse(there.is_refused)
        self.assertIn("not reachable from here", there.trouble)

    async def test_a_process_whose_queue_of_connections_is_full(self) -> None:
        """It is stopped, and somebody asked it before."""
        self.patch(metrics, "CONNECT_SECONDS", 0.2)
        waiting = []
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
            where = server.getsockname()
            for _ in range(4):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(where)
                waiting.append(client)
            url = f"http://127.0.0.1:{where[1]}{PATH}"
            found = await self.look(MetricsAddress(url=url, is_loopback=True))
            for client in waiting:
                client.close()

        self.assertTrue(found.is_silent, found)
        self.assertIn("queue of connections is full", found.trouble)

    async def test_a_page_that_has_no_metrics_is_refused(self) -> None:
        """No metrics are at this address."""
        port = self.listen().getHost().port
        found = await self.look(MetricsAddress(url=f"http://127.0.0.1:{port}/", is_loopback=True))

        self.assertIn("it answers 404", found.trouble)
        self.assertFalse(found.is_refused)
