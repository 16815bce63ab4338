"""What is given to a replica and belongs to the primary: made when the first of it comes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from synrepl.daemon.replication import ReplicationServices
from synrepl.errors import NotConnected
from synrepl.replication.roles import REPLICA, ReadOnlyHere
from synrepl.storage import Log
from synrepl.streams.stream import Stream
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.api_error import ApiError

if TYPE_CHECKING:
    from synrepl.transports.http.log_waiters import LogWaiters
    from synrepl.transports.http.write_forwarder import WriteForwarder

__all__ = ["LazyWriteForwarder"]


class LazyWriteForwarder:
    """Passes facts on while this daemon is a replica (`api.IRelaying`)."""

    def __init__(self, log: Log, reactor: Any, copies: ReplicationServices, credentials: Credentials) -> None:
        self._log = log
        self._reactor = reactor
        self._copies = copies
        self._credentials = credentials
        self._made: WriteForwarder | None = None

    @property
    def is_active(self) -> bool:
        """Whether facts go to the primary."""
        return self._copies.roles.role == REPLICA

    async def answer(self, request: Any, stream: Stream[Any], body: bytes, waiting: "LogWaiters") -> bytes:
        """What the primary answers to facts that were posted here, once they are here too.

        Raises `ReadOnlyHere` while this replica is stopped.
        """
        self._check(stream.name)
        return await self._relaying().answer(request, stream, body, waiting)

    async def append(self, stream: str, facts: Sequence[bytes]) -> None:
        """A follower's facts, which nobody waits for. Raises `NotConnected`."""
        try:
            self._check(stream)
            await self._relaying().append(stream, facts)
        except (ApiError, ReadOnlyHere) as error:
            raise NotConnected(str(error)) from error

    def _check(self, stream: str) -> None:
        if (stopped := self._copies.roles.refuses_passing(stream)) is not None:
            raise stopped

    async def stop(self) -> None:
        """Give up what is on its way."""
        if self._made is not None:
            await self._made.stop()

    def _relaying(self) -> "WriteForwarder":
        if self._made is None:
            from synrepl.transports.http.client import HttpAppender
            from synrepl.transports.http.write_forwarder import WriteForwarder

            self._made = WriteForwarder(
                self._log,
                self._reactor,
                lambda url: HttpAppender(self._reactor, url, secret=self._credentials),
                lambda: self._copies.roles.primary.http or None,
                is_active=lambda: self.is_active,
                file_here=self._copies.files.here,
                logger=Logger(namespace="synrepl.relaying"),
            )
        return self._made
