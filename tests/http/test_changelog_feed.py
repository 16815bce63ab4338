"""A changelog without an end: pushed on commit, in order, once, at the reader's speed, and never silent."""

import json
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.streams.digest import EMPTY
from synrepl.wire.commands import RemoteServerUp
from synrepl.wire.position import LogPosition
from tests.http.builders import NOW, SiteCase, Talk, receipt, typing

FOLLOW = "/v1/changelog?follow=true"


def facts(talk: Talk) -> list[int]:
    """The serials of the facts heard."""
    return [line["serial"] for line in talk.answer().lines() if "serial" in line]


def beats(talk: Talk) -> list[dict[str, Any]]:
    """The heartbeats heard."""
    return [line["heartbeat"] for line in talk.answer().lines() if "heartbeat" in line]


class FollowCase(SiteCase):
    """Readers that follow. Only the newest group is in memory, so that whoever is behind reads the log."""

    ring_bytes = 1

    def follow(self, query: str = "since=0", *, is_slow: bool = False) -> Talk:
        """A reader that follows."""
        talk = self.talk()
        talk.transport.is_slow = is_slow
        talk.say(self.request("GET", f"{FOLLOW}&{query}"))
        return talk

    def drain(self, talk: Talk) -> None:
        """The reader has read what it was sent."""
        if talk.transport.producer is not None:
            talk.transport.producer.resumeProducing()

    def many(self, count: int) -> None:
        """So many facts, in one append."""
        self.assertEqual(200, self.post("receipts", *[[receipt()]] * count).status)


