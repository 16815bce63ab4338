"""The RESP port of a daemon: its connections, its cache, and the channel that it serves."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger

from synrepl.base.access import Keyring
from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.base.problems import Problem
from synrepl.base.turn_queue import TurnQueue
from synrepl.channel.resp.cache import ExpiringCache
from synrepl.channel.resp.client import MAX_LISTED, RespClient
from synrepl.channel.resp.connection import RespConnection
from synrepl.channel.resp_codec import PushEncoder
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.served_link import ServedLink

if TYPE_CHECKING:
    from synrepl.channel.uplink import ChannelUplink

ALONE_SECONDS: Final = 5.0
"""How long a replica's port may be without the channel of an upstream before that is a problem."""

MAX_HELD: Final = 64 * 1024 * 1024
"""The most bytes that all clients together may have sent of requests and batches that are not complete."""

OVERFULL_SECONDS: Final = 60.0
"""How long the status says that a client was disconnected for that."""

OVERFULL: Final = (
    f"clients of the RESP port had more than {MAX_HELD // 1024**2} MiB of unfinished requests together: of"
    " the key with most of it, the one that had most was disconnected"
)

ALONE: Final = (
    "what is published at the RESP port reaches no log and no other daemon: the upstream is away, has no"
    " RESP port, or gives this replica no right to write"
)


