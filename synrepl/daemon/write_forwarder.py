"""Forwards writes posted to a replica to its primary. Created on first use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from synrepl.daemon.replication import ReplicationServices
from synrepl.errors import NotConnected
from synrepl.ports.interfaces import Appended
from synrepl.ports.response_errors import NotForwarded
from synrepl.replication.roles import REPLICA, ReadOnlyHere
from synrepl.storage import Log
from synrepl.transports.credentials import Credentials

if TYPE_CHECKING:
    from synrepl.replication.log_waiters import LogWaiters
    from synrepl.replication.write_forwarder import PostedFacts, WriteForwarder

__all__ = ["LazyWriteForwarder"]


class LazyWriteForwarder:
    """Forwards facts while this daemon is a replica (`services.IWriteForwarder`)."""

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

    def _check(self, stream: str) -> None:
        if (stopped := self._replication.roles.forwarding_refusal(stream)) is not None:
            raise stopped

    async def forward(self, posted: "PostedFacts", waiters: "LogWaiters") -> Appended:
        """Forward posted facts. Returns the primary's answer once the facts are in the local log too.

        Raises `ReadOnlyHere` while this replica is stopped.
        """
        self._check(posted.stream)
        return await self._created().forward(posted, waiters)

    async def append(self, stream: str, facts: Sequence[bytes]) -> None:
        """Forward facts that a follower sent; no response is expected. Raises `NotConnected`."""
        try:
            self._check(stream)
            await self._created().append(stream, facts)
        except (NotForwarded, ReadOnlyHere) as error:
            raise NotConnected(str(error)) from error

    async def stop(self) -> None:
        """Abort writes that are under way."""
        if self._forwarder is not None:
            await self._forwarder.stop()

    def _created(self) -> "WriteForwarder":
        if self._forwarder is None:
            from synrepl.replication.write_forwarder import WriteForwarder
            from synrepl.transports.http.append_client import HttpAppender

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
