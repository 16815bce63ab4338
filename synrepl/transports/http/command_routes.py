"""Handlers of followers' commands: the buffer for the homeserver, and who is syncing."""

from typing import Any, Final

import msgspec

from synrepl.base.rights import is_told
from synrepl.http_api.routes import ACKNOWLEDGE_COMMANDS, COMMANDS, SYNCING
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import handles
from synrepl.wire.position import Natural64

MAX_READERS: Final = 100


class AcknowledgedCommands(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The homeserver has processed the commands up to this number, of the run of the daemon named `life`."""

    life: str
    number: Natural64


class CommandsRange(msgspec.Struct, frozen=True):
    """The commands after `trimmed_upto`, up to `head`, can be read; `life` names this run of the daemon."""

    life: str
    trimmed_upto: int
    head: int


class SyncingDevice(msgspec.Struct, frozen=True):
    """A user who is syncing with a device (None: unknown), and at how many workers."""

    user_id: str
    device_id: str | None
    workers: int


class SyncingAnswer(msgspec.Struct, frozen=True):
    """The users who are syncing."""

    users: list[SyncingDevice]


@handles(SYNCING)
async def syncing(call: Call) -> SyncingAnswer:
    """List the users who are syncing, with their devices."""
    current = call.context.publisher.follower_commands.syncing.current()
    ordered = sorted(current, key=lambda user: (user[0], user[1] or ""))
    return SyncingAnswer([SyncingDevice(*user) for user in ordered])


@handles(COMMANDS)
async def read(call: Call) -> bytes:
    """Return the buffer's position and the commands after a number, as lines of JSON; wait for a first one.

    Commands that concern streams which the peer may not see are left out.
    """
    buffer = call.context.publisher.follower_commands.buffer
    since = buffer.trimmed_upto if call.query["since"] is None else call.query["since"]
    wait = call.query["wait"]
    is_other_life = since > buffer.head or call.query["life"] not in (None, buffer.life)
    after = 0 if is_other_life else since
    if not is_other_life and after >= buffer.head and wait:
        if len(buffer.waiters) >= MAX_READERS:
            why = f"{MAX_READERS} requests already wait for commands: retry later"
            raise ApiError("too_many_waiting", why)
        await buffer.wait(wait)
    lines: list[Any] = [{"feed": CommandsRange(buffer.life, buffer.trimmed_upto, buffer.head)}]
    if is_other_life or after < buffer.dropped_upto:
        lines.append({"gap": {"after": since, "upto": buffer.dropped_upto, "restarted": is_other_life}})
    lines += buffer.after(after, call.query["limit"], lambda command: is_told(call.access.streams, command))
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@handles(ACKNOWLEDGE_COMMANDS)
async def acknowledge(call: Call, body: AcknowledgedCommands) -> CommandsRange:
    """Acknowledge commands up to a number, so that they are not returned again."""
    buffer = call.context.publisher.follower_commands.buffer
    if body.life != buffer.life or body.number > buffer.head:
        why = f"cannot acknowledge up to {body.number}: the feed (life {buffer.life}) ends at {buffer.head}"
        raise ApiError("bad_ack", why, retryable=False)
    buffer.acknowledge(body.number)
    return CommandsRange(buffer.life, buffer.trimmed_upto, buffer.head)
