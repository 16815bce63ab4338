"""The log as lines: in order, at the reader's speed, and waiting without leaving anything behind."""

from unittest.mock import patch

from tests.http.builders import SiteCase, Talk, receipt, typing

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

    def test_the_head_is_told(self) -> None:
        """Who wants a quiet stream alone need not have the rest looked through again and again."""
        self.receipts(3)

        self.assertEqual("3", self.get(f"{CHANGELOG}?streams=caches").headers["synrepl-serial"])

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
            ("limit=0", 400, "bad_request"),
            ("wait=soon", 400, "bad_request"),
            ("wait=-1", 400, "bad_request"),
            ("wait=nan", 400, "bad_request"),
        ]
        for query, status, code in cases:
            answer = self.get(f"{CHANGELOG}?{query}")
            self.assertEqual((status, code), (answer.status, answer.json()["error"]), query)
        arrow = self.get(CHANGELOG, "Accept: application/vnd.apache.arrow.stream")
        self.assertEqual((406, "not_acceptable"), (arrow.status, arrow.json()["error"]))

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
        watchers = len(self.log._watchers)
        timers = len(self.clock.getDelayedCalls())
        talks = [self.waiting() for _ in range(3)]
        for talk in talks:
            talk.leave()

        self.assertEqual(watchers, len(self.log._watchers))
        self.assertEqual(timers, len(self.clock.getDelayedCalls()))
        self.receipts(1)
        self.assertEqual([b"", b"", b""], [talk.heard for talk in talks])
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_slow_reader_is_read_for_no_further(self) -> None:
        """Memory stays flat: the next page is read when there is room for it."""
        for _ in range(3):
            self.post("receipts", *[[receipt()]] * 900)
        talk = self.talk()
        talk.transport.is_slow = True
        seen = []
        with patch.object(self.log, "read", wraps=self.log.read) as read:
            talk.say(self.request("GET", CHANGELOG))
            while not talk.answer().is_whole:
                seen.append((read.call_count, len(talk.answer().lines())))
                assert talk.transport.producer is not None
                talk.transport.producer.resumeProducing()

        self.assertEqual([(1, 1_000), (2, 2_000)], seen)
        self.assertEqual(2_700, len(talk.answer().lines()))

    def test_a_reader_that_leaves_stops_the_reading(self) -> None:
        """Nobody reads a million facts for somebody who has gone."""
        for _ in range(3):
            self.post("receipts", *[[receipt()]] * 900)
        talk = self.talk()
        talk.transport.is_slow = True
        with patch.object(self.log, "read", wraps=self.log.read) as read:
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
        first = self.log.read(after=0, upto=9_999, streams=None, limit=10)
        with patch.object(self.log, "read", side_effect=[first, ZeroDivisionError("broken")]):
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
