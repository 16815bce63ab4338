"""The table of rights: what each operation takes of a peer, whichever way it comes in.

An operation is declared once, with its right and its streams: a route of the HTTP API, a parameter of one, or
a command of a follower or a replica. Every way in asks `missing_right` before it stores, changes or tells
anything.
"""

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Final, NamedTuple

from synrepl.base.access import Access, Right
from synrepl.base.run_owners import RunOwners
from synrepl.http_api.route import Parameter, Route
from synrepl.wire.grammar import CLIENT, Command
from synrepl.wire.scope import ALL_STREAMS, NAMED_STREAMS, NO_STREAM, SEEN_STREAMS
from synrepl.wire.text import printable


class Operation(NamedTuple):
    """What a peer may ask for. `right` is what it takes (None: nothing, not even a key).

    `streams` is a word of `synrepl.wire.scope`, or the name of the one stream that it concerns.
    """

    name: str
    right: Right | None
    streams: str


NAME_OWNERS: Final = Operation("name any owner of an idempotency key", Right.ADMINISTER, NO_STREAM)
"""What a replica may do that forwards facts: the receipt then belongs to the peer which it names."""


def missing_right(access: Access, operation: Operation, named: Iterable[str] | None = ()) -> str:
    """Return why the peer may not do this, and what to do about it; empty if it may.

    `named` are the streams that the request names (None: all); they matter if the operation concerns these.
    """
    if operation.right is None:
        return ""
    streams = named if operation.streams == NAMED_STREAMS else _fixed_streams(operation.streams)
    return _lacks(access, operation.right) or _hides(access, streams)


def is_told(seen: frozenset[str] | None, command: type[Command]) -> bool:
    """Whether a peer that may see these streams (None: all) is told commands of this type."""
    if seen is None:
        return True
    streams = _fixed_streams(command.STREAM)
    return streams is not None and seen.issuperset(streams)


def route_operation(route: Route) -> Operation:
    """Return the operation of a route. If its path has a stream, that is one that the request names."""
    return _route_operation(route.method, route.path, route.right, route.stream)


@cache
def _route_operation(method: str, path: str, right: str | None, stream: str) -> Operation:
    needed = None if right is None else Right(right)
    return Operation(f"{method} {path}", needed, NAMED_STREAMS if "{stream}" in path else stream)


def parameter_operation(route: Route, parameter: Parameter) -> Operation:
    """Return the operation of a parameter that takes a right of its own."""
    return Operation(f"{route.method} {route.path}?{parameter.name}", Right(parameter.right), route.stream)


@lru_cache
def command_operation(command: type[Command]) -> Operation:
    """Return the operation of a command that followers or replicas send.

    Raises `ValueError` for a command that its declaration gives no right.
    """
    right = None if command.RIGHT is None else Right(command.RIGHT)
    return Operation(command.NAME, right, command.STREAM)


@lru_cache(maxsize=256)
def command_refusals(access: Access) -> dict[type[Command], str]:
    """Return the commands of followers that the peer may not send, with the reasons."""
    from synrepl.wire.commands import declared_commands

    return {
        command: why
        for command in declared_commands()
        if command.SENT_BY & CLIENT and (why := missing_right(access, command_operation(command)))
    }


def command_refusal(access: Access, command: Command, runs: RunOwners | None) -> str:
    """Return why the peer may not send this command; empty if it may.

    A key with instances speaks for these alone, and for the runs of workers that it named first, which are
    noted in `runs` (None: the peer passes on what others say, and knows whose a run is). A command of an old
    release, which names nobody, speaks for the connection.
    """
    if why := command_refusals(access).get(type(command)):
        return why
    if runs is not None and command.RUN and (run := getattr(command, command.RUN)):
        # The end of a run that nobody has named since the start of this daemon proves nothing.
        is_own = runs.is_of(run, access.name) if command.ENDS_RUN else runs.claim(run, access.name)
        return "" if is_own or access.instances is None else _speaks_for_another(access, f"the run {run}")
    if access.instances is not None and command.INSTANCE:
        named = getattr(command, command.INSTANCE)
        name = named[0] if isinstance(named, list) else named
        if name and name not in access.instances:
            return _speaks_for_another(access, str(name))
    return ""


def _speaks_for_another(access: Access, whom: str) -> str:
    return f"the key {access.name} may not speak for {printable(whom, limit=100)}"


def operations() -> Iterator[Operation]:
    """Return the whole table: routes, parameters with rights of their own, then commands, then the rest."""
    from synrepl.declarations import all_commands, all_routes

    for route in all_routes():
        yield route_operation(route)
        yield from (parameter_operation(route, one) for one in route.query if one.right)
    for command in all_commands():
        if command.SENT_BY & CLIENT:
            yield command_operation(command)
    yield NAME_OWNERS


def _fixed_streams(word: str) -> Iterable[str] | None:
    """Return the streams that an operation always concerns (None: all), by its word."""
    if word in (NO_STREAM, NAMED_STREAMS, SEEN_STREAMS):
        return ()
    return None if word == ALL_STREAMS else (word,)


def _lacks(access: Access, right: Right) -> str:
    if right in access.rights:
        return ""
    if access.withheld:
        return access.withheld
    if access.is_proven:
        whose = f"the key {access.name}" if access.name else "this key"
        return f"{whose} lacks the right {right}: {_way_out(access, 'add it in keys_file')}"
    return (
        f"this takes the right {right}, which a peer on another machine has only with a secret:"
        " configure secret_file or keys_file"
    )


def _hides(access: Access, streams: Iterable[str] | None) -> str:
    if access.streams is None:
        return ""
    hidden = None if streams is None else sorted(set(streams) - access.streams)
    if hidden == []:
        return ""
    which = "all streams" if hidden is None else f"the stream {hidden[0]}"
    way_out = _way_out(access, "change its streams in keys_file")
    return f"the key {access.name} may not see {which}: {way_out}"


def _way_out(access: Access, of_file: str) -> str:
    return "make another with synrepl keys add" if access.is_issued else of_file
