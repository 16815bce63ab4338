"""Our clients against our site, and against servers that misbehave."""

import subprocess
import sys
from typing import Any

from treq.testing import StringStubbingResource, StubTreq
from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.error import ConnectionRefusedError as Refused

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.request_errors import HttpError
from synrepl.replication.follower.updates import MissedFacts, NowhereToFetch
from synrepl.transports.http.catch_up import HttpCatchUp
from synrepl.transports.http.changelog_client import read_changelog
from synrepl.transports.http.http_client import HttpClient
from tests.http.builders import SiteCase, append_body, post_facts, receipt

URL = "http://ada:pass@hs.example:9093"


class Failing:
    """A treq client whose requests fail so."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self._error = error

    def request(self, *_: Any, **__: Any) -> "Deferred[Any]":
        return Deferred() if self._error is None else fail(self._error)


def answering(status: int, body: bytes) -> StubTreq:
    """A server that always says this."""
    return StubTreq(StringStubbingResource(lambda *_: (status, {}, body)))


class CatchUpTests(SiteCase):
    """Pulling missed rows."""

    def catch_up(self, client: Any, url: str = URL, **options: Any) -> HttpCatchUp:
        """What fetches from this server; the options are those of its client."""
        return HttpCatchUp(HttpClient(self.clock, url, client=client, is_homeserver=True, **options))

    def fetch(self, client: Any, **options: Any) -> "Deferred[MissedFacts]":
        catch_up = self.catch_up(client, **options)
        catch_up.max_bytes = 1_000
        return ensureDeferred(catch_up.fetch(stream="receipts", writer="w/1", after=1, upto=9))

    def ours(self, **options: Any) -> MissedFacts:
        """What our own site gives."""
        client = StubTreq(self.site.resource)
        fetched = self.fetch(client, **options)
        client.flush()
        return self.successResultOf(fetched)

    def test_rows_of_a_fact_come_together(self) -> None:
        """A fact is applied whole or not at all, so it must arrive whole."""
        self.receipts(1, writer="w/1")
        self.post("receipts", [receipt("@a:h"), receipt("@b:h")], [receipt("@c:h")], writer="w/1")

        missed = self.ours()

        self.assertEqual([(2, 2), (3, 1)], [(token, len(rows)) for token, rows in missed.facts])
        self.assertEqual((3, True), (missed.upto, missed.limited))
        self.assertIn(b'"@b:h"', missed.facts[0][1][1])

    def test_the_highest_token_of_a_stream_can_be_asked(self) -> None:
        """So that nobody waits for one that does not exist."""
        self.receipts(3)
        client = StubTreq(self.site.resource)

        asked = ensureDeferred(self.catch_up(client).highest("receipts"))
        client.flush()

        self.assertEqual(3, self.successResultOf(asked))

    def test_a_server_that_does_not_tell_is_asked_once(self) -> None:
        """Synapse's own processes do not know the question."""
        unknown = b'{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request"}'
        catch_up = self.catch_up(answering(404, unknown))
        first = ensureDeferred(catch_up.highest("receipts"))
        catch_up.http.client = Failing(error=Refused())

        again = ensureDeferred(catch_up.highest("receipts"))

        self.assertIsNone(self.successResultOf(first))
        self.assertIsNone(self.successResultOf(again))

    def test_a_failure_to_tell_says_nothing_of_the_next_time(self) -> None:
        """A daemon may be away for a moment, or not know one stream."""
        for client in (
            Failing(error=Refused()),
            answering(503, b"{}"),
            answering(404, b'{"error":"unknown_stream","message":"unknown stream"}'),
            answering(200, b'{"allocated":"many"}'),
        ):
            catch_up = self.catch_up(client)
            self.failureResultOf(ensureDeferred(catch_up.highest("receipts")), ReplicationError)
            catch_up.http.client = answering(200, b'{"allocated":7}')

            again = ensureDeferred(catch_up.highest("receipts"))

            self.assertEqual(7, self.successResultOf(again))

    def test_wrong_answers_are_the_servers_fault(self) -> None:
        """The text names the URL, and never what is secret in it."""
        cases = [
            (200, b"<html>", "invalid response"),
            (200, b"{}", "updates"),
            (200, b'{"updates":[],"limited":false}', "upto_token"),
            (200, b'{"updates":[[1]],"upto_token":1,"limited":false}', "updates"),
            (200, b'{"updates":[["1",[]]],"upto_token":1,"limited":false}', "int"),
            (200, b'{"updates":[],"upto_token":1,"limited":true}', "sent none"),
            (
                500,
                b'{"errcode":"M_UNKNOWN","error":"Internal server error"}',
                "Internal server error (also the answer to a missing or wrong secret)",
            ),
            (404, b"nothing", "404"),
            (302, b"", "302"),
            (200, b"x" * 2_000, "more than 1000 bytes"),
        ]
        for status, body, words in cases:
            with self.subTest(words):
                fetched = self.fetch(answering(status, body))
                error = self.failureResultOf(fetched, RemoteProtocolError).value

                self.assertIn(words, str(error))
                self.assertIn("http://hs.example:9093/_synapse", str(error))
                self.assertNotIn("pass", str(error))
                self.assertNotIn("\n", str(error))

    def test_a_failure_that_lasts_has_one_text(self) -> None:
        """The random id of each request made another problem of each retry."""
        texts = {
            str(self.failureResultOf(self.fetch(answering(500, b"{}")), RemoteProtocolError).value)
            for _ in range(2)
        }

        self.assertEqual(1, len(texts), texts)

    def test_a_refused_connection_raises_not_connected(self) -> None:
        """The follower tries again, and says which address did not answer."""
        error = self.failureResultOf(self.fetch(Failing(error=Refused())), NotConnected).value

        self.assertIn("no response from http://hs.example:9093: connection refused", str(error))
        self.assertNotIn("pass", str(error))

    def test_a_server_that_is_away_for_now_is_not_connected(self) -> None:
        """503 is worth another try."""
        self.failureResultOf(self.fetch(answering(503, b"{}")), NotConnected)

    def test_waiting_for_an_answer_ends(self) -> None:
        """A server that accepts and says nothing must not hold up a stream for ever."""
        fetched = self.fetch(Failing(), timeout=7.0)
        self.assertNoResult(fetched)
        self.clock.advance(7)

        self.assertIn("7 seconds", str(self.failureResultOf(fetched, NotConnected).value))

    def test_the_secret_is_shown(self) -> None:
        """And it is the one that our site wants."""
        self.receipts(2, writer="w/1")
        self.site = self.make_site(secret="s3cret")

        self.assertEqual(401, self.get("/v1/status").status)
        self.assertEqual(1, len(self.ours(secret="s3cret").facts))

    def test_a_writer_may_have_an_address_of_its_own(self) -> None:
        """As in Synapse's instance map."""
        asked: list[tuple[str, str]] = []

        def answer(
            method: object, url: str, params: object, headers: Any, data: object
        ) -> tuple[int, dict[str, str], bytes]:
            told = {key.lower(): values for key, values in headers.items()}
            asked.append((url, told[b"host"][0].decode()))
            return 404, {}, b""

        client = RecordingClient(StubTreq(StringStubbingResource(answer)))
        catch_up = HttpCatchUp(HttpClient(self.clock, URL, client=client), {"w/1": "http://other:1"})
        fetched = ensureDeferred(catch_up.fetch(stream="receipts", writer="w/1", after=1, upto=9))

        self.failureResultOf(fetched, RemoteProtocolError)
        self.assertTrue(client.urls[0].startswith("http://other:1/_synapse/"), client.urls)
        self.assertEqual(["w/1:80"], [host for _, host in asked])

    def test_the_writer_master_is_the_process_main(self) -> None:
        """So a homeserver's instance map can be used as it is."""
        client = RecordingClient(StubTreq(StringStubbingResource(lambda *_: (404, {}, b""))))
        catch_up = HttpCatchUp(HttpClient(self.clock, client=client), {"main": "http://main:1"})
        fetched = ensureDeferred(catch_up.fetch(stream="receipts", writer="master", after=0, upto=1))

        self.failureResultOf(fetched, RemoteProtocolError)
        self.assertTrue(client.urls[0].startswith("http://main:1/"))

    def test_a_writer_without_an_address_cannot_be_asked(self) -> None:
        """That is no trouble which passes, so it has a type of its own."""
        catch_up = self.catch_up(None, "")
        fetched = ensureDeferred(catch_up.fetch(stream="receipts", writer="w1", after=0, upto=1))

        self.failureResultOf(fetched, NowhereToFetch)


