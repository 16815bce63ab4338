"""FollowerCommands: handles the commands that followers send, or keeps them for the homeserver to read."""

import random
import secrets
import string
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.run_owners import RunOwners
from synrepl.base.tasks import Tasks
from synrepl.errors import LocalProtocolError, RemoteProtocolError, ReplicationError, RowError
from synrepl.replication.hooks import IForwarding, StoredHere
from synrepl.replication.serving.command_lines import CommandOrigin, line_of
from synrepl.replication.serving.federation_acks import FederationAcks
from synrepl.replication.serving.presence import SyncingUsers
from synrepl.streams.table import StreamTable
from synrepl.wire import commands
from synrepl.wire.grammar import Command

if TYPE_CHECKING:
    from synrepl.storage.log import Log


class ICommandForwarder(Protocol):
    """Forwards commands to the process that this daemon follows."""

    @property
    def is_active(self) -> bool:
        """Whether there is such a process."""

    def forward(self, command: Command) -> bool:
        """Send this command now or queue it. Returns False if it is dropped."""


@dataclass(eq=False, repr=False)
class FollowerCommands:
    """Handles followers' commands: acts on them here, forwards them, and calls subscribers.

    INVALIDATE_CACHE becomes a fact of ``caches``. FEDERATION_ACK trims the federation stream. USER_SYNC
    updates `syncing`. The publisher broadcasts REMOTE_SERVER_UP. On a shared channel, commands for all
    processes go to the `process_subscribers`. A primary or a server that this daemon follows receives the
    commands through the `forwarders`; `dropped` is called with the name of a command that none of them
    accepted. Commands without subscribers and forwarders wait in the `buffer` for the homeserver; `unread` is
    called with the name of one that is dropped there.
    """

    _logger = Logger()
    log: "Log"
    table: StreamTable
    clock: IClock
    _: KW_ONLY
    instance: str
    dropped: Callable[[str], None] = lambda name: None
    unread: Callable[[str], None] = lambda name: None

    def __post_init__(self) -> None:
        self.syncing = SyncingUsers(self.clock)
        self._forwarding: IForwarding = StoredHere()
        self._tasks = Tasks(self._logger)
        self._limited = LimitedLogger(self._logger, self.clock)
        self.acks = FederationAcks(self.clock)
        self.runs = RunOwners()
        self._trimmed_upto: int | None = None
        self._federation_life = 0
        self.process_subscribers: list[Callable[[Command], None]] = []
        """Functions called with each command for all processes, in the newest release's form. USER_SYNC of a
        release without instance ids is given one, which ends with the connection.
        """
        self.forwarders: list[ICommandForwarder] = []
        """They forward commands, with instance ids as in `process_subscribers`. When a connection is lost,
        they also receive CLEAR_USER_SYNC for its workers.
        """
        self.buffer = CommandBuffer(self.clock, self.unread)
        self._generated_ids: dict[object, str] = {}
        self.subscribers: defaultdict[type[Command], list[Callable[[Any], None]]] = defaultdict(list)
        """By type of command: functions called with every such command of a follower that was accepted."""

    def use(self, forwarding: IForwarding) -> None:
        """Have facts stored where this says."""
        self._forwarding = forwarding

    def syncing_commands(self) -> Iterator[Command]:
        """USER_SYNC for every user that is syncing at a follower of this daemon or of a replica of it."""
        for connection, command in self.syncing.commands():
            completed = self._with_instance(connection, command)
            if connection is not None and completed is not None:
                yield completed

    def federation_acks(self) -> Iterator[commands.FederationAck]:
        """The last ack of each federation sender that is connected, to this daemon or to a replica."""
        for name, token in self.acks.present():
            yield commands.FederationAck(instance=name or self.instance, token=token)

    def on_channel_command(self, command: Command) -> None:
        """Handle USER_SYNC or CLEAR_USER_SYNC that another process sent to all; ignore other commands."""
        match command:
            case commands.UserSync():
                self.syncing.user_sync(None, command)
            case commands.ClearUserSync():
                self.syncing.clear(command)
            case _:
                pass

    def connection_lost(self, connection: object) -> None:
        """Forward CLEAR_USER_SYNC for its workers. Acks and users with an instance id stay a while."""
        for instance in self.syncing.instances_of(connection):
            self.forward(commands.ClearUserSync(instance_id=instance))
        self.syncing.connection_lost(connection)
        self.acks.connection_lost(connection)
        instance_id = self._generated_ids.pop(connection, None)
        if instance_id is not None:
            self._send_to_processes(commands.ClearUserSync(instance_id=instance_id))
            self.forward(commands.ClearUserSync(instance_id=instance_id))

    def received(self, connection: object, command: Command, name: str = "") -> None:
        """Handle a command of the follower `name`.

        Raises RemoteProtocolError if it is not valid or exceeds what one connection may claim.
        """
        match command:
            case commands.UserSync():
                self.syncing.user_sync(connection, command)
            case commands.ClearUserSync():
                if not self.syncing.clear(
                    command, connection if isinstance(connection, CommandOrigin) else None
                ):
                    return
            case commands.InvalidateCache():
                self._invalidate(command)
            case commands.FederationAck():
                if not self._acknowledge(connection, command):
                    return
            case commands.Error():
                self._limited.warn(
                    "{who} sent ERROR: {text}", who=name or "a follower without a name", text=command.text
                )
            case (
                commands.Name()
                | commands.Ping()
                | commands.Sync()
                | commands.UserIp()
                | commands.RemovePusher()
                | commands.RemoteServerUp()
                | commands.LockReleased()
            ):
                pass
            case _:
                raise AssertionError(f"no handler for {command.NAME}")
        for subscriber in self.subscribers[type(command)]:
            try:
                subscriber(command)
            except Exception:
                self._logger.failure("a subscriber to the command {name} failed", name=command.NAME)
        if self.process_subscribers and isinstance(command, commands.FOR_ALL_PROCESSES):
            completed = self._with_instance(connection, command)
            if completed is not None:
                self._send_to_processes(completed)
        if isinstance(command, commands.FORWARDED) and not isinstance(command, commands.InvalidateCache):
            completed = self._with_instance(connection, command)
            if completed is None:
                completed = msgspec.structs.replace(command, instance=self.instance)
            self.forward(completed)

    def _with_instance(self, connection: object, command: Command) -> Command | None:
        """The command with the instance id that its release lacks; None if other processes cannot use it."""
        if isinstance(command, commands.UserSync) and not command.instance_id:
            instance_id = self._generated_ids.get(connection)
            if instance_id is None:
                instance_id = self._generated_ids[connection] = "".join(
                    random.choices(string.ascii_letters, k=10)
                )
            return msgspec.structs.replace(command, instance_id=instance_id)
        if isinstance(command, commands.FederationAck) and not command.instance:
            return None
        return command

    def _send_to_processes(self, command: Command) -> None:
        for subscriber in self.process_subscribers:
            subscriber(command)

    def forward(self, command: Command) -> bool:
        """Forward a command; return whether a forwarder accepted it.

        A command that every active forwarder rejects is counted as dropped. If there is no process to forward
        to, the homeserver can read it from `buffer`.
        """
        forwarders = [forwarder for forwarder in self.forwarders if forwarder.is_active]
        reaches_processes = self.process_subscribers and isinstance(command, commands.FOR_ALL_PROCESSES)
        if not (forwarders or reaches_processes or self.subscribers.get(type(command))):
            self.buffer.add(command)
        accepted = [forwarder.forward(command) for forwarder in forwarders]
        if forwarders and not any(accepted):
            self.dropped(command.NAME)
        return any(accepted)

    def stop(self) -> None:
        """Stop all timers and tasks."""
        self.syncing.stop()
        self._limited.stop()
        self._tasks.cancel_all()

    def _invalidate(self, command: commands.InvalidateCache) -> None:
        row = [command.cache, command.keys, int(self.clock.seconds() * 1000)]
        try:
            fact = self.table["caches"].canonical_fact([row])
        except RowError as error:
            raise RemoteProtocolError(f"cannot parse INVALIDATE_CACHE: {error}") from error
        self._tasks.start(self._append(command, fact), "storing an invalidation")

    async def _append(self, command: commands.InvalidateCache, fact: bytes) -> None:
        try:
            if self._forwarding.is_active():
                await self._forwarding.append("caches", [fact])
            else:
                await self.log.append("caches", self.instance, [fact])
        except ReplicationError as error:
            if self.forward(command):
                return  # the upstream appends it
            self._limited.warn("cannot store a follower's INVALIDATE_CACHE, dropped: {why}", why=str(error))

    def _acknowledge(self, connection: object, command: commands.FederationAck) -> bool:
        """Trim the federation stream up to the lowest of the senders' last acks.

        Returns False, and counts the command as dropped, if it acknowledges what the stream does not have
        (as a sender may after a restart of this daemon), or less than the sender's last ack.
        """
        life = self.log.ephemeral.life("federation")
        if life != self._federation_life:
            self._federation_life, self._trimmed_upto = life, None
            self.acks.restart()
        head = self.log.linear_position("federation")
        if head == 0:
            # Nothing of the stream is here: the homeserver judges the ack.
            return True
        known = self.acks.token_of(command.instance)
        if not known <= command.token <= head:
            why = f"acknowledges {command.token}; valid are {known} (its last ack) to {head} (the last token)"
            self._limited.warn("ignored a FEDERATION_ACK of {name}: {why}", name=command.instance, why=why)
            self.dropped(command.NAME)
            return False
        self.acks.acknowledge(connection, command.instance, command.token)
        lowest = self.acks.lowest()
        if lowest is not None and lowest != self._trimmed_upto:
            self._trimmed_upto = lowest
            self.log.ephemeral.forget("federation", lowest)
        return True


