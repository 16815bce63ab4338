"""Requests of a connection take turns, and each must progress: no peer keeps the others waiting."""

import gzip
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, formatEvent, globalLogPublisher

from synrepl.base.turn_queue import SLICE_SECONDS, TurnQueue
from synrepl.storage.threads import ImmediateThread
from synrepl.transports.http.http_channel import PROGRESS_BYTES, PROGRESS_SECONDS
from tests.http.builders import SiteCase, Talk, append_body, receipt

LIVEZ = "/livez"


class TurnCase(SiteCase):
    """A site whose reactor makes one turn at a time."""

    def turn(self) -> None:
        """Make the calls that are due, but not those that they make due, unlike `advance`."""
        for call in [call for call in self.clock.calls if call.getTime() <= self.clock.seconds()]:
            self.clock.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class FramingTests(SiteCase):
    """Whatever a proxy before the daemon may read in another way is refused."""

    def test_a_second_transfer_encoding_is_refused(self) -> None:
        """Twisted took this for chunked."""
        body = b"5\r\nhello\r\n0\r\n\r\n"
        for headers in (
            ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
            ("Transfer-Encoding: identity", "Transfer-Encoding: chunked"),
            ("Transfer-Encoding: chunked", "transfer-encoding: chunked"),
            ("Transfer-Encoding: chunked", "Content-Length: 5"),
            ("Transfer-Encoding: chunked, identity",),
        ):
            with self.subTest(headers=headers):
                talk = self.talk()
                lines = "".join(f"{header}\r\n" for header in ("Host: localhost", *headers))
                talk.say(f"POST /v1/facts HTTP/1.1\r\n{lines}\r\n".encode() + body)
                self.assertEqual(b"HTTP/1.1 400 Bad Request", talk.heard.split(b"\r\n")[0])
                self.assertTrue(talk.transport.disconnecting)

    def test_a_transfer_encoding_in_an_old_request_is_refused(self) -> None:
        """HTTP/1.0 has none: a proxy may read on to the end of the connection."""
        talk = self.talk()
        head = b"POST /v1/facts HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        talk.say(head + b"2\r\n{}\r\n0\r\n\r\n")
        self.assertEqual(b"HTTP/1.1 400 Bad Request", talk.heard.split(b"\r\n")[0])
        self.assertTrue(talk.transport.disconnecting)

    def test_a_target_in_absolute_form_is_that_of_its_path(self) -> None:
        """A server must accept it (RFC 9112, 3.2.2); proxies send it. The host in it counts."""
        for target, host, status in (
            ("http://localhost:9093/livez", "localhost", 200),
            ("HTTP://127.0.0.1/livez?x=1", "evil.example", 200),
            ("http://127.0.0.1/livez", "evil.example", 200),
            ("http://localhost", "localhost", 302),
            ("http://localhost?x", "localhost", 302),
            ("http://evil.example/v1/status", "localhost", 403),
            ("ftp://localhost/livez", "localhost", 404),
        ):
            with self.subTest(target):
                talk = self.talk()
                talk.say(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                self.clock.advance(0)
                self.assertIn(f"HTTP/1.1 {status} ".encode(), talk.heard)

    def test_an_encoded_body_is_refused_by_name(self) -> None:
        """It was called no JSON; whole, in pieces, and where a body is read as it comes."""
        body = gzip.compress(b'{"facts":[[["@a:hs"]]]}')
        for path, method in (
            ("/v1/streams/push_rules/facts", "POST"),
            ("/v1/appends", "POST"),
            (f"/v1/files/sha256/{'0' * 64}", "PUT"),
        ):
            for encoding in ("gzip", "zstd, gzip", "x\x1b[2J"):
                with self.subTest(path, encoding=encoding):
                    talk = self.talk()
                    head = (
                        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    )
                    head += f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
                    talk.say(head.encode("latin-1") + body)
                    self.clock.advance(0)
                    answer = talk.answer()
                    self.assertEqual((415, "unsupported_encoding"), (answer.status, answer.json()["error"]))
                    self.assertEqual("identity", answer.headers["accept-encoding"])
                    self.assertIn(encoding.replace("\x1b", "\\x1b"), answer.json()["message"])
        self.assertEqual(0, self.log.head.serial)
        identity = self.ask(
            "POST", "/v1/streams/push_rules/facts", b'{"facts":[[["@a:hs"]]]}', "Content-Encoding: identity"
        )
        self.assertEqual(200, identity.status)

    def test_each_request_has_its_transfer_encoding(self) -> None:
        """On a connection that is kept."""
        talk = self.talk()
        body = b"2\r\n{}\r\n0\r\n\r\n"
        headers = ("Transfer-Encoding: chunked", "Content-Type: application/json")
        for _ in range(2):
            lines = "".join(f"{header}\r\n" for header in ("Host: localhost", *headers))
            talk.say(f"POST /v1/streams/push_rules/facts HTTP/1.1\r\n{lines}\r\n".encode() + body)
            self.clock.advance(0)
        self.assertEqual(2, talk.heard.count(b"HTTP/1.1 400 "))
        self.assertEqual(2, talk.heard.count(b"missing required field `facts`"))


class PipelineTests(TurnCase):
    """A client may send many requests before it reads the answers."""

    def answered(self, talk: Talk) -> int:
        """How many answers came back."""
        return talk.heard.count(b"HTTP/1.1 ")

    def test_one_request_of_a_connection_is_answered_in_a_turn(self) -> None:
        """6,000 of them stopped a daemon for 16 seconds."""
        talk = self.talk()

        talk.say(self.request("GET", LIVEZ) * 5)
        answers = [self.answered(talk)]
        for _ in range(5):
            self.turn()
            answers.append(self.answered(talk))

        self.assertEqual([1, 2, 3, 4, 5, 5], answers)

    def test_pages_are_made_in_a_thread_one_at_a_time(self) -> None:
        """It takes up to a tenth of a second. Whoever asks meanwhile shares the next one, and sees more."""
        for path in ("/metrics", "/status"):
            with self.subTest(path):
                works: list[tuple[Callable[[], bytes], Deferred[bytes]]] = []

                def run(work: Callable[[], bytes], works: Any = works) -> Deferred[bytes]:
                    works.append((work, Deferred()))
                    return works[-1][1]  # type: ignore[no-any-return]

                thread = SimpleNamespace(run=ImmediateThread().run)
                self.site = self.make_site(thread=thread)
                self.ask("GET", path)  # imports the handler, in a thread too
                self.receipts(1)
                thread.run = run
                talks = [self.talk() for _ in range(4)]
                for talk in talks:
                    talk.say(self.request("GET", path))
                self.assertEqual(([0, 0, 0, 0], 1), ([self.answered(talk) for talk in talks], len(works)))
                self.receipts(1)
                works[0][1].callback(works[0][0]())
                self.assertEqual(([1, 0, 0, 0], 2), ([self.answered(talk) for talk in talks], len(works)))
                works[1][1].callback(works[1][0]())

                self.assertEqual(([1, 1, 1, 1], 2), ([self.answered(talk) for talk in talks], len(works)))
                bodies = [talk.heard.partition(b"\r\n\r\n")[2] for talk in talks]
                self.assertNotEqual(bodies[0], bodies[1])
                self.assertEqual(bodies[1:2] * 3, bodies[1:])

    def test_others_are_answered_in_between(self) -> None:
        """Each connection has its turn."""
        greedy, modest = self.talk(), self.talk()

        greedy.say(self.request("GET", LIVEZ) * 100)
        modest.say(self.request("GET", LIVEZ))
        self.turn()
        self.turn()

        self.assertEqual(1, self.answered(modest))
        self.assertLessEqual(self.answered(greedy), 3)

    def test_nothing_is_read_while_requests_wait(self) -> None:
        """What waits is what one read has brought."""
        talk = self.talk()

        talk.say(self.request("GET", LIVEZ) * 3)
        states = [talk.transport.producerState]
        for _ in range(3):
            self.turn()
            states.append(talk.transport.producerState)

        self.assertEqual(["paused", "paused", "producing", "producing"], states)

    def test_no_request_is_handled_while_the_answers_are_not_read(self) -> None:
        """The answers would wait in memory."""
        talk = self.talk()
        talk.transport.is_slow, talk.transport.full_at = True, 1

        talk.say(self.request("GET", LIVEZ) * 3)
        for _ in range(5):
            self.turn()
        unread = self.answered(talk)
        talk.say(self.request("GET", LIVEZ))
        self.turn()

        self.assertEqual((1, "paused"), (unread, talk.transport.producerState))
        talk.transport.is_slow = False
        talk.protocol.resumeProducing()
        for _ in range(5):
            self.turn()
        self.assertEqual((4, "producing"), (self.answered(talk), talk.transport.producerState))

    def test_a_pipelined_body_is_whole(self) -> None:
        """It may have come together with the request before it, or in pieces while that waited."""
        talk = self.talk()
        body = append_body([[receipt()]])
        post = self.request("POST", "/v1/streams/receipts/facts", body)

        talk.say(self.request("GET", LIVEZ) + post + post[:100])
        talk.say(post[100:150])
        self.turn()
        self.turn()
        talk.say(post[150:])
        self.turn()

        self.assertEqual(3, self.answered(talk))
        self.assertEqual(2, self.log.head.serial)

    def test_a_client_that_leaves_while_its_requests_wait_leaves_nothing(self) -> None:
        """Its turn comes, and nobody is there."""
        timers = len(self.clock.getDelayedCalls())
        talk = self.talk()

        talk.say(self.request("GET", LIVEZ) * 3)
        talk.leave()
        self.turn()
        self.turn()

        self.assertEqual(1, self.answered(talk))
        self.assertEqual(timers, len(self.clock.getDelayedCalls()))

    def test_too_many_headers_are_refused(self) -> None:
        """Each takes time and memory."""
        answers = [self.get(LIVEZ, *(f"X-{n}: 1" for n in range(count))).status for count in (90, 200)]

        self.assertEqual([200, 400], answers)


class ProgressTests(SiteCase):
    """A request that does not progress is given up; what takes long for other reasons is not."""

    def talk_slowly(self, talk: Talk, data: bytes, *, seconds: float) -> None:
        """Send a byte at a time, with so many seconds between."""
        for position in range(len(data)):
            talk.say(data[position : position + 1])
            self.clock.advance(seconds)

    def test_a_head_must_be_complete_in_time(self) -> None:
        """83 connections that sent a byte in 5 seconds kept all others out."""
        talk = self.talk()

        self.talk_slowly(talk, b"GET / HTTP", seconds=5)

        self.assertEqual(408, talk.answer().status)
        self.assertEqual("too_slow", talk.answer().json()["error"])
        self.assertTrue(talk.transport.disconnecting)

    def test_a_connection_that_sends_nothing_is_closed(self) -> None:
        """As at the port of followers."""
        talk = self.talk()

        self.clock.advance(PROGRESS_SECONDS)

        self.assertTrue(talk.transport.disconnecting)

    def test_connections_that_are_given_up_are_not_logged(self) -> None:
        """Each would be a line, and a peer can have thousands, again and again."""
        events: list[LogEvent] = []
        observe: Any = events.append
        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)
        talks = [self.talk() for _ in range(20)]

        self.clock.advance(PROGRESS_SECONDS)

        self.assertEqual([True] * 20, [talk.transport.disconnecting for talk in talks])
        self.assertEqual([], [formatEvent(event) for event in events])

    def test_a_kept_connection_may_be_idle_for_longer_and_its_next_head_may_not(self) -> None:
        """Clients keep connections for later requests."""
        talk = self.talk()
        talk.say(self.request("GET", LIVEZ))

        self.clock.advance(PROGRESS_SECONDS + 20)
        self.assertFalse(talk.transport.disconnecting)
        talk.say(self.request("GET", LIVEZ))
        self.assertEqual(2, talk.heard.count(b"200 OK"))
        self.talk_slowly(talk, b"GET / HTTP", seconds=5)

        self.assertTrue(talk.transport.disconnecting)

    def test_a_body_must_progress(self) -> None:
        """A byte now and then is no progress."""
        talk = self.talk()
        talk.say(self.request("POST", "/v1/streams/receipts/facts", b"x" * 1_000)[:-1_000])

        self.talk_slowly(talk, b"x" * 10, seconds=5)

        self.assertEqual((408, True), (talk.answer().status, talk.transport.disconnecting))

    def test_a_slow_body_that_progresses_is_taken(self) -> None:
        """Not every client has a fast line."""
        talk = self.talk()
        body = append_body([[receipt()]]) + b" " * 8 * PROGRESS_BYTES
        request = self.request("POST", "/v1/streams/receipts/facts", body)

        for position in range(0, len(request), PROGRESS_BYTES):
            talk.say(request[position : position + PROGRESS_BYTES])
            self.clock.advance(PROGRESS_SECONDS - 1)

        self.assertEqual(200, talk.answer().status)

    def test_a_request_that_waits_for_the_log_progresses(self) -> None:
        """A long poll takes as long as it asks for."""
        talk = self.talk()
        talk.say(self.request("GET", "/v1/changelog?since=0&wait=200"))

        self.clock.advance(100)
        self.assertFalse(talk.transport.disconnecting)
        self.receipts(1)

        self.assertEqual(200, talk.answer().status)


