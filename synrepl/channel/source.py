"""The channel that this daemon serves in Redis' place, as a source of facts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from synrepl.base.problems import Notice, Problem
from synrepl.channel.resp.server import RespServer
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.served_link import ServedLink
from synrepl.ingest.channel_source import ChannelSource
from synrepl.streams.writer import Writer

if TYPE_CHECKING:
    from synrepl.channel.redis_connections import BridgeConnections


@dataclass(eq=False, repr=False, kw_only=True)
class RespSource(ChannelSource):
    """Takes the facts of the channel at the RESP port into the log, from `start` to `stop`.

    With a Redis in the settings too, the port's channel is joined with that on the Redis (`redis`).
    """

    where = "our RESP port"

    server: RespServer
    channel: ServedChannel
    changed: Callable[[], object]
    """Called when `is_open` has changed: then the channel is to be wired with `link`, or not any more."""
    redis: "BridgeConnections | None" = None
    is_open: bool = field(default=False, init=False)
    """Whether it has started, and not stopped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.settings.redis is not None:
            # Imported on use: an extra.
            from synrepl.channel.redis_connections import BridgeConnections

            self.redis = BridgeConnections(
                self.channel,
                self.clock,
                self.settings.redis,
                server_name=self.server_name,
                instance=self.settings.instance_name,
                metrics=self.metrics,
            )
        self.link = ServedLink(
            self.clock,
            self.member,
            self.channel,
            instance=self.settings.instance_name,
            metrics=self.metrics,
            on_space=self.server.release,
        )
        self.member.use(self.link)

    def start(self) -> None:
        self.is_open = True
        self.changed()
        self.link.start()
        if self.redis is not None:
            self.redis.start()

    async def stop(self) -> None:
        self.is_open = False
        if self.redis is not None:
            await self.redis.stop()
        self.changed()
        self.member.stop()
        self.link.stop()
        self.follower.stop()

    def is_caught_up(self, writer: Writer, token: int) -> bool:
        """Whether the log takes all of a writer up to this token, or has given up what it could not get."""
        stream = writer.stream
        if stream not in self.follower.table or self.follower.table[stream].ephemeral:
            return True
        return self.follower.server.streams.position(stream, writer.name) >= token

    def silence(self) -> Problem | None:
        """There is no connection of its own that could fail."""
        return None

    def problems(self) -> list[Problem]:
        return super().problems() + ([] if self.redis is None else self.redis.problems())

    def notices(self) -> list[Notice]:
        return [] if self.redis is None else self.redis.notices()

    def status(self) -> dict[str, Any]:
        return {**self.server.status(), **super().status()}

    def sections(self) -> dict[str, Any]:
        found = {"resp": self.status()}
        if self.redis is not None:
            # What was received from it is counted with the channel that it is joined with.
            found["redis"] = {**super().status(), **self.redis.status()}
        return found
