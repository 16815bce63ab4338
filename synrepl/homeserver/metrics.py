"""Reads the metrics of a homeserver's processes: only the names needed, and only so many bytes."""

import re
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import treq
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.error import TimeoutError as TimedOut
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseNeverReceived
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from synrepl.homeserver.addresses import MetricsAddress
from synrepl.homeserver.configuration import Process
from synrepl.homeserver.looks import MetricsLook
from synrepl.transports.credentials import Credentials
from synrepl.transports.failures import describe_failure
from synrepl.transports.http.https_policy import HttpsPolicy
from synrepl.transports.http.response_head import BoundedHeadFactory

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 5.0
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_LINE: Final = 4_096
MAX_SAMPLES: Final = 1_000
MAX_RELEASE: Final = 100

POSITION: Final = b"synapse_storage_stream_current_position"
SENT: Final = b"synapse_replication_tcp_resource_stream_updates"
RECEIVED: Final = b"synapse_replication_tcp_protocol_inbound_rdata_count"
CONNECTIONS: Final = b"synapse_replication_tcp_resource_total_connections"
TIMEOUTS: Final = b"synapse_notifier_wait_for_stream_token_timeouts"
BUILD: Final = b"synapse_build_info"
NAMES: Final = (POSITION, SENT, RECEIVED, CONNECTIONS, TIMEOUTS, BUILD)

PREFIX: Final = b"synapse_"
"""What names of metrics of Synapse's own begin with."""

_SAMPLE: Final = re.compile(rb"(\w+?)(_total)?(?:\{(.*)\})? ([^ ]+)(?: \d+)?")
_LABEL: Final = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


class MetricsPage:
    """Scans the text of a page of metrics as it comes."""

    def __init__(self) -> None:
        self._samples: dict[bytes, tuple[dict[str, float], dict[str, float]]] = {
            name: ({}, {}) for name in NAMES
        }
        """Values by name, without and with ``_total``, by the stream in their labels (empty without one)."""
        self._is_synapse = False
        self.release = ""
        """What the page calls the release, such as ``1.163.2``."""
        self._rest = b""
        self._size = 0

    def receive(self, data: bytes) -> None:
        """Scan more text. Raises `ValueError` if it is too long."""
        self._size += len(data)
        if self._size > MAX_BYTES:
            raise ValueError(f"the page has more than {MAX_BYTES // 1024 // 1024} MiB")
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE:
            self._rest = self._rest[:MAX_LINE]
        for line in lines:
            if line.startswith(PREFIX):
                self._is_synapse = True
                if line.startswith(NAMES):
                    self._read(line)

    def _read(self, line: bytes) -> None:
        found = _SAMPLE.fullmatch(line)
        if found is None or (forms := self._samples.get(found[1])) is None:
            return
        values = forms[found[2] is not None]
        if len(values) >= MAX_SAMPLES:
            return
        labels: dict[bytes, bytes] = dict(_LABEL.findall(found[3] or b""))
        if found[1] == BUILD:
            self.release = labels.get(b"version", b"").decode("utf-8", "replace")[:MAX_RELEASE]
            return
        name = labels.get(b"stream_name") or labels.get(b"stream") or b""
        stream = name.decode("utf-8", "replace")
        try:
            value = float(found[4])
        except ValueError:
            return
        # A process may serve several homeservers in tests only; the sum is right for counters.
        values[stream] = values.get(stream, 0.0) + value

    def look(self, at: float) -> MetricsLook:
        """Everything found."""

        def whole(name: bytes) -> dict[str, int]:
            # Releases up to 1.72 print each counter twice: in the old form, and with its ending.
            old, total = self._samples[name]
            return {stream: int(value) for stream, value in (old | total).items() if abs(value) < 2**63}

        connections = whole(CONNECTIONS)
        return MetricsLook(
            at=at,
            positions=whole(POSITION) or None,
            sent=whole(SENT),
            received=whole(RECEIVED),
            connections=connections.get(""),
            timeouts=whole(TIMEOUTS),
            release=self.release,
            trouble="" if self._is_synapse else NO_PAGE,
        )


NO_PAGE: Final = "no page of Synapse: no name on it begins with synapse_; is it the address of its metrics?"


