"""What followers send up."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.logger import Logger

from synrepl.errors import RemoteProtocolError, RowError
from synrepl.ports.interfaces import IClock, ILog
from synrepl.ports.tasks import Tasks
from synrepl.replication.syncing import SyncingUsers
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import (
    ClearUserSync,
    Error,
    FederationAck,
    InvalidateCache,
    LockReleased,
    Name,
    Ping,
    RemoteServerUp,
    RemovePusher,
    Sync,
    UserIp,
    UserSync,
)
from synrepl.wire.declare import Command

__all__ = ["Upstream"]

C = TypeVar("C", bound=Command)


class Upstream:
    """Does with followers' commands what the daemon itself can, and hands them to who subscribed.

    INVALIDATE_CACHE becomes a fact of ``caches``; FEDERATION_ACK lets memory go; USER_SYNC is kept in
    `syncing`. REMOTE_SERVER_UP is passed on by the publisher.
    """

    _logger = Logger()

    def __init__(self, log: ILog, table: StreamTable, clock: IClock, *, instance: str) -> None:
        self.syncing = SyncingUsers(clock)
        self._log = log
        self._table = table
        self._clock = clock
        self._instance = instance
        self._tasks = Tasks(self._logger)
        self._acknowledged: dict[str, int] = {}
        self._subscribers: defaultdict[type[Command], list[Callable[[Any], None]]] = defaultdict(list)

    def on_command(self, command: type[C], subscriber: Callable[[C], None]) -> None:
        """Call `subscriber` with every command of this type that a follower sends."""
        self._subscribers[command].append(subscriber)

    def received(self, connection: object, command: Command) -> None:
        """A follower sent this. Raises RemoteProtocolError if it makes no sense."""
        match command:
            case UserSync():
                self.syncing.user_sync(connection, command)
            case ClearUserSync():
                self.syncing.clear(command)
            case InvalidateCache():
                self._invalidate(command)
            case FederationAck():
                self._acknowledge(command)
            case Error():
                self._logger.warn("follower reports: {text}", text=command.text)
            case Name() | Ping() | Sync() | UserIp() | RemovePusher() | RemoteServerUp() | LockReleased():
                pass
            case _:
                raise AssertionError(f"nobody takes {command.NAME}")
        for subscriber in self._subscribers[type(command)]:
            try:
                subscriber(command)
            except Exception:
                self._logger.failure("a subscriber to {name} failed", name=command.NAME)

    def stop(self) -> None:
        """Forget what is under way."""
        self.syncing.stop()
        self._tasks.cancel_all()

    def _invalidate(self, command: InvalidateCache) -> None:
        row = [command.cache, command.keys, int(self._clock.seconds() * 1000)]
        try:
            fact = self._table["caches"].canonical_fact([row])
        except RowError as error:
            raise RemoteProtocolError(f"cannot parse INVALIDATE_CACHE: {error}") from error
        self._tasks.start(self._append(fact), "storing an invalidation")

    async def _append(self, fact: bytes) -> None:
        await self._log.append("caches", self._instance, [fact])

    def _acknowledge(self, command: FederationAck) -> None:
        """All federation senders have the stream up to the lowest token that any of them has."""
        self._acknowledged[command.instance] = command.token
        if "federation" in self._table:
            self._log.forget("federation", min(self._acknowledged.values()))
