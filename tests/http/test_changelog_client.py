"""Our reader of the changelog against our site, and against servers that misbehave."""

from typing import Any

from OpenSSL import SSL
from treq.testing import StringStubbingResource, StubTreq
from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.error import ConnectionRefusedError as NobodyThere
from twisted.internet.error import TimeoutError as NeverConnected
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web._newclient import RequestTransmissionFailed
from twisted.web.client import ResponseFailed, ResponseNeverReceived

from synrepl.base.response_errors import NeverSent
from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.request_errors import HttpError
from synrepl.http_api.routes import DIGESTS
from synrepl.streams.digest import EMPTY
from synrepl.transports.http import response_body
from synrepl.transports.http.changelog_client import read_changelog
from synrepl.transports.http.changelog_routes import DigestsAnswer
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.response_body import BodyLines
from tests.http.builders import SiteCase, append_body, post_facts, receipt

URL = "http://ada:pass@hs.example:9093"


def tls_failure(reason: str) -> Failure:
    """How OpenSSL says this."""
    return Failure(SSL.Error([("SSL routines", "", reason)]))


async def digests(client: HttpClient) -> DigestsAnswer:
    """Ask for the digest of one serial."""
    return await client.call(DIGESTS.request(serials=[1]), DigestsAnswer)


class RefusalTests(SiteCase):
    """What a program that reads the changelog is told."""

    def test_each_refusal_has_a_code(self) -> None:
        """So that whoever reads on need not compare texts."""
        self.receipts(1)
        self.wait(self.log.epochs.begin_next("promoted"))
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
        client = StubTreq(self.site.resource)
        http = HttpClient(self.clock, URL, client=client)
        for since, options, code in cases:
            asked = ensureDeferred(read_changelog(http, since, None, 0, print, **options))
            client.flush()
            error: Any = self.failureResultOf(asked, HttpError).value

            self.assertEqual((3, 2), (error.body["serial"], error.body["epoch"]), code)
            self.assertEqual(code == "other_epoch", error.retryable)
            self.assertEqual((code, code), (error.code, error.body["error"]))
        self.assertEqual(1, error.body["trimmed_upto"])


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
            asked = ensureDeferred(digests(HttpClient(self.clock, URL, client=client)))
            error = self.failureResultOf(asked, HttpError).value

            self.assertEqual((status, code, is_retryable), (error.status, error.code, error.retryable))
            self.assertEqual(part, {name: error.body[name] for name in part})
            self.assertNotIn("\n", str(error))

    def test_wrong_answers_are_the_servers_fault(self) -> None:
        """As with every other question."""
        client = StubTreq(StringStubbingResource(lambda *_: (200, {}, b'{"digests":[]}')))
        asked = ensureDeferred(digests(HttpClient(self.clock, URL, client=client)))

        self.failureResultOf(asked, RemoteProtocolError)


class LinesTests(SynchronousTestCase):
    """What a server sends, cut into lines."""

    def lines(self) -> tuple[BodyLines, StringTransport]:
        """The receiver of a body, and its connection."""
        lines, transport = BodyLines(URL), StringTransport()
        lines.makeConnection(transport)
        return lines, transport

    def test_a_line_without_an_end_is_the_servers_fault(self) -> None:
        """It is told as what it is, and held no longer."""
        self.patch(response_body, "MAX_LINE_BYTES", 1_000)
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