class TurnQueueTests(TurnCase):
    """Work shares the turns of the reactor."""

    def setUp(self) -> None:
        super().setUp()
        self.queue = TurnQueue(self.clock)
        self.done: list[str] = []

    def work(self, name: str, *, seconds: float = 0.0) -> None:
        """Work that takes this long."""
        self.done.append(name)
        self.clock.rightNow += seconds

    def test_a_turn_ends_when_its_time_is_used(self) -> None:
        """The rest is done in later turns, in order."""
        self.queue.run(lambda: self.work("a", seconds=2 * SLICE_SECONDS))
        self.assertFalse(self.queue.has_time)
        for name in "bcd":
            self.queue.run_later(partial(self.work, name, seconds=0.6 * SLICE_SECONDS))

        self.assertEqual(["a"], self.done)
        self.turn()
        self.assertEqual(["a", "b", "c"], self.done)
        self.assertFalse(self.queue.has_time)
        self.turn()
        self.assertEqual(["a", "b", "c", "d"], self.done)
        self.turn()
        self.assertTrue(self.queue.has_time)

    def test_work_that_waits_again_is_done_once_a_turn(self) -> None:
        """Otherwise it would have the whole turn."""

        def again() -> None:
            self.work("a")
            self.queue.run_later(again)

        self.queue.run_later(again)
        self.turn()
        self.turn()

        self.assertEqual(["a", "a"], self.done)
        self.queue.stop()

    def test_work_that_fails_does_not_keep_the_rest_waiting(self) -> None:
        """The reactor logs it."""

        def fail() -> None:
            raise ValueError("a fault of a test")

        self.queue.run_later(fail)
        self.queue.run_later(lambda: self.work("b"))

        with self.assertRaises(ValueError):
            self.turn()
        self.turn()

        self.assertEqual(["b"], self.done)
