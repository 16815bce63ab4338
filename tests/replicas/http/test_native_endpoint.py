"""A replica behind HTTP: it joins and follows natively, and says what is in its way."""

from typing import Any

from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.error import ConnectionRefusedError as ConnectionRefused
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web._newclient import ResponseNeverReceived
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from synrepl.base.access import Keyring
from synrepl.base.response_errors import NeverSent
from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.request_errors import HttpError
from synrepl.replicas.command_forwarder import CommandForwarder
from synrepl.replicas.http.native_endpoint import (
    LAST_WORDS_SECONDS,
    PAUSE_SECONDS,
    PROXY_SUSPICION,
    NativeHttpEndpoint,
)
from synrepl.replicas.native_client import NativeConversation, NativeUpstream
from synrepl.replicas.replica.conversation import RefusedByUpstream
from synrepl.replicas.replica.ephemeral_facts import KeptEphemeral
from synrepl.replicas.replica.replica import Replica
from synrepl.replicas.routes import OFFSET
from synrepl.replicas.settings import CopySettings
from synrepl.replicas.wire.native import Subscribe
from synrepl.replication.serving.commands import FollowerCommands
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.digest import EMPTY
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.http_client import HttpClient
from synrepl.wire.commands import FederationAck, RemoteServerUp
from synrepl.wire.position import LogPosition
from tests.http.builders import receipt, typing
from tests.memory_engine import FaultyEngine
from tests.replicas.http.test_replica_routes import HERE, HS, CopiesCase

PARIS = CopySettings(replica_name="paris")


class RecordingClient:
    """A client of a resource, as treq, that remembers what was posted; `failure` is raised in place of it."""

    def __init__(self, resource: Any) -> None:
        self.posted: list[tuple[int, bytes]] = []
        self.failure: Exception | None = None
        self._client: Any = StubTreq(resource)

    async def request(self, method: str, url: str, **options: Any) -> Any:
        """As treq does it."""
        if url.endswith("/bytes"):
            if self.failure is not None:
                raise self.failure
            self.posted.append((int(options["headers"][OFFSET][0]), options["data"]))
        return await self._client.request(method, url, **options)

    def flush(self) -> None:
        """Let what was written arrive."""
        self._client.flush()


class EndpointCase(CopiesCase):
    """A primary behind HTTP."""

    client: Any

    def upstream(
        self, resource: Any = None, secret: str | None = None, *, insecure: bool = True
    ) -> NativeUpstream:
        """What a replica follows: the site, or what answers in its place."""
        self.client = RecordingClient(self.site.resource if resource is None else resource)
        credentials = Credentials(secret, insecure=insecure)
        endpoint = NativeHttpEndpoint(
            HttpClient(self.clock, HERE.http, secret=credentials, client=self.client)
        )
        return NativeUpstream(
            endpoint,
            self.clock,
            self.metrics,
            HS,
            where=HERE,
            secret=credentials,
            is_private=lambda peer: True,
            suspicion=PROXY_SUSPICION,
        )

    def pass_(self, seconds: float) -> None:
        """Let time pass, and what was written arrive."""
        for _ in range(max(1, round(seconds / 0.05))):
            for _ in range(3):
                self.client.flush()
            self.clock.advance(0.05)
            self.clock.advance(0)

    def connected(self, upstream: NativeUpstream) -> NativeConversation:
        """The conversation with it."""
        connecting = Deferred.fromCoroutine(upstream.connect("u-1", "paris"))
        self.pass_(1)
        conversation: NativeConversation = self.successResultOf(connecting)
        self.addCleanup(conversation.close)
        return conversation

    def error_of(self, upstream: NativeUpstream, seconds: float = 1) -> Exception:
        """Why it cannot be followed, after this time."""
        connecting = Deferred.fromCoroutine(upstream.connect("u-1", "paris"))
        self.pass_(seconds)
        error: Exception = self.failureResultOf(connecting).value
        return error


