"""All commands in the history of the wire, each declared once.

Spans are releases of Synapse, found in its source (tags v0.21.0 to v1.163.2;
docs/reference/peers.md#tcp-releases).
"""

from collections.abc import Iterator
from typing import Any, Final

from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NEWEST
from synrepl.wire.grammar import BOTH, BROKER, CLIENT, SERVER, Command, command, field
from synrepl.wire.kinds import (
    Either,
    Integer,
    JsonArray,
    JsonValue,
    MiddleText,
    RawJson,
    Rest,
    TokenOr,
    Word,
    WordOr,
)
from synrepl.wire.scope import ALL_STREAMS, SEEN_STREAMS

ANYONE = BOTH | BROKER


@command("SERVER", sent_by=SERVER)
class Server(Command, frozen=True):
    """The server's name. The client closes the connection if it expects another one."""

    server_name: str = field(Word())

    EXAMPLES = {LEGACY: "SERVER localhost:8823", CURRENT: "SERVER localhost:8823"}


@command("RDATA", sent_by=SERVER | BROKER)
class Rdata(Command, frozen=True):
    """A row of a stream. Rows that share a token are sent as a batch.

    `token` is None (``batch`` on the wire) for every row of a batch but the last. `row` is JSON text that
    the stream's row type decodes.
    """

    stream: str = field(Word())
    instance: str = field(Word(), since="1.13", default="master")
    token: int | None = field(TokenOr("batch"))
    row: bytes = field(RawJson())

    EXAMPLES = {
        LEGACY: 'RDATA typing batch ["!room:hs", ["@ada:hs"]]',
        CURRENT: 'RDATA typing worker1 54 ["!room:hs",["@ada:hs"]]',
    }


# docs/reference/peers.md#tcp-position
@command("POSITION", sent_by=SERVER | BROKER)
class Position(Command, frozen=True):
    """The writer has sent all its rows up to `token`, and has none between `prev_token` and `token`.

    `prev_token` is None if the release does not send it (before 1.22).
    """

    stream: str = field(Word())
    instance: str = field(Word(), since="1.13", default="master")
    prev_token: int | None = field(Integer(), since="1.22", default=None)
    token: int = field(Integer())

    EXAMPLES = {
        LEGACY: "POSITION events 53",
        MIDDLE: "POSITION events master 53",
        CURRENT: "POSITION events master 50 53",
    }


@command("ERROR", sent_by=BOTH, right=None)
class Error(Command, frozen=True):
    """An error message. The sender then closes the connection."""

    text: str = field(Rest(may_be_empty=True))

    EXAMPLES = {LEGACY: "ERROR server stopping", CURRENT: "ERROR ping timeout"}


@command("PING", sent_by=BOTH, right=None)
class Ping(Command, frozen=True):
    """A keepalive. A peer that has ever sent one times out when silent. The text is usually a time in ms."""

    text: str | None = field(Rest(optional=True))

    EXAMPLES = {LEGACY: "PING 1490197665618", MIDDLE: "PING", CURRENT: "PING "}


@command("NAME", sent_by=CLIENT, right=None)
class Name(Command, frozen=True):
    """The client's name, for logs."""

    name: str = field(Rest())

    EXAMPLES = {LEGACY: "NAME synapse.app.appservice", CURRENT: "NAME worker 1"}


# docs/reference/peers.md#tcp-replicate
@command("REPLICATE", sent_by=CLIENT | BROKER, right="read", stream=SEEN_STREAMS)
class Replicate(Command, frozen=True):
    """A request to follow: before 1.13 one stream, from `token` on (None: from now), since then all streams.

    Before 1.13 the stream ``ALL`` means all streams of the server. Since 1.13 a server answers with a
    POSITION of every stream; Synapse ignores the text, and its clients send only the space before it. A
    synrepl daemon also sends the declared streams that the text names, as in ``REPLICATE +packages``.
    """

    stream: str | None = field(Word(), until="1.13", default=None)
    token: int | None = field(TokenOr("NOW", any_case=True), until="1.13", default=None)
    text: str | None = field(Rest(optional=True), since="1.13", default="")

    EXAMPLES = {LEGACY: "REPLICATE events 53", MIDDLE: "REPLICATE", CURRENT: "REPLICATE "}

    @property
    def named(self) -> list[str]:
        """The streams that the text names."""
        return [word[1:] for word in (self.text or "").split() if word.startswith("+")]


