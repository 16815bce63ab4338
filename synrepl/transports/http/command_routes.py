"""Routes of commands: those that replicas forward, and the feed for the homeserver."""

from typing import Any, Final

import msgspec

from synrepl.errors import RemoteProtocolError
from synrepl.replication.publisher import Publisher
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.append_body import read_json
from synrepl.transports.http.query import integer, seconds, word
from synrepl.wire.position import Natural64

__all__ = ["MAX_FORWARDED_BYTES", "CommandRoutes", "ForwardedCommands", "AcceptedForwards"]

MAX_FORWARDED_BYTES: Final = 1024 * 1024
"""Limit for the lines of one request; JSON escapes can make the body a few times as large."""

MAX_BODY: Final = 8 * MAX_FORWARDED_BYTES
MAX_ACK_BODY: Final = 4_096
MAX_LINES: Final = 1_000
MAX_READERS: Final = 100
MAX_WAIT_SECONDS: Final = 300.0


class ForwardedCommands(msgspec.Struct, frozen=True):
    """Commands of a replica's followers: numbers and lines, in order, under the replica's `origin`."""

    origin: str
    commands: list[tuple[int, str]] = []


class AcceptedForwards(msgspec.Struct, frozen=True):
    """Commands of this origin up to `number` were accepted; those before `since` are unknown."""

    number: int
    since: int


class AcknowledgedCommands(msgspec.Struct, frozen=True):
    """The homeserver has processed the commands up to this number, of this life of the daemon."""

    life: str
    number: Natural64


class CommandRoutes:
    """Accepts forwarded commands, and serves commands for the homeserver."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    async def take(self, request: Any) -> bytes:
        """``POST /v1/commands``: process each forwarded command once, like a follower's own."""
        body = read_json(ForwardedCommands, request, MAX_BODY)
        try:
            number, since = self._publisher.command_receiver.receive(
                body.origin,
                [(number, line.encode(errors="replace")) for number, line in body.commands],
                source=body.origin,
                access=request.access,
            )
        except RemoteProtocolError as error:
            raise ApiError(400, "bad_request", error.why) from error
        return msgspec.json.encode(AcceptedForwards(number, since))

    async def syncing(self, request: Any) -> bytes:
        """``GET /v1/syncing``: list the users who are syncing, with their devices."""
        users = [
            {"user_id": user_id, "device_id": device_id, "workers": workers}
            for user_id, device_id, workers in sorted(
                self._publisher.follower_commands.syncing.current(), key=lambda user: (user[0], user[1] or "")
            )
        ]
        return msgspec.json.encode({"users": users})

    async def read(self, request: Any) -> bytes:
        """``GET /v1/commands``: return commands after a number, as lines of JSON; wait for a first one."""
        feed = self._publisher.follower_commands.feed
        since = integer(request, "since", feed.trimmed_upto)
        limit = integer(request, "limit", MAX_LINES, lowest=1, highest=MAX_LINES)
        wait = seconds(request, "wait", highest=MAX_WAIT_SECONDS, default=0.0)
        life = word(request, "life")
        is_other_life = since > feed.head or life not in (None, feed.life)
        after = 0 if is_other_life else since
        if not is_other_life and after >= feed.head and wait:
            if feed.waiting >= MAX_READERS:
                why = f"{MAX_READERS} requests already wait for commands: retry later"
                raise ApiError(503, "too_many_waiting", why, retry_after=b"1")
            await feed.wait(wait)
        lines: list[Any] = [
            {"feed": {"life": feed.life, "trimmed_upto": feed.trimmed_upto, "head": feed.head}}
        ]
        if is_other_life or after < feed.fallen:
            lines.append({"gap": {"after": since, "upto": feed.fallen, "restarted": is_other_life}})
        lines += feed.after(after, limit)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

    async def acknowledge(self, request: Any) -> bytes:
        """``POST /v1/commands/ack``: acknowledge commands, so that they are not returned again."""
        feed = self._publisher.follower_commands.feed
        body = read_json(AcknowledgedCommands, request, MAX_ACK_BODY)
        if body.life != feed.life or body.number > feed.head:
            why = (
                f"the acknowledgement does not fit this daemon's feed: life {feed.life}, {feed.head} commands"
            )
            raise ApiError(409, "bad_ack", why)
        feed.acknowledge(body.number)
        return msgspec.json.encode({"life": feed.life, "trimmed_upto": feed.trimmed_upto, "head": feed.head})
