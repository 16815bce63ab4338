"""Facts come in by POST: durable before the answer, or refused with a reason and nothing kept."""

import json
from typing import Any
from unittest.mock import patch

from twisted.internet.testing import StringTransport

from synrepl.errors import StorageError
from synrepl.transports.http.append_routes import MAX_WRITERS
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire import jsontext
from synrepl.wire.dialect import CURRENT
from tests.http.builders import BROKEN, SiteCase, Talk, receipt, typing

FACTS = "/v1/streams/receipts/facts"


def facts(*rows: Any) -> bytes:
    """A body with one fact of each row."""
    return json.dumps({"facts": [[row] for row in rows]}).encode()


BAD: list[tuple[str, str, bytes, int, str, str]] = [
    ("no body", FACTS, b"", 400, "bad_json", "truncated"),
    ("half a body", FACTS, b'{"facts": [', 400, "bad_json", ""),
    ("not UTF-8", FACTS, b'{"facts": [], "writer": "\xff"}', 400, "bad_json", ""),
    ("a list", FACTS, b"[]", 400, "bad_request", "object"),
    ("nothing in it", FACTS, b"{}", 400, "bad_request", "facts"),
    ("an unknown key", FACTS, b'{"facts": [], "wirter": "w"}', 400, "bad_request", "wirter"),
    ("facts that are no list", FACTS, b'{"facts": {}}', 400, "bad_request", "array"),
    ("a writer that is no text", FACTS, b'{"facts": [], "writer": 7}', 400, "bad_request", "writer"),
    ("a writer that is null", FACTS, b'{"facts": [], "writer": null}', 400, "bad_request", "writer"),
    ("a key that is no text", FACTS, b'{"facts": [], "idempotency_key": 7}', 400, "bad_request", ""),
    ("an empty key", FACTS, b'{"facts": [], "idempotency_key": ""}', 400, "bad_request", "255"),
    ("a long key", FACTS, b'{"facts": [], "idempotency_key": "%s"}' % (b"k" * 256), 400, "bad_request", ""),
    ("an empty writer", FACTS, b'{"facts": [], "writer": ""}', 400, "bad_writer", "one word"),
    ("two words", FACTS, b'{"facts": [], "writer": "a b"}', 400, "bad_writer", "one word"),
    ("a control character", FACTS, b'{"facts": [], "writer": "a\\u0000"}', 400, "bad_writer", ""),
    ("a line end", FACTS, b'{"facts": [], "writer": "a\\nb"}', 400, "bad_writer", ""),
    ("a long writer", FACTS, b'{"facts": [], "writer": "%s"}' % (b"w" * 256), 400, "bad_writer", ""),
    ("an unknown stream", "/v1/streams/nope/facts", b'{"facts": []}', 404, "unknown_stream", "'nope'"),
    ("an empty fact", FACTS, b'{"facts": [[]]}', 400, "bad_row", "fact 0"),
    ("a fact that is no list", FACTS, b'{"facts": [7]}', 400, "bad_row", "fact 0"),
    ("a row that is no list", FACTS, b'{"facts": [[7]]}', 400, "bad_row", "fact 0, row 0"),
    ("a bad row after good ones", FACTS, facts(receipt(), receipt(), [1]), 400, "bad_row", "fact 2, row 0"),
    (
        "a bad row in a fact",
        FACTS,
        json.dumps({"facts": [[receipt(), [1]]]}).encode(),
        400,
        "bad_row",
        "fact 0, row 1",
    ),
    ("NaN", FACTS, b'{"facts": [[["!r","m.read","@u:h","$e",null,{"ts":NaN}]]]}', 400, "bad_json", ""),
    (
        "half a surrogate pair",
        FACTS,
        rb'{"facts": [[["!r","m.read","@u:h","x\ud800y",null,{}]]]}',
        400,
        "bad_json",
        r"the string with \ud800 at byte 36 is no Unicode text",
    ),
    ("deep nesting", FACTS, b'{"facts": [' + b"[" * 100_000, 400, "bad_json", ""),
    ("no such place", "/v1/streams/receipts/fact", b"{}", 404, "not_found", ""),
]


