"""The channel at the RESP port of a daemon: what it is for the log, and which other daemons it reaches."""

from typing import TYPE_CHECKING, Any

from synrepl.channel.ends import Source
from synrepl.channel.resp.server import RespServer
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.uplink import ChannelUplink
from synrepl.config import Settings
from synrepl.ingest.settings import DURABLE_ONLY, SENT
from synrepl.ports.metrics import Metrics
from synrepl.replication.hooks import IRole
from synrepl.replication.publisher import Publisher
from synrepl.storage.log import Log
from synrepl.streams.catalog import takes
from synrepl.streams.origin import Origin
from synrepl.streams.table import StreamTable

if TYPE_CHECKING:
    from synrepl.replicas.channel_copies import IPassesChannel

PRIMARY, REPLICA, FENCED = "primary", "replica", "fenced"

FENCED_WHY = "this daemon is fenced: another one is primary"
NAMELESS_WHY = "this replica does not know its homeserver before it has reached its upstream"


class ChannelServices:
    """Serves a channel as primary and as replica: a port that closes when roles change would lose lines.

    A replica passes what is published at it to its upstream, and what that passes to its subscribers. While
    it has none, its own subscribers get what its own clients publish, and the log nothing. A fenced daemon
    serves nobody.
    """

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        log: Log,
        publisher: Publisher,
        role: IRole,
        replicas: "IPassesChannel | None",
        *,
        table: StreamTable,
        metrics: Metrics,
        server: RespServer,
    ) -> None:
        self._settings = settings
        self._reactor = reactor
        self._log = log
        self._publisher = publisher
        self._role = role
        self._replicas = replicas
        self._table = table
        self._metrics = metrics
        self._server = server
        if settings.resp_ack != SENT:
            log.subscribe(lambda facts: server.committed())

    def update(self) -> None:
        """Serve the channel, or not, as the role says."""
        role, server = self._role.role, self._server
        if role == FENCED:
            self._close(FENCED_WHY)
            return
        if role != PRIMARY and not self._has_name:
            self._close(NAMELESS_WHY)
            return
        if server.channel is None:
            server.channel = self._make_channel()
        if role != REPLICA:
            self._drop_uplink()
        elif server.uplink is None:
            server.uplink = ChannelUplink(server.channel, self._reactor, self._metrics)

    @property
    def _has_name(self) -> bool:
        """Whether a replica knows the name of its homeserver, or that its upstream has none."""
        if self._settings.expected_name(self._log.notes) is not None:
            return True
        return self._replicas is not None and self._replicas.has_met_upstream

    def stop(self) -> None:
        """Serve no channel any more."""
        self._close("this daemon is shutting down")

    def _close(self, why: str) -> None:
        self._drop_uplink()
        channel = self._server.channel
        self._server.close(why)
        if channel is not None:
            channel.stop()

    def _drop_uplink(self) -> None:
        uplink, self._server.uplink = self._server.uplink, None
        if uplink is not None:
            uplink.stop()

    def _make_channel(self) -> ServedChannel:
        table, settings = self._table, self._settings
        return ServedChannel(
            self._reactor,
            settings.server_name_of(self._log.notes),
            is_ephemeral=lambda stream: stream in table and table[stream].ephemeral,
            metrics=self._metrics,
            is_known=table.__contains__,
            runs=self._publisher.follower_commands.runs,
            is_durable=None if settings.resp_ack == SENT else self._is_durable,
            only_durable=settings.resp_ack == DURABLE_ONLY,
        )

    def _is_durable(self, source: Source, token: int) -> bool:
        """Whether a fact is on this daemon's disk, or never will be: its stream is none that it holds.

        Of a late fact, in a stream without order, only its writer's position is known: it may not be there.
        """
        stream, writer = source
        if stream not in self._table or self._table[stream].ephemeral or self._table[stream].on_request:
            return True
        if not takes(stream, Origin.SOURCE):
            return True
        if not self._publisher.holdings.filter.passes(stream, writer):
            return True
        return self._log.head.positions.get(stream, {}).get(writer, 0) >= token
