"""Who takes part: the member of the channels, and what its two connections need of their link."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twisted.internet.interfaces import IStreamClientEndpoint

from synrepl.ports.interfaces import IClock
from synrepl.ports.metrics import Metrics
from synrepl.transports.redis.address import RedisAddress
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.session import Keepalive

__all__ = ["IAddressFinder", "IRedisLink", "IRedisMember"]


class IRedisMember(Protocol):
    """Who is on the channel. Called in the reactor's thread, and not after `RedisLink.stop`."""

    def subscriber_up(self) -> None:
        """Redis has confirmed every subscription: from here on nothing that is published is missed."""

    def subscriber_down(self, why: str) -> None:
        """The subscriber's connection was lost: what is published until `subscriber_up` is missed."""

    def publisher_up(self) -> None:
        """The publisher's connection is up, and takes what is written."""

    def publisher_down(self, why: str) -> None:
        """It was lost, and with it perhaps what was sent last. Ends a `pause` as well."""

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Commands in the order in which Redis had them. One's own are among them."""

    def pause(self) -> None:
        """The publisher's transport has enough for now."""

    def resume(self) -> None:
        """It takes more."""

    def unreachable(self, why: str) -> None:
        """An attempt to connect failed. It is tried again, for ever; each connection tells for itself."""


class IAddressFinder(Protocol):
    """Who knows where the master is."""

    async def find_master(self, attempt: Any) -> tuple[str, int]:
        """Its host and port, asked for by connections of this attempt."""


class IRedisLink(Protocol):
    """What a connection, and whoever keeps it, need of the link that they belong to."""

    reactor: Any
    clock: IClock
    address: RedisAddress
    member: IRedisMember
    instance: str
    metrics: Metrics
    keepalive: Keepalive
    endpoint: Callable[[str, int], IStreamClientEndpoint] | None
    chance: random.Random
    channels: list[str]
    is_reading: bool

    @property
    def sentinels(self) -> IAddressFinder | None:
        """Whom to ask where the master is, before each attempt; None if the address says it."""

    def heard(self, messages: Sequence[bytes]) -> None:
        """These came, in one read."""

    def changed(self, *, again: bool = False) -> None:
        """A connection came up or was lost; `again`: it had been lost before."""
