"""The connections of a `RedisBridge`, and their status."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import msgspec
from twisted.internet import defer
from twisted.internet.interfaces import IStreamClientEndpoint

from synrepl.base.metrics import Metrics
from synrepl.base.problems import Notice, Problem
from synrepl.channel.redis_bridge import RedisBridge
from synrepl.channel.served_channel import ServedChannel
from synrepl.ingest.redis import redis_role, redis_silence
from synrepl.replication.membership.member import ChannelMember
from synrepl.transports.redis.address import RedisAddress
from synrepl.transports.redis.link import RedisChannels

USER_IP: Final = "USER_IP"
"""The one channel beside the main one that Synapse's processes have."""


@dataclass(eq=False, repr=False)
class _BridgeChannels(RedisChannels):
    """Gives the bridge the messages of one channel as they came."""

    _: KW_ONLY
    bridge: RedisBridge
    suffix: str

    def on_messages(self, messages: Sequence[bytes]) -> None:
        self.bridge.take(self.suffix, messages)


class BridgeConnections:
    """Joins a served channel with that on the Redis at `address`, from `start` to `stop`.

    `endpoint` is that of `RedisChannels`.
    """

    def __init__(
        self,
        channel: ServedChannel,
        reactor: Any,
        address: RedisAddress,
        *,
        server_name: str,
        instance: str,
        metrics: Metrics,
        endpoint: Callable[[str, int], IStreamClientEndpoint] | None = None,
    ) -> None:
        self.bridge = RedisBridge(channel, reactor)
        self._clock = reactor
        self._began = reactor.seconds()
        self._main, self._beside = (
            _BridgeChannels(
                reactor,
                address,
                ChannelMember() if suffix else self.bridge,
                bridge=self.bridge,
                suffix=suffix,
                server_name=server_name,
                instance=instance,
                metrics=metrics,
                hears=(suffix,),
                only_hears=bool(suffix),
                endpoint=endpoint,
            )
            for suffix in ("", USER_IP)
        )
        self.bridge.channels = self._main

    def start(self) -> None:
        """Connect, and stay connected."""
        self._beside.start()
        self._main.start()

    async def stop(self) -> None:
        """Disconnect."""
        self.bridge.stop()
        await defer.gatherResults([self._main.stop(), self._beside.stop()])

    def problems(self) -> list[Problem]:
        """A Redis that cannot be reached, and writers on both sides."""
        now = self._clock.seconds()
        silence = redis_silence(self._main.state(), self._began, now)
        found = [silence] if silence is not None else []
        return [*found, Problem(self.bridge.conflict, now)] if self.bridge.conflict else found

    def notices(self) -> list[Notice]:
        """A Redis that is a replica."""
        return redis_role(self._main.state())

    def status(self) -> dict[str, Any]:
        """The fields of the Redis in the status of the daemon."""
        return {**msgspec.to_builtins(self._main.state()), "unpublished": self.bridge.unpublished}
