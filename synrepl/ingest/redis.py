"""The Redis of a deployment: a source of facts, and a channel for the facts that this daemon publishes."""

from dataclasses import dataclass
from typing import Any

import msgspec
from twisted.logger import Logger

from synrepl.ingest.source import PATIENCE_SECONDS, Source
from synrepl.ports.problems import Problem
from synrepl.replication.broker.peer import BrokerPeer
from synrepl.replication.follower.updates import FollowerEvent
from synrepl.replication.publisher import Publisher
from synrepl.replication.write_policy import WritePolicy
from synrepl.transports.redis.link import RedisLink


@dataclass(eq=False, repr=False, kw_only=True)
class RedisSource(Source):
    """Makes the daemon a member of Synapse's Redis channel (docs/reference/peers.md#redis-receiver).

    `write_policy` names the streams that this daemon publishes.
    """

    _logger = Logger()

    publisher: Publisher
    write_policy: WritePolicy

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.settings.redis is not None
        self.peer = BrokerPeer(
            clock=self.clock,
            follower=self.follower,
            publisher=self.publisher,
            writes=self.write_policy.own,
            exclusive=self.write_policy.exclusive,
            # The name of a process that writes nothing may be that of another one.
            instance=self.settings.instance_name if self.write_policy.own else "",
        )
        # USER_IP carries access tokens, so its channel is not subscribed to.
        self.link = RedisLink(
            self.clock,
            self.settings.redis,
            self.peer,
            server_name=self.server_name,
            instance=self.settings.instance_name,
            metrics=self.metrics,
            hears=("",),
        )
        self.peer.broker = self.link
        self._has_warned = False
        if self.write_policy.gives_ids("caches"):
            self.follower.on_event(self._warn)

    def _warn(self, event: FollowerEvent) -> None:
        """Warn if another process writes ``caches``: with ids from two sequences, invalidations collide."""
        if event.kind == "position" and event.stream == "caches" and not self._has_warned:
            self._has_warned = True
            self._logger.warn(
                "{writer} and this daemon write the stream caches: if {writer} is a process of Synapse, take"
                " the ids of caches from Synapse's sequence, or invalidations are lost (in the manual: How to"
                " join the processes of a Synapse on Redis)",
                writer=event.writer,
            )

    def start(self) -> None:
        self.link.start()

    async def stop(self) -> None:
        self.peer.stop()
        await self.link.stop()
        self.follower.stop()

    def silence(self) -> Problem | None:
        state = self.link.state()
        if self.clock.seconds() - max(state.since, self.began) < PATIENCE_SECONDS:
            return None
        if not state.subscribed:
            does = "receive from"
        elif not state.publishing:
            does = "publish to"
        else:
            return None
        why = f"cannot {does} Redis at {state.address}: {state.why or 'no answer yet'}"
        return Problem(why, state.since, not_ready=True)

    def problems(self) -> list[Problem]:
        conflicts = [self.peer.name_conflict, self.peer.stream_conflict]
        now = self.clock.seconds()
        conflicting = [Problem(conflict, now) for conflict in conflicts if conflict is not None]
        return super().problems() + conflicting

    def lag_seconds(self) -> float:
        """Seconds since this source was last caught up. A quiet channel that works counts as caught up."""
        if self.peer.is_subscribed:
            self.follower.server.mark_alive()
            if not self.peer.writers:
                return 0.0  # no other process publishes on the channel
        return super().lag_seconds()

    def status(self) -> dict[str, Any]:
        own = sorted(self.write_policy.own)
        return {
            **msgspec.to_builtins(self.link.state()),
            **super().status(),
            "writes": [{"stream": stream, "writer": writer} for stream, writer in own],
            "is_writing": self.peer.is_writing,
            "writers": sorted(self.peer.writers),
        }
