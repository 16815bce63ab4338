"""Interfaces between a link, its connections and the member of the channels."""

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
    """The link's user. Its methods are called in the reactor's thread, and not after `RedisLink.stop`."""

    def subscriber_up(self) -> None:
        """All subscriptions are confirmed: from now on no published message is missed."""

    def subscriber_down(self, why: str) -> None:
        """The subscriber's connection was lost: messages are missed until `subscriber_up`."""

    def publisher_up(self) -> None:
        """The publisher's connection is established."""

    def publisher_down(self, why: str) -> None:
        """The publisher's connection was lost, perhaps with the last messages. Ends a `pause` as well."""

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """Handle commands in Redis's order, including the member's own."""

    def pause(self) -> None:
        """Stop publishing: the transport's buffer is full."""

    def resume(self) -> None:
        """Publish again."""

    def unreachable(self, why: str) -> None:
        """An attempt to connect failed; the link retries. Each of the two connections reports its own."""


class IAddressFinder(Protocol):
    """Finds the address of the master."""

    async def find_master(self, attempt: Any) -> tuple[str, int]:
        """Return its host and port, using connections of this attempt."""


class IRedisLink(Protocol):
    """The parts of a link that its connections and halves use."""

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
        """The Sentinels to ask before each attempt; None if the address names Redis itself."""

    def on_messages(self, messages: Sequence[bytes]) -> None:
        """Handle the messages of one read."""

    def changed(self, *, again: bool = False) -> None:
        """A connection was established or lost; `again`: it is a reconnect."""