class RecordingClient:
    """Notes the URLs that a client is asked for, which a stub does not tell from the Host that it sends."""

    def __init__(self, client: Any) -> None:
        self.urls: list[str] = []
        self._client = client

    def request(self, method: str, url: str, **options: Any) -> Any:
        """As treq's."""
        self.urls.append(url)
        return self._client.request(method, url, **options)


class ChangelogTests(SiteCase):
    """Reading the log."""

    def pages(self, since: int, *, streams: list[str] | None = None, **options: Any) -> Any:
        """The lines given, and where to go on."""
        lines: list[bytes] = []
        client = StubTreq(self.site.resource)
        http = HttpClient(self.clock, URL, client=client)
        done = ensureDeferred(read_changelog(http, since, streams, 0, lines.append, **options))
        client.flush()
        return done, lines

    def test_lines_arrive_whole_and_in_order(self) -> None:
        """However the network cut them."""
        self.receipts(3)
        done, lines = self.pages(1)

        self.assertEqual(3, self.successResultOf(done))
        self.assertEqual([2, 3], [int(text.split(b":")[1].split(b",")[0]) for text in lines])

    def test_it_goes_on_from_the_head_when_nothing_was_wanted(self) -> None:
        """A filter that fits nothing must not make the server look through the same facts for ever."""
        self.receipts(3)
        done, lines = self.pages(0, streams=["caches"])

        self.assertEqual((3, []), (self.successResultOf(done), lines))

    def test_a_limit_stops_where_it_stopped(self) -> None:
        """And not at the head, which was not reached."""
        self.receipts(3)
        done, lines = self.pages(0, limit=2)

        self.assertEqual((2, 2), (self.successResultOf(done), len(lines)))

    def test_an_answer_without_its_last_line_is_not_whole(self) -> None:
        """A proxy ended it properly: the facts behind the first would be passed for good. A daemon of an
        earlier release sends no last line.
        """
        for head, is_cut in (({"Synrepl-End": "heartbeat"}, True), ({}, False)):
            lines: list[bytes] = []
            answer = (200, head | {"Synrepl-Serial": "3"}, b'{"serial":1}\n')
            client = StubTreq(StringStubbingResource(lambda *_, answer=answer: answer))
            http = HttpClient(self.clock, URL, client=client)
            done = ensureDeferred(read_changelog(http, 0, ["caches"], 0, lines.append))

            self.assertEqual([b'{"serial":1}'], lines)
            if is_cut:
                self.assertIn("before its last line", str(self.failureResultOf(done, NotConnected).value))
            else:
                self.assertEqual(3, self.successResultOf(done))

    def test_being_ahead_is_told_with_the_head(self) -> None:
        """Whoever reads can then say how far the histories are apart."""
        self.receipts(2)
        error = self.failureResultOf(self.pages(7)[0], HttpError).value

        self.assertEqual(("ahead_of_log", 2, 1), (error.code, error.body["serial"], error.body["epoch"]))


