"""Facts posted to a replica: kept by the primary, answered when they are here, and honest otherwise."""

import json
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from prometheus_client import CollectorRegistry
from treq.testing import StubTreq
from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.base.access import Key, Keyring
from synrepl.base.history import Appended
from synrepl.base.metrics import Metrics
from synrepl.base.response_errors import NeverSent
from synrepl.errors import NotConnected
from synrepl.http_api.request_errors import read_error
from synrepl.http_api.route import HttpRequest
from synrepl.replicas.write_forwarder import WriteForwarder
from synrepl.replication.serving.publisher import Publisher
from synrepl.transports.http.http_client import HttpClient
from tests.http.builders import BROKEN, Answer, SiteCase, Talk, receipt, typing
from tests.http.test_append_body import BAD
from tests.memory_engine import FaultyEngine
from tests.replicas.served import forwarded

URL = "http://primary:9093"
FACTS = "/v1/streams/receipts/facts"
HEX = "a" * 64


class Primary:
    """The way to a primary's site. `mood` says what becomes of a request: it is answered, there is nobody
    (`down`), it is kept and its answer lost (`lossy`) or never given (`mute`), or it gets lost itself
    (`deaf`); a list is taken one by one."""

    def __init__(self, site: Any, clock: Any) -> None:
        self.site = site
        self.mood: list[str] = []
        self.asked: list[tuple[bytes, list[tuple[bytes, bytes]]]] = []
        self.urls: list[str] = []
        self.answer: tuple[int, bytes] | None = None
        self._clock = clock

    def call(
        self, request: HttpRequest, answer: Any, *, base_url: str, body: bytes, max_bytes: int, timeout: float
    ) -> "Deferred[Any]":
        """As `HttpClient`."""
        self.urls.append(base_url)
        path, _, query = request.target.partition("?")
        self.asked.append((body, parse_qsl(query.encode(), keep_blank_values=True)))
        mood = self.mood.pop(0) if self.mood else "well"
        if mood == "down":
            return fail(NeverSent("connection refused"))
        status, told = (0, b"") if mood == "deaf" else self.answer or self._ask(path, body)
        if mood == "lossy":
            return fail(NotConnected("it broke off"))
        if mood in ("mute", "deaf"):
            silent: Deferred[Appended] = Deferred()
            silent.addTimeout(timeout, self._clock)
            return silent.addErrback(_as_client)
        if status != 200:
            return fail(read_error(status, told, url=URL))
        done: Deferred[Any] = Deferred()
        done.callback(msgspec.json.decode(told, type=answer))
        return done

    def _ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        talk = Talk(self.site)
        head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        talk.say(head.encode() + body)
        if not talk.heard:
            self.site.context.clock.advance(0)  # a large body takes several turns
        return talk.answer().status, talk.answer().body


def _as_client(failure: Failure) -> "Deferred[Appended]":
    """Time is up."""
    failure.trap(TimedOut)
    return fail(NotConnected("no answer"))


class RelayCase(SiteCase):
    """A primary, a replica that is fed by hand, and the site of the replica."""

    def setUp(self) -> None:
        super().setUp()
        self.primary_log, self.primary_engine = self.log, self.engine
        self.primary = Primary(self.site, self.clock)
        self.engine = FaultyEngine()
        self.log = self.make_log()
        self.wait(self.log.start())
        metrics = Metrics(CollectorRegistry())
        self.publisher = Publisher(self.log, self.table, self.clock, metrics, instance="replica")
        self.publisher.follow_log()
        self.addCleanup(self.publisher.stop)
        self.upstream: str | None = URL
        self.is_active = True
        self.files: dict[str, list[Deferred[bool]]] = {}
        self.site = self.make_site(hooks=forwarded(self.relaying(self.primary)))

    def relaying(self, http: Any, **options: Any) -> WriteForwarder:
        """What relays."""

        def file_here(sha256: str, timeout: float) -> "Deferred[bool]":
            here: Deferred[bool] = Deferred()
            self.files.setdefault(sha256, []).append(here)
            here.addTimeout(timeout, self.clock, lambda *_: False)
            return here

        relaying = WriteForwarder(
            self.log,
            self.clock,
            http.call,
            lambda: self.upstream,
            is_active=lambda: self.is_active,
            has_file=file_here,
            logger=Logger(),
            **options,
        )
        self.addCleanup(lambda: self.wait(relaying.stop()))
        return relaying

    def feed(self) -> None:
        """Let the replica have all that the primary has."""
        after = self.log.head.serial
        self.wait(
            self.log.copies.follow(
                self.primary_engine.facts[after:], self.primary_engine.receipts.between(after, 10**9)
            )
        )

    def send(self, query: str = "", stream: str = "receipts", facts: Any = None, **more: Any) -> Talk:
        """A write that may have to wait."""
        talk = self.talk()
        body = json.dumps({"facts": [[receipt()]] if facts is None else facts, **more}).encode()
        talk.say(self.request("POST", f"/v1/streams/{stream}/facts{query}", body))
        return talk

    def told(self, talk: Talk) -> tuple[int, str]:
        """The status and the code of an answer."""
        return talk.answer().status, talk.answer().json().get("error", "")


