"""Half of a link: keeps one of its two connections, which subscribe and publish."""

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.ports.time import Backoff, Timer, doubling
from synrepl.transports.redis.attempt import Attempt
from synrepl.transports.redis.connections import PublisherConnection, RedisConnection, SubscriberConnection

if TYPE_CHECKING:
    from synrepl.transports.redis.link import RedisLink

__all__ = ["HalfLink"]

FIRST_DELAY_SECONDS: Final = 0.2
LAST_DELAY_SECONDS: Final = 5.0
STABLE_SECONDS: Final = 5.0
"""A connection that has responded for this time is stable: the backoff resets."""
STOP_SECONDS: Final = 5.0
"""Time between our close and the abort of the connection, for a peer that does not read the rest."""

Working = TypeVar("Working", bound=SubscriberConnection | PublisherConnection)


class HalfLink(Generic[Working]):
    """Keeps one of the two connections open; reconnects with backoff.

    This is not a ReconnectingClientFactory: the address is resolved again for each attempt, and the backoff
    resets only after a connection was stable, not when a socket opens.
    """

    def __init__(self, link: "RedisLink", connection_type: type[Working]) -> None:
        self.current: Working | None = None
        """The connection, if it is established."""
        self.why = ""
        self._link = link
        self._connection_type = connection_type
        self._clock = link.clock
        self._open: set[RedisConnection] = set()
        """Every open connection in any state; each attempt has one at a time."""
        self._connecting: Deferred[None] | None = None
        self._timer = Timer(link.clock, self._connect_once)
        # Jitter: otherwise all processes would reconnect at once to a restarted Redis.
        self._backoff = Backoff(
            doubling(FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS), jitter=lambda: link.chance.uniform(0.5, 1.0)
        )
        self._connects = 0
        self._connected_at = 0.0
        self._stopped = True
        self._close_waiters: list[Deferred[None]] = []

    # -- called by the link --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to connect."""
        if self._stopped:
            self._stopped = False
            self._backoff.reset()
            self._connect_once()

    def stop(self) -> "Deferred[None]":
        """Close all connections and stop reconnecting. Fires when they are closed."""
        self._stopped = True
        self._timer.stop()
        if self._connecting is not None:
            self._connecting.cancel()
        abort_timer = None
        for connection in list(self._open):
            if isinstance(connection, PublisherConnection) and connection.is_up:
                connection.close()
                abort_timer = Timer(self._clock, connection.transport.abortConnection)
                abort_timer.start(STOP_SECONDS)
            else:
                connection.end("closed by this process")
        self.current = None
        if not self._open:
            return defer.succeed(None)
        closed: Deferred[None] = Deferred()
        if abort_timer is not None:
            closed.addCallback(lambda _: abort_timer.stop())
        self._close_waiters.append(closed)
        return closed

    def drop(self, why: str) -> None:
        """Abort all connections."""
        for connection in list(self._open):
            connection.end(why)

    def reset_delay(self) -> None:
        """Reset the backoff: the connection works."""
        if self.current is not None:
            self._backoff.reset()

    # -- connecting ----------------------------------------------------------------------------------------

    def _connect_once(self) -> None:
        attempt = Attempt(self._link, self._on_open)
        self._connecting = Deferred.fromCoroutine(self._connect(attempt))
        self._connecting.addErrback(self._failed, attempt)

    async def _connect(self, attempt: Attempt) -> None:
        self._on_connected(await attempt.connect(self._connection_type))

    def _on_open(self, connection: RedisConnection) -> None:
        connection.on_lost = self._lost
        self._open.add(connection)

    def _on_connected(self, connection: Working) -> None:
        self._connecting = None
        self.current = connection
        self.why = ""
        self._connected_at = self._clock.seconds()
        self._connects += 1
        self._link.changed(again=self._connects > 1)
        connection.start_watching()
        connection.report_up()

    def _failed(self, failure: Failure, attempt: Attempt) -> None:
        """Handle a failed attempt."""
        self._connecting = None
        why = attempt.describe(failure)
        for connection in list(self._open):
            connection.end(why)
        # If the member raised in `report_up`, `_lost` handles the rest.
        if self._stopped or self.current is not None:
            return
        self.why = why
        self._retry()
        self._link.member.unreachable(why)

    def _lost(self, connection: RedisConnection) -> None:
        """Handle the loss of a connection in any state."""
        self._open.discard(connection)
        current = self.current
        if current is not None and connection is current:
            self.current = None
            self.why = connection.why
            if connection.received_at - self._connected_at >= STABLE_SECONDS:
                self._backoff.reset()
            if not self._stopped:
                self._link.changed()
                # First, so that an error of the member does not prevent the retry.
                self._retry()
                current.report_down()
        if not self._open:
            waiters, self._close_waiters = self._close_waiters, []
            for waiter in waiters:
                waiter.callback(None)

    def _retry(self) -> None:
        self._timer.restart(self._backoff.next())