class PostingTests(SiteCase):
    """A writer that speaks HTTP."""

    def test_a_fact_that_no_replica_could_be_sent_is_refused(self) -> None:
        """Rows grow where fields are filled in, so that the bound of the body alone does not do."""
        with patch("synrepl.transports.http.append_routes.MAX_POSTED_FACT", 200):
            refused = self.post("receipts", [receipt()], [receipt()] * 5)
            small = self.post("receipts", [receipt()])

        self.assertEqual((413, "too_large"), (refused.status, refused.json()["error"]))
        self.assertIn("fact 1 is too large: ", refused.json()["message"])
        self.assertEqual(200, small.status)

    def test_the_answer_says_what_the_facts_became(self) -> None:
        """A writer tells its own readers which token to wait for."""
        answer = self.post("receipts", [receipt()], [receipt("@bob:hs.example"), receipt()])

        self.assertEqual({"epoch": 1, "first_serial": 1, "tokens": [1, 2]}, answer.json())
        self.assertEqual("application/json", answer.headers["content-type"])
        self.assertEqual(["master", "master"], [fact.writer for fact in self.engine.facts])
        self.assertEqual(2, self.engine.facts[1].rows.count(b"m.read"))

    def test_another_writer_can_be_named(self) -> None:
        """One daemon takes the facts of a whole deployment."""
        self.post("receipts", [receipt()], writer="event_persister1")

        self.assertEqual({"event_persister1": 1}, self.log.positions("receipts"))

    def test_no_facts_are_no_mistake(self) -> None:
        """A program that batches need not treat an empty batch in its own way."""
        self.assertEqual({"epoch": 1, "first_serial": None, "tokens": []}, self.post("receipts").json())

    def test_facts_of_memory_streams_have_no_serial(self) -> None:
        """They have no place in the log, and the answer must not pretend that they do."""
        self.assertIsNone(self.post("typing", [typing("@ada:hs.example")]).json()["first_serial"])

    def test_an_older_shape_is_lifted(self) -> None:
        """A worker two years behind may append; readers see one shape only."""
        self.post("receipts", [["!room", "m.read", "@u:h", "$e", {"ts": 1}]])

        self.assertEqual(b'[["!room","m.read","@u:h","$e",null,{"ts":1}]]', self.engine.facts[0].rows)

    def test_bad_input_is_refused_and_nothing_is_kept(self) -> None:
        """What a client sees for each mistake is part of the contract."""
        for what, path, body, status, code, words in BAD:
            with self.subTest(what):
                answer = self.ask("POST", path, body)

                self.assertEqual((status, code), (answer.status, answer.json()["error"]), answer.body)
                self.assertIn(words, answer.json()["message"])
        self.assertEqual([], self.engine.facts)

    def test_repeating_with_a_key_stores_once(self) -> None:
        """Whoever lost the answer may ask again."""
        first = self.post("receipts", [receipt()], idempotency_key="k")
        again = self.post("receipts", [receipt()], idempotency_key="k")
        other = self.post("receipts", [receipt("@bob:hs.example")], idempotency_key="k")

        self.assertEqual(first.body, again.body)
        self.assertEqual((409, "idempotency_key_reused"), (other.status, other.json()["error"]))
        self.assertEqual(1, len(self.engine.facts))

    def test_a_disk_that_may_recover_is_503(self) -> None:
        """Clients back off and try again, without reading the text."""
        self.engine.fail_next(BROKEN)

        answer = self.post("receipts", [receipt()])

        self.assertEqual((503, "storage_error"), (answer.status, answer.json()["error"]))
        self.assertEqual("1", answer.headers["retry-after"])

    def test_a_disk_that_will_not_recover_is_500(self) -> None:
        """Trying again cannot help, so nothing invites to it."""
        self.engine.fail_next(StorageError(op="commit", why="the file is damaged"))

        answer = self.post("receipts", [receipt()])

        self.assertEqual((500, "storage_error"), (answer.status, answer.json()["error"]))
        self.assertNotIn("retry-after", answer.headers)

    def test_a_big_post_lets_others_have_their_turn(self) -> None:
        """Sixty megabytes of rows must not stop the heartbeat of every follower."""
        talk = self.talk()
        talk.say(self.request("POST", FACTS, facts(*[receipt()] * 2_500)))
        heard = talk.heard
        self.clock.pump([0, 0, 0])

        self.assertEqual(b"", heard)
        self.assertEqual(2_500, len(talk.answer().json()["tokens"]))

    def test_a_failure_of_ours_is_told_without_our_code(self) -> None:
        """A stack trace is of no use to a client, and of some to an attacker."""
        with patch.object(self.log, "append", side_effect=ZeroDivisionError("secret detail")):
            answer = self.post("receipts", [receipt()])

        self.assertEqual((500, "internal"), (answer.status, answer.json()["error"]))
        self.assertNotIn(b"secret detail", answer.body)
        self.assertNotIn(b"Traceback", answer.body)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))


