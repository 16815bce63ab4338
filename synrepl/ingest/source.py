"""Sources: their base class and status, and the servers that this daemon follows."""

from collections import deque
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from twisted.internet.interfaces import IStreamClientEndpoint

from synrepl.base.interfaces import IClock
from synrepl.base.metrics import Metrics
from synrepl.base.problems import Notice, Problem
from synrepl.base.time import Timer
from synrepl.errors import GapError, LocalProtocolError, NotConnected
from synrepl.ingest.settings import IngestSettings
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent
from synrepl.replication.serving.presence import SyncingUser
from synrepl.replication.serving.publisher import Publisher
from synrepl.transports.connection_monitor import ConnectionMonitor, http_probe
from synrepl.transports.endpoints import client_endpoint
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.commands import FROM_ALL_PROCESSES, ClearUserSync, UserSync
from synrepl.wire.dialect import CURRENT, Dialect
from synrepl.wire.grammar import Command

LOST_SECONDS: Final = 3600.0
"""How long an unrecoverable gap counts as a problem, in seconds. The status lists it even later."""

PATIENCE_SECONDS: Final = 5.0
"""How long a source may be disconnected before that is a problem, in seconds: a restart takes less."""

MAX_WAITING: Final = 1_000
"""The largest number of commands that wait for a reconnect. Beyond it the oldest is dropped and counted."""


def _gap_as_json(gap: GapError) -> dict[str, Any]:
    return {"stream": gap.stream, "writer": gap.writer, "have": gap.have, "want": gap.want, "why": gap.why}


