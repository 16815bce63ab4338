"""The channel that this daemon serves in Redis' place, as a source of facts."""

from dataclasses import dataclass
from typing import Any

from synrepl.ingest.channel import ChannelSource
from synrepl.ingest.settings import DURABLE
from synrepl.ports.problems import Problem
from synrepl.replication.broker.served_channel import Source as Pair
from synrepl.replication.broker.served_link import ServedLink
from synrepl.streams.table import StreamTable
from synrepl.transports.resp.server import RespServer


@dataclass(eq=False, repr=False, kw_only=True)
class RespSource(ChannelSource):
    """Serves the channel at the RESP port from `start` to `stop`, and takes its facts into the log."""

    server: RespServer
    table: StreamTable

    def __post_init__(self) -> None:
        super().__post_init__()
        self.link = ServedLink(
            self.clock,
            self.peer,
            server_name=self.server_name,
            instance=self.settings.instance_name,
            table=self.table,
            metrics=self.metrics,
            on_room=self.server.release,
            is_durable=self._is_durable if self.settings.resp_ack == DURABLE else None,
        )
        self.peer.broker = self.link

    def start(self) -> None:
        self.link.start()
        self.server.serve(self.link.channel, lambda: self.link.is_full)

    async def stop(self) -> None:
        self.server.close()
        self.peer.stop()
        self.link.stop()
        self.follower.stop()

    def _is_durable(self, source: Pair, token: int) -> bool:
        """Whether a fact is on disk, or never will be: its stream is none that this daemon takes.

        Of a late fact, in a stream without order, only its writer's position is known: it may not be there.
        """
        stream, writer = source
        if stream not in self.table or self.table[stream].ephemeral or self.table[stream].on_request:
            return True
        return self.publisher.log.head.positions.get(stream, {}).get(writer, 0) >= token

    def silence(self) -> Problem | None:
        """There is no connection that could fail."""
        return None

    def status(self) -> dict[str, Any]:
        return {
            "address": ", ".join(self.settings.resp),
            "connected": True,
            "why": "",
            **self.server.info(),
            "overdue": self.link.channel.overdue,
            "messages_refused": self.link.messages_refused,
            **super().status(),
        }
