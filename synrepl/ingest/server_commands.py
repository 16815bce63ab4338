"""Says what followers of this daemon send up to a server that it follows, as a worker of that server does."""

from collections import deque
from typing import Any, Final

from synrepl.errors import LocalProtocolError, NotConnected
from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.replication.follower.follower import Follower, FollowerEvent
from synrepl.replication.presence import SyncingUser
from synrepl.replication.publisher import Publisher
from synrepl.wire.commands import ClearUserSync, LockReleased, RemoteServerUp, UserSync
from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import Command

__all__ = ["MAX_WAITING", "ServerCommands"]

MAX_WAITING: Final = 1_000
"""Commands that wait for the server to be back. Beyond it the oldest is dropped, and counted."""


class ServerCommands:
    """Passes commands between the followers of this daemon and the server (`upstream.Carrier`).

    A release whose USER_SYNC names workers is told of each. For an older one this daemon is one worker: a
    user begins with the first follower that has it, and ends with the last. Either is told who is syncing
    whenever a connection is made.
    """

    is_active = True

    def __init__(
        self, follower: Follower, publisher: Publisher, *, dialect: Dialect, clock: IClock, metrics: Metrics
    ) -> None:
        self._follower = follower
        self._publisher = publisher
        self._upstream = publisher.upstream
        self._dialect = dialect
        self._clock = clock
        self._metrics = metrics
        self._names_workers = dialect.release in ClearUserSync.SPAN
        self._waiting: deque[Command] = deque()
        self._timer: Any = None
        self._upstream.carry(self)
        if not self._names_workers:
            self._upstream.syncing.watch(self._changed)
        follower.on_event(self._happened)
        follower.on_command(RemoteServerUp)(self._told)
        follower.on_command(LockReleased)(self._told)

    def stop(self) -> None:
        """Pass nothing on any more."""
        self.is_active = False
        self._upstream.carry_no_more(self)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def tell(self, command: Command) -> bool:
        """Say this to the server, now or when it is back. False if it has no word for it."""
        if not self._names_workers and isinstance(command, (UserSync, ClearUserSync)):
            return True  # `_changed` tells it
        if self._dialect.release not in command.SPAN:
            return False
        if not self._follower.is_connected or self._waiting:
            if len(self._waiting) >= MAX_WAITING:
                self._metrics.commands_dropped.labels(self._waiting.popleft().NAME).inc()
            self._waiting.append(command)
            return True
        return self._say(command)

    def _say(self, command: Command) -> bool:
        try:
            self._follower.send(command)
        except (NotConnected, LocalProtocolError):
            return False
        return True

    def _told(self, command: Command) -> None:
        """The server tells all processes."""
        if self.is_active:
            self._publisher.relay(command)

    def _changed(self, change: SyncingUser) -> None:
        if self.is_active and self._follower.is_connected and self._timer is None:
            self._say(
                UserSync(
                    user_id=change.user_id, is_syncing=change.is_syncing, last_sync_ms=change.last_sync_ms
                )
            )

    def _happened(self, event: FollowerEvent) -> None:
        if event.kind == "connected" and self.is_active and self._timer is None:
            # After what the follower itself has to say.
            self._timer = self._clock.callLater(0, self._connected)

    def _connected(self) -> None:
        """Say what waited, and who is syncing."""
        self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for command in waiting:
            if not self._say(command):
                self._metrics.commands_dropped.labels(command.NAME).inc()
        said = set()
        for command in self._upstream.said():
            if not isinstance(command, UserSync) or (not self._names_workers and command.user_id in said):
                continue
            said.add(command.user_id)
            self._say(command)
