"""``synrepl tail`` over the line protocol, and the permanent failures that end the command."""

from collections.abc import Collection
from functools import partial
from typing import Any, Final

import click
from twisted.internet.defer import Deferred

from synrepl.base.interfaces import SaveablePosition
from synrepl.base.time import Timer
from synrepl.cli.command import shown
from synrepl.cli.output import TailOptions, TailOutput
from synrepl.errors import GapError, suggest
from synrepl.replication.follower.facts import untyped
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.replication.strategies import following
from synrepl.services import connect
from synrepl.storage.position_files import FilePositions
from synrepl.streams.table import StreamTable
from synrepl.transports.http.catch_up import UNAUTHORIZED_500
from synrepl.transports.redis.address import SCHEMES, RedisAddress
from synrepl.wire.commands import Position

STREAMS_SECONDS: Final = 3.0
"""A server announces all streams at once. One that is not announced so long after another is not there."""

MISTYPED_SECONDS: Final = 0.5
"""The same for a name that no release has, unless the server's operator declared it: mostly a mistake."""

MAX_ERRORS: Final = 1_000
"""The most errors that are remembered, so as not to be repeated."""

SAID_BY_SERVER: Final = "the server reports: "

ADVICE: Final = {
    "wrong_server": "check TARGET and --server-name",
    "bad_port": "check the port of TARGET, or use a URL for the HTTP API",
    "unknown_stream": "check --stream",
}
"""The advice for codes of `FollowerEvent` whose text contains no advice."""


class TargetCheck:
    """Ends a `synrepl tail` over the line protocol when the target can never be followed.

    `target` is its name in messages. `streams` are the requested streams, which the server must have, unless
    `announces_all` is False: a server that pushes does not announce all of its streams.
    """

    def __init__(
        self,
        output: TailOutput,
        target: str,
        *,
        streams: Collection[str],
        announces_all: bool,
    ) -> None:
        self._output = output
        self._target = target
        self._streams = streams if announces_all else ()
        self._announced: set[str] = set()
        self._known = StreamTable.default()
        self._streams_timer = Timer(output.reactor, self._compare_streams)

    def watch(self, follower: Follower) -> None:
        """Watch the events of this follower."""
        follower.on_event(self.on_event)
        follower.on_command(Position)(self.on_position)

    def on_event(self, event: FollowerEvent) -> None:
        """Handle an event of the follower."""
        match event.kind:
            case "connected":
                self._announced.clear()
                self.stop()
            case "disconnected":
                self.stop()
                self._judge(event)
            case "error":
                self._judge(event)

    def on_position(self, command: Position) -> None:
        """Handle the position of a stream."""
        if command.stream in self._announced:
            return
        self._announced.add(command.stream)
        if missing := self._missing():
            is_known = all(stream in self._known for stream in missing)
            self._streams_timer.restart(STREAMS_SECONDS if is_known else MISTYPED_SECONDS)
        else:
            self._streams_timer.stop()

    def _judge(self, event: FollowerEvent) -> None:
        if event.code:
            advice = f"; {ADVICE[event.code]}" if event.code in ADVICE else ""
            self._end(event.text.removeprefix(SAID_BY_SERVER) + advice)

    def _compare_streams(self) -> None:
        missing = self._missing()
        announced = sorted(self._announced)
        hint = suggest(missing[0], announced)
        self._end(f"there is no stream {', '.join(missing)}{hint}; the server has {', '.join(announced)}")

    def _missing(self) -> list[str]:
        """The requested streams that were not announced yet."""
        return [stream for stream in self._streams if stream not in self._announced]

    def _end(self, why: str) -> None:
        self._output.end(f"cannot follow {self._target}: {why}")

    def stop(self) -> None:
        """Stop checking."""
        self._streams_timer.stop()


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
    dialect = options.dialect
    is_redis = options.endpoints[0].startswith(SCHEMES)
    store = _PrintedPositions(options.state, output) if options.state is not None else None
    follower = Follower(
        instance=options.name,
        clock=output.reactor,
        positions=store,
        start=options.start,
        raw=True,
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
    follower.on_event(EventPrinter(output, options).show)
    service = connect(
        output.reactor,
        options.endpoints[0] if is_redis else options.endpoints,
        follower,
        dialect=dialect,
        server_name=options.server_name,
        http=options.http or None,
        secret=options.credentials,
    )

    # On a Redis channel no server sends a greeting or announces all streams.
    check = None if is_redis else _check(output, options)
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
    announces_all = not following(options.dialect).pushed
    return TargetCheck(
        output, ", ".join(options.endpoints), streams=options.streams, announces_all=announces_all
    )


class EventPrinter:
    """Prints the events of a follower as lines. An error is printed once, not with each retry."""

    def __init__(self, output: TailOutput, options: TailOptions) -> None:
        self._output = output
        self._is_http_known = options.is_http_known
        self._secret_file = options.secret_file
        self._address = ", ".join(
            RedisAddress.parse(one).public if one.startswith(SCHEMES) else one for one in options.endpoints
        )
        self._errors: set[str] = set()

    def show(self, event: FollowerEvent) -> None:
        """Print an event, unless it says nothing new."""
        output = self._output
        match event.kind:
            case "connected":
                output.write_event("connected")
            case "disconnected":
                output.write_event("disconnected", address=self._address, reason=event.text)
            case "server":
                output.write_event("server", name=event.text)
            case "position":
                output.write_event("position", stream=event.stream, writer=event.writer, token=event.token)
            case "went_back" | "behind":
                text = event.text
                if event.kind == "behind":
                    text += " (remove the file of --state)"
                    click.echo(f"warning: {shown(text)}", err=True)
                where = {"stream": event.stream, "writer": event.writer, "token": event.token}
                self._write_error(text, {key: value for key, value in where.items() if value != ""})
            case "error" | "moved" if event.text not in self._errors:
                if len(self._errors) < MAX_ERRORS:
                    self._errors.add(event.text)
                where = {"stream": event.stream, "writer": event.writer, "token": event.token}
                text = event.text + self._advice(event)
                self._write_error(text, {key: value for key, value in where.items() if value})

    def _write_error(self, text: str, where: dict[str, Any]) -> None:
        self._output.write_event("error", message=text, **where)

    def _advice(self, event: FollowerEvent) -> str:
        """Return what to do about a gap: give a secret, or once, if nobody said where missing rows are."""
        if not isinstance(event.error, GapError):
            return ""
        why = event.error.why
        if UNAUTHORIZED_500 in why:
            return "" if self._secret_file is not None else "; name the file of the secret with --secret-file"
        if self._is_http_known or "TLS: " in why:
            return ""
        self._is_http_known = True
        return "; name the HTTP address of the server, which has missing rows, with --http URL"
