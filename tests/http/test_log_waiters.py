"""Reading one's writes: a read that waits until the log is as far, and no longer than it may."""

from synrepl.replication.serving.log_waiters import LogWaiters
from synrepl.wire.position import LogPosition
from tests.http.builders import SiteCase, Talk

PATHS = (
    "/v1/streams/receipts/rows?",
    "/v1/streams/receipts/allocated?",
    "/v1/changelog?since=0&",
    "/_synapse/replication/get_repl_stream_updates/receipts/t?from_token=0&upto_token=9&",
)


class WaitingTests(SiteCase):
    """Whoever wrote elsewhere reads here."""

    def ask_for(self, path: str, query: str) -> Talk:
        """A read that may have to wait."""
        talk = self.talk()
        talk.say(self.request("GET", path + query))
        return talk

    def test_a_read_waits_until_the_log_is_as_far(self) -> None:
        """And then sees what it waited for, and not less."""
        for path in PATHS:
            serial = self.log.head.serial + 2
            talk = self.ask_for(path, f"min_serial={serial}")
            self.receipts(1)
            before = talk.heard
            self.receipts(1)

            self.assertEqual((b"", 200), (before, talk.answer().status), path)
            self.assertEqual(talk.answer().body, self.get(path).body, path)

    def test_what_is_here_is_answered_at_once(self) -> None:
        """Also with no time to wait."""
        self.receipts(1)
        for path in PATHS:
            self.assertEqual(200, self.ask_for(path, "min_serial=1&timeout=0").answer().status)

    def test_the_wait_ends(self) -> None:
        """In ten seconds unless said, in 300 at most."""
        for query, seconds in (("", 10), ("&timeout=2.5", 2.5), ("&timeout=9000", 300)):
            talk = self.ask_for(PATHS[0], f"min_serial=7{query}")
            self.clock.advance(seconds - 0.1)
            before = talk.heard
            self.clock.advance(0.2)
            answer = talk.answer()

            self.assertEqual((b"", 504, "1"), (before, answer.status, answer.headers["retry-after"]))
            told = answer.json()
            self.assertEqual(("not_here_yet", 7, 0), (told["error"], told["serial"], told["at"]))

    def test_synapses_path_tells_it_in_synapses_form(self) -> None:
        """Its clients know no other."""
        talk = self.ask_for(PATHS[3], "min_serial=7&timeout=0")

        self.assertEqual((504, "M_UNKNOWN"), (talk.answer().status, talk.answer().json()["errcode"]))

    def test_a_place_that_moves_without_facts_is_seen_soon(self) -> None:
        """A filtered copy is told of serials of which it has nothing."""
        talk = self.ask_for(PATHS[1], "min_serial=3")
        self.wait(self.log.copies.follow((), upto=LogPosition(1, 3, "d" * 64)))
        self.clock.advance(0.6)

        self.assertEqual(200, talk.answer().status)

    def test_an_ended_wait_leaves_no_timer_or_queue_entry(self) -> None:
        """Neither a timer, nor a place in the queue, however it ends."""
        timers = len(self.clock.getDelayedCalls())
        gone = [self.ask_for(path, f"min_serial={5 + n}") for n, path in enumerate(PATHS * 5)]
        for talk in gone[::2] + gone[1::2]:
            talk.leave()
        self.clock.advance(0)
        self.assertEqual(timers, len(self.clock.getDelayedCalls()))
        self.receipts(8)

        self.assertEqual([], self.flushLoggedErrors())

    def test_the_number_of_waiters_is_limited(self) -> None:
        """The next one is told to come back; the others, and who need not wait, do not feel it."""
        self.publisher.waiters = LogWaiters(self.log, self.clock, max_waiters=3)
        self.site = self.make_site()
        talks = [self.ask_for(PATHS[0], "min_serial=1") for _ in range(3)]
        answer = self.get(PATHS[0] + "min_serial=1")
        free = self.get(PATHS[0])
        self.receipts(1)

        self.assertEqual((503, "too_many_waiting"), (answer.status, answer.json()["error"]))
        self.assertEqual(200, free.status)
        self.assertEqual([200] * 3, [talk.answer().status for talk in talks])


class DigestsTests(SiteCase):
    """Finding where two histories part."""

    def test_digests_are_told_by_serial(self) -> None:
        """Null where there is none, and with where the log stands."""
        self.receipts(3)
        digests = [fact.digest for fact in self.engine.facts]

        self.assertEqual(
            {
                "epoch": 1,
                "serial": 3,
                "history": self.log.history,
                "digests": {"0": "0" * 64, "1": digests[0], "3": digests[2], "4": None},
            },
            self.get("/v1/digests?serials=3,1,0,4,1").json(),
        )

    def test_trimmed_digests_are_null(self) -> None:
        """Nothing is claimed about it."""
        self.post("caches", [["name", ["key"], 1]], [["name", ["key"], 1]])
        self.wait(self.log.trim(2, lambda *_: None, 10))

        self.assertEqual(
            {"0": None, "1": None, "2": self.log.head.digest},
            self.get("/v1/digests?serials=0,1,2").json()["digests"],
        )

    def test_bad_queries_are_refused(self) -> None:
        """With what is wanted instead."""
        many = ",".join(map(str, range(1_001)))
        for query in ("", "serials=", "serials=1,,2", "serials=x", "serials=-1", "serials=" + many):
            answer = self.get(f"/v1/digests?{query}")

            self.assertEqual((400, "bad_request"), (answer.status, answer.json()["error"]), query[:40])
        self.assertEqual(200, self.get("/v1/digests?serials=" + many.rpartition(",")[0]).status)
