"""The Redis of a deployment: a source of facts, and a channel for the facts that this daemon publishes."""

from dataclasses import dataclass
from typing import Any

import msgspec

from synrepl.base.problems import Notice, Problem
from synrepl.ingest.channel_source import ChannelSource
from synrepl.ingest.source import PATIENCE_SECONDS
from synrepl.transports.redis.link import REPLICA_REMEDY, RedisLink, RedisState, replica_problem


@dataclass(eq=False, repr=False, kw_only=True)
class RedisSource(ChannelSource):
    """Makes the daemon a member of Synapse's channel on Redis."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.settings.redis is not None
        # USER_IP carries access tokens, so its channel is not subscribed to.
        self.link = RedisLink(
            self.clock,
            self.settings.redis,
            self.member,
            server_name=self.server_name,
            instance=self.settings.instance_name,
            metrics=self.metrics,
            hears=("",),
        )
        self.member.use(self.link)

    def start(self) -> None:
        self.link.start()

    async def stop(self) -> None:
        self.member.stop()
        await self.link.stop()
        self.follower.stop()

    def silence(self) -> Problem | None:
        return redis_silence(self.link.state(), self.began, self.clock.seconds())

    def notices(self) -> list[Notice]:
        return redis_role(self.link.state())

    def sections(self) -> dict[str, Any]:
        return {"redis": self.status()}

    def status(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self.link.state()), **super().status()}


def redis_role(state: RedisState) -> list[Notice]:
    """What the status says of a Redis that is a replica."""
    if not state.replica_of:
        return []
    return [Notice(replica_problem(state.address, state.replica_of), (REPLICA_REMEDY,))]


def redis_silence(state: RedisState, began: float, now: float) -> Problem | None:
    """The problem of a Redis that could not be heard or told anything for `PATIENCE_SECONDS`; else None."""
    if now - max(state.since, began) < PATIENCE_SECONDS:
        return None
    if not state.subscribed:
        does = "receive from"
    elif not state.publishing:
        does = "publish to"
    else:
        return None
    why = f"cannot {does} Redis at {state.address}: {state.why or 'no answer yet'}"
    return Problem(why, state.since, not_ready=True)
