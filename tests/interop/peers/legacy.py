"""Both ends of Synapse 1.0.0 with stand-ins for the homeserver around them."""

import common
from common import Bystander, Section, report
from synapse.replication.tcp import commands
from synapse.replication.tcp.client import ReplicationClientFactory, ReplicationClientHandler
from synapse.replication.tcp.resource import ReplicationStreamProtocolFactory
from synapse.replication.tcp.streams import STREAMS_MAP
from synapse.util import Clock
from twisted.internet import defer, reactor


def done():
    return defer.succeed(None)


class HomeServer:
    """As much of a homeserver as replication asks for."""

    def __init__(self, server_name):
        self.config = Section(server_name=server_name, send_federation=False, replication_torture_level=None)
        self._notifier = Notifier()

    def get_clock(self):
        return Clock(reactor)

    def get_reactor(self):
        return reactor

    def get_datastore(self):
        return Store("store", answer=done)

    def get_notifier(self):
        return self._notifier

    def get_presence_handler(self):
        return Bystander("presence_handler", answer=done)

    def get_typing_handler(self):
        return Bystander("typing_handler", answer=int, quiet=True)

    def get_server_notices_sender(self):
        return Bystander("server_notices_sender", answer=done)

    def get_federation_sender(self):
        return FederationSender("federation_sender")


class FederationSender(Bystander):
    def get_current_token(self):
        return 0


class Store(Bystander):
    """Its positions are only looked at while streams are built; their sources are replaced afterwards."""

    def __getattr__(self, name):
        if name == "get_push_rules_stream_token":
            return lambda: (0, 0)
        if name.startswith(("get_current_", "get_max_")) or name.endswith("_token"):
            return lambda *args: 0
        return Bystander.__getattr__(self, name)


class Notifier:
    def __init__(self):
        self.wake = lambda: None

    def add_replication_callback(self, callback):
        self.wake = callback

    def on_new_replication_data(self):
        self.wake()


class Client:
    """The worker's end. Asks again from where it was, as a worker with a database does."""

    def __init__(self, options):
        self.positions = {name: "NOW" for name in STREAMS_MAP}
        for name, token in options.start.items():
            for stream in STREAMS_MAP if name == "all" else [name]:
                self.positions[stream] = token
        client = self

        class Positions:
            def stream_positions(self):
                return dict(client.positions)

            def process_replication_rows(self, stream_name, token, rows):
                client.positions[stream_name] = token

        class Handler(ReplicationClientHandler):
            def on_rdata(self, stream_name, token, rows):
                report("rdata", stream=stream_name, writer=None, token=token, rows=rows)
                return ReplicationClientHandler.on_rdata(self, stream_name, token, rows)

            def on_position(self, stream_name, token):
                report("position", stream=stream_name, writer=None, token=token)
                return ReplicationClientHandler.on_position(self, stream_name, token)

            def get_currently_syncing_users(self):
                return options.syncing

            def finished_connecting(self):
                ReplicationClientHandler.finished_connecting(self)
                report("caught_up")

        class Factory(ReplicationClientFactory):
            def buildProtocol(self, address):
                return common.watch(ReplicationClientFactory.buildProtocol(self, address))

            def clientConnectionFailed(self, connector, reason):
                report("connect_failed", reason=reason.getErrorMessage())
                ReplicationClientFactory.clientConnectionFailed(self, connector, reason)

        self._handler = Handler(Positions())
        self._handler.factory = Factory(HomeServer(options.server_name), options.name, self._handler)

    def start(self, host, port):
        reactor.connectTCP(host, port, self._handler.factory)

    def send(self, line):
        self._handler.send_command(common.command_of(commands, line))

    def drop(self):
        if self._handler.connection:
            self._handler.connection.transport.loseConnection()


class Server:
    """The master's end, its streams fed by us."""

    release = "legacy"

    def __init__(self, options):
        self._hs = HomeServer(options.server_name)
        self.rows, self.tokens = {}, {}

        class Factory(ReplicationStreamProtocolFactory):
            def buildProtocol(self, address):
                return common.watch(ReplicationStreamProtocolFactory.buildProtocol(self, address))

        self.factory = Factory(self._hs)
        for stream in self.factory.streamer.streams:
            self._feed(stream, options.token)

    def _feed(self, stream, token):
        name = stream.NAME
        self.rows[name], self.tokens[name] = [], token

        def updates(from_token, current_token, limit=None):
            found = [(at,) + tuple(row) for at, row in self.rows[name] if from_token < at <= current_token]
            return defer.succeed(found[:limit])

        stream.update_function = updates
        stream.current_token = lambda: self.tokens[name]
        stream.last_token = stream.upto_token = token

    def http(self):
        return None  # a legacy master sends the backlog over TCP

    def connections(self):
        return list(self.factory.streamer.connections)

    def wake(self):
        self._hs.get_notifier().on_new_replication_data()

    def send(self, line):
        for connection in self.connections():
            connection.send_command(common.command_of(commands, line))
