"""Commands over HTTP: those that replicas forward."""

from typing import Any, Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.ports.access import Right
from synrepl.replication.publisher import Publisher
from synrepl.transports.http.answers import Refused
from synrepl.transports.http.posting import read_said

__all__ = ["MAX_FORWARDED_BYTES", "Commands", "ForwardedCommands", "TakenCommands"]

MAX_FORWARDED_BYTES: Final = 1024 * 1024
"""Of lines in one request; as JSON they may be a few times as long."""

MAX_BODY: Final = 8 * MAX_FORWARDED_BYTES


class ForwardedCommands(msgspec.Struct, frozen=True):
    """What followers of a replica sent up: its numbers and lines, in order, under the replica's `origin`."""

    origin: str
    commands: list[tuple[int, str]] = []


class TakenCommands(msgspec.Struct, frozen=True):
    """All commands of this origin up to `number` were taken; those before `since` are not known here."""

    number: int
    since: int


class Commands:
    """Takes what replicas forward."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    async def take(self, request: Any) -> bytes:
        """``POST /v1/commands``: each command is acted on as if it had been said here, once."""
        said = read_said(ForwardedCommands, request, MAX_BODY)
        try:
            number, since = self._publisher.forwarded.take(
                said.origin,
                [(number, line.encode(errors="replace")) for number, line in said.commands],
                source=said.origin,
                may_write=not request.access.lacks(Right.WRITE),
            )
        except RemoteProtocolError as error:
            raise Refused(400, "bad_request", error.why) from error
        return msgspec.json.encode(TakenCommands(number, since))
