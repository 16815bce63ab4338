"""A server that this daemon follows over TCP, as a worker does."""

from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint

from synrepl.ingest.server_commands import ServerCommands
from synrepl.ingest.settings import IngestSettings
from synrepl.ingest.source import PATIENCE_SECONDS, Problem, Source
from synrepl.ports.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.follower_event import FollowerEvent
from synrepl.replication.publisher import Publisher
from synrepl.transports.endpoints import client_endpoint
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT

__all__ = ["ServerSource"]


class ServerSource(Source):
    """Keeps a follower connected to the server at `endpoint`, a Twisted client endpoint string.

    The dialect is that of the settings, or the current one. A server with another server name is refused.
    With a `publisher`, commands of that publisher's followers are forwarded to the server.
    """

    def __init__(
        self,
        settings: IngestSettings,
        reactor: Any,
        follower: Follower,
        *,
        endpoint: str,
        metrics: Metrics,
        publisher: Publisher | None = None,
    ) -> None:
        super().__init__(follower, reactor)
        self.endpoint = endpoint
        self._target: IStreamClientEndpoint = client_endpoint(reactor, endpoint)
        self._why = "no answer yet"
        self._since = self.began
        self._factory = FollowerFactory(
            follower,
            dialect=settings.dialect or CURRENT,
            expected_server=settings.server_name,
            clock=reactor,
            metrics=metrics,
            keepalive=settings.keepalive,
        )
        follower.on_event(self._on_event)
        self._commands: ServerCommands | None = None
        if publisher is not None:
            self._commands = ServerCommands(
                follower, publisher, dialect=settings.dialect or CURRENT, clock=reactor, metrics=metrics
            )

    def start(self) -> None:
        """Connect, and reconnect until `stop`."""
        self._factory.connect(self._target)

    async def stop(self) -> None:
        """Disconnect."""
        if self._commands is not None:
            self._commands.stop()
        self._factory.stop()
        self.follower.stop()

    def silence(self) -> Problem | None:
        """Why the server cannot be reached; None if it can."""
        if self.follower.is_connected or self.clock.seconds() - self._since < PATIENCE_SECONDS:
            return None
        return f"cannot receive from server {self.endpoint}: {self._why}", self._since

    def status(self) -> dict[str, Any]:
        """This source's part of the status."""
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
