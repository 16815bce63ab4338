"""Our reader of the changelog against our site, and against servers that misbehave."""

import json
from typing import Any

from OpenSSL import SSL
from treq.testing import StringStubbingResource, StubTreq
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, fail
from twisted.internet.error import ConnectionRefusedError as NobodyThere
from twisted.internet.error import TimeoutError as NeverConnected
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web._newclient import RequestTransmissionFailed
from twisted.web.client import ResponseFailed, ResponseNeverReceived

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.ports.history import EMPTY
from synrepl.ports.response_errors import (
    ApiResponseError,
    NeverSent,
)
from synrepl.transports.http import http_client
from synrepl.transports.http.client import ChangelogClient, FirstAnswer
from synrepl.transports.http.http_client import BodyLines, HttpClient
from tests.http.builders import SiteCase, append_body, post_facts, receipt

URL = "http://ada:pass@hs.example:9093"


def tls_failure(reason: str) -> Failure:
    """How OpenSSL says this."""
    return Failure(SSL.Error([("SSL routines", "", reason)]))


class SubscribingTests(SiteCase):
    """A replica's or a program's end of a changelog that follows."""

    def setUp(self) -> None:
        super().setUp()
        self.client = StubTreq(self.site.resource)
        self.changelog = ChangelogClient(self.clock, URL, client=self.client)
        self.deliveries: list[list[bytes]] = []

    def follow(self, since: int = 0, on_lines: Any = None, **options: Any) -> "Deferred[None]":
        """Begin to follow."""
        done = ensureDeferred(self.changelog.follow(since, on_lines or self.deliveries.append, **options))
        self.client.flush()
        return done

    def end(self, done: "Deferred[None]") -> None:
        """Follow no more."""
        done.cancel()
        self.failureResultOf(done, CancelledError)

    def told(self) -> list[Any]:
        """What the lines said: the serials of facts, and the names of others."""
        lines = [json.loads(text) for lines in self.deliveries for text in lines]
        return [line.get("serial", next(iter(line))) for line in lines]

    def test_lines_arrive_as_they_are_written(self) -> None:
        """Raw, several at a time, for as long as it lasts."""
        self.receipts(2)
        begun: list[FirstAnswer] = []
        done = self.follow(on_begin=begun.append, epoch_starts=True)
        self.receipts(1)
        self.wait(self.log.next_epoch("promoted"))
        self.client.flush()

        self.assertEqual([1, 2, "heartbeat", 3, "epoch_start"], self.told())
        self.assertEqual([FirstAnswer(1, 2, self.log.history)], begun)
        self.assertNoResult(done)
        self.end(done)

    def test_it_ends_where_it_should(self) -> None:
        """Then nothing is wrong."""
        self.receipts(3)

        self.assertIsNone(self.successResultOf(self.follow(upto=2)))
        self.assertEqual([1, 2], self.told())

    def test_filters_and_what_is_held_are_told(self) -> None:
        """Each by its own parameter."""
        self.receipts(1, writer="a")
        self.receipts(2, writer="b")
        first = self.engine.facts[0]
        following = self.follow(
            1,
            streams=["receipts", "caches"],
            writers=["b"],
            epoch=1,
            digest=first.digest,
            history=self.log.history,
            receipts=True,
            compacted=True,
            checksum=True,
            heartbeat=9.0,
        )
        self.end(following)

        self.assertEqual([2, 3, "heartbeat"], self.told())
        self.assertIn(b"checksum", self.deliveries[0][0])

    def test_each_refusal_has_a_code(self) -> None:
        """So that whoever follows need not compare texts."""
        self.receipts(1)
        self.wait(self.log.next_epoch("promoted"))
        self.receipts(2)
        self.wait(self.log.trim(1, lambda *_: None, 10))
        cases: list[tuple[int, dict[str, Any], str]] = [
            (9, {}, "ahead_of_log"),
            (2, {"digest": EMPTY, "epoch": 2}, "fork"),
            (2, {"epoch": 1}, "fork"),
            (2, {"epoch": 3}, "other_epoch"),
            (2, {"history": "other"}, "other_history"),
            (0, {}, "trimmed"),
        ]
        for since, options, code in cases:
            error: Any = self.failureResultOf(self.follow(since, **options), ApiResponseError).value

            self.assertEqual((3, 2), (error.body["serial"], error.body["epoch"]), code)
            self.assertEqual(code == "other_epoch", error.retryable)
            self.assertEqual((code, code), (error.code, error.body["error"]))
        self.assertEqual(1, error.body["trimmed_upto"])

    def test_what_is_handled_is_waited_for(self) -> None:
        """Nothing is given before what was given is done with."""
        self.receipts(1)
        given: list[list[bytes]] = []
        working: list[Deferred[None]] = []

        def on_lines(lines: list[bytes]) -> "Deferred[None]":
            given.append(lines)
            working.append(Deferred())
            return working[-1]

        done = self.follow(on_lines=on_lines)
        self.receipts(3)
        self.client.flush()
        before = len(given)
        working.pop(0).callback(None)

        self.assertEqual((1, 2), (before, len(given)))
        self.assertEqual(3, len(given[1]))
        # However long that takes, it is not the server's silence.
        self.clock.pump([5.0] * 20)
        self.assertNoResult(done)
        self.end(done)

    def test_a_callback_that_fails_ends_it(self) -> None:
        """With its own error."""
        self.receipts(1)

        self.failureResultOf(self.follow(on_lines=lambda lines: 1 / 0), ZeroDivisionError)

    def test_silence_is_noticed(self) -> None:
        """A connection of which the other end is gone looks just like one with nothing to say."""
        cases: list[tuple[dict[str, Any], float]] = [
            ({}, 15.0),
            ({"heartbeat": 2.0}, 6.0),
            ({"silence": 4.0}, 4.0),
        ]
        for options, seconds in cases:
            done = self.follow(**options)
            self.clock.advance(seconds - 0.1)
            self.assertNoResult(done)
            self.clock.advance(0.2)

            self.assertIn("silent", str(self.failureResultOf(done, NotConnected).value))

    def test_heartbeats_are_no_silence(self) -> None:
        """However long there is nothing else."""
        done = self.follow()
        for _ in range(20):
            self.clock.advance(5.0)
            self.client.flush()

        self.assertNoResult(done)
        self.assertEqual(21, len(self.told()))
        self.end(done)

    def test_digests_can_be_asked(self) -> None:
        """To find where two histories part."""
        self.receipts(2)
        asked = ensureDeferred(self.changelog.digests([2, 5]))
        self.client.flush()
        told = self.successResultOf(asked)

        self.assertEqual((1, 2, self.log.history), (told.epoch, told.serial, told.history))
        self.assertEqual({2: self.log.digest, 5: None}, told.digests)