# This and the other commands of followers: docs/reference/peers.md#tcp-commands
@command("USER_SYNC", sent_by=CLIENT | BROKER, right="read", stream="presence", run="instance_id")
class UserSync(Command, frozen=True):
    """A user started or stopped syncing on a worker.

    `instance_id` identifies one run of that worker (before 1.13, the connection does).
    """

    instance_id: str = field(Word(), since="1.13", default="")
    user_id: str = field(Word())
    device_id: str | None = field(WordOr("None"), since="1.92", default=None)
    is_syncing: bool = field(Either("start", "end"))
    last_sync_ms: int = field(Integer())

    EXAMPLES = {
        LEGACY: "USER_SYNC @ada:hs start 1490197670513",
        CURRENT: "USER_SYNC xyzzy @ada:hs end 1490197670513",
        NEWEST: "USER_SYNC xyzzy @ada:hs PHONE start 1490197670513",
    }


@command(
    "CLEAR_USER_SYNC",
    sent_by=CLIENT | BROKER,
    right="read",
    stream="presence",
    since="1.13",
    run="instance_id",
    ends_run=True,
)
class ClearUserSync(Command, frozen=True):
    """A worker stops: no user syncs on it any more."""

    instance_id: str = field(Word())

    EXAMPLES = {CURRENT: "CLEAR_USER_SYNC xyzzy"}


@command("FEDERATION_ACK", sent_by=CLIENT | BROKER, right="read", stream="federation", instance="instance")
class FederationAck(Command, frozen=True):
    """A federation sender has received the federation stream up to `token`."""

    instance: str = field(Word(), since="1.18", default="")
    token: int = field(Integer())

    EXAMPLES = {LEGACY: "FEDERATION_ACK 177", CURRENT: "FEDERATION_ACK federation_sender1 177"}


@command("REMOVE_PUSHER", sent_by=CLIENT, right="read", stream="pushers", until="1.29")
class RemovePusher(Command, frozen=True):
    """A push gateway rejected this push key: drop the pusher.

    Push keys may contain spaces, which the wire does not quote: the key is all text between the first and
    the last word. Peers split at every space and get such keys wrong.
    """

    app_id: str = field(Word())
    push_key: str = field(MiddleText())
    user_id: str = field(Word())

    EXAMPLES = {LEGACY: "REMOVE_PUSHER app.id push key 0 @ada:hs"}


@command("INVALIDATE_CACHE", sent_by=CLIENT, right="write", stream="caches", until="1.14")
class InvalidateCache(Command, frozen=True):
    """A cache entry that every process must drop."""

    cache: str = field(Word())
    keys: Any = field(JsonValue())

    EXAMPLES = {LEGACY: 'INVALIDATE_CACHE get_user_by_id ["@ada:hs"]'}


@command("SYNC", sent_by=BOTH, right=None, until="1.13")
class Sync(Command, frozen=True):
    """A marker for tests: when it arrives, everything sent before it has arrived."""

    text: str = field(Rest(may_be_empty=True))

    EXAMPLES = {LEGACY: "SYNC 17"}


@command("REMOTE_SERVER_UP", sent_by=ANYONE, right="read", stream="federation", since="1.9")
class RemoteServerUp(Command, frozen=True):
    """Another homeserver may be reachable again: retry it. A server forwards this to its other clients."""

    server: str = field(Word())

    EXAMPLES = {MIDDLE: "REMOTE_SERVER_UP example.org", CURRENT: "REMOTE_SERVER_UP example.org"}


