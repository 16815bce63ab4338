"""The two halves of a link: one keeps a connection that hears, the other one that speaks."""

from typing import Any, Final, Generic, TypeVar

from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.transports.redis.attempt import Attempt
from synrepl.transports.redis.connections import PublisherConnection, RedisConnection, SubscriberConnection
from synrepl.transports.redis.interfaces import IRedisLink

__all__ = ["SubscriberLink", "PublisherLink"]

FIRST_DELAY_SECONDS: Final = 0.2
LAST_DELAY_SECONDS: Final = 5.0
PROVED_SECONDS: Final = 5.0
"""A connection that has answered for so long has proved good."""
STOP_SECONDS: Final = 5.0
"""A connection that we closed, and whose peer does not take the rest, is cut after this."""

Working = TypeVar("Working", bound=SubscriberConnection | PublisherConnection)


class HalfLink(Generic[Working]):
    """One of the two connections: opened whenever it is not there.

    Not a ReconnectingClientFactory: where to connect is asked anew each time, and the delay begins small only
    after a connection has proved good, which an open socket does not.
    """

    def __init__(self, link: IRedisLink, kind: type[Working]) -> None:
        self.current: Working | None = None
        """The connection, if it is up."""
        self.why = ""
        self._link = link
        self._kind = kind
        self._clock = link.clock
        self._open: set[RedisConnection] = set()
        """Every connection that is not lost yet, whatever its stage; of an attempt there is one at a time."""
        self._connecting: Deferred[None] | None = None
        self._timer: Any = None
        self._delay = 0.0
        self._times_up = 0
        self._up_at = 0.0
        self._stopped = True
        self._wait_for_end: list[Deferred[None]] = []

    # -- what differs --------------------------------------------------------------------------------------

    def tell_up(self) -> None:
        """Tell the member that it is there."""
        raise NotImplementedError

    def tell_down(self, why: str) -> None:
        """Tell the member that it is no more."""
        raise NotImplementedError

    # -- the link's side -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        if self._stopped:
            self._stopped = False
            self._delay = 0.0
            self._try()

    def stop(self) -> "Deferred[None]":
        """Close what is open, and try no more. Fires when it is closed."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        cut = None
        for connection in list(self._open):
            if isinstance(connection, PublisherConnection) and connection.is_up:
                connection.close()
                cut = self._clock.callLater(STOP_SECONDS, connection.transport.abortConnection)
            else:
                connection.end("closed here")
        self.current = None
        if not self._open:
            return defer.succeed(None)
        gone: Deferred[None] = Deferred()
        if cut is not None:
            gone.addCallback(lambda _: cut.cancel() if cut.active() else None)
        self._wait_for_end.append(gone)
        return gone

    def drop(self, why: str) -> None:
        """Cut what is open."""
        for connection in list(self._open):
            connection.end(why)

    def prove(self) -> None:
        """The connection, if there is one, is a good one."""
        if self.current is not None:
            self._delay = 0.0

    # -- connecting ----------------------------------------------------------------------------------------

    def _try(self) -> None:
        self._timer = None
        attempt = Attempt(self._link, self._opened)
        self._connecting = Deferred.fromCoroutine(self._connect(attempt))
        self._connecting.addErrback(self._failed, attempt)

    async def _connect(self, attempt: Attempt) -> None:
        self._came_up(await attempt.connect(self._kind))

    def _opened(self, connection: RedisConnection) -> None:
        connection.on_lost = self._lost
        self._open.add(connection)

    def _came_up(self, connection: Working) -> None:
        self._connecting = None
        self.current = connection
        self.why = ""
        self._up_at = self._clock.seconds()
        self._times_up += 1
        self._link.changed(again=self._times_up > 1)
        connection.go_up()
        self.tell_up()

    def _failed(self, failure: Failure, attempt: Attempt) -> None:
        """The attempt under way came to nothing."""
        self._connecting = None
        why = attempt.why(failure)
        for connection in list(self._open):
            connection.end(why)
        # If the member itself failed on hearing that it is up, `_lost` will see to the rest.
        if self._stopped or self.current is not None:
            return
        self.why = why
        self._retry()
        self._link.member.unreachable(why)

    def _lost(self, connection: RedisConnection) -> None:
        """A connection is no more, at whatever stage."""
        self._open.discard(connection)
        if connection is self.current:
            self.current = None
            self.why = connection.why
            if connection.heard_at - self._up_at >= PROVED_SECONDS:
                self._delay = 0.0
            if not self._stopped:
                self._link.changed()
                # First, so that a member which fails on hearing it does not keep us from trying again.
                self._retry()
                self.tell_down(connection.why)
        if not self._open:
            waiting, self._wait_for_end = self._wait_for_end, []
            for one in waiting:
                one.callback(None)

    def _retry(self) -> None:
        self._delay = min(LAST_DELAY_SECONDS, max(FIRST_DELAY_SECONDS, self._delay * 2))
        # Or all processes would come at once to a Redis that has just been started.
        self._timer = self._clock.callLater(self._delay * self._link.chance.uniform(0.5, 1.0), self._try)


class SubscriberLink(HalfLink[SubscriberConnection]):
    """The one that hears the channels."""

    def __init__(self, link: IRedisLink) -> None:
        super().__init__(link, SubscriberConnection)

    def tell_up(self) -> None:
        self.read()
        self._link.member.subscriber_up()

    def tell_down(self, why: str) -> None:
        self._link.member.subscriber_down(why)

    def read(self) -> None:
        """Read, or do not, as the link says."""
        if self.current is None or self.current.closed:
            return
        if self._link.is_reading:
            self.current.heard_at = self._clock.seconds()
            self.current.transport.resumeProducing()
        else:
            self.current.transport.pauseProducing()


class PublisherLink(HalfLink[PublisherConnection]):
    """The one that publishes."""

    def __init__(self, link: IRedisLink) -> None:
        super().__init__(link, PublisherConnection)

    def tell_up(self) -> None:
        self._link.member.publisher_up()

    def tell_down(self, why: str) -> None:
        self._link.member.publisher_down(why)