@dataclass(eq=False, repr=False, kw_only=True)
class Source:
    """A follower inside this daemon, and its status. A subclass connects it, from `start` to `stop`."""

    settings: IngestSettings
    clock: Any
    follower: Follower
    metrics: Metrics
    server_name: str

    def __post_init__(self) -> None:
        self.began = self.clock.seconds()

    def start(self) -> None:
        """Connect, and stay connected."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    def silence(self) -> Problem | None:
        """The problem if this source could not receive or publish for `PATIENCE_SECONDS`; else None."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        """The problems of this source, first those that make the daemon not ready."""
        silence = self.silence()
        now = self.clock.seconds()
        found = [silence] if silence else []
        found += [Problem(str(gap), now, not_ready=True) for gap in self.follower.gaps()]
        found += [
            Problem(f"unrecoverable gap: no source has the missing facts: {gap}", at)
            for at, gap in self.follower.lost_gaps
            if now - at < LOST_SECONDS
        ]
        return found

    def notices(self) -> list[Notice]:
        """What needs attention elsewhere."""
        return []

    def lag_seconds(self) -> float:
        """Seconds since this source was last caught up, or since its start if it never was."""
        since_start: float = self.clock.seconds() - self.began
        return min(self.follower.lag_seconds(), since_start)

    def status(self) -> dict[str, Any]:
        """The fields of this source in the status of the daemon."""
        return {
            "lag_seconds": round(self.lag_seconds(), 3),
            "lag_rows": self.follower.lag_rows(),
            "gaps": [_gap_as_json(gap) for gap in self.follower.gaps()],
            "lost": [_gap_as_json(gap) | {"at": round(at, 3)} for at, gap in self.follower.lost_gaps],
        }


@dataclass(eq=False, repr=False, kw_only=True)
class ServerSource(Source):
    """Keeps a follower connected to the server at `endpoint`, a Twisted client endpoint string.

    The dialect is that of the settings, or `CURRENT`. A server with another server name is refused.
    With a `publisher`, commands of that publisher's followers are forwarded to the server.
    """

    endpoint: str
    publisher: Publisher | None

    def __post_init__(self) -> None:
        super().__post_init__()
        dialect = self.settings.dialect or CURRENT
        self._target: IStreamClientEndpoint = client_endpoint(self.clock, self.endpoint)
        self._why = "no answer yet"
        self._since = self.began
        self._factory = FollowerFactory(
            self.follower,
            dialect=dialect,
            expected_server=self.server_name,
            clock=self.clock,
            metrics=self.metrics,
            keepalive=self.settings.keepalive,
        )
        self._monitor = ConnectionMonitor(
            self.follower,
            lambda: self.endpoint,
            clock=self.clock,
            speaks_http=http_probe(self.clock, self._target),
        )
        self.follower.on_event(self._on_event)
        self._commands: ServerCommands | None = None
        if self.publisher is not None:
            self._commands = ServerCommands(
                self.follower, self.publisher, dialect=dialect, clock=self.clock, metrics=self.metrics
            )

    def start(self) -> None:
        self._factory.connect(self._target)

    async def stop(self) -> None:
        if self._commands is not None:
            self._commands.stop()
        self._monitor.stop()
        self._factory.stop()
        self.follower.stop()

    def silence(self) -> Problem | None:
        if self.follower.is_connected or self.clock.seconds() - self._since < PATIENCE_SECONDS:
            return None
        why = f"cannot receive from server {self.endpoint}: {self._why}"
        return Problem(why, self._since, not_ready=True)

    def status(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "connected": self.follower.is_connected,
            "since": round(self._since, 3),
            "why": "" if self.follower.is_connected else self._why,
            **super().status(),
        }

    def _on_event(self, event: FollowerEvent) -> None:
        if event.kind == "connected":
            self._since = self.clock.seconds()
        elif event.kind == "disconnected":
            if not self._why or self.follower.is_connected:
                self._since = self.clock.seconds()
            self._why = event.text


@dataclass(eq=False, repr=False)
class ServerCommands:
    """Forwards commands between the followers of this daemon and the server: an `ICommandForwarder`.

    A release whose USER_SYNC names the worker gets the command of each follower. For an older release this
    daemon is one worker: a user is syncing while any follower says so. After each connect the server gets
    the users that are syncing.
    """

    follower: Follower
    publisher: Publisher
    _: KW_ONLY
    dialect: Dialect
    clock: IClock
    metrics: Metrics

    def __post_init__(self) -> None:
        self.is_active = True
        self._follower_commands = self.publisher.follower_commands
        self._names_workers = self.dialect.release in ClearUserSync.SPAN
        self._waiting: deque[Command] = deque()
        self._timer = Timer(self.clock, self._connected)
        self._follower_commands.forwarders.append(self)
        if not self._names_workers:
            self._follower_commands.syncing.subscribers.append(self._changed)
        self.follower.on_event(self._on_event)
        for command in FROM_ALL_PROCESSES:
            self.follower.on_command(command)(self._on_server_command)

    def stop(self) -> None:
        """Stop forwarding."""
        self.is_active = False
        self._follower_commands.forwarders.remove(self)
        self._timer.stop()

    def forward(self, command: Command) -> bool:
        """Send a command now, or once connected. False if the server's release lacks it, or sending fails."""
        if not self._names_workers and isinstance(command, (UserSync, ClearUserSync)):
            return True  # `_changed` sends it
        if self.dialect.release not in command.SPAN:
            return False
        if not self.follower.is_connected or self._waiting:
            if len(self._waiting) >= MAX_WAITING:
                self.metrics.commands_dropped.labels(self._waiting.popleft().NAME).inc()
            self._waiting.append(command)
            return True
        return self._send(command)

    def _send(self, command: Command) -> bool:
        try:
            self.follower.send(command)
        except (NotConnected, LocalProtocolError):
            return False
        return True

    def _on_server_command(self, command: Command) -> None:
        if self.is_active:
            self.publisher.broadcast(command)

    def _changed(self, change: SyncingUser) -> None:
        if self.is_active and self.follower.is_connected and not self._timer.is_active:
            self._send(
                UserSync(
                    user_id=change.user_id, is_syncing=change.is_syncing, last_sync_ms=change.last_sync_ms
                )
            )

    def _on_event(self, event: FollowerEvent) -> None:
        if event.kind == "connected" and self.is_active:
            # Send after the commands of the follower itself.
            self._timer.start(0)

    def _connected(self) -> None:
        """Send the commands that waited, then the users that are syncing."""
        waiting, self._waiting = self._waiting, deque()
        for command in waiting:
            if not self._send(command):
                self.metrics.commands_dropped.labels(command.NAME).inc()
        sent = set()
        for command in self._follower_commands.syncing_commands():
            if not isinstance(command, UserSync) or (not self._names_workers and command.user_id in sent):
                continue
            sent.add(command.user_id)
            self._send(command)
