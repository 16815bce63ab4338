"""The Redis of the deployment as a source, and as the place where this daemon tells what it writes."""

from typing import Any

import msgspec
from twisted.logger import Logger

from synrepl.config import Settings
from synrepl.ingest.source import PATIENCE_SECONDS, Source, Trouble
from synrepl.ports.metrics import Metrics
from synrepl.replication.broker import BrokerPeer
from synrepl.replication.follower.follower import Follower, FollowerEvent
from synrepl.replication.publisher import Publisher
from synrepl.replication.write_policy import WritePolicy
from synrepl.transports.redis import RedisLink

__all__ = ["RedisSource"]


class RedisSource(Source):
    """The daemon among Synapse's processes. `writing` says what it tells there itself."""

    _logger = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        follower: Follower,
        *,
        publisher: Publisher,
        metrics: Metrics,
        writing: WritePolicy,
    ) -> None:
        super().__init__(follower, reactor)
        assert settings.redis is not None
        self.peer = BrokerPeer(clock=reactor, follower=follower, publisher=publisher, writes=writing.own)
        # Where users are and with which token is nobody's business here: USER_IP is not listened to.
        self.link = RedisLink(
            reactor,
            settings.redis,
            self.peer,
            server_name=settings.server_name,
            instance=settings.instance_name,
            metrics=metrics,
            hears=("",),
        )
        self.peer.broker = self.link
        self._writing = writing
        self._has_warned = False
        if writing.gives_ids("caches"):
            follower.on_event(self._warn)

    def _warn(self, event: FollowerEvent) -> None:
        """Somebody else writes ``caches``. If that is a Synapse, its invalidations and ours get in each
        other's way."""
        if event.kind == "position" and event.stream == "caches" and not self._has_warned:
            self._has_warned = True
            self._logger.warn(
                "{writer} writes caches as well: if that is a process of Synapse, our ids must come from its"
                " sequence, or invalidations are lost (docs/howto/redis.md)",
                writer=event.writer,
            )

    def start(self) -> None:
        """Join; go on for ever."""
        self.link.start()

    async def stop(self) -> None:
        """Leave."""
        self.peer.stop()
        await self.link.stop()
        self.follower.stop()

    def silence(self) -> Trouble | None:
        """Why nothing is heard, or nothing can be told."""
        state = self.link.state()
        if self.clock.seconds() - max(state.since, self.began) < PATIENCE_SECONDS:
            return None
        if not state.hearing:
            return f"redis {state.address} cannot be heard: {state.why or 'no answer yet'}", state.since
        if not state.speaking:
            return f"redis {state.address} cannot be told anything: {state.why}", state.since
        return None

    def troubles(self) -> list[Trouble]:
        """What is wrong, but for `reasons`."""
        clash = self.peer.clash
        return ([(str(clash), self.clock.seconds())] if clash is not None else []) + super().troubles()

    def lag_seconds(self) -> float:
        """As of any source; a quiet channel that works is no lag."""
        if self.peer.is_hearing:
            self.follower.alive()
            if not self.peer.writers:
                return 0.0  # nobody else is there who could have told anything
        return super().lag_seconds()

    def describe(self) -> dict[str, Any]:
        """How it is doing, as the status has it."""
        return {
            **msgspec.to_builtins(self.link.state()),
            **super().describe(),
            "writes": [{"stream": stream, "writer": writer} for stream, writer in sorted(self._writing.own)],
            "is_writing": self.peer.is_writing,
            "writers": sorted(self.peer.writers),
        }