class FollowingTests(EndpointCase):
    """A whole replica against the site, without a socket."""

    def replica(self, settings: CopySettings = PARIS, **options: Any) -> tuple[Replica, Log]:
        """A replica that has begun."""
        thread = ImmediateThread()
        log = Log(FaultyEngine(), thread, thread, self.clock, ephemeral=self.ephemeral, logger=Logger())
        self.wait(log.start())
        kept = KeptEphemeral(log)
        made = Replica(log, [self.upstream()], self.clock, settings, ephemeral=kept, **options)
        self.addCleanup(made.stop)
        made.start()
        self.pass_(3)
        return made, log

    def test_a_replica_over_http_joins_and_follows(self) -> None:
        """Facts, receipts, epochs and what nobody keeps."""
        self.receipts(5)
        self.post("receipts", [receipt()], idempotency_key="k")
        self.post("typing", [typing("@ada:hs")])
        replica, log = self.replica()
        self.receipts(2)
        self.wait(self.log.epochs.begin_next("promoted"))
        self.post("receipts", [receipt()], idempotency_key="l")
        self.post("typing", [typing()])
        self.pass_(3)

        self.assertEqual(("live", self.log.position), (replica.state, log.position))
        self.assertEqual(self.log.head.epoch_starts, log.head.epoch_starts)
        self.assertEqual(["k", "l"], [one.key.text for one in self.wait(log.reads.receipts(0, 99))])
        self.assertEqual(self.log.positions("typing"), log.positions("typing"))
        self.assertEqual(["live"], [one["state"] for one in self.registry.status()])

    def test_a_filtered_one_gets_no_more_than_it_wants(self) -> None:
        """And stands where the primary stands."""
        self.post("push_rules", [["@ada:hs"]])
        self.receipts(5)
        replica, log = self.replica(CopySettings(replica_name="paris", upstream_streams=("push_rules",)))
        self.receipts(3)
        self.post("push_rules", [["@bob:hs"]])
        self.pass_(3)

        facts, _ = self.wait(log.reads.facts(after=0, upto=99, limit=99))
        self.assertEqual(("live", self.log.position), (replica.state, log.position))
        self.assertEqual([1, 10], [fact.serial for fact in facts])

    def test_one_that_knows_a_later_epoch_is_refused(self) -> None:
        """The primary was restored, or another took over: nothing of what the replica has is touched."""
        self.receipts(3)
        replica, log = self.replica()
        self.wait(log.epochs.begin_next("restored"))
        replica.stop()
        replica.start()
        self.pass_(3)

        self.assertEqual("other_epoch", replica.status()["refusal"]["code"])
        self.assertEqual(3, log.head.serial)
        self.assertNotEqual(EMPTY, log.head.digest)

    def forwarder(self, dropped: list[str]) -> CommandForwarder:
        """What a replica passes commands up with."""
        upstream = FollowerCommands(self.log, self.table, self.clock, instance="copy")
        self.addCleanup(upstream.stop)
        commands = CommandForwarder(
            upstream, self.clock, origin="copy-1", is_active=lambda: True, dropped=dropped.append
        )
        self.addCleanup(commands.stop)
        return commands

    def test_what_followers_send_up_reaches_the_primary_once(self) -> None:
        """In order, through proxies."""
        heard: list[Any] = []
        self.publisher.follower_commands.subscribers[FederationAck].append(heard.append)
        dropped: list[str] = []
        commands = self.forwarder(dropped)
        for number in range(3):
            commands.forward(FederationAck(instance="sender1", token=number))
        self.replica(commands=commands)
        for number in range(3, 1200):
            commands.forward(FederationAck(instance="sender1", token=number))
        self.pass_(5)

        self.assertEqual(list(range(1200)), [one.token for one in heard])
        self.assertEqual([], dropped)

    def test_what_is_for_all_processes_comes_down_once(self) -> None:
        """A server that is up again is told to the followers of every replica, but to who said it."""
        told: list[Any] = []
        commands = self.forwarder([])
        self.receipts(2)
        replica, _ = self.replica(commands=commands, on_command=told.append)
        self.publisher.broadcast(RemoteServerUp(server="one"))
        commands.forward(RemoteServerUp(server="mine"))
        self.pass_(2)
        replica.stop()
        self.publisher.broadcast(RemoteServerUp(server="missed"))
        self.pass_(1)
        replica.start()
        self.pass_(3)
        self.publisher.broadcast(RemoteServerUp(server="two"))
        self.pass_(1)

        self.assertEqual(["one", "two"], [one.server for one in told])