class RelayingTests(RelayCase):
    """A writer whose daemon is a replica."""

    def test_the_answer_is_the_primarys_and_comes_when_the_facts_are_here(self) -> None:
        """Whoever is answered can read here what it wrote."""
        talk = self.send(facts=[[receipt()], [receipt()]])
        before = talk.heard
        self.feed()

        self.assertEqual(b"", before)
        self.assertEqual({"epoch": 1, "first_serial": 1, "tokens": [1, 2]}, talk.answer().json())
        self.assertEqual(["master", "master"], [fact.writer for fact in self.engine.facts])

    def atomic(self, query: str = "", **more: Any) -> Talk:
        """An append to two streams that may have to wait."""
        appends = [
            {"stream": "receipts", "facts": [[receipt()], [receipt()]]},
            {"stream": "push_rules", "facts": [[["@a:b"]]], "writer": "w1"},
        ]
        body = json.dumps({"appends": appends, "atomic": True, **more}).encode()
        talk = self.talk()
        talk.say(self.request("POST", f"/v1/facts{query}", body))
        return talk

    def test_an_atomic_batch_is_forwarded_whole(self) -> None:
        """And answered once all of it is here; its parts arrive in one commit."""
        talk = self.atomic(idempotency_key="k")
        before = talk.heard
        self.feed()

        self.assertEqual(b"", before)
        self.assertEqual(
            {
                "epoch": 1,
                "appends": [
                    {"epoch": 1, "first_serial": 2, "tokens": [1, 2]},
                    {"epoch": 1, "first_serial": 4, "tokens": [1]},
                ],
            },
            talk.answer().json(),
        )
        self.assertEqual(
            [
                ("atomic_appends", "master"),
                ("receipts", "master"),
                ("receipts", "master"),
                ("push_rules", "w1"),
            ],
            [(fact.stream, fact.writer) for fact in self.engine.facts],
        )
        self.assertEqual(talk.answer().json(), self.atomic(idempotency_key="k").answer().json())
        self.assertEqual(4, len(self.primary_engine.facts))

    def test_an_atomic_batch_whose_answer_was_lost_is_stored_once(self) -> None:
        """It is sent again with the same key."""
        self.primary.mood = ["lossy"]
        talk = self.atomic()
        self.clock.advance(1)
        self.feed()

        self.assertEqual(200, talk.answer().status)
        self.assertEqual(2, len(self.primary.asked))
        self.assertEqual(4, len(self.primary_engine.facts))

    def test_bad_input_is_refused_here(self) -> None:
        """In the same words as by the primary, which is not bothered."""
        for what, path, body, status, code, words in BAD:
            with self.subTest(what):
                answer = self.ask("POST", path, body)

                self.assertEqual((status, code), (answer.status, answer.json()["error"]), answer.body)
                self.assertIn(words, answer.json()["message"])
        for query in ("?timeout=soon", "?files=there", "?timeout=1&timeout=2"):
            self.assertEqual((400, "bad_request"), self.told(self.send(query)), query)
        self.assertEqual([], self.primary.asked)

    def test_the_primary_learns_for_whom_a_write_is_forwarded(self) -> None:
        """The idempotency key belongs to that peer; a peer that proves nothing is not named."""
        writer = self.relaying(self.primary)
        keys = Keyring("shared", [Key(name="ada", secret="s")])
        self.site = self.make_site(hooks=forwarded(writer), keys=keys)
        for secret, query in (("s", "?owner=bob%20x"), ("s", ""), ("shared", "")):
            body = json.dumps({"facts": [[receipt()]]}).encode()
            self.talk().say(self.request("POST", f"{FACTS}{query}", body, f"Authorization: Bearer {secret}"))
        owners = [[value for name, value in query if name == b"owner"] for _, query in self.primary.asked]

        self.assertEqual([[b"bob x"], [b"ada"], [b""]], owners)

    def test_a_slow_feed_is_504_in_time_and_asking_again_writes_once(self) -> None:
        """The answer says that it is kept, and where, so nobody need guess."""
        for query, seconds in (("?timeout=3", 3), ("", 10), ("?timeout=0", 0.1), ("?timeout=900", 300)):
            serial = self.primary_log.head.serial + 1
            talk = self.send(query)
            self.clock.advance(seconds - 0.05)
            before = talk.heard
            self.clock.advance(0.1)
            told = talk.answer().json()

            self.assertEqual((b"", 504, "not_here_yet"), (before, *self.told(talk)))
            self.assertEqual((serial, 1, [serial]), (told["serial"], told["epoch"], told["tokens"]))
            again = self.send(idempotency_key=told["idempotency_key"])
            self.feed()
            self.assertEqual({"epoch": 1, "first_serial": serial, "tokens": [serial]}, again.answer().json())
            self.assertEqual(serial, self.primary_log.head.serial)

    def test_a_primary_that_is_away_is_told_apart(self) -> None:
        """What was certainly not stored can be sent anywhere else."""
        self.primary.mood = ["down"]
        down = self.send()
        self.primary.answer = (503, b'{"error":"handing_over","message":"m"}')
        failing = self.send()
        self.upstream = None
        unknown = self.send()

        self.assertEqual((503, "upstream_unreachable"), self.told(down))
        self.assertIn("nothing was stored", down.answer().json()["message"])
        self.assertEqual((503, "upstream_away"), self.told(failing))
        self.assertEqual((503, "upstream_away"), self.told(unknown))
        for talk in (down, failing, unknown):
            self.assertEqual("1", talk.answer().headers["retry-after"])
        self.assertEqual(0, self.primary_log.head.serial)

    def test_a_lost_answer_is_asked_for_again_with_the_same_key(self) -> None:
        """Also when nobody is there for a while: the unclear becomes known, and nothing is written twice."""
        for key in ({}, {"idempotency_key": "mine"}):
            self.primary.asked.clear()
            serial = self.primary_log.head.serial + 1
            self.primary.mood = ["lossy", "down", "lossy", "down"]
            talk = self.send(**key)
            self.clock.pump([0.1] * 30)
            self.feed()
            keys = {json.loads(body)["idempotency_key"] for body, _ in self.primary.asked}

            self.assertEqual((200, serial), (talk.answer().status, talk.answer().json()["first_serial"]))
            self.assertEqual((5, 1), (len(self.primary.asked), len(keys)))
            self.assertEqual(serial, self.primary_log.head.serial)

    def test_a_commit_of_unknown_outcome_is_found_out(self) -> None:
        """An operator who was told that nothing was stored sent it again, under a new key."""
        for is_stored in (False, True):
            serial = self.primary_log.head.serial + 1
            self.primary_engine.fail_next(BROKEN, kept=is_stored)
            talk = self.send()
            before = talk.heard
            self.clock.pump([0.5] * 3)
            self.feed()

            self.assertEqual((b"", 200), (before, talk.answer().status))
            self.assertEqual(serial, talk.answer().json()["first_serial"])
            self.assertEqual(serial, self.primary_log.head.serial)

    def test_an_unknown_outcome_is_said_to_be_unknown(self) -> None:
        """With the key under which it can be asked for again."""
        for mood, kept in (("mute", 1), ("deaf", 0), ("lossy", 1)):
            before = self.primary_log.head.serial
            self.primary.mood = [mood, *["down"] * 100]
            talk = self.send("?timeout=4")
            self.clock.pump([0.5] * 9)
            told = talk.answer().json()

            self.assertEqual((504, "outcome_unknown"), self.told(talk), mood)
            self.assertEqual(before + kept, self.primary_log.head.serial, mood)
            self.primary.mood = []
            again = self.send(idempotency_key=told["idempotency_key"])
            self.feed()
            self.assertEqual(before + 1, again.answer().json()["first_serial"])
            self.assertEqual(before + 1, self.primary_log.head.serial)

    def test_the_primarys_own_refusals_are_passed_on(self) -> None:
        """Status, code and message as they are."""
        self.primary.answer = (
            409,
            b'{"error":"table_backed","hint":[1],"message":"it comes from  the homeserver\'s table"}',
        )
        answer = self.send().answer()

        self.assertEqual(409, answer.status)
        self.assertEqual(json.loads(self.primary.answer[1]), answer.json())

    def test_what_the_primary_does_not_say_itself(self) -> None:
        """Our secret is not the client's, and a proxy is no primary."""
        cases: list[tuple[int, bytes, tuple[int, str]]] = [
            (401, b'{"error":"unauthorized","message":"the secret is wanted"}', (502, "upstream_refused")),
            (500, b'{"error":"internal","message":"oh"}', (502, "upstream_failed")),
            (404, b"<html>", (502, "upstream_failed")),
            (302, b"", (502, "upstream_failed")),
            (503, b"<html>", (504, "outcome_unknown")),
            (503, b'{"error":"starting","message":"m"}', (503, "upstream_away")),
            (503, b'{"error":"upstream_unreachable","message":"m"}', (503, "upstream_unreachable")),
            (502, b'{"error":"upstream_unreachable","message":"m"}', (503, "upstream_unreachable")),
            (502, b'{"error":"upstream_failed","message":"m"}', (502, "upstream_failed")),
            (503, b'{"error":"storage_error","message":"m"}', (504, "outcome_unknown")),
            (502, b"<html>", (504, "outcome_unknown")),
            (504, b"<html>", (504, "outcome_unknown")),
            (504, b'{"error":"outcome_unknown","message":"m"}', (504, "outcome_unknown")),
            (504, b'{"error":"not_here_yet","message":"m"}', (504, "outcome_unknown")),
        ]
        for status, body, expected in cases:
            self.primary.answer = (status, body)
            talk = self.send("?timeout=1")
            self.clock.pump([0.25] * 5)

            self.assertEqual(expected, self.told(talk), body)
            self.assertIn("idempotency_key", talk.answer().json())
            self.assertNotIn("\n", talk.answer().json()["message"])

    def test_a_replica_between_may_be_slower_than_we_are(self) -> None:
        """That it does not have the facts yet says that they are kept."""
        self.primary.answer = (
            504,
            b'{"error":"not_here_yet","serial":2,"at":0,"epoch":1,"tokens":[1,2],"message":"m"}',
        )
        talk = self.send()
        self.primary_log.append("receipts", "master", [b"[[]]", b"[[]]"])
        self.feed()

        self.assertEqual({"epoch": 1, "first_serial": 1, "tokens": [1, 2]}, talk.answer().json())

    def test_a_circle_is_found(self) -> None:
        """Two daemons that each take the other for the primary do not ask each other for ever."""
        uuid = self.log.uuid
        first = self.send(f"?via=other,{uuid}")
        long = self.send("?via=" + ",".join("abcdefgh"))

        self.assertEqual([(503, "upstream_away")] * 2, [self.told(first), self.told(long)])
        self.assertEqual([], self.primary.asked)

    def test_facts_in_memory_alone_are_answered_at_once(self) -> None:
        """They have no serial to wait for."""
        talk = self.send(stream="typing", facts=[[typing("@ada:h")]])
        empty = self.send(facts=[])

        self.assertIsNone(talk.answer().json()["first_serial"])
        self.assertEqual((200, []), (empty.answer().status, empty.answer().json()["tokens"]))

    def test_who_leaves_ends_the_waiting_and_not_the_write(self) -> None:
        """It was asked for, and may have been kept already."""
        self.primary.mood = ["lossy"]
        unclear, waiting = self.send(), self.send()
        unclear.leave()
        waiting.leave()

        self.assertEqual(([], {}), (self.waiters()._waiters, self.waiters()._readers))
        self.clock.pump([0.1] * 3)
        self.feed()
        self.assertEqual(2, self.primary_log.head.serial)
        self.assertEqual(3, len(self.primary.asked))
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_hundred_that_wait_hinder_nobody(self) -> None:
        """A wait costs no thread."""
        talks = [self.send() for _ in range(100)]

        self.assertEqual(200, self.get("/v1/streams/receipts/rows").status)
        self.assertEqual(200, self.get("/v1/status").status)
        self.assertEqual([b""] * 100, [talk.heard for talk in talks])
        self.feed()
        self.assertEqual([200] * 100, [talk.answer().status for talk in talks])

    def test_no_more_is_held_than_may_be(self) -> None:
        """What waits for a primary that says nothing is bounded."""
        self.site = self.make_site(hooks=forwarded(self.relaying(self.primary, max_pending_bytes=150)))
        self.primary.mood = ["mute", "mute"]
        first, second = self.send(), self.send()

        self.assertEqual(b"", first.heard)
        self.assertEqual((503, "busy"), self.told(second))
        self.assertEqual(1, self.primary_log.head.serial)

    def test_a_promoted_replica_keeps_facts_itself(self) -> None:
        """From one request to the next."""
        self.is_active = False
        talk = self.send()

        self.assertEqual(
            (200, 1, 0), (talk.answer().status, self.log.head.serial, self.primary_log.head.serial)
        )

    def test_facts_of_an_epoch_that_ended_are_not_taken_for_others(self) -> None:
        """The serial is reached by facts of the new primary."""
        talk = self.send()
        self.wait(self.log.epochs.begin_next("promoted"))
        self.wait(self.log.append("receipts", "other", [b"[[]]"]))

        self.assertEqual((504, "outcome_unknown"), self.told(talk))

    def test_facts_of_a_later_epoch_are_not_here_before_it_is(self) -> None:
        """A daemon that stands beside the primary's history has serials enough, but not these."""
        self.wait(self.log.append("receipts", "other", [b"[[]]"]))
        self.wait(self.primary_log.epochs.begin_next("promoted"))
        talk = self.send()

        self.assertEqual((504, "not_here_yet"), self.told(talk))
        self.assertEqual(2, talk.answer().json()["epoch"])

    def test_an_epoch_that_ended_after_the_facts_changes_nothing(self) -> None:
        """They are in the history of the new one, as their receipt shows."""
        talk = self.send()
        self.wait(self.primary_log.epochs.begin_next("promoted"))
        self.wait(self.log.epochs.begin_next("promoted"))
        self.feed()

        self.assertEqual(200, talk.answer().status)


