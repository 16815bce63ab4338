"""The channel that this daemon serves in Redis' place, as a source of facts."""

from dataclasses import dataclass
from typing import Any

from synrepl.ingest.channel import ChannelSource
from synrepl.ports.problems import Problem
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

    def silence(self) -> Problem | None:
        """There is no connection that could fail."""
        return None

    def status(self) -> dict[str, Any]:
        return {
            "address": ", ".join(self.settings.resp),
            "connected": True,
            "why": "",
            **self.server.info(),
            "messages_refused": self.link.messages_refused,
            **super().status(),
        }