class PostingTests(EndpointCase):
    """What goes up."""

    def test_what_is_written_meanwhile_goes_up_together(self) -> None:
        """A replica acknowledges each group of facts: the primary must not answer a request for each."""
        self.receipts(9)
        conversation = self.connected(self.upstream())
        position = LogPosition(1, 1, self.wait(self.log.reads.digest(1)))
        conversation.subscribe(Subscribe(history=self.log.history, position=position))
        self.pass_(1)
        before = len(self.client.posted)
        for serial in range(2, 10):
            conversation.acknowledge(LogPosition(1, serial, ""), 0)
            self.clock.advance(0)
        self.pass_(PAUSE_SECONDS)

        posted = self.client.posted[before:]
        self.assertEqual(8, sum(data.count(b"ACK") for _, data in posted))
        self.assertLessEqual(len(posted), 3)
        self.assertEqual([9], [lease.serial for lease in self.registry.leases.all()])

    def test_the_offsets_are_those_of_what_was_sent(self) -> None:
        """Each request begins where the one before ended."""
        conversation = self.connected(self.upstream())
        conversation.acknowledge(LogPosition(1, 0, ""), 0)
        self.pass_(1)
        at = 0

        self.assertGreater(len(self.client.posted), 1)
        for offset, data in self.client.posted:
            self.assertEqual(at, offset)
            at += len(data)

    def test_a_request_that_fails_ends_the_conversation(self) -> None:
        """What was in it is lost, or not: only another conversation can tell."""
        conversation = self.connected(self.upstream())
        self.client.failure = ConnectionRefused()
        conversation.acknowledge(LogPosition(1, 0, ""), 0)
        self.pass_(1 + LAST_WORDS_SECONDS)

        failed = Deferred.fromCoroutine(conversation.next())
        why = str(self.failureResultOf(failed, NotConnected).value)
        self.assertIn("no response from http://hs.example:9093: connection refused", why)
        self.assertEqual([], self.registry.connected)

    def test_the_reason_of_the_upstream_is_waited_for(self) -> None:
        """A request that comes after the end is answered before the reason is read."""
        conversation = self.connected(self.upstream())
        (transport,) = self.site.resource.context.rooms["replicas"].native_transports.values()
        self.site.resource.context.rooms["replicas"].native_transports.clear()
        conversation.acknowledge(LogPosition(1, 0, ""), 0)
        self.pass_(1)
        self.site.resource.context.rooms["replicas"].native_transports["it is removed"] = transport
        next(iter(self.registry.connected)).connection.fail("server shutting down")
        self.site.resource.context.rooms["replicas"].native_transports[self.name_of(conversation)] = transport
        self.pass_(1)

        failed = Deferred.fromCoroutine(conversation.next())
        why = str(self.failureResultOf(failed, NotConnected).value)
        self.assertEqual("ERROR from the upstream: server shutting down", why)

    def test_the_reason_is_waited_for_however_a_request_failed(self) -> None:
        """The two connections end in any order: a request that was cut or refused may be seen first."""
        failures = (
            ResponseNeverReceived([Failure(ConnectionDone())]),
            ConnectionRefused(),
            HttpError(502, "error", "Bad Gateway"),
        )
        for failure in failures:
            with self.subTest(failure=failure):
                conversation = self.connected(self.upstream())
                self.client.failure = failure
                conversation.acknowledge(LogPosition(1, 0, ""), 0)
                self.pass_(1)
                next(iter(self.registry.connected)).connection.fail("server shutting down")
                self.pass_(1)

                failed = Deferred.fromCoroutine(conversation.next())
                why = str(self.failureResultOf(failed, NotConnected).value)
                self.assertEqual("ERROR from the upstream: server shutting down", why)

    def test_a_refused_request_ends_the_conversation_at_once(self) -> None:
        """The upstream has said what is wrong, and goes on with its answer."""
        conversation = self.connected(self.upstream())
        self.client.failure = HttpError(400, "bad_offset", "7 bytes were received before, and not 9")
        conversation.acknowledge(LogPosition(1, 0, ""), 0)
        self.pass_(1)

        failed = Deferred.fromCoroutine(conversation.next())
        self.assertIn("7 bytes were received", str(self.failureResultOf(failed, NotConnected).value))

    @staticmethod
    def name_of(conversation: NativeConversation) -> str:
        """The id of its connection."""
        name: str = conversation._connection.transport._name
        return name

    def test_a_reason_that_does_not_come_is_not_waited_for_long(self) -> None:
        """The connection has ended all the same."""
        conversation = self.connected(self.upstream())
        name = self.name_of(conversation)
        transport = self.site.resource.context.rooms["replicas"].native_transports.pop(name)
        conversation.acknowledge(LogPosition(1, 0, ""), 0)
        self.pass_(1)
        failed = Deferred.fromCoroutine(conversation.next())
        self.assertNoResult(failed)
        self.site.resource.context.rooms["replicas"].native_transports[name] = transport
        self.pass_(LAST_WORDS_SECONDS)

        why = str(self.failureResultOf(failed, NotConnected).value)
        self.assertIn("404 no_connection", why)