MAX_COMMANDS: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
"""The most commands and bytes in the feed. Beyond either limit the oldest is dropped and counted."""


class BufferedCommand(msgspec.Struct, frozen=True):
    """A command: its number in this life of the daemon (without gaps), its name, line and arrival time."""

    number: int
    command: str
    line: str
    at_ms: int


class CommandBuffer:
    """A bounded buffer of the newest commands, kept in memory until the homeserver acknowledges them.

    `life` identifies this run of the daemon: numbers start at 1 in each run. `on_dropped` is called with the
    name of each command that is dropped for lack of space (`dropped_upto` is the number of the last one, or
    0) or cannot be written as a line.
    """

    def __init__(self, clock: IClock, on_dropped: Callable[[str], None] = lambda name: None) -> None:
        self.life = secrets.token_hex(4)
        self.head = 0
        self.trimmed_upto = 0
        self.dropped_upto = 0
        self._clock = clock
        self._on_dropped = on_dropped
        self._entries: deque[BufferedCommand] = deque()
        self._bytes = 0
        self.waiters: list[Deferred[None]] = []
        """The readers that wait for a command."""

    def add(self, command: Command) -> None:
        """Append this command."""
        try:
            line = line_of(command).decode()
        except LocalProtocolError:
            self._on_dropped(command.NAME)
            return
        self.head += 1
        at_ms = int(self._clock.seconds() * 1000)
        self._entries.append(BufferedCommand(self.head, command.NAME, line, at_ms))
        self._bytes += len(line)
        while len(self._entries) > MAX_COMMANDS or self._bytes > MAX_BYTES:
            lost = self._drop()
            self.dropped_upto = lost.number
            self._on_dropped(lost.command)
        waiting, self.waiters = self.waiters, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(None)

    def after(
        self, number: int, limit: int, is_told: Callable[[type[Command]], bool] = lambda command: True
    ) -> list[BufferedCommand]:
        """The first commands after this number, at most `limit`, of the types that `is_told` accepts."""
        start = max(0, number - self.trimmed_upto)
        if start >= len(self._entries):
            return []
        told = {made.NAME for made in commands.FORWARDED if is_told(made)}
        return list(islice((one for one in islice(self._entries, start, None) if one.command in told), limit))

    def acknowledge(self, number: int) -> None:
        """Remove every command up to this number: the reader has handled them."""
        while self._entries and self._entries[0].number <= number:
            self._drop()

    async def wait(self, timeout: float) -> None:
        """Return when a new command arrives, or after `timeout` seconds."""
        waiter: Deferred[None] = Deferred()
        self.waiters.append(waiter)
        try:
            await waiter.addTimeout(timeout, self._clock, lambda *_: None)  # type: ignore[arg-type]
        finally:
            if waiter in self.waiters:
                self.waiters.remove(waiter)

    def _drop(self) -> BufferedCommand:
        entry = self._entries.popleft()
        self._bytes -= len(entry.line)
        self.trimmed_upto = entry.number
        return entry
