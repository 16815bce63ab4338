"""``synrepl tail`` over the line protocol, and the permanent failures that end the command."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import Agent
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from synrepl.cli.output import TailOptions, TailOutput
from synrepl.ports.interfaces import SaveablePosition
from synrepl.ports.time import Timer
from synrepl.replication.follower.facts import untyped
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.replication.strategies import following
from synrepl.services import connect
from synrepl.storage.position_files import FilePositions
from synrepl.streams.table import StreamTable
from synrepl.transports.endpoints import client_endpoint
from synrepl.transports.redis.address import SCHEMES
from synrepl.wire.commands import Position

SILENT_SECONDS: Final = 3.0
"""A server sends its greeting at once. If none comes for this long, the target is probed for HTTP."""

STREAMS_SECONDS: Final = 3.0
"""A server announces all streams at once. A stream that is not announced after this long does not exist."""

PROBE_SECONDS: Final = 5.0

SAID_BY_SERVER: Final = "the server reports: "

ADVICE: Final = {
    "wrong_server": "check TARGET and --server-name",
    "bad_port": "check the port of TARGET",
    "unknown_stream": "check --stream",
}
"""The advice for codes of `FollowerEvent` whose text contains no advice."""


class TargetCheck:
    """Ends a `synrepl tail` over the line protocol when the target can never be followed.

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
                self.stop()
                self._silence_timer.start(SILENT_SECONDS)
            case "server":
                self._is_greeted = True
                self.stop()
            case "disconnected":
                self.stop()
                self._judge(event)
                if not self._is_greeted:
                    self._is_greeted = True
                    self._probe_http()
            case "error":
                self._judge(event)

    def on_position(self, command: Position) -> None:
        """Handle the position of a stream."""
        if not self._announced and self._streams:
            self.stop()
            self._streams_timer.start(STREAMS_SECONDS)
        self._announced.add(command.stream)

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

    def stop(self) -> None:
        """Stop checking."""
        self._silence_timer.stop()
        self._streams_timer.stop()


@implementer(IAgentEndpointFactory)
class _FixedEndpoint:
    """Connects every request to one endpoint, whatever its URL."""

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def endpointForURI(self, uri: Any) -> IStreamClientEndpoint:
        return self._endpoint


async def _speaks_http(reactor: Any, endpoint: IStreamClientEndpoint) -> bool:
    """Whether the server at `endpoint` responds over HTTP in time."""
    agent = Agent.usingEndpointFactory(reactor, _FixedEndpoint(endpoint))
    try:
        await agent.request(b"GET", b"http://localhost/").addTimeout(PROBE_SECONDS, reactor)
    except Exception:  # no response is not an HTTP response
        return False
    return True


class _PrintedPositions:
    """An `IPositionStore` that prints all facts up to a position before it saves the position."""

    def __init__(self, file: FilePositions, output: TailOutput) -> None:
        self.load = file.load
        self._file = file
        self._output = output

    def save(self, positions: SaveablePosition) -> None:
        self._output.save(partial(self._file.save, positions))


def tail_lines(output: TailOutput, options: TailOptions) -> None:
    """Follow a server or a Redis, and print its updates, until the command ends or fails permanently."""
    endpoint, dialect = options.endpoint, options.dialect
    store = _PrintedPositions(options.state, output) if options.state is not None else None
    follower = Follower(
        instance=options.name, clock=output.reactor, positions=store, start=options.start, raw=True
    )

    def show(updates: Updates[Any]) -> Deferred[None] | None:
        line = {
            "type": "rdata",
            "stream": updates.stream,
            "writer": updates.writer,
            "token": updates.token,
            "rows": updates.rows,
        }
        # The handler of a fact that is not printed never finishes: no position advances past the fact.
        return None if output.write_fact(line) else Deferred()

    known = StreamTable.default()
    for one in options.streams:
        follower.on(known.get(one) or untyped(one))(show)
    if not options.streams:
        follower.on_everything(show)
    follower.on_event(lambda event: _show_event(output, event))
    service = connect(
        output.reactor,
        endpoint,
        follower,
        dialect=dialect,
        server_name=options.server_name,
        http=options.http,
        secret=options.secret,
    )

    # On a Redis channel no server sends a greeting or announces all streams.
    check = None if endpoint.startswith(SCHEMES) else _check(output, options)
    if check is not None:
        check.watch(follower)

    def stop() -> Any:
        if check is not None:
            check.stop()
        stopped = service.stopService()
        if store is not None:
            store.save(store.load() | follower.positions())
        return stopped

    output.run(service.startService, stop)


def _check(output: TailOutput, options: TailOptions) -> TargetCheck:
    def probe() -> "Deferred[bool]":
        endpoint = client_endpoint(output.reactor, options.endpoint)
        return Deferred.fromCoroutine(_speaks_http(output.reactor, endpoint))

    announces_all = not following(options.dialect).pushed
    return TargetCheck(
        output, options.endpoint, streams=options.streams, announces_all=announces_all, probe=probe
    )


def _show_event(output: TailOutput, event: FollowerEvent) -> None:
    match event.kind:
        case "connected":
            output.write_event("connected")
        case "disconnected":
            output.write_event("disconnected", reason=event.text)
        case "server":
            output.write_event("server", name=event.text)
        case "position":
            output.write_event("position", stream=event.stream, writer=event.writer, token=event.token)
        case "error":
            where = {"stream": event.stream, "writer": event.writer}
            output.write_event(
                "error", message=event.text, **{key: value for key, value in where.items() if value}
            )
