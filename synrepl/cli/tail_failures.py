"""Permanent failures, which end `synrepl tail`: no retry can succeed."""

from collections.abc import Callable, Collection
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import Agent
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from synrepl.cli.output import TailOutput
from synrepl.ports.time import Timer
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.follower_event import FollowerEvent
from synrepl.wire.commands import Position

__all__ = ["TargetCheck", "speaks_http"]

SILENT_SECONDS: Final = 3.0
"""A server greets at once. Without a greeting for this long, the target is probed for HTTP."""

STREAMS_SECONDS: Final = 3.0
"""A server sends the positions of all streams at once. A stream without one by then does not exist."""

PROBE_SECONDS: Final = 5.0

SAID_BY_SERVER: Final = "the server reports: "

ADVICE: Final = {
    "wrong_server": "check TARGET and --server-name",
    "bad_port": "check the port of TARGET",
    "unknown_stream": "check --stream",
}
"""The advice for codes of `FollowerEvent` whose text has none."""


class TargetCheck:
    """Check that ends a `synrepl tail` over the line protocol when the target can never be followed.

    `target` is its name in messages. `probe` checks whether the target speaks HTTP. `streams` are the
    requested streams, which the server must have, unless `announces_all` is False: a server that pushes does
    not announce all of its streams.
    """

    def __init__(
        self,
        output: TailOutput,
        target: str,
        *,
        streams: Collection[str],
        announces_all: bool,
        probe: "Callable[[], Deferred[bool]]",
    ) -> None:
        self._output = output
        self._target = target
        self._streams = streams if announces_all else ()
        self._probe = probe
        self._announced: set[str] = set()
        self._is_greeted = True
        self._silence_timer = Timer(output.reactor, self._probe_http)
        self._streams_timer = Timer(output.reactor, self._compare_streams)

    def watch(self, follower: Follower) -> None:
        """Watch the events of this follower."""
        follower.on_event(self.on_event)
        follower.on_command(Position)(self.on_position)

    def on_event(self, event: FollowerEvent) -> None:
        """Handle an event of the follower."""
        match event.kind:
            case "connected":
                self._is_greeted = False
                self._announced.clear()
                self._cancel()
                self._silence_timer.start(SILENT_SECONDS)
            case "server":
                self._is_greeted = True
                self._cancel()
            case "disconnected":
                self._cancel()
                self._judge(event)
                if not self._is_greeted:
                    self._is_greeted = True
                    self._probe_http()
            case "error":
                self._judge(event)

    def on_position(self, command: Position) -> None:
        """Handle the position of a stream."""
        if not self._announced and self._streams:
            self._cancel()
            self._streams_timer.start(STREAMS_SECONDS)
        self._announced.add(command.stream)

    def stop(self) -> None:
        """Stop checking."""
        self._cancel()

    def _judge(self, event: FollowerEvent) -> None:
        if event.code:
            advice = f"; {ADVICE[event.code]}" if event.code in ADVICE else ""
            self._end(event.text.removeprefix(SAID_BY_SERVER) + advice)

    def _compare_streams(self) -> None:
        missing = [stream for stream in self._streams if stream not in self._announced]
        if missing:
            announced = ", ".join(sorted(self._announced))
            self._end(f"there is no stream {', '.join(missing)}; the server has {announced}")

    def _probe_http(self) -> None:
        self._probe().addCallback(self._on_probed)

    def _on_probed(self, is_http: bool) -> None:
        if is_http:
            self._end("it speaks HTTP, not the line protocol; use the port of the line protocol, or a URL")

    def _end(self, why: str) -> None:
        self._output.end(f"cannot follow {self._target}: {why}")

    def _cancel(self) -> None:
        self._silence_timer.stop()
        self._streams_timer.stop()


@implementer(IAgentEndpointFactory)
class _FixedEndpoint:
    """The endpoint that requests use, whatever their URL."""

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def endpointForURI(self, uri: Any) -> IStreamClientEndpoint:
        return self._endpoint


async def speaks_http(reactor: Any, endpoint: IStreamClientEndpoint) -> bool:
    """Whether the server at `endpoint` responds over HTTP in time."""
    agent = Agent.usingEndpointFactory(reactor, _FixedEndpoint(endpoint))
    try:
        await agent.request(b"GET", b"http://localhost/").addTimeout(PROBE_SECONDS, reactor)
    except Exception:  # no response is not an HTTP response
        return False
    return True
