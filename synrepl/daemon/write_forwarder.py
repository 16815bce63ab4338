"""Forwards writes posted to a replica to its primary. Created on first use."""

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
    from synrepl.replication.log_waiters import LogWaiters
    from synrepl.transports.http.write_forwarder import WriteForwarder

__all__ = ["LazyWriteForwarder"]


class LazyWriteForwarder:
    """Forwards facts while this daemon is a replica (`api.IWriteForwarder`)."""

    def __init__(
        self, log: Log, reactor: Any, replication: ReplicationServices, credentials: Credentials
    ) -> None:
        self._log = log
        self._reactor = reactor
        self._replication = replication
        self._credentials = credentials
        self._forwarder: WriteForwarder | None = None

    @property
    def is_active(self) -> bool:
        """Whether writes are forwarded to the primary."""
        return self._replication.roles.role == REPLICA

    async def answer(self, request: Any, stream: Stream[Any], body: bytes, waiters: "LogWaiters") -> bytes:
        """Forward a POST of facts. Returns the primary's answer once the facts are in the local log too.

        Raises `ReadOnlyHere` while this replica is stopped.
        """
        self._check(stream.name)
        return await self._created().answer(request, stream, body, waiters)

    async def append(self, stream: str, facts: Sequence[bytes]) -> None:
        """Forward facts that a follower sent; no response is expected. Raises `NotConnected`."""
        try:
            self._check(stream)
            await self._created().append(stream, facts)
        except (ApiError, ReadOnlyHere) as error:
            raise NotConnected(str(error)) from error

    def _check(self, stream: str) -> None:
        if (stopped := self._replication.roles.forwarding_refusal(stream)) is not None:
            raise stopped

    async def stop(self) -> None:
        """Abort writes that are under way."""
        if self._forwarder is not None:
            await self._forwarder.stop()

    def _created(self) -> "WriteForwarder":
        if self._forwarder is None:
            from synrepl.transports.http.client import HttpAppender
            from synrepl.transports.http.write_forwarder import WriteForwarder

            self._forwarder = WriteForwarder(
                self._log,
                self._reactor,
                lambda url: HttpAppender(self._reactor, url, secret=self._credentials),
                lambda: self._replication.roles.primary.http or None,
                is_active=lambda: self.is_active,
                has_file=self._replication.files.wait_for,
                logger=Logger(namespace="synrepl.relaying"),
            )
        return self._forwarder
