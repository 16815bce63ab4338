"""The RESP port of a daemon: connections, a cache, and the channel that it serves while it is primary."""

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger

from synrepl.ports.access import Keyring
from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.metrics import Metrics
from synrepl.replication.broker.served_channel import ServedChannel
from synrepl.transports.resp.cache import ExpiringCache
from synrepl.transports.resp.connection import RespConnection

NOT_PRIMARY: Final = "this daemon is not primary, and serves no channel: connect to the primary"


class RespServer:
    """Serves a channel to Redis clients, from `serve` to `close`; else clients are refused (LOADING)."""

    _logger = Logger()

    def __init__(self, clock: IClock, *, keys: Keyring, metrics: Metrics) -> None:
        self.channel: ServedChannel | None = None
        self.cache = ExpiringCache(clock)
        self.clock = clock
        self.connections: dict[RespConnection, None] = {}
        self.is_full: Callable[[], bool] = bool
        self.keys = keys
        self.metrics = metrics
        self.refused = 0
        """Rows and positions that were published under a name which the client's key does not have."""
        self.why_closed = NOT_PRIMARY
        self._limited_logger = LimitedLogger(self._logger, clock)

    def serve(self, channel: ServedChannel, is_full: Callable[[], bool]) -> None:
        """Serve this channel. `is_full` tells whether publishers should wait until `release`."""
        self.channel, self.is_full = channel, is_full

    def close(self, why: str = NOT_PRIMARY) -> None:
        """Serve no channel, and close all connections: clients reconnect, here or to another daemon."""
        self.why_closed = why
        for connection in list(self.connections):
            connection.close(f"LOADING {why}")
        self.channel, self.is_full = None, bool

    def committed(self) -> None:
        """The log has more on disk."""
        if self.channel is not None:
            self.channel.durable_more()

    def release(self) -> None:
        """Let publishers go on."""
        for connection in list(self.connections):
            connection.release()

    def recheck(self) -> None:
        """Close the connections of clients whose key was revoked or changed."""
        for connection in list(self.connections):
            key, access = connection.key, connection.access
            if key is not None and self.keys.named(key.name) != key:
                connection.close("NOAUTH your key was revoked or changed")
            elif key is None and access is not None and self.keys.is_required and not access.is_proven:
                connection.close("NOAUTH Authentication required.")

    def complain(self, what: str) -> None:
        """Log what a client did, not too often."""
        self._limited_logger.warn("RESP: {what}", what=what)

    def stop(self) -> None:
        """Close all connections, for good."""
        self.close("this daemon is shutting down")
        self._limited_logger.stop()

    def info(self) -> dict[str, Any]:
        """What INFO answers, and the status."""
        channel, cache = self.channel, self.cache
        return {
            "connected_clients": len(self.connections),
            "subscribers": 0 if channel is None else len(channel.subscribers),
            "publishers": 0 if channel is None else len(channel.publishers),
            "lines": 0 if channel is None else channel.lines,
            "held_back": 0 if channel is None else channel.held_back,
            "dropped": 0 if channel is None else channel.dropped,
            "demotions": 0 if channel is None else channel.demotions,
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
