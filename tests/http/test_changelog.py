"""The log as lines: in order, at the reader's speed, and waiting without leaving anything behind."""

from hashlib import sha256
from unittest.mock import patch

from synrepl.base.interfaces import IThread
from synrepl.testing.memory_engine import DelayedThread
from synrepl.wire.filter import ALL, Filter
from tests.http.builders import NOW, Answer, SiteCase, Talk, receipt, typing

CHANGELOG = "/v1/changelog"


class ChangelogTests(SiteCase):
    """A reader of the log."""

    def waiting(self, query: str = "since=0&wait=30") -> Talk:
        """A reader that waits for news."""
        talk = self.talk()
        talk.say(self.request("GET", f"{CHANGELOG}?{query}"))
        self.assertEqual(b"", talk.heard)
        return talk

    def serials(self, query: str) -> list[int]:
        """The serials of the facts given."""
        return [fact["serial"] for fact in self.get(f"{CHANGELOG}?{query}").lines()]

    def test_a_line_holds_all_that_is_known_of_a_fact(self) -> None:
        """Replicas and archives are made of these lines alone."""
        self.receipts(1, writer="w\u00e4")
        (fact,) = self.engine.facts

        answer = self.get(CHANGELOG)

        self.assertEqual("application/x-ndjson", answer.headers["content-type"])
        expected = [
            ("serial", 1),
            ("epoch", 1),
            ("stream", "receipts"),
            ("writer", "w\u00e4"),
            ("prev_token", 0),
            ("token", 1),
            ("rows", [receipt()]),
            ("committed_at_ms", fact.committed_at_ms),
            ("digest", fact.digest),
        ]
        self.assertEqual([expected], [list(line.items()) for line in answer.lines()])
        self.assertIn(fact.rows, answer.body)

    def test_since_limit_and_streams_choose(self) -> None:
        """A reader pays for what it wants alone."""
        self.receipts(3)
        self.post("caches", [["name", ["key"], 1]])
        self.receipts(1)

        self.assertEqual([1, 2, 3, 4, 5], self.serials(""))
        self.assertEqual([4, 5], self.serials("since=3"))
        self.assertEqual([2, 3], self.serials("since=1&limit=2"))
        self.assertEqual([4], self.serials("streams=caches"))
        self.assertEqual([2, 3, 4, 5], self.serials("since=1&streams=caches,receipts"))
        self.assertEqual([], self.serials("since=5"))

    def test_the_head_is_reported(self) -> None:
        """Who wants a quiet stream alone need not have the rest looked through again and again."""
        self.receipts(3)

        self.assertEqual("3", self.get(f"{CHANGELOG}?streams=caches").headers["synrepl-serial"])

    def test_an_answer_ends_with_a_heartbeat_if_that_is_asked_for(self) -> None:
        """An answer that a proxy cut, and ended properly, is known by what it lacks."""
        self.receipts(3)
        for query, serials, end in (
            ("since=0", [1, 2, 3], 3),
            ("limit=2", [1, 2], 2),
            ("since=0&upto=2", [1, 2], 2),
            ("streams=caches", [], 3),
            ("streams=caches&limit=1", [], 3),
            ("since=3&wait=30", [], 3),
        ):
            talk = self.talk()
            talk.say(self.request("GET", f"{CHANGELOG}?{query}", b"", "Synrepl-End: heartbeat"))
            self.clock.advance(30)
            answer = Answer(talk.heard)
            *facts, last = answer.lines()

            self.assertEqual("heartbeat", answer.headers["synrepl-end"])
            self.assertEqual(serials, [fact["serial"] for fact in facts], query)
            self.assertEqual((1, end), (last["heartbeat"]["epoch"], last["heartbeat"]["serial"]), query)
        self.assertNotIn("synrepl-end", self.get(CHANGELOG).headers)
        self.assertEqual(400, self.get(CHANGELOG, "Synrepl-End: other").status)

    def test_a_reader_ahead_of_the_log_is_told_so(self) -> None:
        """It knows facts of another history; an empty answer would starve it in silence."""
        self.receipts(2)

        answer = self.get(f"{CHANGELOG}?since=3&wait=30")

        self.assertEqual(409, answer.status)
        self.assertEqual(
            ("ahead_of_log", 2, 1), tuple(answer.json()[k] for k in ("error", "serial", "epoch"))
        )

    def test_bad_queries_are_refused(self) -> None:
        """Each with the same shape as everywhere else."""
        cases = [
            ("streams=receipts,nope", 404, "unknown_stream"),
            ("streams=", 404, "unknown_stream"),
            ("since=-1", 400, "bad_request"),
            (f"since={2**63}", 400, "bad_request"),
            ("limit=0", 400, "bad_request"),
            ("wait=soon", 400, "bad_request"),
            ("wait=-1", 400, "bad_request"),
            ("wait=nan", 400, "bad_request"),
            ("upto=-1", 400, "bad_request"),
            ("writers=", 400, "bad_writer"),
            ("writers=a,,b", 400, "bad_writer"),
            ("epoch=x", 400, "bad_request"),
            ("digest=abc", 400, "bad_request"),
            ("digest=" + "F" * 64, 400, "bad_request"),
            ("follow=yes", 400, "bad_request"),
            ("epoch_starts=1", 400, "bad_request"),
            ("receipts=", 400, "bad_request"),
            ("checksum=no", 400, "bad_request"),
            ("compacted=maybe", 400, "bad_request"),
            ("follow=true&heartbeat=often", 400, "bad_request"),
            ("since=1&since=2", 400, "bad_request"),
            ("min_serial=-1", 400, "bad_request"),
            ("timeout=long", 400, "bad_request"),
        ]
        for query, status, code in cases:
            answer = self.get(f"{CHANGELOG}?{query}")
            self.assertEqual((status, code), (answer.status, answer.json()["error"]), query)

    def test_what_there_is_between_facts_is_told_in_its_place(self) -> None:
        """A replica that reads over HTTP needs all of it, in the order in which it happened."""
        self.wait(self.log.epochs.begin_next("restored"))
        self.post("receipts", [receipt()], [receipt()], idempotency_key="k")
        self.wait(self.log.epochs.begin_next("promoted"))
        self.receipts(1)

        lines = self.get(f"{CHANGELOG}?epoch_starts=true&receipts=true").lines()

        self.assertEqual(
            ["turn 2", "receipt k", 1, 2, "turn 3", 3],
            [
                f"turn {line['epoch_start']['epoch']}"
                if "epoch_start" in line
                else f"receipt {line['receipt']['key']}"
                if "receipt" in line
                else line["serial"]
                for line in lines
            ],
        )
        second = self.engine.facts[1]
        self.assertEqual(
            {
                "epoch": 3,
                "serial": 2,
                "digest": second.digest,
                "at_ms": NOW * 1000,
                "why": "promoted",
                "stream": "",
                "token": 0,
            },
            lines[4]["epoch_start"],
        )
        told = lines[1]["receipt"]
        self.assertEqual(self.engine.receipts_by_key["k"].request, told.pop("request"))
        self.assertEqual(
            {
                "stream": "receipts",
                "key": "k",
                "owner": "",
                "part": 0,
                "epoch": 2,
                "first_serial": 1,
                "tokens": [1, 2],
                "at_ms": NOW * 1000,
            },
            told,
        )

    def test_a_turn_is_told_to_who_does_not_have_it(self) -> None:
        """Whoever stands just where an epoch began may know of it, or not."""
        self.receipts(2)
        self.wait(self.log.epochs.begin_next("promoted"))
        cases = [
            ("since=1", 1),
            ("since=2", 1),
            ("since=2&epoch=1", 1),
            ("since=2&epoch=2", 0),
            ("since=0&upto=1", 0),
            ("since=0&limit=2", 1),
            ("since=0&limit=1", 0),
        ]
        for query, expected in cases:
            lines = self.get(f"{CHANGELOG}?epoch_starts=true&{query}").lines()

            self.assertEqual(expected, sum("epoch_start" in line for line in lines), query)

    def test_a_turn_ends_the_waiting(self) -> None:
        """There is something to tell, if it is wanted."""
        plain, talk = self.waiting(), self.waiting("since=0&wait=30&epoch_starts=true")
        self.wait(self.log.epochs.begin_next("promoted"))

        self.assertEqual([2], [line["epoch_start"]["epoch"] for line in talk.answer().lines()])
        self.assertEqual(b"", plain.heard)

    def test_a_fact_can_be_proved_by_itself(self) -> None:
        """Who leaves out facts cannot follow the digests."""
        self.receipts(2, writer="w1")
        fact = self.engine.facts[0]
        text = f"1 1 receipts w1 0 1 {fact.committed_at_ms} {fact.rows.decode()}"
        expected = sha256(text.encode()).hexdigest()
        for query in ("streams=receipts", "writers=w1", "checksum=true", "checksum=true&streams=receipts"):
            line = self.get(f"{CHANGELOG}?{query}").lines()[0]

            self.assertEqual(("checksum", expected), list(line.items())[-1], query)
        for query in ("", "checksum=false"):
            self.assertNotIn("checksum", self.get(f"{CHANGELOG}?{query}").lines()[0])

    def test_where_it_stands_is_told_in_the_head(self) -> None:
        """Before the first line."""
        self.receipts(3)
        for query in ("", "upto=3", "follow=true"):
            headers = self.get(f"{CHANGELOG}?{query}").headers

            self.assertEqual(
                ("1", "3", self.log.history),
                tuple(headers[f"synrepl-{name}"] for name in ("epoch", "serial", "history")),
            )
        self.assertEqual("2", self.get(f"{CHANGELOG}?upto=2").headers["synrepl-serial"])

    def test_who_stands_beside_this_history_is_told_how(self) -> None:
        """Each case wants something else of an operator, so none looks like another."""
        self.receipts(3)
        self.wait(self.log.epochs.begin_next("promoted"))
        self.receipts(3)
        self.wait(self.log.trim(2, lambda *_: None, 100))
        facts = self.engine.facts
        second, wrong = self.log.head.trimmed_upto.digest, "f" * 64
        cases: list[tuple[str, int, str]] = [
            ("since=7", 409, "ahead_of_log"),
            ("since=7&epoch=2&compacted=true", 409, "ahead_of_log"),
            (f"since=3&epoch=1&digest={wrong}", 409, "fork"),
            (f"since=2&digest={wrong}", 409, "fork"),
            (f"since=6&epoch=2&digest={wrong}", 409, "fork"),
            ("since=4&epoch=1", 409, "fork"),
            ("since=3&epoch=3", 409, "other_epoch"),
            ("since=9&epoch=3", 409, "other_epoch"),
            ("since=0", 410, "trimmed"),
            (f"since=1&epoch=1&digest={wrong}", 410, "trimmed"),
            (f"since=0&history={wrong}", 409, "other_history"),
            ("history=", 409, "other_history"),
        ]
        for query, status, code in cases:
            for more in ("", "&follow=true", "&wait=30&epoch_starts=true"):
                answer = self.get(f"{CHANGELOG}?{query}{more}")
                told = answer.json()

                self.assertEqual((status, code), (answer.status, told["error"]), query)
                self.assertEqual((6, 2), (told["serial"], told["epoch"]), query)
                self.assertEqual(code == "other_epoch", told["retryable"])
                self.assertEqual(2 if code == "trimmed" else None, told.get("trimmed_upto"))
        for query, serials in (
            (f"since=2&epoch=1&digest={second}&history={self.log.history}", [3, 4, 5, 6]),
            ("since=3&epoch=1", [4, 5, 6]),
            ("since=3&epoch=2", [4, 5, 6]),
            (f"since=4&epoch=2&digest={facts[1].digest}", [5, 6]),
            ("since=0&compacted=true", [3, 4, 5, 6]),
            (f"since=1&compacted=true&epoch=1&digest={wrong}", [3, 4, 5, 6]),
        ):
            self.assertEqual(serials, self.serials(query), query)

    def test_a_log_that_is_trimmed_under_a_reader_cuts_it_off(self) -> None:
        """It would go on behind a hole that it cannot see."""
        for _ in range(3):
            self.post("receipts", *[[receipt()]] * 900)
        talk = self.talk()
        talk.transport.is_slow = True
        talk.say(self.request("GET", CHANGELOG))
        self.wait(self.log.trim(2_500, lambda *_: None, 10_000))
        assert talk.transport.producer is not None
        talk.transport.producer.resumeProducing()

        self.assertTrue(talk.transport.is_aborted)
        self.assertEqual(2_000, len(talk.answer().lines()))
        talk.leave()

    def test_writers_choose_too(self) -> None:
        """In one look at the log."""
        for writer in ("a", "b", "a"):
            self.receipts(1, writer=writer)
        self.post("caches", [["name", ["key"], 1]], writer="a")

        self.assertEqual([1, 3, 4], self.serials("writers=a"))
        self.assertEqual([1, 2, 3, 4], self.serials("writers=a,b"))
        self.assertEqual([1, 3], self.serials("writers=a&streams=receipts"))
        self.assertEqual([2, 3], self.serials("upto=3&since=1"))
        self.assertEqual([], self.serials("upto=1&since=2"))
        with patch.object(self.log.reads, "facts", wraps=self.log.reads.facts) as read:
            self.serials("writers=a&streams=receipts,caches")
        wanted = Filter.of(streams=("receipts", "caches"), writers=("a",))
        self.assertEqual(wanted, read.call_args.kwargs["filter"])

    def test_a_long_log_is_looked_through_in_slices(self) -> None:
        """Others read in the same thread."""
        for _ in range(23):
            self.post("receipts", *[[receipt()]] * 900)
        self.post("caches", [["name", ["key"], 1]])
        with patch.object(self.log.reads, "facts", wraps=self.log.reads.facts) as read:
            self.assertEqual([20_701], self.serials("streams=caches"))

        self.assertEqual([0, 20_000], [call.kwargs["after"] for call in read.call_args_list])

    def test_an_atomic_batch_is_answered_whole(self) -> None:
        """Whatever the limit; the next request goes on after it."""
        self.receipts(1)
        facts = [b'[["@a:hs"]]'] * 3
        self.wait(self.log.append_atomic([("push_rules", "w", facts)], key="k"))
        self.receipts(1)

        self.assertEqual([1], self.serials("limit=1"))
        self.assertEqual([2, 3, 4, 5], self.serials("since=1&limit=1"))
        self.assertEqual([1, 2, 3, 4, 5], self.serials("limit=2"))
        self.assertEqual([3, 4, 5], self.serials("streams=push_rules&limit=1"))
        self.assertEqual([2, 3], self.serials("since=1&upto=3"))

    def test_a_waiting_reader_hears_at_once(self) -> None:
        """No poll: the commit itself wakes it."""
        talk = self.waiting()

        self.receipts(1)

        self.assertEqual([1], [fact["serial"] for fact in talk.answer().lines()])
        self.assertTrue(talk.answer().is_whole)

    def test_waiting_ends_in_time(self) -> None:
        """An empty answer, so that proxies and clients see that all is well."""
        talk = self.waiting("since=0&wait=2.5")
        self.clock.advance(2.4)
        before = talk.heard
        self.clock.advance(0.2)

        self.assertEqual(b"", before)
        self.assertEqual((200, []), (talk.answer().status, talk.answer().lines()))
        self.assertTrue(talk.answer().is_whole)

    def test_other_streams_do_not_end_the_waiting(self) -> None:
        """Nor do those that are in memory alone."""
        talk = self.waiting("since=0&wait=30&streams=caches")
        self.receipts(1)
        self.post("typing", [typing()])
        before = talk.heard
        self.post("caches", [["name", ["key"], 1]])

        self.assertEqual(b"", before)
        self.assertEqual([2], [fact["serial"] for fact in talk.answer().lines()])

    def test_waiting_leaves_nothing_behind(self) -> None:
        """A thousand readers that come and go cost nothing once they are gone."""
        self.get(CHANGELOG)
        self.clock.advance(0)
        subscribers = len(self.log._subscribers)
        timers = len(self.clock.getDelayedCalls())
        talks = [self.waiting() for _ in range(3)]
        for talk in talks:
            talk.leave()

        self.assertEqual(subscribers, len(self.log._subscribers))
        self.clock.advance(0)
        self.assertEqual(timers, len(self.clock.getDelayedCalls()))
        self.receipts(1)
        self.assertEqual([b"", b"", b""], [talk.heard for talk in talks])
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_slow_reader_is_read_for_no_further(self) -> None:
        """Memory stays flat: the next page is read when there is room for it."""
        for _ in range(6):
            self.post("receipts", *[[receipt()]] * 900)
        talk = self.talk()
        talk.transport.is_slow = True
        seen = []
        with patch.object(self.log.reads, "text", wraps=self.log.reads.text) as read:
            talk.say(self.request("GET", CHANGELOG))
            while not talk.answer().is_whole:
                seen.append((read.call_count, len(talk.answer().lines())))
                assert talk.transport.producer is not None
                talk.transport.producer.resumeProducing()

        self.assertEqual([(1, 2_000), (2, 4_000), (3, 5_400)], seen)
        self.assertEqual(5_400, len(talk.answer().lines()))

    def test_an_answer_ends_at_the_head_that_it_names(self) -> None:
        """However fast the log grows while a slow reader reads."""
        for _ in range(2):
            self.post("receipts", *[[receipt()]] * 900)
        talk = self.talk()
        talk.transport.is_slow = True
        talk.say(self.request("GET", CHANGELOG))
        self.receipts(5)
        while not talk.answer().is_whole:
            assert talk.transport.producer is not None
            talk.transport.producer.resumeProducing()

        answer = talk.answer()
        self.assertEqual(["1800", 1800], [answer.headers["synrepl-serial"], len(answer.lines())])

    def test_a_reader_that_leaves_stops_the_reading(self) -> None:
        """Nobody reads a million facts for somebody who has gone."""
        for _ in range(3):
            self.post("receipts", *[[receipt()]] * 900)
        talk = self.talk()
        talk.transport.is_slow = True
        with patch.object(self.log.reads, "text", wraps=self.log.reads.text) as read:
            talk.say(self.request("GET", CHANGELOG))
            producer = talk.transport.producer
            talk.leave()
            if producer is not None:
                producer.resumeProducing()

        self.assertEqual(1, read.call_count)
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_failing_log_cuts_the_answer_short(self) -> None:
        """A clean end would say that there is nothing more."""
        for _ in range(3):
            self.post("receipts", *[[receipt()]] * 900)
        talk = self.talk()
        first = self.log.reads.text(
            after=0, upto=9_999, limit=10, filter=ALL, form="json", size=10_000, scanned=10
        )
        with patch.object(self.log.reads, "text", side_effect=[first, ZeroDivisionError("broken")]):
            talk.say(self.request("GET", CHANGELOG))

        self.assertTrue(talk.transport.is_aborted)
        self.assertFalse(talk.answer().is_whole)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        talk.leave()

    def test_head_gives_no_lines(self) -> None:
        """As with every GET."""
        self.receipts(1)
        answer = self.ask("HEAD", CHANGELOG)

        self.assertEqual((200, b""), (answer.status, answer.body))


class LateTests(SiteCase):
    """The log is read in a thread, and what comes meanwhile is late."""

    ring_bytes = 1

    def reading_thread(self) -> IThread:
        return DelayedThread(self.clock, lambda: 0.01)

    def test_a_fact_that_comes_as_the_waiting_ends(self) -> None:
        """Its serial was told, but it was not sent: a reader that went on from there never saw it."""
        talk = Talk(self.site)
        talk.say(self.request("GET", f"{CHANGELOG}?since=0&wait=30&streams=receipts"))
        self.clock.pump([29.995, 0])
        self.log.append("receipts", "master", [b'[["!r","m.read","@a:hs","$e",null,{}]]'])
        self.clock.pump([0.01] * 10)

        answer = talk.answer()
        self.assertEqual(
            ([1], "1"), ([fact["serial"] for fact in answer.lines()], answer.headers["synrepl-serial"])
        )
        self.assertTrue(answer.is_whole)
