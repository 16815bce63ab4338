"""Wake-ups when a database changes: by NOTIFY, and by polling as a fallback."""

import os
from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.base.tasks import Tasks
from synrepl.base.time import Backoff, Timer, doubling
from synrepl.storage.postgres_connection import PostgresAddress
from synrepl.storage.threads import ReactorThread

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

FIRST_DELAY_SECONDS: Final = 0.1
LONGEST_DELAY_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 10.0
"""A connection that lasted this long resets the reconnect backoff."""


class Wakeups:
    """Calls `on_wake`, in the reactor's thread, when the database may have changed.

    That is after notifications on `channel` (once for all that arrived together), after each connect (earlier
    notifications are lost), and at least every `poll_seconds`, connected or not. The payload of a
    notification is ignored.

    Connections are made in a separate thread; `jitter` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        reactor: Any,
        url: str,
        channel: str,
        on_wake: Callable[[], object],
        poll_seconds: float,
        *,
        jitter: Callable[[], float] = random,
        logger: Logger | None = None,
    ) -> None:
        self._reactor = reactor
        self._address = PostgresAddress(url, what="synrepl-wakeups")
        self._channel = channel
        self._on_wake = on_wake
        self._poll_seconds = poll_seconds
        self._thread = ReactorThread(reactor, "wake-ups")
        self._logger = logger if logger is not None else Logger()
        self._tasks = Tasks(self._logger, "wake-ups")
        # None while no notifications arrive: polling goes on.
        self._socket: _Socket | None = None
        self._poll = Timer(reactor, self._wake)
        self._retry = Timer(reactor, self._connect_soon)
        # Jitter spreads the reconnects of many processes when the server comes back.
        self._backoff = Backoff(
            doubling(FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS), jitter=lambda: 0.5 + jitter() / 2
        )
        self._connected_at = 0.0
        self._is_logged = False
        self._is_running = False

    def start(self) -> None:
        """Start waking. Idempotent."""
        if not self._is_running:
            self._is_running = True
            self._poll.restart(self._poll_seconds)
            self._connect_soon()

    async def stop(self) -> None:
        """Stop waking; done when the connection is closed and the thread has ended."""
        self._is_running = False
        self._poll.stop()
        self._retry.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        # A connection under construction is closed by `_connect`.
        await self._thread.stop()

    # Waking

    def _wake(self) -> None:
        self._poll.restart(self._poll_seconds)
        try:
            self._on_wake()
        except Exception:
            self._logger.failure("the wake-up handler failed")

    # The connection

    def _connect_soon(self) -> None:
        self._tasks.start(self._connect(), "connecting")

    async def _connect(self) -> None:
        try:
            database = await self._thread.run(self._listen)
        except Exception as error:
            if self._is_running:
                self._lost(str(error))
            return
        if not self._is_running:
            database.close()
            return
        self._is_logged = False
        self._connected_at = self._reactor.seconds()
        self._socket = _Socket(self._reactor, database, self._wake, self._dropped)
        self._wake()

    def _listen(self) -> "Connection":
        from psycopg import sql  # an extra

        database = self._address.connect("listen")
        try:
            with self._address.map_errors("listen"):
                database.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except BaseException:
            database.close()
            raise
        return database

    def _dropped(self, why: str) -> None:
        self._socket = None
        if self._reactor.seconds() - self._connected_at >= STEADY_SECONDS:
            self._backoff.reset()
        if self._is_running:
            self._lost(why)

    def _lost(self, why: str) -> None:
        """Retry later; log once until the connection works again."""
        if not self._is_logged:
            self._is_logged = True
            self._logger.warn(
                "no notifications on PostgreSQL's channel {channel}; polling every {seconds} seconds until a"
                " reconnect: {why}",
                channel=self._channel,
                seconds=self._poll_seconds,
                why=why,
            )
        self._retry.start(self._backoff.next())


@implementer(IReadDescriptor)
class _Socket:
    """The socket of a listening connection, registered with the reactor."""

    def __init__(
        self,
        reactor: Any,
        database: "Connection",
        on_notified: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._database = database
        self._on_notified = on_notified
        self._on_lost = on_lost
        # A duplicate: libpq closes its own descriptor as soon as it finds the server gone, and the reactor
        # could not unregister a closed one.
        self._descriptor = os.dup(database.fileno())
        reactor.addReader(self)

    def fileno(self) -> int:
        """The descriptor; it stays the same until the reactor has unregistered it."""
        return self._descriptor

    def logPrefix(self) -> str:
        return "wake-ups"

    def doRead(self) -> None:
        """Read all notifications that have arrived, and wake once."""
        import psycopg  # an extra

        connection = self._database.pgconn
        is_notified = False
        try:
            connection.consume_input()
            while connection.notifies() is not None:
                is_notified = True
            why = "" if connection.status == psycopg.pq.ConnStatus.OK else "the connection was closed"
        except psycopg.Error as error:
            why = " ".join(str(error).split())
        if why:
            self._end(why)
        elif is_notified:
            self._on_notified()

    def connectionLost(self, reason: Failure) -> None:
        self._end(reason.getErrorMessage())

    def close(self) -> None:
        """Unregister the socket and close it. Idempotent."""
        if self._descriptor >= 0:
            self._reactor.removeReader(self)
            os.close(self._descriptor)
            self._descriptor = -1
            self._database.close()

    def _end(self, why: str) -> None:
        if self._descriptor >= 0:
            self.close()
            self._on_lost(why)