class BodyTests(SiteCase):
    """Bodies are bounded before they are held."""

    def setUp(self) -> None:
        super().setUp()
        self.site = self.make_site(max_body_bytes=1_000)

    def test_a_long_body_is_refused_before_it_comes(self) -> None:
        """The header says all: nothing of it need be received."""
        talk = self.talk()

        talk.say(f"POST {FACTS} HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n".encode())

        self.assertEqual((413, "too_large"), (talk.answer().status, talk.answer().json()["error"]))

    def test_a_long_body_is_not_asked_for(self) -> None:
        """A client that waits for 100 Continue gets 413 alone, and not both."""
        talk = self.talk()

        talk.say(
            f"POST {FACTS} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
            "Content-Length: 1001\r\n\r\n".encode()
        )

        self.assertEqual(1, talk.heard.count(b"HTTP/1.1"))
        self.assertEqual(413, talk.answer().status)

    def test_a_body_of_unknown_length_is_refused_at_the_bound(self) -> None:
        """Chunks do not say how much will come."""
        talk = self.talk()
        talk.say(f"POST {FACTS} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        talk.say(b"258\r\n" + b"x" * 600 + b"\r\n")
        before = talk.heard
        talk.say(b"258\r\n" + b"x" * 600 + b"\r\n")

        self.assertEqual(b"", before)
        self.assertEqual(413, talk.answer().status)

    def test_who_goes_on_sending_is_cut_off(self) -> None:
        """A client that does not listen cannot hold a connection for ever."""
        talk = self.talk()
        talk.say(f"POST {FACTS} HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n".encode())
        talk.say(b"x" * 1_000)
        self.clock.advance(10)

        self.assertTrue(talk.transport.is_aborted)
        self.assertEqual(1, talk.heard.count(b"HTTP/1.1"))

    def test_a_body_at_the_bound_is_taken(self) -> None:
        """The bound itself is allowed."""
        body = facts(receipt())
        answer = self.ask("POST", FACTS, body + b" " * (1_000 - len(body)))

        self.assertEqual(200, answer.status)


class PlaceTests(SiteCase):
    """What is not here, and who may not ask."""

    def test_odd_requests_get_json(self) -> None:
        """Whatever is asked, the client's parser finds the same shape."""
        cases = [
            ("GET", "/nothing", 404, "not_found"),
            ("GET", "/v1", 404, "not_found"),
            ("GET", "/v1/status/", 404, "not_found"),
            ("GET", "/v1/streams/receipts/facts", 405, "method_not_allowed"),
            ("DELETE", "/v1/changelog", 405, "method_not_allowed"),
            ("GET", "/v1/streams/%FF/rows", 400, "bad_request"),
            ("GET", "/v1/streams/a%2Fb/rows", 404, "not_found"),
            ("GET", "/v1/streams/%3Cb%3E/rows", 404, "unknown_stream"),
        ]
        for method, path, status, code in cases:
            with self.subTest(path):
                answer = self.ask(method, path)

                self.assertEqual((status, code), (answer.status, answer.json()["error"]))
                self.assertEqual("application/json", answer.headers["content-type"])
        self.assertEqual("POST", self.get("/v1/streams/receipts/facts").headers["allow"])

    def test_the_secret_guards_what_tells_or_changes_something(self) -> None:
        """Probes and scrapers need none; everybody else does."""
        self.site = self.make_site(secret="s3cret")
        right = "Authorization: Bearer s3cret"
        shown: list[tuple[str, ...]] = [
            (),
            ("Authorization: Bearer other",),
            ("Authorization: Basic s3cret",),
            (right, right),
            ("Authorization: Bearer s3cret ü",),
        ]
        for path in ("/v1/status", "/status", "/v1/changelog", "/v1/streams/receipts/rows"):
            for headers in shown:
                answer = self.get(path, *headers)
                self.assertEqual((401, "unauthorized"), (answer.status, answer.json()["error"]))
            self.assertEqual(200, self.get(path, right).status)
        for path in ("/livez", "/readyz", "/metrics"):
            self.assertEqual(200, self.get(path).status)

    def test_new_writers_of_a_stream_are_bounded(self) -> None:
        """Each would be told to every follower, and shown to Prometheus, for ever."""
        for number in range(MAX_WRITERS):
            self.wait(
                self.log.append("receipts", f"w{number}", [b"[" + json.dumps(receipt()).encode() + b"]"])
            )

        late = self.post("receipts", [receipt()], writer="late")

        self.assertEqual((409, "too_many_writers"), (late.status, late.json()["error"]))
        self.assertEqual(200, self.post("receipts", [receipt()], writer="w7").status)
        self.assertEqual(200, self.post("receipts", [receipt()]).status)
        self.assertEqual(200, self.post("push_rules", [["@a:b"]], writer="late").status)

    def test_a_length_of_thousands_of_digits_is_refused(self) -> None:
        """It was an unhandled error, and the connection closed without an answer."""
        talk = self.talk()
        talk.say(b"POST /v1/facts HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n")

        self.assertEqual(400, talk.answer().status)
        self.assertTrue(talk.transport.disconnecting)
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_post_without_the_secret_stores_nothing(self) -> None:
        """Nor is its body held."""
        self.site = self.make_site(secret="s3cret")
        body = facts(receipt())

        self.assertEqual(401, self.ask("POST", FACTS, body).status)
        self.assertEqual(200, self.ask("POST", FACTS, body, "Authorization: Bearer s3cret").status)
        self.assertEqual(1, len(self.engine.facts))

    def test_a_facts_rows_are_split_once_for_all_followers(self) -> None:
        """And once where they are checked, when they arrive: the log keeps them joined."""
        factory = PublisherFactory(
            self.publisher, server_name="hs", dialect=CURRENT, clock=self.clock, metrics=self.metrics
        )
        sockets = [StringTransport() for _ in range(2)]
        for socket in sockets:
            protocol = factory.buildProtocol(None)
            protocol.makeConnection(socket)
            protocol.dataReceived(b"REPLICATE\n")

        with patch("synrepl.wire.jsontext.split", wraps=jsontext.split) as split:
            self.assertEqual(200, self.post("push_rules", [["@ada:hs"]]).status)
            self.clock.advance(1)

        self.assertEqual(2, split.call_count)
        for socket in sockets:
            self.assertIn(b'RDATA push_rules master 1 ["@ada:hs"]\n', socket.value())

    def test_a_client_that_leaves_during_an_append_does_no_harm(self) -> None:
        """The facts are kept all the same, and nobody is written to."""
        talk = Talk(self.site)
        talk.say(self.request("POST", FACTS, facts(*[receipt()] * 1_500)))
        talk.leave()
        self.clock.pump([0, 0])

        self.assertEqual([], self.flushLoggedErrors())
