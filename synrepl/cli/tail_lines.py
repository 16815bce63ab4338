"""``synrepl tail`` over the line protocol."""

from collections.abc import Sequence
from typing import Any, Literal

from twisted.internet.defer import Deferred

from synrepl.cli.output import PrintedPositions, TailOutput
from synrepl.cli.tail_failures import TargetCheck, speaks_http
from synrepl.replication.follower.facts import untyped
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.follower_event import FollowerEvent
from synrepl.replication.follower.strategy import following
from synrepl.replication.follower.updates import Updates
from synrepl.services import connect
from synrepl.storage.position_files import FilePositions
from synrepl.streams.table import StreamTable
from synrepl.transports.endpoints import client_endpoint
from synrepl.transports.redis.address import SCHEMES
from synrepl.wire.dialect import Dialect

__all__ = ["tail_lines"]


def tail_lines(
    output: TailOutput,
    endpoint: str,
    *,
    streams: Sequence[str],
    start: Literal["latest", "earliest"],
    state: FilePositions | None,
    dialect: Dialect,
    name: str,
    server_name: str | None,
    http: str | None,
    secret: str | None,
) -> None:
    """Follow a server and print its updates until the command ends or the target fails permanently."""
    store = PrintedPositions(state, output) if state is not None else None
    follower = Follower(
        instance=name,
        clock=output.reactor,
        positions=store,
        start=start,
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

    if streams:
        known = StreamTable.default()
        for one in streams:
            follower.on(known.get(one) or untyped(one))(show)
    else:
        follower.on_everything(show)
    follower.on_event(lambda event: _show_event(output, event))
    service = connect(
        output.reactor,
        endpoint,
        follower,
        dialect=dialect,
        server_name=server_name,
        http=http,
        secret=secret,
    )

    # On a Redis channel no server sends a greeting or announces all streams.
    check = None if endpoint.startswith(SCHEMES) else _check(output, endpoint, streams, dialect)
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


def _check(output: TailOutput, endpoint: str, streams: Sequence[str], dialect: Dialect) -> TargetCheck:
    def probe() -> "Deferred[bool]":
        is_http = speaks_http(output.reactor, client_endpoint(output.reactor, endpoint))
        return Deferred.fromCoroutine(is_http)

    announces_all = not following(dialect).pushed
    return TargetCheck(output, endpoint, streams=streams, announces_all=announces_all, probe=probe)


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