class FollowingTests(FollowCase):
    """What a reader hears, and when."""

    def test_facts_are_pushed_as_they_are_committed(self) -> None:
        """In the same connection, without a question."""
        self.receipts(2)
        talk = self.follow()
        before = facts(talk)
        self.receipts(1)
        after = facts(talk)
        self.post("receipts", [receipt()], [receipt()])
        self.post("typing", [typing()])

        self.assertEqual(([1, 2], [1, 2, 3], [1, 2, 3, 4, 5]), (before, after, facts(talk)))
        self.assertFalse(talk.answer().is_whole)
        self.assertEqual("application/x-ndjson", talk.answer().headers["content-type"])

    def test_what_is_pushed_is_not_read_from_the_log(self) -> None:
        """A hundred readers of one commit cost one text."""
        talks = [self.follow() for _ in range(3)]
        with patch.object(self.log.reads, "text", side_effect=AssertionError):
            self.receipts(5)

        self.assertEqual([[1, 2, 3, 4, 5]] * 3, [facts(talk) for talk in talks])
        self.assertEqual(1, len({talk.answer().body for talk in talks}))

    def test_the_head_is_sent_before_there_is_anything_to_say(self) -> None:
        """The reader knows that it is accepted."""
        answer = self.follow("since=0&streams=caches").answer()

        self.assertEqual((200, "0", "1"), (answer.status, answer.headers["synrepl-serial"], "1"))

    def test_a_heartbeat_tells_how_far_it_is(self) -> None:
        """At once when the head is reached, and then in time."""
        self.receipts(2)
        talk = self.follow("since=0&heartbeat=7")
        expected = [
            {"epoch": 1, "serial": 2, "digest": self.log.head.digest, "now_ms": NOW * 1000, "head": 2}
        ]
        self.assertEqual(expected, beats(talk))

        self.clock.advance(6.9)
        self.assertEqual(1, len(beats(talk)))
        self.clock.advance(0.2)
        self.assertEqual((2, (NOW + 7) * 1000 + 100), (len(beats(talk)), beats(talk)[1]["now_ms"]))
        self.clock.pump([1.0] * 7)
        self.assertEqual(3, len(beats(talk)))

    def test_the_time_between_heartbeats_has_bounds(self) -> None:
        """Nobody makes the daemon speak a thousand times a second."""
        for query, seconds in (("heartbeat=0", 1), ("heartbeat=0.01", 1), ("heartbeat=900", 60), ("", 5)):
            talk = self.follow(query)
            self.clock.advance(seconds - 0.5)
            before = len(beats(talk))
            self.clock.advance(0.5)

            self.assertEqual((1, 2), (before, len(beats(talk))), query)
            talk.leave()

    def test_there_are_none_unless_it_follows(self) -> None:
        """What was there stays as it was."""
        self.receipts(1)
        talk = self.talk()
        talk.say(self.request("GET", "/v1/changelog?since=1&wait=30&heartbeat=1"))
        self.clock.pump([1.0] * 5)

        self.assertEqual(b"", talk.heard)

    def test_a_filtered_readers_place_moves_without_facts(self) -> None:
        """It need not have the same facts looked through again when it comes back."""
        talk = self.follow("streams=caches")
        self.receipts(3)
        self.clock.advance(5)
        position = self.log.position
        self.post("caches", [["name", ["key"], 1]])
        self.receipts(1)
        self.clock.advance(5)

        told = [LogPosition(beat["epoch"], beat["serial"], beat["digest"]) for beat in beats(talk)]
        self.assertEqual([LogPosition(1, 0, EMPTY), position, self.log.position], told)
        self.assertEqual([4], facts(talk))

    def test_a_heartbeat_comes_while_nothing_wanted_is_found(self) -> None:
        """A long look through the log is not taken for a dead connection, and is not done twice."""
        for _ in range(3):
            self.many(900)
        self.receipts(1)
        gates: list[Any] = []
        read = self.log.reads.facts

        def slowly(**asked: Any) -> Any:
            asked["upto"] = min(asked["upto"], asked["after"] + 900)
            done = self.gate(lambda: read(**asked))
            gates.append(done[1])
            return done[0]

        with patch.object(self.log.reads, "facts", side_effect=slowly):
            talk = self.follow("streams=caches&heartbeat=2")
            for _ in range(3):
                self.clock.advance(2)
                gates.pop()()

        told = [(beat["serial"], beat["digest"]) for beat in beats(talk)]
        digests = [fact.digest for fact in self.engine.facts]
        self.assertEqual(
            [
                (0, EMPTY),
                (900, digests[899]),
                (1_800, digests[1_799]),
                # The newest group is in memory.
                (2_701, digests[2_700]),
            ],
            told,
        )

    def gate(self, work: Any) -> tuple[Any, Any]:
        """Work that is done when the second is called."""
        from twisted.internet.defer import Deferred

        trimmed_upto: Deferred[None] = Deferred()

        async def wait() -> Any:
            await trimmed_upto
            return await work()

        return Deferred.fromCoroutine(wait()), lambda: trimmed_upto.callback(None)

    def test_epochs_and_receipts_are_pushed_too(self) -> None:
        """What a replica over HTTP needs beside the facts."""
        talk = self.follow("epoch_starts=true&receipts=true")
        self.post("receipts", [receipt()], idempotency_key="a")
        self.wait(self.log.epochs.begin_next("promoted"))
        self.post("receipts", [receipt()], idempotency_key="b")

        self.assertEqual(
            ["heartbeat", "receipt", 1, "epoch_start", "receipt", 2],
            [line.get("serial", next(iter(line))) for line in talk.answer().lines()],
        )

    def test_a_receipt_is_told_to_who_does_not_want_its_facts(self) -> None:
        """A filtered copy answers a repeated write as the primary did."""
        talk = self.follow("streams=caches&receipts=true")
        self.post("receipts", [receipt()], idempotency_key="a")

        self.assertEqual(
            ["a"], [line["receipt"]["key"] for line in talk.answer().lines() if "receipt" in line]
        )

    def test_what_nobody_keeps_is_told_to_who_asks_for_it(self) -> None:
        """What is held at first, and where its writers are; then what comes."""
        self.post("typing", [typing()])
        talk = self.follow("ephemeral=true")
        self.post("typing", [typing()])

        lines = talk.answer().lines()

        held = next(line["held"] for line in lines if "held" in line)
        self.assertEqual([(1, True), (1, False)], [(one["token"], bool(one["rows"])) for one in held])
        self.assertEqual([2], [line["ephemeral"]["token"] for line in lines if "ephemeral" in line])

    def test_what_nobody_keeps_is_told_as_far_as_it_is_wanted(self) -> None:
        """A reader of other streams hears nothing of it, at first or later."""
        self.post("typing", [typing()])
        talk = self.follow("ephemeral=true&streams=receipts,presence")
        self.post("typing", [typing()])
        self.receipts(1)

        lines = talk.answer().lines()

        self.assertEqual([[]], [line["held"] for line in lines if "held" in line])
        self.assertEqual([], [line for line in lines if "ephemeral" in line])

    def test_a_turn_comes_before_a_heartbeat_of_its_epoch(self) -> None:
        """A reader never hears of an epoch that it was not told of."""
        self.receipts(1)
        self.wait(self.log.epochs.begin_next("promoted"))
        talk = self.follow("epoch_starts=true&since=1&epoch=1")

        self.assertEqual(["epoch_start", "heartbeat"], [next(iter(line)) for line in talk.answer().lines()])
        self.assertEqual(2, beats(talk)[0]["epoch"])

    def test_a_followed_changelog_ends_at_upto(self) -> None:
        """Where the reader said, also when nothing wanted is there."""
        for query, expected in (
            ("upto=3", [1, 2, 3]),
            ("limit=3", [1, 2, 3]),
            ("upto=3&streams=caches", []),
            ("upto=0", []),
        ):
            talk = self.follow(query)
            last = self.log.head.serial
            while not talk.answer().is_whole and self.log.head.serial < last + 5:
                self.receipts(1)
            self.clock.advance(5)

            self.assertTrue(talk.answer().is_whole, query)
            self.assertEqual(expected, facts(talk), query)
        self.assertEqual({}, self.waiters()._readers)

    def test_the_rest_of_a_group_is_not_given_beyond_the_end(self) -> None:
        """A limit is a limit."""
        limited, bounded = self.follow("limit=2"), self.follow("upto=2")
        self.post("receipts", [receipt()], [receipt()], [receipt()])

        self.assertEqual(([1, 2], [1, 2]), (facts(limited), facts(bounded)))
        self.assertTrue(limited.answer().is_whole and bounded.answer().is_whole)

    def test_it_can_end_where_there_are_no_facts(self) -> None:
        """A filtered copy is told of a place alone; the timer of the heartbeat may be the first to see it."""
        with patch("synrepl.replication.serving.log_waiters.POLL_SECONDS", 30):
            talk = self.follow("upto=3&heartbeat=1")
            self.wait(self.log.copies.follow((), upto=LogPosition(1, 3, "d" * 64)))
            self.clock.advance(1)

        self.assertEqual((True, 1), (talk.answer().is_whole, len(beats(talk))))
        self.assertEqual([], self.flushLoggedErrors())

    def test_facts_that_nobody_was_shown_are_looked_for(self) -> None:
        """A log may find more on its disk than it knew of."""
        talk = self.follow("streams=receipts")
        self.receipts(1)
        subscribers, self.log._subscribers = self.log._subscribers, []
        self.receipts(1)
        self.log._subscribers = subscribers
        self.post("caches", [["name", ["key"], 1]])
        self.receipts(1)

        self.assertEqual([1, 2, 4], facts(talk))

    def test_a_reader_that_leaves_leaves_nothing(self) -> None:
        """Neither a timer nor a place in a queue."""
        timers = len(self.clock.getDelayedCalls())
        talks = [self.follow(query) for query in ("", "streams=caches", "epoch_starts=true&receipts=true")]
        for talk in talks:
            talk.leave()

        self.assertEqual({}, self.waiters()._readers)
        self.clock.advance(0)
        self.assertEqual(timers, len(self.clock.getDelayedCalls()))
        self.receipts(1)
        self.clock.advance(60)
        self.assertEqual([], self.flushLoggedErrors())

    def test_proxies_are_told_to_pass_lines_on_as_they_come(self) -> None:
        """nginx held back all of it: no head, no fact and no heartbeat within 25 seconds."""
        answer = self.follow().answer()

        self.assertEqual("no", answer.headers["x-accel-buffering"])
        self.assertEqual("no-store, no-transform", answer.headers["cache-control"])

    def test_head_gives_no_lines(self) -> None:
        """As with every GET, and it ends."""
        answer = self.ask("HEAD", FOLLOW)

        self.assertEqual((200, b""), (answer.status, answer.body))

    def test_a_log_that_becomes_another_cuts_its_readers_off(self) -> None:
        """They come back, and are told how they stand to it."""
        self.receipts(3)
        talks = [self.follow(), self.follow("streams=caches")]

        async def replace() -> None:
            copy = await self.log.copies.open_staged()
            await self.log.copies.adopt(copy)

        self.wait(replace())

        self.assertEqual([True, True], [talk.transport.is_aborted for talk in talks])
        for talk in talks:
            talk.leave()