class Answers(Resource):
    """Answers every request like this; with an `end` of False, without an end."""

    isLeaf = True

    def __init__(self, status: int, body: bytes, *, end: bool = True, **headers: str) -> None:
        super().__init__()
        self._status, self._body, self._end, self._headers = status, body, end, headers

    def render(self, request: Any) -> Any:
        """The answer."""
        request.setResponseCode(self._status)
        for name, value in self._headers.items():
            request.setHeader(name.replace("_", "-").encode(), value.encode())
        if self._end:
            return self._body
        request.write(self._body)
        return NOT_DONE_YET


class Silent(Resource):
    """Takes requests, and answers none of them."""

    isLeaf = True

    def render(self, request: Any) -> int:
        """Nothing."""
        return NOT_DONE_YET


class RefusalTests(EndpointCase):
    """What an operator reads of a replica that cannot connect."""

    def test_a_wrong_secret_refuses_the_replica(self) -> None:
        """It is the operator's turn, as on a native port."""
        self.site = self.make_site(**self.served(), keys=Keyring("right"))
        for secret in (None, "wrong"):
            error = self.error_of(self.upstream(secret=secret))

            assert isinstance(error, RefusedByUpstream)
            self.assertEqual("no_rights", error.refusal.code)
            self.assertFalse(error.retryable)

    def test_a_secret_opens_the_connection_and_is_in_the_greeting(self) -> None:
        """A proxy that ends TLS reads both."""
        self.registry.keys = Keyring("right")
        self.site = self.make_site(**self.served(), keys=self.registry.keys)

        self.assertEqual("primary", self.connected(self.upstream(secret="right")).welcome.role)

    def test_no_secret_is_sent_in_the_clear_to_another_machine(self) -> None:
        """Unless the operator of this daemon says so; nothing is asked at all."""
        error = self.error_of(self.upstream(secret="right", insecure=False))

        self.assertIsInstance(error, NeverSent)
        self.assertIn("no key is sent to http://hs.example:9093 in the clear", str(error))

    def test_a_refusal_that_nothing_authenticates_stops_no_replica(self) -> None:
        """Anybody on the way could write it."""
        for code in ("fork", "ahead", "other_history", "trimmed", "unknown", "not_a_code"):
            body = b'{"error":"%b","message":"m","moved_to":"- http://evil:1"}' % code.encode()
            error = self.error_of(self.upstream(Answers(409, body)))

            self.assertEqual(RemoteProtocolError, type(error))
            self.assertIn(f"http://hs.example:9093/v1/native answered 409 {code}: m", str(error))

    def test_unexpected_answers_are_reported(self) -> None:
        """Of an older daemon, of one that cannot serve now, and of something else."""
        cases: list[tuple[Answers, type[Exception], str]] = [
            (
                Answers(404, b'{"error":"not_found","message":"no such URL"}'),
                RemoteProtocolError,
                "no such URL",
            ),
            (Answers(503, b'{"error":"busy","message":"later"}'), NotConnected, "answered 503 busy: later"),
            (Answers(502, b"<html>Bad Gateway"), NotConnected, "answered 502 error"),
            (Answers(200, b"<html>Welcome"), RemoteProtocolError, "opened no native connection"),
        ]
        for resource, kind, why in cases:
            error = self.error_of(self.upstream(resource))

            self.assertEqual(kind, type(error))
            self.assertIn(why, str(error))

    def test_one_that_cannot_be_reached_is_named(self) -> None:
        """With what the system says."""
        upstream = self.upstream()

        async def refuse(*args: Any, **options: Any) -> None:
            raise ConnectionRefused

        self.client.request = refuse
        error = self.error_of(upstream)

        self.assertIsInstance(error, NotConnected)
        self.assertEqual("no response from http://hs.example:9093: connection refused", str(error))

    def test_a_proxy_that_holds_the_answer_back_is_suspected(self) -> None:
        """Whether it keeps the head as well, or only the bytes."""
        held = Answers(200, b"", end=False, Synrepl_Connection="0" * 64)
        for resource in (Silent(), held):
            error = self.error_of(self.upstream(resource), seconds=32)

            self.assertIsInstance(error, NotConnected)
            self.assertIn("nginx: proxy_buffering", str(error))

    def test_names_of_an_upstream_that_are_not_printable_are_refused(self) -> None:
        """They are shown in the status and in the log."""
        self.patch(self.roles, "address", lambda: "- http://x\x1b[2J")
        error = self.error_of(self.upstream())

        self.assertIsInstance(error, RemoteProtocolError)
        self.assertIn("sent an invalid name or address", str(error))