class Misbehaving(SiteCase):
    """Servers, and the lack of them."""

    def test_what_was_never_sent_is_told_apart(self) -> None:
        """Only then is it certain that nothing came of it.

        A server reads nothing of a request before the TLS handshake is done.
        """

        class Failing:
            def __init__(self, error: Exception) -> None:
                self.error = error

            def request(self, *_: Any, **__: Any) -> "Deferred[Any]":
                return fail(self.error)

        cases: list[tuple[Exception, type[ReplicationError]]] = [
            (NobodyThere(), NeverSent),
            (NeverConnected(), NeverSent),
            (UnicodeError("Codepoint U+003A at position 1 of '::1' not allowed"), NeverSent),
            (RequestTransmissionFailed([tls_failure("certificate verify failed")]), NeverSent),
            (RequestTransmissionFailed([tls_failure("wrong version number")]), NeverSent),
            (ResponseNeverReceived([tls_failure("tlsv13 alert certificate required")]), NeverSent),
            (ResponseNeverReceived([tls_failure("tlsv1 alert unknown ca")]), NeverSent),
            (ResponseNeverReceived([tls_failure("unexpected eof while reading")]), NotConnected),
            (ResponseNeverReceived([tls_failure("decryption failed or bad record mac")]), NotConnected),
            (ResponseFailed([]), NotConnected),
            (OSError("broken pipe"), NotConnected),
        ]
        for given, kind in cases:
            client = HttpClient(self.clock, URL, client=Failing(given))
            asked = ensureDeferred(post_facts(client, "receipts", append_body([[receipt()]])))
            error = self.failureResultOf(asked).value

            self.assertIs(kind, type(error))
            self.assertNotIn("pass", str(error))

    def test_a_refusal_carries_all_that_was_said(self) -> None:
        """Its body, as far as that is an object; `retryable` is the server's word before ours."""
        cases: list[tuple[int, bytes, str, bool, dict[str, Any]]] = [
            (409, b'{"error":"x","message":"a\\nb","n":1,"retryable":true}', "x", True, {"n": 1}),
            (503, b'{"error":"x","retryable":false}', "x", False, {}),
            (503, b"<html>", "error", True, {}),
            (400, b"[1]", "error", False, {}),
            (400, b'{"error":7,"message":[]}', "error", False, {"message": []}),
            (410, b'{"error":"trimmed","trimmed_upto":"x"}', "trimmed", False, {}),
        ]
        for status, body, code, is_retryable, part in cases:
            client = StubTreq(StringStubbingResource(lambda *_, status=status, body=body: (status, {}, body)))
            asked = ensureDeferred(ChangelogClient(self.clock, URL, client=client).digests([1]))
            error = self.failureResultOf(asked, ApiResponseError).value

            self.assertEqual((status, code, is_retryable), (error.status, error.code, error.retryable))
            self.assertEqual(part, {name: error.body[name] for name in part})
            self.assertNotIn("\n", str(error))

    def test_wrong_answers_are_the_servers_fault(self) -> None:
        """As with every other question."""
        client = StubTreq(StringStubbingResource(lambda *_: (200, {}, b'{"digests":[]}')))
        changelog = ChangelogClient(self.clock, URL, client=client)

        self.failureResultOf(ensureDeferred(changelog.digests([1])), RemoteProtocolError)


class LinesTests(SynchronousTestCase):
    """What a server sends, cut into lines."""

    def lines(self) -> tuple[BodyLines, StringTransport]:
        """The receiver of a body, and its connection."""
        lines, transport = BodyLines(URL), StringTransport()
        lines.makeConnection(transport)
        return lines, transport

    def test_a_line_without_an_end_is_the_servers_fault(self) -> None:
        """It is told as what it is, and held no longer."""
        self.patch(http_client, "MAX_LINE_BYTES", 1_000)
        lines, transport = self.lines()
        for _ in range(11):
            lines.dataReceived(b"x" * 100)
        lines.connectionLost(Failure(ResponseFailed([])))

        self.assertTrue(transport.disconnecting or transport.disconnected)
        self.assertEqual(0, lines._buffer.size)
        with self.assertRaisesRegex(RemoteProtocolError, "a line of more than 1000 bytes"):
            lines.check_complete()

    def test_empty_lines_wait_as_others_do(self) -> None:
        """Each takes its place in memory, so that a flood of them stops the reading too."""
        lines, transport = self.lines()
        lines.dataReceived(b"\n" * 65_536)

        self.assertEqual("paused", transport.producerState)
        self.assertEqual(65_536, len(lines.take()))
        self.assertEqual("producing", transport.producerState)