class SlowReaderTests(FollowCase):
    """Nothing is held for who does not read."""

    def test_a_slow_reader_is_read_for_no_further(self) -> None:
        """Not while it catches up, and not while new facts come."""
        for _ in range(5):
            self.many(900)
        with patch.object(self.log.reads, "text", wraps=self.log.reads.text) as read:
            talk = self.follow(is_slow=True)
            for _ in range(5):
                self.many(900)
            self.clock.advance(60)
            stuck = (read.call_count, facts(talk)[-1], len(beats(talk)))
            while facts(talk)[-1] < 9_000:
                self.drain(talk)

        self.assertEqual((1, 2_000, 0), stuck)
        self.assertEqual(5, read.call_count)
        self.assertEqual([*range(1, 9_001)], facts(talk))

    def test_a_reader_at_the_head_that_becomes_slow_reads_from_the_log_later(self) -> None:
        """And then is pushed to again."""
        talk = self.follow(is_slow=True)
        with patch.object(self.log.reads, "text", wraps=self.log.reads.text) as read:
            self.many(900)  # pushed; the connection is full now
            for _ in range(4):
                self.many(900)
            self.assertEqual((0, 900), (read.call_count, facts(talk)[-1]))
            while facts(talk)[-1] < 4_500:
                self.drain(talk)
            self.drain(talk)
            count = read.call_count
            self.many(1)
        self.assertEqual((2, 2), (count, read.call_count))
        self.assertEqual([*range(1, 4_502)], facts(talk))

    def test_a_huge_group_is_given_by_pages(self) -> None:
        """A commit may be larger than what is held for one reader."""
        talk = self.follow(is_slow=True)
        big = "x" * 50_000
        self.post("receipts", *[[receipt(f"@{big}:h")]] * 20)

        self.assertEqual(5, len(facts(talk)))


