"""ConnectionMonitor: tells an operator where a follower is connected, and why it is not."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.html.humanize import span
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent

SILENT_SECONDS: Final = 3.0
"""A server sends its greeting at once. If none comes for this long, the server is probed for HTTP."""

PROBE_SECONDS: Final = 5.0

REQUEST: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

SPEAKS_HTTP: Final = "it speaks HTTP, not the line protocol"

MAX_REASONS: Final = 100
"""The most reasons of one outage that are logged: a peer can invent them."""

ADVICE: Final = {
    "wrong_server": "check the address, and server_name",
    "bad_port": "use the port of the line protocol, by default 9092",
}
"""What to do for a code of `FollowerEvent` whose text does not say it."""

REFUSED: Final = "connection refused"
REFUSED_ADVICE: Final = "is the server running, and is this its port for followers, by default 9092?"


class ConnectionMonitor:
    """Logs the state of a follower's connection to a server: once for each change, not for each attempt.

    A server that does not greet is probed for HTTP once in an outage, as the ports of followers and of HTTP
    are easily mixed up; if `speaks_http` finds it, the follower gets an event with the code ``bad_port``.
    `target` returns the name of the current server, for messages.
    """

    _logger: ClassVar = Logger()

    def __init__(
        self,
        follower: Follower,
        target: Callable[[], str],
        *,
        clock: IClock,
        speaks_http: Callable[[], Awaitable[bool]],
    ) -> None:
        self._follower = follower
        self._target = target
        self._clock = clock
        self._speaks_http = speaks_http
        self._limited = LimitedLogger(self._logger, clock)
        self._tasks = Tasks(self._logger, "connection monitor")
        self._silence_timer = Timer(clock, self._probe)
        self._is_open = self._is_following = self._is_stopped = self._has_probed = False
        self._lost_at: float | None = None
        self._reasons: set[str] = set()
        follower.on_event(self._on_event)

    def stop(self) -> None:
        """Stop watching: the follower is about to disconnect."""
        self._is_stopped = True
        self._silence_timer.stop()
        self._tasks.cancel_all()
        self._limited.stop()

    def _on_event(self, event: FollowerEvent) -> None:
        if self._is_stopped:
            return
        match event.kind:
            case "connected":
                self._is_open = True
                self._silence_timer.restart(SILENT_SECONDS)
            case "server":
                self._greeted(event.text)
            case "disconnected":
                self._disconnected(event)

    def _greeted(self, server: str) -> None:
        self._silence_timer.stop()
        self._is_following, self._has_probed = True, False
        self._reasons.clear()
        if self._lost_at is None:
            line = "following {target} as {name}; the server is {server}"
            self._limited.info(line, target=self._target(), name=self._follower.instance, server=server)
        else:
            away = span(self._clock.seconds() - self._lost_at)
            line = "following {target} again; the connection was lost for {away}"
            self._limited.info(line, target=self._target(), away=away)

    def _disconnected(self, event: FollowerEvent) -> None:
        self._silence_timer.stop()
        is_silent = self._is_open and not self._is_following
        if self._is_following:
            self._lost_at = self._clock.seconds()
            line = "lost the connection to {target}, connecting again: {why}"
            self._limited.warn(line, target=self._target(), why=event.text)
        else:
            self._explain(event.text, event.code)
        self._is_open = self._is_following = False
        if is_silent and not event.code:
            self._probe()

    def _explain(self, why: str, code: str = "") -> None:
        """Log why there is no connection, unless this reason was logged since the last greeting."""
        if why in self._reasons or len(self._reasons) >= MAX_REASONS:
            return
        self._reasons.add(why)
        advice = REFUSED_ADVICE if why == REFUSED else ADVICE.get(code, "")
        line = "cannot follow {target}, trying again: {why}"
        self._limited.warn(line, target=self._target(), why=f"{why}; {advice}" if advice else why)

    def _probe(self) -> None:
        if not self._has_probed:
            self._has_probed = True
            self._tasks.start(self._look_for_http(), "the probe for HTTP")

    async def _look_for_http(self) -> None:
        is_http = await self._speaks_http()
        if self._is_following:
            return
        if is_http:
            self._follower.server.unreachable(SPEAKS_HTTP, "bad_port")
        elif self._is_open:
            self._explain(f"connected, but the server has sent no greeting for {SILENT_SECONDS:g} s")


class _HttpProbe(Protocol):
    """Sends a request, and tells in `is_http` whether the response begins as one of HTTP."""

    transport: Any

    def __init__(self) -> None:
        self.is_http: Deferred[bool] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(REQUEST)

    def dataReceived(self, data: bytes) -> None:
        self._end(is_http=data.startswith(b"HTTP/"))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._end(is_http=False)

    def _end(self, *, is_http: bool) -> None:
        if not self.is_http.called:
            self.is_http.callback(is_http)
            self.transport.loseConnection()


def http_probe(reactor: Any, endpoint: IStreamClientEndpoint) -> Callable[[], Awaitable[bool]]:
    """Return a function that tells whether the server at `endpoint` responds over HTTP in time."""

    factory = Factory.forProtocol(_HttpProbe)
    factory.noisy = False

    async def speaks_http() -> bool:
        try:
            probe: Any = await endpoint.connect(factory).addTimeout(PROBE_SECONDS, reactor)
            is_http: bool = await probe.is_http.addTimeout(PROBE_SECONDS, reactor)
        except Exception:  # no connection and no response are no HTTP response
            return False
        return is_http

    return speaks_http
