"""Both ends of Synapse 1.66.0 with stand-ins for the homeserver around them."""

import json
from urllib.parse import unquote, urlencode, urlsplit

import common
import treq
from common import Bystander, Section, report
from synapse.handlers.presence import PresenceHandler
from synapse.replication.tcp import commands
from synapse.replication.tcp.client import DirectTcpReplicationClientFactory
from synapse.replication.tcp.handler import ReplicationCommandHandler
from synapse.replication.tcp.resource import ReplicationStreamer, ReplicationStreamProtocolFactory
from synapse.replication.tcp.streams._base import make_http_update_function
from synapse.util import SYNAPSE_VERSION, Clock
from twisted.internet import reactor
from twisted.internet.defer import ensureDeferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

WRITERS = ("account_data", "events", "presence", "receipts", "to_device", "typing")


async def done():
    return None


class Store(Bystander):
    """Its positions are only looked at while streams are built; their sources are replaced afterwards."""

    _stream_id_gen = _backfill_id_gen = Section(get_current_token_for_writer=lambda instance: 0)

    def __getattr__(self, name):
        if name.startswith(("get_current_", "get_max_")) or "_token" in name:
            return lambda *args: 0
        return Bystander.__getattr__(self, name)


class Notifier:
    def __init__(self):
        self.wake = lambda: None

    def add_replication_callback(self, callback):
        self.wake = callback

    def on_new_replication_data(self):
        self.wake()

    def notify_remote_server_up(self, server):
        report("call", of="notifier", method="notify_remote_server_up", args=[server], kwargs={})


class Presence(PresenceHandler):
    """The presence stream insists on this class, so it is one, with nothing in it."""

    def __init__(self, syncing):
        self._now_syncing = syncing

    def get_federation_queue(self):
        return Bystander("federation_queue", answer=int, quiet=True)

    async def get_all_presence_updates(self, *args):
        return [], 0, False

    def get_currently_syncing_users_for_replication(self):
        return self._now_syncing

    async def update_external_syncs_row(self, *args):
        report("call", of="presence_handler", method="update_external_syncs_row", args=args, kwargs={})

    async def update_external_syncs_clear(self, *args):
        report("call", of="presence_handler", method="update_external_syncs_clear", args=args, kwargs={})


class Http:
    """Where the release's own puller gets missed rows; without an address there are none to get."""

    def __init__(self, reachable):
        self._reachable = reachable

    async def get_json(self, uri, args=None, headers=None):
        path = urlsplit(uri).path.split("/")
        stream = unquote(path[path.index("get_repl_stream_updates") + 1])
        report("missing", stream=stream, from_token=args["from_token"], upto=args["upto_token"])
        if not self._reachable:
            return {"updates": [], "upto_token": args["upto_token"], "limited": False}
        agent = {b"User-Agent": [b"Synapse/" + SYNAPSE_VERSION.encode()]}  # as its own HTTP client says
        answer = await treq.get(uri + "?" + urlencode(args), headers=dict(agent, **(headers or {})))
        text = await answer.text()
        if answer.code != 200:
            report("trouble", order=uri, error="%s %s" % (answer.code, text))
            raise RuntimeError("HTTP %s" % answer.code)
        return json.loads(text)


class HomeServer:
    """As much of a homeserver as replication asks for."""

    def __init__(self, server_name, instance, data_handler, syncing=(), http=None, writers=()):
        worker_app = None if instance == "master" else "synapse.app.generic_worker"
        host, _, port = (http or "127.0.0.1:1").rpartition(":")
        self.config = Section(
            redis=Section(redis_enabled=False),
            server=Section(server_name=server_name, replication_torture_level=None),
            worker=Section(
                instance_map={name: Section(host=host, port=int(port)) for name in writers},
                run_background_tasks=worker_app is None,
                send_federation=False,
                worker_app=worker_app,
                worker_replication_host=host,
                worker_replication_http_port=int(port),
                worker_replication_http_tls=False,
                worker_replication_secret=None,
                writers=Section(**{kind: ["master"] for kind in WRITERS}),
            ),
        )
        self._instance = instance
        self._data_handler = data_handler
        self._http = Http(http is not None)
        self._notifier = Notifier()
        self._presence = Presence(list(syncing))
        self._store = Store("store", answer=done)
        self._commands = self._streamer = None

    def get_instance_name(self):
        return self._instance

    def get_instance_id(self):
        return self._instance + "-id"

    def get_clock(self):
        return Clock(reactor)

    def get_reactor(self):
        return reactor

    def get_datastores(self):
        return Section(main=self._store)

    def get_notifier(self):
        return self._notifier

    def get_presence_handler(self):
        return self._presence

    def get_replication_data_handler(self):
        return self._data_handler

    def get_typing_handler(self):
        return Bystander("typing_handler", answer=int, quiet=True)

    get_typing_writer_handler = get_typing_handler

    def get_federation_sender(self):
        return FederationSender("federation_sender")

    def get_server_notices_sender(self):
        return Bystander("server_notices_sender", answer=done)

    def get_simple_http_client(self):
        return self._http

    def should_send_federation(self):
        return False

    def get_replication_command_handler(self):
        if self._commands is None:
            self._commands = ReplicationCommandHandler(self)
        return self._commands

    def get_replication_streamer(self):
        if self._streamer is None:
            self._streamer = ReplicationStreamer(self)
        return self._streamer