class AppenderTests(SiteCase):
    """Adding facts."""

    def append(self, stream: str, facts: list[list[Any]], **options: Any) -> "Deferred[Any]":
        client = StubTreq(self.site.resource)
        done: Deferred[Any] = ensureDeferred(
            post_facts(HttpClient(self.clock, URL, client=client), stream, append_body(facts, **options))
        )
        client.flush()
        return done

    def test_the_answer_is_typed(self) -> None:
        """Callers count serials and tokens, not keys of a dict."""
        appended = self.successResultOf(self.append("receipts", [[receipt()]], writer="w", key="k"))

        self.assertEqual((1, 1, [1]), (appended.epoch, appended.first_serial, appended.tokens))
        self.assertEqual("w", self.engine.facts[0].writer)

    def test_a_refusal_carries_the_servers_words(self) -> None:
        """One line, ready to be shown."""
        error = self.failureResultOf(self.append("receipts", [[[1]]]), HttpError).value

        self.assertEqual((400, "bad_row"), (error.status, error.code))
        self.assertIn("fact 0, row 0", str(error))
        self.assertNotIn("\n", str(error))


def test_importing_installs_no_reactor() -> None:
    """A worker chooses its own."""
    code = (
        "import sys, synrepl.transports.http.changelog_client, synrepl.transports.http.server\n"
        "from synrepl.transports.http.catch_up import HttpCatchUp\n"
        "print('twisted.internet.reactor' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (result.stdout, result.stderr) == ("False\n", "")