STREAMS = ("receipts", "caches", "push_rules")
ROWS = {"receipts": receipt(), "caches": ["name", ["key"], 1], "push_rules": ["@ada:hs.example"]}
WRITERS = ("a", "b")

appends = st.lists(
    st.tuples(st.sampled_from(STREAMS), st.sampled_from(WRITERS), st.integers(1, 4)), max_size=6
)


class ResumingTests(SiteCase):
    """Cut anywhere, a reader goes on where it was."""

    @settings(max_examples=60, deadline=None)
    @given(
        rounds=st.lists(st.tuples(appends, st.integers(0, 4_000), st.integers(0, 3)), min_size=1, max_size=6),
        streams=st.none() | st.sets(st.sampled_from(STREAMS), min_size=1),
        writers=st.none() | st.sets(st.sampled_from(WRITERS), min_size=1),
        is_slow=st.booleans(),
    )
    def test_a_resumed_reader_has_all_that_it_wants_once_and_in_order(
        self,
        rounds: list[tuple[list[tuple[str, str, int]], int, int]],
        streams: set[str] | None,
        writers: set[str] | None,
        is_slow: bool,
    ) -> None:
        """Whatever is appended when, wherever the connection is cut, and in the middle of a line."""
        self.setUp()
        position, had = LogPosition(1, 0, EMPTY), list[int]()
        query = "".join(
            f"&{name}={','.join(sorted(names))}"
            for name, names in (("streams", streams), ("writers", writers))
            if names is not None
        )
        for done, cut, wait in [*rounds, ([], 10**9, 6)]:
            talk = self.talk()
            talk.transport.is_slow = is_slow
            talk.say(
                self.request(
                    "GET",
                    f"/v1/changelog?follow=true&epoch_starts=true&since={position.serial}&epoch={position.epoch}"
                    f"&digest={position.digest}{query}",
                )
            )
            for stream, writer, count in done:
                if count == 4:
                    self.wait(self.log.epochs.begin_next("promoted"))
                self.post(stream, *[[ROWS[stream]]] * count, writer=writer)
            self.clock.pump([1.0] * wait)
            for _ in range(20 if cut == 10**9 else 0):
                if talk.transport.producer is not None:
                    talk.transport.producer.resumeProducing()
            body = talk.answer().body[:cut]
            self.assertEqual(200, talk.answer().status)
            for text in body[: body.rfind(b"\n") + 1].splitlines():
                line = json.loads(text)
                if "serial" in line:
                    had.append(line["serial"])
                    position = LogPosition(line["epoch"], line["serial"], line["digest"])
                elif "epoch_start" in line:
                    position = LogPosition(line["epoch_start"]["epoch"], position.serial, position.digest)
                else:
                    beat = line["heartbeat"]
                    self.assertGreaterEqual(beat["serial"], position.serial)
                    position = LogPosition(beat["epoch"], beat["serial"], beat["digest"])
            talk.leave()

        wanted = [
            fact.serial
            for fact in self.engine.facts
            if (streams is None or fact.stream in streams) and (writers is None or fact.writer in writers)
        ]
        self.assertEqual(wanted, had)
        self.assertEqual(self.log.position, position)
        self.doCleanups()