class OverHttpTests(RelayCase):
    """With the client that a daemon uses."""

    def test_big_bodies_and_queries_arrive_as_they_were_sent(self) -> None:
        """Byte by byte, whatever is in them."""
        seen: list[tuple[bytes, bytes]] = []
        client: Any = StubTreq(self.primary.site.resource)

        class Client:
            """Notes what is sent."""

            def request(self, method: str, url: str, **options: Any) -> Any:
                seen.append((url.encode(), options["data"]))
                return client.request(method, url, **options)

        forwarding = HttpClient(self.clock, URL, client=Client())
        self.site = self.make_site(hooks=forwarded(self.relaying(forwarding)))
        fact = json.dumps([receipt("@\u00e4" + "x" * 100_000 + ":h"), receipt()], ensure_ascii=False)
        body = f'{{"facts": [ {fact} ], "writer": "w\u00e4", "idempotency_key": "k\u00e4"}}'.encode()
        talk = self.talk()
        talk.say(self.request("POST", f"{FACTS}?timeout=4&files=here", body))
        client.flush()
        self.feed()

        self.assertEqual({"epoch": 1, "first_serial": 1, "tokens": [1]}, talk.answer().json())
        ((url, sent),) = seen
        self.assertIn(fact.encode(), sent)
        expected = f"/facts?files=here&via={self.log.uuid}&timeout=4.000"
        self.assertTrue(url.endswith(expected.encode()), url)
        self.assertEqual(["w\u00e4"], [kept.writer for kept in self.primary_engine.facts])
        self.assertEqual({"k\u00e4"}, {*self.primary_engine.receipts_by_key})

    def test_another_primary_is_asked_from_then_on(self) -> None:
        """Each write asks anew who it is."""
        for url in ("http://a", "http://a", "http://b"):
            self.upstream = url
            self.send()

        self.assertEqual(["http://a", "http://a", "http://b"], self.primary.urls)

    def test_stopping_answers_what_is_under_way(self) -> None:
        """Nobody waits for a daemon that has gone."""
        relaying = self.relaying(self.primary)
        self.site = self.make_site(hooks=forwarded(relaying))
        self.primary.mood = ["mute"]
        talk = self.send()
        ensureDeferred(relaying.stop())

        self.assertEqual((504, "outcome_unknown"), self.told(talk))

    def test_the_answers_are_whole(self) -> None:
        """JSON with a length, as every refusal is."""
        self.primary.mood = ["down"]
        answer: Answer = self.send().answer()

        self.assertEqual(str(len(answer.body)), answer.headers["content-length"])
        self.assertEqual("application/json", answer.headers["content-type"])
