"""Receives the commands that replicas forward, each once."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from twisted.logger import Logger

from synrepl.base.access import LOCAL, Access
from synrepl.base.interfaces import IClock
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.base.rights import command_refusal
from synrepl.base.time import Timer
from synrepl.errors import RemoteProtocolError
from synrepl.replicas.command_forwarder import PING, Numbered, command_of
from synrepl.replication.serving.command_lines import CommandOrigin
from synrepl.replication.serving.commands import FollowerCommands
from synrepl.wire.commands import FROM_ALL_PROCESSES, FederationAck, Ping
from synrepl.wire.grammar import Command
from synrepl.wire.text import is_name

EXPIRY_SECONDS: Final = 300.0
"""An origin that is silent for this long is removed."""

MAX_ORIGINS: Final = 1_000

ACK: Final = b"FEDERATION_ACK "


class CommandReceiver:
    """Handles forwarded commands as if the replica's followers were connected here. Ignores repetitions.

    `broadcast` is called with a command for all followers, and the connection that must not get it back.
    """

    _logger = Logger()

    def __init__(
        self,
        follower_commands: FollowerCommands,
        metrics: Metrics,
        clock: IClock,
        *,
        broadcast: Callable[[Command, object], object],
    ) -> None:
        self._follower_commands = follower_commands
        self._metrics = metrics
        self._broadcast = broadcast
        self._clock = clock
        self._limited = LimitedLogger(self._logger, clock)
        self._origins: OrderedDict[tuple[str, str], CommandOrigin] = OrderedDict()
        """By the name of the peer's key and the origin's own, in order of last activity, the longest silent
        first. Else a peer could use up the numbers of another one's origin.
        """
        self._timer = Timer(clock, self._expire)

    def receive(
        self, origin: str, commands: Sequence[Numbered], *, source: object = None, access: Access = LOCAL
    ) -> tuple[int, int]:
        """Handle commands of an origin.

        Returns the number up to which all were received, and the number from which on this daemon knows the
        origin's commands. `source` is the connection they came on: broadcast commands are not sent back
        there. `access` is the replica's. Raises RemoteProtocolError if the origin's name is not valid.
        """
        if not is_name(origin):
            raise RemoteProtocolError("the origin of forwarded commands must be one printable word")
        key = (access.name, origin)
        known = self._origins.get(key)
        for number, line in commands:
            if known is None:
                # A reminder repeats the number of a command that was sent to another upstream.
                known = self._add_origin(key, number + 1 if line == PING else number)
            if number > known.number:
                known.number = number
                self._receive(known, line, source, access)
            elif line.startswith(ACK):
                self._refresh(known, line)
        if known is None:
            return 0, 1
        known.last_active_at = self._clock.seconds()
        self._origins.move_to_end(key)
        self._follower_commands.syncing.mark_active(known)
        return known.number, known.since

    def stop(self) -> None:
        """Stop all timers."""
        self._limited.stop()
        self._timer.stop()

    def _add_origin(self, key: tuple[str, str], since: int) -> CommandOrigin:
        if len(self._origins) >= MAX_ORIGINS:
            self._remove_origin(next(iter(self._origins.values())))
        origin = self._origins[key] = CommandOrigin(*key, since)
        self._timer.start(EXPIRY_SECONDS / 10)
        return origin

    def _remove_origin(self, origin: CommandOrigin) -> None:
        del self._origins[origin.owner, origin.name]
        self._follower_commands.connection_lost(origin)

    def _expire(self) -> None:
        limit = self._clock.seconds() - EXPIRY_SECONDS
        for origin in [origin for origin in self._origins.values() if origin.last_active_at <= limit]:
            self._remove_origin(origin)
        if self._origins:
            self._timer.start(EXPIRY_SECONDS / 10)

    def _refresh(self, origin: CommandOrigin, line: bytes) -> None:
        """Handle a federation sender's ack that was received before: it is still connected to the replica."""
        with suppress(RemoteProtocolError):
            command = command_of(line)
            if isinstance(command, FederationAck):
                self._follower_commands.acks.refresh(origin, command.instance)

    def _receive(self, origin: CommandOrigin, line: bytes, source: object, access: Access) -> None:
        name = "?"
        try:
            command = command_of(line)
            name = command.NAME
            if isinstance(command, Ping):
                return
            # A replica with a key for all instances has asked this of its own followers, which may move.
            runs = None if access.instances is None else self._follower_commands.runs
            if why := command_refusal(access, command, runs):
                raise RemoteProtocolError(why)
            self._metrics.count_commands([command])
            if isinstance(command, FROM_ALL_PROCESSES):
                self._broadcast(command, source)
            self._follower_commands.received(origin, command)
        except RemoteProtocolError as error:
            # Not the replica's fault but its follower's: keep the replica connected.
            self._metrics.commands_dropped.labels(name).inc()
            self._limited.warn(
                "dropped a command forwarded by {origin}: {why}", origin=origin.name, why=error.why
            )
