"""What the room of the channel runs in a daemon: the RESP port, and the channel at it.

What a client publishes becomes a fact of the log, and goes to all followers, in these steps:

1. `RespConnection` (`resp/connection.py`) parses the request, and `answer` finds PUBLISH in the table of
   `resp/commands.py`.
2. `RespClient.publish_line` (`resp/client.py`) checks the rights of the client's key and keeps the line;
   `publish` passes on what came together.
3. `ServedChannel.publish` (`served_channel.py`) keeps the lines of a batch together, passes them to the
   subscribers of the port, and gives them to what it is wired with: on a primary `ServedLink.take`, on a
   replica `ChannelUplink.published`, which brings them to step 3 of its upstream.
4. `ServedLink` (`served_link.py`) parses the lines for the member of this daemon: a primary is a process on
   its own channel, and takes facts from there as it would from a channel on a Redis.
5. `DaemonMember.received` (`replication/membership/daemon_member.py`) leaves out what this daemon has sent
   itself, and what two processes claim to write. Rows and positions go on to its follower. Other commands go
   to `Publisher.on_channel_command`, which sends them to the followers at once.
6. The follower (`replication/follower/`) finds and fills gaps, and applies each fact once: by
   `Ingester.submit` (`ingest/ingester.py`), to which `SourceManager` has attached it.
7. The ingester appends what has gathered with `Log.append_assigned`. Once it is committed, the log calls
   `Publisher`, which sends it on as it does with every fact (docs/explanation/afternoon.md).

`ChannelPart._wire` connects steps 1 to 4, whenever the role changes; `RespSource` makes those of 4 to 6.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from synrepl.base.access import LOCAL, Access
from synrepl.base.limited_logger import LimitedLogger
from synrepl.base.metrics import Metrics
from synrepl.base.problems import Problem
from synrepl.channel.publish_rights import line_refusal
from synrepl.channel.resp.server import RespFactory, RespServer
from synrepl.channel.resp_codec import error, split_messages
from synrepl.channel.served_channel import ServedChannel
from synrepl.channel.settings import DURABLE_ONLY, SENT, ChannelSettings
from synrepl.daemon.listeners import Port
from synrepl.daemon.other_daemons import IChannelConversation, IOtherDaemons
from synrepl.daemon.parts import DaemonParts, Part
from synrepl.replication.hooks import IRole
from synrepl.replication.serving.publisher import Publisher
from synrepl.replication.status_parts import NO_SOURCE
from synrepl.storage.log import Log
from synrepl.streams.catalog import takes
from synrepl.streams.origin import Origin
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer

if TYPE_CHECKING:
    from synrepl.channel.downlink import ChannelDownlink
    from synrepl.channel.source import RespSource
    from synrepl.channel.uplink import ChannelUplink

FENCED_WHY: Final = "this daemon is fenced: another one is primary"
NAMELESS_WHY: Final = "this replica does not know its homeserver before it has reached its upstream"


class ChannelPart(Part):
    """Serves a channel as primary and as replica: a port that closes when roles change would lose lines.

    A replica passes what is published at it to its upstream, and what that passes to its subscribers. While
    it has none, its own subscribers get what its own clients publish, and the log nothing. A fenced daemon
    serves nobody. `others` knows which of these it is; None: always a primary.
    """

    def __init__(
        self,
        settings: ChannelSettings,
        reactor: Any,
        log: Log,
        publisher: Publisher,
        role: IRole,
        others: IOtherDaemons | None = None,
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
        self._others = others
        self._table = table
        self._metrics = metrics
        self._server = server
        self._channel: ServedChannel | None = None
        """While the channel is served."""
        self._source: RespSource | None = None
        """What takes the facts of the channel into the log, on a primary."""
        self._uplink: ChannelUplink | None = None
        """The way to the channel of the upstream, on a replica."""
        if settings.resp_ack != SENT:
            log.subscribe(lambda facts: server.committed())
        role.subscribers.append(self.update)
        if others is not None:
            others.use_channel(self)

    async def start(self) -> None:
        if self._others is None:
            self.update()

    def stop(self) -> None:
        self._close("this daemon is shutting down")
        self._server.stop()

    def update(self) -> None:
        """Serve the channel, or not, as the role says."""
        if self._role.is_fenced:
            self._close(FENCED_WHY)
            return
        is_replica = not self._role.is_primary
        if is_replica and not self._has_name:
            self._close(NAMELESS_WHY)
            return
        if self._channel is None:
            self._channel = self._make_channel()
        if not is_replica:
            self._drop_uplink()
        elif self._uplink is None:
            # Imported on use, as below: a daemon alone has no upstream.
            from synrepl.channel.uplink import ChannelUplink

            self._uplink = ChannelUplink(self._channel, self._reactor, self._metrics)
        self._wire()

    def _wire(self) -> None:
        """Connect the port, the channel, and its ways to log and upstream, as far as they exist."""
        channel, source, uplink = self._channel, self._source, self._uplink
        if source is not None and source.is_open and source.channel is channel:
            self._server.use(channel, link=source.link, uplink=uplink)
            channel.use(ingest=source.link.take, is_caught_up=source.is_caught_up, uplink=uplink)
        else:
            self._server.use(channel, uplink=uplink)
            if channel is not None:
                channel.use(uplink=uplink)

    @property
    def _has_name(self) -> bool:
        """Whether a replica knows the name of its homeserver, or that its upstream has none."""
        if self._settings.expected_name(self._log.notes) is not None:
            return True
        return self._role.has_met_upstream

    def _close(self, why: str) -> None:
        self._drop_uplink()
        channel, self._channel = self._channel, None
        self._server.close(why)
        if channel is not None:
            channel.use()
            channel.stop()

    def _drop_uplink(self) -> None:
        uplink, self._uplink = self._uplink, None
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

    def _is_durable(self, writer: Writer, token: int) -> bool:
        """Whether a fact is on this daemon's disk, or never will be: its stream is none that it holds.

        Of a late fact, in a stream without order, only its writer's position is known: it may not be there.
        """
        stream = writer.stream
        if stream not in self._table or self._table[stream].ephemeral or self._table[stream].on_request:
            return True
        if not takes(stream, Origin.SOURCE):
            return True
        if not self._publisher.read_gate.filter.passes(stream, writer.name):
            return True
        return self._log.head.positions.get(stream, {}).get(writer.name, 0) >= token

    # -- the port ------------------------------------------------------------------------------------------

    def status(self, access: Access = LOCAL) -> Mapping[str, Any]:
        if access.streams is not None:
            return {"resp": None}
        source = self._source
        if source is None or not source.is_open:
            return {"resp": {**self._server.status(), **NO_SOURCE}}
        return source.sections()

    def problems(self) -> Sequence[Problem]:
        return self._server.problems()

    # -- a source of facts (`IChannelHost`) ----------------------------------------------------------------

    def channel_host(self) -> "ChannelPart":
        return self

    def make_source(self, **parts: Any) -> "RespSource":
        """Make the source of the channel's facts. The role may have changed a moment ago."""
        # Imported on use: a replica has no sources.
        from synrepl.channel.source import RespSource

        self.update()
        assert self._channel is not None
        self._source = RespSource(server=self._server, channel=self._channel, changed=self._wire, **parts)
        return self._source

    def sender_of(self, stream: str, writer: str) -> str:
        """Return who sends a stream of a writer: the name of a key, or the port."""
        channel = self._channel
        return (channel.owner_of(Writer(stream, writer)) if channel is not None else "") or "the RESP port"

    # -- other daemons (`IServedChannel`) ------------------------------------------------------------------

    @property
    def is_served(self) -> bool:
        """Whether replicas may join the channel now."""
        return self._channel is not None

    def downlink(
        self,
        write: Callable[[bytes], object],
        *,
        most: int,
        name: str,
        access: Access,
        logger: LimitedLogger,
    ) -> "ChannelDownlink | None":
        """Make what passes the channel to a replica; None if it is not served now."""
        from synrepl.channel.downlink import ChannelDownlink

        channel = self._channel
        if channel is None:
            return None

        def send(data: bytes) -> None:
            for piece in split_messages(data, most):
                write(piece)

        # A replica with a key for all instances has asked this of its own clients, which may move.
        runs = None if access.instances is None else channel.runs
        return ChannelDownlink(
            channel,
            send,
            name=name,
            owner=access.name,
            refusal=lambda line: line_refusal(access, line, runs),
            logger=logger,
        )

    def connected(self, conversation: IChannelConversation) -> None:
        """Join the channel of the upstream, if there is a way to it."""
        if self._uplink is not None:
            self._uplink.connected(conversation)

    def disconnected(self) -> None:
        """There is no upstream any more."""
        if self._uplink is not None:
            self._uplink.disconnected()


def _too_many(most: int) -> bytes:
    return error(f"ERR max number of clients reached: this listener has {most} connections")


def make_part(daemon: DaemonParts) -> ChannelPart:
    """Make the channel of a daemon with a RESP port."""
    settings = daemon.settings
    assert isinstance(settings, ChannelSettings)
    server = RespServer(daemon.reactor, keys=daemon.keyring, metrics=daemon.metrics, addresses=settings.resp)
    daemon.listeners.add(
        Port("RESP", one, RespFactory(server), _too_many, server.recheck) for one in settings.resp
    )
    return ChannelPart(
        settings,
        daemon.reactor,
        daemon.log,
        daemon.publisher,
        daemon.role,
        daemon.other_daemons,
        table=daemon.table,
        metrics=daemon.metrics,
        server=server,
    )