class FederationSender(Bystander):
    def get_current_token(self):
        return 0


class Client:
    """The worker's end. Pulls what it missed with the release's own puller, if told where from."""

    def __init__(self, options):
        self.positions = {}
        client = self

        class DataHandler:
            async def on_rdata(self, stream_name, instance_name, token, rows):
                report("rdata", stream=stream_name, writer=instance_name, token=token, rows=rows)
                client.advance(stream_name, instance_name, token)

            async def on_position(self, stream_name, instance_name, token):
                report("position", stream=stream_name, writer=instance_name, token=token)
                client.advance(stream_name, instance_name, token)

            def on_remote_server_up(self, server):
                report("remote_server_up", server=server)

        class Factory(DirectTcpReplicationClientFactory):
            def buildProtocol(self, address):
                return common.watch(DirectTcpReplicationClientFactory.buildProtocol(self, address))

            def clientConnectionFailed(self, connector, reason):
                report("connect_failed", reason=reason.getErrorMessage())
                DirectTcpReplicationClientFactory.clientConnectionFailed(self, connector, reason)

        self._hs = HomeServer(
            options.server_name, options.name, DataHandler(), options.syncing, options.http, options.writer
        )
        self._handler = self._hs.get_replication_command_handler()
        for stream in self._handler.get_streams().values():
            self._feed(stream, options.start.get(stream.NAME, options.start.get("all", 0)))
        self._handler._factory = Factory(self._hs, options.name, self._handler)

    def advance(self, stream_name, instance_name, token):
        """As the release's own stores: a position never goes back, but that of typing."""
        key = stream_name, instance_name
        before = token if stream_name == "typing" else self.positions.get(key, token)
        self.positions[key] = max(token, before)

    def _feed(self, stream, start):
        name = stream.NAME
        stream.current_token = lambda instance: self.positions.get((name, instance), start)
        stream.update_function = make_http_update_function(self._hs, name)

    def start(self, host, port):
        reactor.connectTCP(host, port, self._handler._factory)

    def send(self, line):
        self._handler.send_command(common.command_of(commands, line))

    def drop(self):
        for connection in list(self._handler._connections):
            connection.transport.loseConnection()


class Updates(Resource):
    """GET /_synapse/replication/get_repl_stream_updates/<stream>/<transaction>?from_token=&upto_token="""

    isLeaf = True

    def __init__(self, streams):
        Resource.__init__(self)
        self._streams = streams

    def render_GET(self, request):
        stream = self._streams[request.postpath[3].decode()]
        start, upto = (int(request.args[name][0]) for name in (b"from_token", b"upto_token"))
        ensureDeferred(self._answer(request, stream, start, upto)).addErrback(request.processingFailed)
        return NOT_DONE_YET

    async def _answer(self, request, stream, start, upto):
        updates, reached, limited = await stream.get_updates_since("master", start, upto)
        report("fetched", stream=stream.NAME, from_token=start, upto=upto, rows=len(updates))
        request.setHeader(b"Content-Type", b"application/json")
        answer = {"updates": updates, "upto_token": reached, "limited": limited}
        request.write(json.dumps(answer).encode())
        request.finish()


class Server:
    """The master's end, its streams fed by us."""

    release = "current"

    def __init__(self, options):
        class DataHandler:
            def on_remote_server_up(self, server):
                report("remote_server_up", server=server)

        self._hs = HomeServer(options.server_name, "master", DataHandler())
        self._handler = self._hs.get_replication_command_handler()
        self.rows, self.tokens = {}, {}
        for stream in self._handler.get_streams().values():
            self._feed(stream, options.token)

        class Factory(ReplicationStreamProtocolFactory):
            def buildProtocol(self, address):
                return common.watch(ReplicationStreamProtocolFactory.buildProtocol(self, address))

        self.factory = Factory(self._hs)

    def _feed(self, stream, token):
        name = stream.NAME
        self.rows[name], self.tokens[name] = [], token

        async def updates(instance_name, from_token, upto_token, limit):
            found = [(at, tuple(row)) for at, row in self.rows[name] if from_token < at <= upto_token]
            return found, upto_token, False

        stream.update_function = updates
        stream.current_token = lambda instance: self.tokens[name]
        stream.last_token = token

    def http(self):
        """Where its followers fetch what they missed; the answers are those of the real stream classes."""
        return Site(Updates(self._handler.get_streams()))

    def connections(self):
        return list(self._handler._connections)

    def wake(self):
        self._hs.get_notifier().on_new_replication_data()

    def send(self, line):
        self._handler.send_command(common.command_of(commands, line))