class MetricsScraper:
    """Reads the pages of all processes."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._clock: Callable[[], float] = reactor.seconds

    async def look_at(self, processes: Iterable[Process]) -> dict[str, MetricsLook]:
        """Read the pages of these processes, all at once; by their names."""
        found: dict[str, MetricsLook] = {}

        async def read(process: Process) -> None:
            found[process.name] = await self.look(process)

        await DeferredList([Deferred.fromCoroutine(read(one)) for one in processes], fireOnOneErrback=True)
        return found

    async def look(self, process: Process) -> MetricsLook:
        """Read the page of one process. A failure is a field of the returned look."""
        address = process.metrics
        if address is None:
            why = process.unmeasured or "its file was not given: add --worker FILE with its configuration"
            return MetricsLook(at=self._clock(), trouble=why)
        page = MetricsPage()

        async def read() -> None:
            response = await self._agent(address).request(b"GET", address.url.encode())
            if response.code != 200:
                raise ValueError(f"it answers {response.code}: is it the address of metrics?")
            await treq.collect(response, page.receive)

        began = self._clock()
        try:
            await Deferred.fromCoroutine(read()).addTimeout(ANSWER_SECONDS, self._reactor)
        except Exception as error:  # what a library or a peer may do is told, and ends nothing
            if self._clock() - began < ANSWER_SECONDS:
                return _failed(self._clock(), error, process, address)
            # To connect takes less time: what a cancelled request raises differs by how far it came.
            why = f"it accepts connections and does not answer within {ANSWER_SECONDS:g} s"
            return MetricsLook(at=self._clock(), trouble=f"{address.shown}: {why}", is_silent=True)
        look = page.look(self._clock())
        shown = f"{address.shown}: {look.trouble}" if look.trouble else ""
        return msgspec.structs.replace(look, trouble=shown)

    def _agent(self, address: MetricsAddress) -> Any:
        pool: Any = HTTPConnectionPool(self._reactor, persistent=False)  # type: ignore[no-untyped-call]
        pool._factory = BoundedHeadFactory
        if address.socket:
            return Agent.usingEndpointFactory(  # type: ignore[no-untyped-call]
                self._reactor, _SocketEndpoints(self._reactor, address.socket), pool=pool
            )
        return Agent(  # type: ignore[no-untyped-call]
            self._reactor,
            contextFactory=HttpsPolicy(Credentials()),
            connectTimeout=CONNECT_SECONDS,
            pool=pool,
        )


@implementer(IAgentEndpointFactory)
class _SocketEndpoints:
    """Connects to a UNIX socket, whatever the URL says."""

    def __init__(self, reactor: Any, path: str) -> None:
        self._reactor = reactor
        self._path = path

    def endpointForURI(self, uri: Any) -> Any:
        return UNIXClientEndpoint(  # type: ignore[no-untyped-call]
            self._reactor, self._path, timeout=CONNECT_SECONDS
        )


def _failed(at: float, error: Exception, process: Process, address: MetricsAddress) -> MetricsLook:
    failure: Any = Failure(error)  # type: ignore[no-untyped-call]
    if isinstance(error, ResponseNeverReceived) and error.reasons:
        failure = error.reasons[0]
    why = describe_failure(failure)
    if address.is_loopback and process.host and not is_here(process.host):
        where = f"{address.shown} on {process.host}"
        return MetricsLook(
            at=at, trouble=f"not reachable from here: it listens at {where}; run the command there"
        )
    is_refused = isinstance(failure.value, Refused)
    # Who asks a stopped process again and again, as Prometheus does, fills its queue of connections. On this
    # machine nothing else keeps a connection from being made.
    is_full = isinstance(failure.value, TimedOut) and is_here(urlsplit(address.url).hostname or "")
    if is_refused and address.is_loopback:
        why = "connection refused: it does not run, or runs on another machine"
    elif is_full:
        why = "its queue of connections is full"
    return MetricsLook(at=at, trouble=f"{address.shown}: {why}", is_refused=is_refused, is_silent=is_full)


def is_here(host: str) -> bool:
    """Whether this name or address is one of this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # Only an address of this machine can be bound.
                probe.bind(where)
                return True
        except OSError:
            continue
    return False