@command(
    "USER_IP", sent_by=CLIENT | BROKER, right="read", stream=ALL_STREAMS, since="0.23", channel="USER_IP"
)
class UserIp(Command, frozen=True):
    """A user was active: ``[access token, ip, user agent, device, last seen in ms]``.

    0.22 wrote single words, in a form that no other release has; it is not supported.
    """

    user_id: str = field(Word())
    seen: Any = field(JsonArray(5))

    EXAMPLES = {
        LEGACY: 'USER_IP @ada:hs ["secret", "127.0.0.1", "curl", "PHONE", 1490197670513]',
        CURRENT: 'USER_IP @ada:hs ["secret","127.0.0.1","curl",null,1490197670513]',
    }

    def __repr__(self) -> str:
        # The access token is a secret and must not reach a log.
        return f"UserIp(user_id={self.user_id!r}, seen=...)"


@command("LOCK_RELEASED", sent_by=ANYONE, right="read", stream=ALL_STREAMS, since="1.90", instance="lock")
class LockReleased(Command, frozen=True):
    """A lock was released: ``[instance, lock name, key]``."""

    lock: Any = field(JsonArray(3))

    EXAMPLES = {NEWEST: 'LOCK_RELEASED ["worker1","purge","!room:hs"]'}


@command("NEW_ACTIVE_TASK", sent_by=BROKER, since="1.92")
class NewActiveTask(Command, frozen=True):
    """A background task became active. Redis only."""

    task_id: str = field(Word())

    EXAMPLES = {NEWEST: "NEW_ACTIVE_TASK abcdef"}


@command("CANCEL_TASK", sent_by=BROKER, since="1.146")
class CancelTask(Command, frozen=True):
    """A background task was cancelled. Redis only."""

    task_id: str = field(Word())

    EXAMPLES = {NEWEST: "CANCEL_TASK abcdef"}


# docs/reference/peers.md#tcp-extension
@command("EPOCH", sent_by=SERVER)
class EpochNotice(Command, frozen=True):
    """The epochs of the server's log (`extension.EpochMark`). Only from synrepl to synrepl.

    Everything that was sent before is part of the log in its present epoch.
    """

    mark: str = field(Word())

    EXAMPLES = {CURRENT: "EPOCH 5f1c:2.1200.1490197670513"}


@command("REWIND", sent_by=SERVER)
class Rewind(Command, frozen=True):
    """The server's log has only the writer's facts up to `token` in common with the log that was followed.

    Sent before EPOCH to a follower of an epoch that ended, and when an epoch begins: what the follower has
    beyond the token is lost. Only from synrepl to synrepl.
    """

    stream: str = field(Word())
    instance: str = field(Word())
    token: int = field(Integer(least=0))

    EXAMPLES = {CURRENT: "REWIND receipts master 54"}


@command("MOVED", sent_by=SERVER)
class Moved(Command, frozen=True):
    """This server must not be followed any more, or not now. Only from synrepl to synrepl.

    `code` says why (``fenced``, ``stopped``, ``stopping``, ``not_ready``, ``other_epoch``). `native` and
    `http` are the addresses of the primary, as far as the server knows them.
    """

    code: str = field(Word())
    native: str | None = field(WordOr("-"))
    http: str | None = field(WordOr("-"))

    EXAMPLES = {CURRENT: "MOVED fenced tcp:paris:9092 http://paris:9093"}


def declared_commands() -> Iterator[type[Command]]:
    """The commands of this module, in their order."""
    for value in globals().values():
        if isinstance(value, type) and issubclass(value, Command) and value is not Command:
            yield value


FORWARDED: Final[tuple[type[Command], ...]] = tuple(
    made
    for made in tuple(declared_commands())
    if made.SENT_BY & CLIENT and made not in (Error, Ping, Name, Replicate, Sync)
)
"""Commands of followers that are meant for the homeserver or for all processes, not for the connection."""

FOR_ALL_PROCESSES: Final = tuple(made for made in FORWARDED if made.SENT_BY & BROKER)
"""Commands of followers that Redis carries, so that they reach all processes."""

FROM_ALL_PROCESSES: Final = tuple(made for made in FOR_ALL_PROCESSES if made.SENT_BY & SERVER)
"""Commands for all processes that a server passes on to its followers."""
