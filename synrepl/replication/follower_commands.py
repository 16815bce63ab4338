"""What followers send up."""

import random
import string
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from twisted.logger import Logger

from synrepl.errors import RemoteProtocolError, ReplicationError, RowError
from synrepl.ports.interfaces import IClock, ILog
from synrepl.ports.limited_logger import LimitedLogger
from synrepl.ports.tasks import Tasks
from synrepl.replication.command_feed import CommandFeed
from synrepl.replication.command_forwarder import FORWARDED, CommandOrigin
from synrepl.replication.federation_acks import FederationAcks
from synrepl.replication.presence import SyncingUsers
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
from synrepl.wire.grammar import Command

__all__ = ["FollowerCommands"]

C = TypeVar("C", bound=Command)

UPWARD: Final = (UserSync, ClearUserSync, FederationAck, UserIp, RemoteServerUp, LockReleased)
"""What followers say to all processes."""


class Carrier(Protocol):
    """Who passes commands on to the process above this one."""

    @property
    def is_active(self) -> bool:
        """Whether there is such a process."""

    def tell(self, command: Command) -> bool:
        """Pass this on, or hold it until that can be done. False if it is dropped."""


class FollowerCommands:
    """Does with followers' commands what the daemon itself can, and hands them to who subscribed.

    INVALIDATE_CACHE becomes a fact of ``caches``; FEDERATION_ACK lets memory go; USER_SYNC is kept in
    `syncing`. REMOTE_SERVER_UP is passed on by the publisher. Where there are processes above this one, on a
    shared channel, they are told what concerns them (`on_upward`). A primary, or a server, that this daemon
    follows is told all that followers send up (`carry`). `dropped` hears of what it could not be told. Where
    nobody is told, the homeserver may read it (`feed`).
    """

    _logger = Logger()

    def __init__(
        self,
        log: ILog,
        table: StreamTable,
        clock: IClock,
        *,
        instance: str,
        dropped: Callable[[str], None] = lambda name: None,
        unread: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.syncing = SyncingUsers(clock)
        self._log = log
        self._table = table
        self._clock = clock
        self._instance = instance
        self.elsewhere: Callable[[str, Sequence[bytes]], Awaitable[None]] | None = None
        """Where facts go that are not added here just now; None while they are."""
        self._tasks = Tasks(self._logger)
        self._limited = LimitedLogger(self._logger, clock)
        self._acks = FederationAcks(clock)
        self._forgotten: int | None = None
        self._upward: list[Callable[[Command], None]] = []
        self._carriers: list[Carrier] = []
        self._dropped = dropped
        self.feed = CommandFeed(clock, unread)
        self._lives: dict[object, str] = {}
        self._subscribers: defaultdict[type[Command], list[Callable[[Any], None]]] = defaultdict(list)

    def on_command(self, command: type[C], subscriber: Callable[[C], None]) -> None:
        """Call `subscriber` with every command of this type that a follower sends."""
        self._subscribers[command].append(subscriber)

    def on_upward(self, subscriber: Callable[[Command], None]) -> None:
        """Call `subscriber` with what a follower sends up for all processes, as the newest release says it.

        What a follower's release does not name is given a name here: each connection that does not say which
        life of a worker it speaks for is one, and ends with the connection.
        """
        self._upward.append(subscriber)

    def carry(self, carrier: Carrier) -> None:
        """Have this one told what followers send up, named as for `on_upward`. When a connection ends, the
        workers that it spoke for end there too."""
        self._carriers.append(carrier)

    def carry_no_more(self, carrier: Carrier) -> None:
        """The reverse."""
        self._carriers.remove(carrier)

    def offer(self, command: Command) -> None:
        """Let the homeserver read this, which was acted on here before, and was passed on to nobody."""
        self._carry(command)

    def said(self) -> Iterator[Command]:
        """Who is syncing at followers of this daemon, as it would be said up now."""
        for connection, command in self.syncing.said():
            named = self._named(connection, command)
            if connection is not None and named is not None:
                yield named

    def senders(self) -> Iterator[FederationAck]:
        """What each federation sender said last that is connected, here or to a replica."""
        for name, token in self._acks.present():
            yield FederationAck(instance=name or self._instance, token=token)

    def remind(self, replica: CommandOrigin, command: Command) -> None:
        """The replica says again what a federation sender, which is still connected to it, said last."""
        if isinstance(command, FederationAck):
            self._acks.remind(replica, command.instance)

    def heard(self, command: Command) -> None:
        """Another process told this to everybody."""
        match command:
            case UserSync():
                self.syncing.user_sync(None, command)
            case ClearUserSync():
                self.syncing.clear(command)
            case _:
                pass

    def connection_lost(self, connection: object) -> None:
        """A follower is gone."""
        for instance in self.syncing.instances_of(connection):
            self._carry(ClearUserSync(instance_id=instance))
        self.syncing.connection_lost(connection)
        self._acks.connection_lost(connection)
        life = self._lives.pop(connection, None)
        if life is not None:
            self._tell_upward(ClearUserSync(instance_id=life))
            self._carry(ClearUserSync(instance_id=life))

    def received(self, connection: object, command: Command) -> None:
        """A follower sent this. Raises RemoteProtocolError if it makes no sense, or if it is more than one
        connection may say.
        """
        match command:
            case UserSync():
                self.syncing.user_sync(connection, command)
            case ClearUserSync():
                if not self.syncing.clear(
                    command, connection if isinstance(connection, CommandOrigin) else None
                ):
                    return
            case InvalidateCache():
                self._invalidate(command)
            case FederationAck():
                self._acknowledge(connection, command)
            case Error():
                self._limited.warn("follower reports: {text}", text=command.text)
            case Name() | Ping() | Sync() | UserIp() | RemovePusher() | RemoteServerUp() | LockReleased():
                pass
            case _:
                raise AssertionError(f"nobody takes {command.NAME}")
        for subscriber in self._subscribers[type(command)]:
            try:
                subscriber(command)
            except Exception:
                self._logger.failure("a subscriber to {name} failed", name=command.NAME)
        if self._upward and isinstance(command, UPWARD):
            named = self._named(connection, command)
            if named is not None:
                self._tell_upward(named)
        if isinstance(command, FORWARDED) and not isinstance(command, InvalidateCache):
            named = self._named(connection, command)
            if named is None:
                named = msgspec.structs.replace(command, instance=self._instance)
            self._carry(named)

    def _named(self, connection: object, command: Command) -> Command | None:
        """The command with the names that its release lacks; None if nobody could make sense of it."""
        if isinstance(command, UserSync) and not command.instance_id:
            life = self._lives.get(connection)
            if life is None:
                life = self._lives[connection] = "".join(random.choices(string.ascii_letters, k=10))
            return msgspec.structs.replace(command, instance_id=life)
        if isinstance(command, FederationAck) and not command.instance:
            return None
        return command

    def _tell_upward(self, command: Command) -> None:
        for subscriber in self._upward:
            subscriber(command)

    def _carry(self, command: Command) -> bool:
        """Whether somebody passes this on. What nobody does, who should, is counted. Where there is no
        process above this one, the homeserver may read it."""
        carriers = [carrier for carrier in self._carriers if carrier.is_active]
        if not carriers and not (self._upward and isinstance(command, UPWARD)):
            self.feed.add(command)
        told = [carrier.tell(command) for carrier in carriers]
        if carriers and not any(told):
            self._dropped(command.NAME)
        return any(told)

    def stop(self) -> None:
        """Forget what is under way."""
        self.syncing.stop()
        self._limited.stop()
        self._tasks.cancel_all()

    def _invalidate(self, command: InvalidateCache) -> None:
        row = [command.cache, command.keys, int(self._clock.seconds() * 1000)]
        try:
            fact = self._table["caches"].canonical_fact([row])
        except RowError as error:
            raise RemoteProtocolError(f"cannot parse INVALIDATE_CACHE: {error}") from error
        self._tasks.start(self._append(command, fact), "storing an invalidation")

    async def _append(self, command: InvalidateCache, fact: bytes) -> None:
        try:
            if self.elsewhere is not None:
                await self.elsewhere("caches", [fact])
            else:
                await self._log.append("caches", self._instance, [fact])
        except ReplicationError as error:
            if self._carry(command):
                return  # facts of this stream come from there
            self._limited.warn("a follower's INVALIDATE_CACHE was not kept: {why}", why=str(error))

    def _acknowledge(self, connection: object, command: FederationAck) -> None:
        """All federation senders have the stream up to the lowest token that any of them has."""
        self._acks.acknowledge(connection, command.instance, command.token)
        lowest = self._acks.lowest()
        if lowest is not None and lowest != self._forgotten and "federation" in self._table:
            self._forgotten = lowest
            self._log.forget("federation", lowest)
