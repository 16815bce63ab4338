"""``synrepl tail`` over the line protocol."""

from collections.abc import Sequence
from typing import Any, Literal

from twisted.internet.defer import Deferred

from synrepl.cli.tail_common import PrintedPositions, TailOutput
from synrepl.cli.tail_failures import TargetCheck, speaks_http
from synrepl.replication.follower.follower import Follower, FollowerEvent, untyped
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
    tailing: TailOutput,
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
    """Follow a server, and print what it says, until the end, or until the target cannot be followed."""
    store = PrintedPositions(state, tailing) if state is not None else None
    follower = Follower(
        instance=name,
        clock=tailing.reactor,
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
        # What is not printed is never done, so that no position goes past it.
        return None if tailing.fact(line) else Deferred()

    if streams:
        known = StreamTable.default()
        for one in streams:
            follower.on(known.get(one) or untyped(one))(show)
    else:
        follower.on_everything(show)
    follower.on_event(lambda event: _show_event(tailing, event))
    service = connect(
        tailing.reactor,
        endpoint,
        follower,
        dialect=dialect,
        server_name=server_name,
        http=http,
        secret=secret,
    )

    # On a channel of Redis there is no server that greets, or that tells all streams.
    check = None if endpoint.startswith(SCHEMES) else _check(tailing, endpoint, streams, dialect)
    if check is not None:
        check.watch(follower)

    def stop() -> Any:
        if check is not None:
            check.stop()
        stopped = service.stopService()
        if store is not None:
            store.save(store.load() | follower.positions())
        return stopped

    tailing.run(service.startService, stop)


def _check(tailing: TailOutput, endpoint: str, streams: Sequence[str], dialect: Dialect) -> TargetCheck:
    def probe() -> "Deferred[bool]":
        asked = speaks_http(tailing.reactor, client_endpoint(tailing.reactor, endpoint))
        return Deferred.fromCoroutine(asked)

    tells_all = not following(dialect).pushed
    return TargetCheck(tailing, endpoint, streams=streams, tells_all=tells_all, probe=probe)


def _show_event(tailing: TailOutput, event: FollowerEvent) -> None:
    match event.kind:
        case "connected":
            tailing.say("connected")
        case "disconnected":
            tailing.say("disconnected", reason=event.text)
        case "server":
            tailing.say("server", name=event.text)
        case "position":
            tailing.say("position", stream=event.stream, writer=event.writer, token=event.token)
        case "error":
            where = {"stream": event.stream, "writer": event.writer}
            tailing.say("error", message=event.text, **{key: value for key, value in where.items() if value})