class CommandsDownTests(FollowCase):
    """What is for all processes comes down to replicas that follow over HTTP."""

    def up(self, server: str, source: object = None) -> None:
        """A server is up, says this source."""
        self.publisher.broadcast(RemoteServerUp(server=server), but=source)

    def lines(self, talk: Talk) -> list[str]:
        """The commands heard."""
        return [line["command"] for line in talk.answer().lines() if "command" in line]

    def test_who_asks_for_commands_hears_each_once(self) -> None:
        """They are not kept: a reader that was away missed them, and is told none from before."""
        self.up("early")
        talk = self.follow("commands=copy-1")
        other = self.follow("since=0")
        self.up("one")
        talk.leave()
        self.up("missed")
        again = self.follow("commands=copy-1")
        self.up("two")

        self.assertEqual(["REMOTE_SERVER_UP one"], self.lines(talk))
        self.assertEqual(["REMOTE_SERVER_UP two"], self.lines(again))
        self.assertEqual([], self.lines(other))

    def test_a_reader_that_does_not_read_misses_them_and_that_is_counted(self) -> None:
        """Nothing is held for it in memory."""
        talk = self.follow("since=0&commands=copy-1", is_slow=True)
        self.many(900)
        self.up("one")
        self.drain(talk)
        self.up("two")

        self.assertEqual(["REMOTE_SERVER_UP two"], self.lines(talk))
        self.assertEqual(1, self.metrics.commands_dropped.labels("REMOTE_SERVER_UP").value)

    def test_commands_are_asked_for_under_an_origin(self) -> None:
        """It is one word: what was forwarded under it is not sent back."""
        answer = self.get("/v1/changelog?follow=true&commands=two%20words")

        self.assertEqual((400, "bad_request"), (answer.status, answer.json()["error"]))