class RespServer:
    """Serves a channel to Redis clients while it is wired with one; else they are refused (LOADING).

    `addresses` are those of the settings.
    """

    _logger = Logger()

    def __init__(
        self, clock: IClock, *, keys: Keyring, metrics: Metrics, addresses: Sequence[str] = ()
    ) -> None:
        self.use(None)
        self.cache = ExpiringCache(clock)
        self.client_ids: Iterator[int] = count(1)
        self.clock = clock
        self.connections: dict[RespConnection, None] = {}
        self.keys = keys
        self.pushes = PushEncoder()
        """The messages of all who speak RESP3."""
        self.metrics = metrics
        self.refused = 0
        """Rows and positions that were published under a name which the client's key does not have."""
        self.why_closed = "this daemon is starting"
        self.queue = TurnQueue(clock)
        """Its own turns: processes of the homeserver do not wait behind the lines of other ports."""
        self.held_bytes = 0
        """The bytes of requests and batches that are not complete, of all clients."""
        self._overfull_since: float | None = None
        self._overfull_at = 0.0
        self._addresses = addresses
        self._since = clock.seconds()
        self._was_alone = False
        self._limited_logger = LimitedLogger(self._logger, clock)

    def use(
        self,
        channel: ServedChannel | None,
        *,
        link: ServedLink | None = None,
        uplink: "ChannelUplink | None" = None,
    ) -> None:
        """Serve this channel from now on; None: none, after `close`.

        `link` takes what is published into the log, on a primary. `uplink` is the way to the channel of the
        upstream, on a replica.
        """
        self.channel, self.link, self.uplink = channel, link, uplink

    def close(self, why: str) -> None:
        """Serve no channel, and close all connections: clients reconnect, here or to another daemon."""
        self.why_closed = why
        for connection in list(self.connections):
            connection.close(f"LOADING {why}")
        self.use(None)

    def clients(self) -> Iterator[RespClient]:
        """All clients, in the order in which they came."""
        return (one.client for one in self.connections)

    def is_full(self) -> bool:
        """Whether publishers should wait until `release`."""
        return self.link is not None and self.link.is_full

    def committed(self) -> None:
        """The log has more on disk."""
        if self.channel is not None:
            self.channel.durable_more()

    def release(self) -> None:
        """Let publishers go on."""
        for connection in list(self.connections):
            connection.release()

    def recheck(self) -> None:
        """Close connections of clients whose key or certificate was revoked or changed, or that need one."""
        for connection in list(self.connections):
            client = connection.client
            if self.keys.has_lost(client.access, client.key, connection.certified_name):
                connection.close("NOAUTH your key was revoked or changed")

    def account(self, connection: RespConnection) -> None:
        """Count what this connection holds.

        If all hold too much, close the connection that holds most of the key whose connections hold most: who
        fills the room has to make it again.
        """
        held = connection.held_bytes
        self.held_bytes += held - connection.counted
        connection.counted = held
        if self.held_bytes <= MAX_HELD:
            return
        self._overfull_at = self.clock.seconds()
        if self._overfull_since is None:
            self._overfull_since = self._overfull_at
        by_key: Counter[str] = Counter()
        for one in self.connections:
            by_key[one.client.key_name] += one.counted
        largest = max(self.connections, key=lambda one: (by_key[one.client.key_name], one.counted))
        self.complain(f"closing {largest.client.peer}: {OVERFULL}")
        largest.close(f"ERR {OVERFULL}")

    def complain(self, what: str) -> None:
        """Log what a client did, not too often."""
        self._limited_logger.warn("RESP: {what}", what=what)

    def stop(self) -> None:
        """Close all connections, for good."""
        self.close("this daemon is shutting down")
        self.queue.stop()
        self._limited_logger.stop()

    @property
    def is_alone(self) -> bool:
        """Whether this is the port of a replica that cannot reach the channel of its upstream."""
        return self.uplink is not None and not self.uplink.is_connected

    def problems(self) -> list[Problem]:
        """A port that reaches no log, clients that hold too much, and a channel that is full."""
        now = self.clock.seconds()
        if self.is_alone is not self._was_alone:
            self._was_alone, self._since = self.is_alone, now
        is_problem = self.is_alone and now - self._since >= ALONE_SECONDS
        found = [Problem(ALONE, self._since)] if is_problem else []
        if self._overfull_since is not None and now < self._overfull_at + OVERFULL_SECONDS:
            found.append(Problem(OVERFULL, self._overfull_since))
        else:
            self._overfull_since = None
        return found if self.channel is None else [*found, *self.channel.limits.problems()]

    def status(self) -> dict[str, Any]:
        """The port's part of the status, on a daemon of any role."""
        uplink, link = self.uplink, self.link
        why = ALONE if self.is_alone else ""
        if self.channel is None:
            why = self.why_closed
        return {
            "address": ", ".join(self._addresses),
            "connected": not why,
            "why": why,
            **self.info(),
            "clients": [one.describe() for one in islice(self.clients(), MAX_LISTED)],
            "upstream": None
            if uplink is None
            else {
                "overflows": uplink.overflows,
                "expired": uplink.expired,
                "too_long": uplink.too_long,
            },
            "messages_refused": 0 if link is None else link.messages_refused,
            "interruptions": 0 if link is None else link.interruptions,
        }

    def info(self) -> dict[str, Any]:
        """What INFO answers, and the status."""
        channel, cache = self.channel, self.cache
        return {
            "connected_clients": len(self.connections),
            "subscribers": 0 if channel is None else len(channel.subscribers),
            "publishers": 0 if channel is None else sum(not one.is_own for one in channel.publishers),
            "lines": 0 if channel is None else channel.lines,
            "held_back": 0 if channel is None else channel.held_back,
            "dropped": 0 if channel is None else channel.dropped,
            "demotions": 0 if channel is None else channel.demotions,
            "overdue": 0 if channel is None else channel.overdue,
            "not_durable": 0 if channel is None else channel.refused,
            "refused": self.refused,
            "cache_keys": len(cache),
            "cache_bytes": cache.size,
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
            "cache_evicted": cache.evicted,
        }


class RespFactory(Factory):
    """Builds the connections of one listener."""

    noisy = False

    def __init__(self, server: RespServer) -> None:
        self._server = server

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        connection = RespConnection(self._server)
        connection.factory = self
        return connection

    def logPrefix(self) -> str:
        return "RESP"
