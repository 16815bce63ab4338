"""Caches, subscribers, caches, the position, then whoever waits: on every way that a fact can take."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from synrepl.caches.registry import CacheRegistry
from synrepl.errors import ConfigError, NotConnected
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import Batch, Updates
from synrepl.testing import MemoryPositions
from synrepl.wire.dialect import CURRENT, LEGACY, Dialect
from tests.replication.follower.test_strategy import TABLE, Setup, rows

Step = tuple[str, int]

BAD = 'RDATA to_device master 3 ["@u3:hs", "what is this?", 1]'


class RecordedCaches:
    """Caches of these streams that only say what they are told."""

    def __init__(self, transcript: list[Step], streams: Collection[str]) -> None:
        self.streams: Collection[str] = streams
        self.cleared: list[str] = []
        self.apply_failures: list[Exception] = []
        self.repeat_failures: list[Exception] = []
        self.skip_failures: list[Exception] = []
        self.token = 0
        """The token of the fact that is being applied."""
        self._transcript = transcript

    def connected(self, dialect: object) -> dict[str, list[str]]:
        return {}

    def apply(self, stream: str, rows: Sequence[Any]) -> list[int]:
        if self.apply_failures:
            raise self.apply_failures.pop(0)
        self._transcript.append(("caches", self.token))
        return [self.token]

    def repeat(self, invalidations: list[int]) -> None:
        if self.repeat_failures:
            raise self.repeat_failures.pop(0)
        self._transcript += [("again", token) for token in invalidations]

    def invalidate_stream(self, stream: str) -> None:
        if self.skip_failures:
            raise self.skip_failures.pop(0)
        self.cleared.append(stream)
        self._transcript.append(("cleared", 0))


class RecordedTokens(dict[str, int]):
    """Positions that say when they move."""

    def __init__(self, transcript: list[Step], tokens: Mapping[str, int]) -> None:
        super().__init__(tokens)
        self._transcript = transcript

    def __setitem__(self, writer: str, token: int) -> None:
        if self.get(writer) != token:
            self._transcript.append(("position", token))
        super().__setitem__(writer, token)


class CachedFollower(Setup):
    """A follower with caches that hang on `stream`, everything that happens to it, and somebody waiting for
    each token of `waits`."""

    def __init__(
        self,
        dialect: Dialect = CURRENT,
        stream: str = "to_device",
        *,
        saved: int | None = None,
        waits: Sequence[int] = (),
        subscriber: Callable[[Any], Any] | None = None,
        has_subscriber: bool = True,
        max_facts: int = 0,
        **options: Any,
    ) -> None:
        self.stream = stream
        self.transcript: list[Step] = []
        self.caches = RecordedCaches(self.transcript, [stream])
        self.subscriber = subscriber
        positions = MemoryPositions()
        if saved is not None:
            positions.save({stream: {"master": saved}})
        super().__init__(dialect, "push_rules", positions=positions, caches=self.caches, **options)
        if max_facts:
            self.follower.on_batch(TABLE[stream], max_facts=max_facts)(self.subscribe_batch)
        elif has_subscriber:
            self.follower.on(TABLE[stream])(self.subscribe)
        for executor in self.follower.server.streams.executors.values():
            executor._invalidate_rows = partial(self.invalidate, executor._invalidate_rows)  # type: ignore[method-assign]
            executor._order_steps()
        followed = self.follower.server.streams.executors[stream]
        applied = followed.machine.positions
        recorded = RecordedTokens(self.transcript, applied.tokens)
        applied.tokens = applied.writable = recorded
        for token in waits:
            waiter = self.follower.wait_for(stream, {"master": token}, 1000)
            waiter.addCallback(partial(self.woken, token))

    def invalidate(self, step: Callable[[Any], None], work: Updates[Any] | Batch) -> None:
        """Caches are given the rows of a fact, or of a batch, without the token, or the last one."""
        self.caches.token = work.token if isinstance(work, Updates) else work[-1].token
        step(work)

    def subscribe(self, updates: Updates[Any]) -> Any:
        """Nothing of this fact may count yet."""
        assert self.follower.positions().get(self.stream, {}).get(updates.writer, -1) != updates.token
        self.transcript.append(("subscriber", updates.token))
        return self.subscriber(updates) if self.subscriber is not None else None

    def subscribe_batch(self, batch: Batch) -> Any:
        """Nothing of this batch may count yet."""
        positions = self.follower.positions().get(self.stream, {})
        assert all(positions.get(updates.writer, -1) != updates.token for updates in batch)
        self.transcript += [("subscriber", updates.token) for updates in batch]
        return self.subscriber(batch) if self.subscriber is not None else None

    def woken(self, token: int, _: None) -> None:
        """Somebody waited for this token."""
        self.transcript.append(("waiter", token))

    def since(self) -> list[Step]:
        """What happened since this was asked last."""
        told = list(self.transcript)
        self.transcript.clear()
        return told


def fact(token: int) -> list[Step]:
    """What a fact is to look like."""
    return [("caches", token), ("subscriber", token), ("again", token), ("position", token)]


CLEARED = ("cleared", 0)


class TestFacts:
    """A fact, on each of the ways in."""

    def test_many_rows_at_once(self) -> None:
        """The fast way."""
        told = CachedFollower(saved=1, waits=[2, 3]).hears("POSITION to_device master 1 1")

        told.hears(*rows(2, 3))

        assert told.since() == [*fact(2), *fact(3), ("waiter", 2), ("waiter", 3)]

    def test_a_batch_invalidates_at_its_last_row(self) -> None:
        """Rows of one fact go together, and nothing of it counts before its last row."""
        told = CachedFollower(saved=1, waits=[2]).hears("POSITION to_device master 1 1")

        told.hears('RDATA to_device master batch ["@a:hs"]')
        before = told.since()
        told.hears(*rows(2, 2))

        assert before == []
        assert told.since() == [*fact(2), ("waiter", 2)]

    def test_a_subscriber_that_takes_its_time(self) -> None:
        """The caches, the position and those who wait for it wait with it."""
        busy: Deferred[None] = Deferred()
        told = CachedFollower(saved=1, waits=[2], subscriber=lambda _: busy).hears(
            "POSITION to_device master 1 1"
        )

        told.hears(*rows(2, 3))
        before = told.since()
        busy.callback(None)

        assert before == [("caches", 2), ("subscriber", 2)]
        assert told.since()[:3] == [("again", 2), ("position", 2), ("waiter", 2)]

    def test_a_coroutine_that_takes_its_time(self) -> None:
        """The same."""
        told = CachedFollower(saved=1, waits=[3]).hears("POSITION to_device master 1 1")
        busy: Deferred[None] = Deferred()

        async def slowly(updates: Updates[Any]) -> None:
            if updates.token == 3:
                await busy

        told.subscriber = slowly
        told.hears(*rows(2, 3))
        before = told.since()
        busy.callback(None)

        assert before == [*fact(2), ("caches", 3), ("subscriber", 3)]
        assert told.since() == [("again", 3), ("position", 3), ("waiter", 3)]

    def test_a_subscriber_that_fails_and_one_behind_it(self) -> None:
        """The one that fails is called again, after the caches; they come last, when all are done."""
        failures = [OSError("away")]

        def fails(updates: Updates[Any]) -> None:
            if failures:
                raise failures.pop()

        told = CachedFollower(saved=1, subscriber=fails).hears("POSITION to_device master 1 1")
        told.follower.on(TABLE["to_device"])(lambda one: told.transcript.append(("second", one.token)))

        told.hears(*rows(2, 2)).wait(1)

        failed, called_again = [("caches", 2), ("subscriber", 2)], [("again", 2), ("subscriber", 2)]
        assert told.since() == [*failed, *called_again, ("second", 2), ("again", 2), ("position", 2)]

    def test_fetched_facts_invalidate_one_by_one(self) -> None:
        """What was missed goes the same way, one by one."""
        told = CachedFollower(saved=1, waits=[2, 3])
        told.shelve("to_device", [2, 3])

        told.hears("POSITION to_device master 3 3")

        assert told.since() == [*fact(2), ("waiter", 2), *fact(3), ("waiter", 3)]

    def test_fetched_facts_without_order_count_when_all_are_there(self) -> None:
        """Their caches go one by one, the position moves once."""
        told = CachedFollower(stream="caches", saved=1, waits=[5])
        told.fake_catch_up.facts["caches", "master"] = [(5, [b'["f",null,1]']), (4, [b'["g",null,1]'])]

        told.hears("POSITION caches master 5 5")

        steps = [(who, token) for token in (5, 4) for who in ("caches", "subscriber", "again")]
        assert told.since() == [*steps, ("position", 5), ("waiter", 5)]

    def test_the_stream_of_caches(self) -> None:
        """Has no order, so it takes a way of its own."""
        told = CachedFollower(stream="caches", saved=1, waits=[2]).hears("POSITION caches master 1 1")

        told.hears('RDATA caches master 2 ["f",null,1]')

        assert told.since() == [*fact(2), ("waiter", 2)]

    def test_a_fact_that_was_here_already(self) -> None:
        """Where there is no order it may be another just like it, of a history that began anew."""
        told = CachedFollower(stream="caches", saved=1).hears("POSITION caches master 1 1")
        line = 'RDATA caches master 2 ["f",null,1]'
        told.hears(line)
        told.since()
        told.caches.apply_failures = [KeyError("room")]
        told.caches.skip_failures = [KeyError("all")]

        told.hears(line).wait(1)

        assert told.since() == [("caches", 2)]

    def test_a_push_in_order(self) -> None:
        """Each fact counts by itself, and the server's word that it was all adds nothing."""
        told = CachedFollower(LEGACY, saved=1, waits=[3])

        told.hears(*[f'RDATA to_device {n} ["@a:hs"]' for n in (2, 3)], "POSITION to_device 3")

        assert told.since() == [*fact(2), *fact(3), ("waiter", 3)]

    def test_a_push_without_order(self) -> None:
        """Positions told are those of before, until the server says that it was all."""
        told = CachedFollower(LEGACY, "caches", saved=1, waits=[3])
        lines = [f'RDATA caches {n} ["f", null, 1]' for n in (2, 3)]

        told.hears(*lines)
        told.hears('RDATA caches 4 ["f", null, 1]')
        positions = told.follower.positions()["caches"]
        before = told.since()
        told.hears("POSITION caches 4")

        assert positions == {"master": 1}
        assert before == [*fact(2), *fact(3)]
        assert told.since() == [*fact(4), ("waiter", 3)]

    def test_a_push_that_is_cut_and_comes_again(self) -> None:
        """What was applied of it is not applied again, and the position was never told."""
        told = CachedFollower(LEGACY, "caches", saved=1, waits=[3])
        lines = [f'RDATA caches {n} ["f", null, 1]' for n in (2, 3)]
        told.hears(*lines)
        told.reconnect()
        before = told.follower.positions()["caches"]
        told.since()

        told.hears(*lines, "POSITION caches 3")

        assert before == {"master": 1}
        assert told.since() == [("caches", 2), *fact(3), ("waiter", 3)]

    def test_a_stream_without_a_subscriber(self) -> None:
        """It is followed for the sake of the caches alone."""
        told = CachedFollower(saved=1, has_subscriber=False).hears("POSITION to_device master 1 1")

        told.hears(*rows(2, 2))

        assert told.since() == [("caches", 2), ("position", 2)]

    def test_a_subscriber_that_ends_after_the_cut(self) -> None:
        """Its fact is done, so its caches go; without order it does not count."""
        told = CachedFollower(LEGACY, "caches", saved=1)
        busy: Deferred[None] = Deferred()
        told.subscriber = lambda _: busy
        told.hears('RDATA caches 2 ["f", null, 1]', 'RDATA caches 3 ["f", null, 1]')
        told.network.stop_listening("master")
        told.master.drop()
        told.wait()

        busy.callback(None)

        assert told.since() == [("caches", 2), ("subscriber", 2), ("again", 2)]
        assert told.follower.positions()["caches"] == {"master": 1}


def batch(*tokens: int) -> list[Step]:
    """What a batch is to look like."""
    return [
        ("caches", tokens[-1]),
        *(("subscriber", token) for token in tokens),
        ("again", tokens[-1]),
        ("position", tokens[-1]),
    ]


class TestBatches:
    """The same for several facts at once: all of their entries, then all of them, then the position."""

    def test_many_rows_at_once(self) -> None:
        """Whoever waits for the first of them waits for the last."""
        told = CachedFollower(saved=1, waits=[2, 4], max_facts=3).hears("POSITION to_device master 1 1")

        told.hears(*rows(2, 5))

        assert told.since() == [*batch(2, 3, 4), *batch(5), ("waiter", 2), ("waiter", 4)]

    def test_a_subscriber_that_takes_its_time(self) -> None:
        """What arrives meanwhile is the next batch."""
        busy: list[Deferred[None]] = []

        async def slowly(batch: Batch) -> None:
            busy.append(Deferred())
            await busy[-1]

        told = CachedFollower(saved=1, waits=[2], max_facts=100, subscriber=slowly)
        told.hears("POSITION to_device master 1 1", *rows(2, 3))
        told.hears(*rows(4, 5)).hears(*rows(6, 6))
        before = told.since()
        busy[0].callback(None)

        assert before == [("caches", 3), ("subscriber", 2), ("subscriber", 3)]
        ended = [("again", 3), ("position", 3), ("waiter", 2)]
        assert told.since() == [*ended, *batch(4, 5, 6)[:4]]
        busy[1].callback(None)
        assert told.since() == batch(4, 5, 6)[4:]

    def test_a_subscriber_that_fails_is_called_again_with_the_same_batch(self) -> None:
        """After the caches; those that were done before it are not."""
        failures = [OSError("away")]
        batches: list[Batch] = []

        async def fails(batch: Batch) -> None:
            batches.append(batch)
            if failures:
                raise failures.pop()

        told = CachedFollower(saved=1, max_facts=100, subscriber=fails)
        told.follower.on(TABLE["to_device"])(lambda one: told.transcript.append(("second", one.token)))
        told.hears("POSITION to_device master 1 1", *rows(2, 3)).hears(*rows(4, 4))
        before = told.since()
        told.wait(1)

        assert batches[0] == batches[1]
        assert before == [("caches", 3), ("subscriber", 2), ("subscriber", 3)]
        called_again = [("again", 3), ("subscriber", 2), ("subscriber", 3)]
        done = [("second", 2), ("second", 3), ("again", 3), ("position", 3)]
        after = [("caches", 4), ("subscriber", 4), ("second", 4), ("again", 4), ("position", 4)]
        assert told.since() == [*called_again, *done, *after]

    def test_a_subscriber_of_facts_among_those_of_batches_is_called_again_with_its_fact(self) -> None:
        """It has done the facts before; the batch waits for it."""
        failures = [OSError("away")]

        def fails(updates: Updates[Any]) -> None:
            told.transcript.append(("first", updates.token))
            if updates.token == 3 and failures:
                raise failures.pop()

        told = CachedFollower(saved=1, has_subscriber=False)
        told.follower.on(TABLE["to_device"])(fails)
        told.follower.on_batch(TABLE["to_device"])(told.subscribe_batch)
        told.hears("POSITION to_device master 1 1", *rows(2, 4)).wait(1)

        failed = [("caches", 4), ("first", 2), ("first", 3)]
        assert told.since() == [*failed, ("again", 4), ("first", 3), ("first", 4), *batch(2, 3, 4)[1:]]

    def test_a_batch_whose_entries_cannot_be_dropped(self) -> None:
        """Caches are cleared, before and after it."""
        told = CachedFollower(saved=1, max_facts=100).hears("POSITION to_device master 1 1")
        told.caches.apply_failures = [KeyError("room")]

        told.hears(*rows(2, 3))

        assert told.since() == [CLEARED, ("subscriber", 2), ("subscriber", 3), CLEARED, ("position", 3)]

    def test_the_first_fact_of_a_new_writer_clears_caches_wherever_it_stands(self) -> None:
        """Its earlier facts may be newer than the entries."""
        told = CachedFollower(stream="caches", saved=1, max_facts=100).hears("POSITION caches master 1 1")
        lines = [f'RDATA caches {writer} {n} ["f",null,1]' for writer, n in (("master", 2), ("w2", 3))]
        told.since()

        told.hears(*lines)

        assert told.since()[:1] == [("caches", 2)]
        assert told.caches.cleared == ["caches"]


class TestTroubleWithCaches:
    """A worker's own function for an alias may fail: never stale, never stuck."""

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_cache_whose_entry_cannot_be_dropped_is_cleared(self, count: int) -> None:
        """And said aloud; the stream goes on."""
        told = CachedFollower(saved=1, waits=[2]).hears("POSITION to_device master 1 1")
        told.caches.apply_failures = [KeyError("room")]

        told.hears(*rows(2, 1 + count))

        first = [CLEARED, ("subscriber", 2), CLEARED, ("position", 2)]
        others = [step for token in range(3, 2 + count) for step in fact(token)]
        assert told.since() == [*first, *others, ("waiter", 2)]
        assert told.errors() == ["cache invalidation of to_device failed: KeyError('room')"]

    def test_what_cannot_even_be_cleared_is_tried_again(self) -> None:
        """With patience, as subscribers are, which are not called before."""
        told = CachedFollower(saved=1, waits=[2]).hears("POSITION to_device master 1 1")
        told.caches.apply_failures = [KeyError("room")] * 2
        told.caches.skip_failures = [KeyError("all")]

        told.hears(*rows(2, 2))
        before = told.since()
        told.wait(1)

        assert before == []
        assert told.since() == [CLEARED, ("subscriber", 2), CLEARED, ("position", 2), ("waiter", 2)]
        failed = "cache invalidation of to_device failed"
        assert told.errors() == [f"{failed}: KeyError('{one}')" for one in ("room", "all", "room")]

    def test_what_cannot_be_dropped_again_is_cleared(self) -> None:
        """Also if that is possible at the second attempt only; the subscriber is not called again."""
        told = CachedFollower(saved=1, waits=[2]).hears("POSITION to_device master 1 1")
        told.caches.repeat_failures = [KeyError("room")]
        told.caches.skip_failures = [KeyError("all"), KeyError("everything")]

        told.hears(*rows(2, 2)).wait(2)

        steps = [("caches", 2), ("subscriber", 2), CLEARED, ("position", 2), ("waiter", 2)]
        assert told.since() == steps
        failed = "cache invalidation of to_device failed"
        assert told.errors() == [f"{failed}: KeyError('{one}')" for one in ("room", "all", "everything")]

    @pytest.mark.parametrize(("dialect", "at"), [(CURRENT, "master 5 5"), (LEGACY, "5")])
    def test_a_position_that_cannot_be_adopted_waits(self, dialect: Dialect, at: str) -> None:
        """Rows behind it as well."""
        told = CachedFollower(dialect)
        told.caches.skip_failures = [KeyError("all")]
        writer = "" if dialect is LEGACY else "master "

        told.hears(f"POSITION to_device {at}", f'RDATA to_device {writer}6 ["@a:hs"]')
        before = told.since()
        positions = told.follower.positions()
        told.wait(1)

        assert (before, positions) == ([], {})
        assert told.since() == [CLEARED, ("position", 5), *fact(6)]

    def test_a_position_of_a_lost_connection_is_not_adopted(self) -> None:
        """The next one tells where the server stands then."""
        told = CachedFollower()
        told.caches.skip_failures = [KeyError("all")]
        told.hears("POSITION to_device master 5 5")
        told.network.stop_listening("master")
        told.master.drop()

        told.wait(1)

        assert told.since() == [CLEARED]
        assert told.follower.positions() == {}

    def test_a_bad_row_waits_until_it_can_be_passed_over(self) -> None:
        """Not even a fact that nobody can read may leave something stale behind."""
        told = CachedFollower(saved=2).hears("POSITION to_device master 2 2")
        told.caches.skip_failures = [KeyError("all")]

        told.hears(BAD, *rows(4, 4))
        before = told.since()
        told.wait(1)

        assert before == []
        assert told.since() == [CLEARED, ("position", 3), *fact(4)]

    def test_each_failure_to_clear_a_cache_is_reported(self) -> None:
        """The reason may have changed since the first."""
        told = CachedFollower()
        told.caches.skip_failures = [KeyError("first"), KeyError("second")]

        told.hears("POSITION to_device master 5 5").wait(2)

        failed = "cache invalidation of to_device failed"
        assert told.errors() == [f"{failed}: KeyError('{one}')" for one in ("first", "second")]
        assert told.since() == [CLEARED, ("position", 5)]


class TestJumps:
    """Where a position is adopted though facts before it were not applied: everything goes first."""

    @pytest.mark.parametrize(
        ("stream", "dialect", "saved", "line", "expected"),
        [
            # What is certain:
            ("to_device", CURRENT, 5, "POSITION to_device master 5 5", []),
            ("to_device", CURRENT, 5, "POSITION to_device master 3 9", [("position", 9)]),
            ("to_device", CURRENT, 5, "POSITION to_device master 9 9", [("position", 9)]),
            ("caches", CURRENT, 5, "POSITION caches master 5 9", [("position", 9)]),
            ("caches", CURRENT, 5, "POSITION caches master 9 9", [("position", 9)]),
            ("to_device", LEGACY, 5, "POSITION to_device 5", []),
            ("to_device", LEGACY, 5, "POSITION to_device 9", [("position", 9)]),
            ("caches", LEGACY, 5, "POSITION caches 9", [("position", 9)]),
            # The first of a stream never heard of: what was computed before may be stale.
            ("to_device", CURRENT, None, "POSITION to_device master 5 5", [CLEARED, ("position", 5)]),
            ("caches", CURRENT, None, "POSITION caches master 2 5", [CLEARED, ("position", 5)]),
            ("to_device", LEGACY, None, "POSITION to_device 5", [CLEARED, ("position", 5)]),
            ("caches", LEGACY, None, "POSITION caches 5", [CLEARED, ("position", 5)]),
            # One that came while we were away: what it wrote is fetched, from where the others stood.
            (
                "to_device", CURRENT, 5, "POSITION to_device w2 9 9",
                [CLEARED, ("position", 5), ("position", 9)],
            ),
            # The writer went back: what came of the history that is lost is void.
            (
                "to_device", CURRENT, 5, "POSITION to_device master 3 3",
                [CLEARED, ("position", 0), ("position", 3)],
            ),
            ("to_device", CURRENT, 5, "POSITION to_device master 0 0", [CLEARED, ("position", 0)]),
            ("to_device", LEGACY, 5, "POSITION to_device 3", [CLEARED, ("position", 3)]),
            ("caches", LEGACY, 5, "POSITION caches 3", [CLEARED, ("position", 3)]),
            # Tokens that may go back can have done so, and grown again.
            ("typing", CURRENT, 5, "POSITION typing master 5 5", [CLEARED]),
            ("typing", CURRENT, 5, "POSITION typing master 9 9", [CLEARED, ("position", 9)]),
            ("typing", LEGACY, 5, "POSITION typing 9", [CLEARED, ("position", 9)]),
        ],
    )  # fmt: skip
    def test_the_first_position_of_a_connection(
        self, stream: str, dialect: Dialect, saved: int | None, line: str, expected: list[Step]
    ) -> None:
        """What leads on clears nothing: a reconnection must not cost a worker its caches."""
        told = CachedFollower(dialect, stream, saved=saved)

        told.hears(line)

        assert told.since() == expected

    def test_a_push_of_a_new_life(self) -> None:
        """A daemon pushes all of the new life of a stream in memory: what was before was lost with it."""
        told = CachedFollower(LEGACY, "typing", saved=192)

        told.hears(*[f'RDATA typing {n} ["!r", []]' for n in (3, 4)], "POSITION typing 4")

        assert told.since() == [*fact(3), *fact(4), CLEARED]

    def test_a_position_that_lags_behind_its_rows(self) -> None:
        """It tells nothing new."""
        told = CachedFollower(saved=1).hears("POSITION to_device master 1 1", *rows(2, 5))
        told.since()

        told.hears("POSITION to_device master 3 3")

        assert told.since() == []

    def test_typing_may_go_back_at_any_time(self) -> None:
        """Its master was restarted behind the one that we are connected to."""
        told = CachedFollower(stream="typing", saved=1).hears("POSITION typing master 1 7")
        told.since()

        told.hears("POSITION typing master 2 2")

        assert told.since() == [CLEARED, ("position", 0), ("position", 2)]

    def test_what_is_missing_and_cannot_be_had(self) -> None:
        """Cleared when the writer is seen to have gone back, and again when the rest is given up."""
        told = CachedFollower(saved=5, waits=[3])
        told.fake_catch_up.failures = [NotConnected("refused")] * 99

        told.hears("POSITION to_device master 3 3")
        told.wait(5)

        steps = [CLEARED, ("position", 0), CLEARED, ("position", 3)]
        assert [step for step in told.since() if step[0] != "waiter"] == steps

    def test_a_row_that_cannot_be_read(self) -> None:
        """It may have meant any of them."""
        told = CachedFollower(saved=2).hears("POSITION to_device master 2 2")

        told.hears(BAD, *rows(4, 4))

        assert told.since() == [CLEARED, ("position", 3), *fact(4)]

    def test_a_fetched_row_that_cannot_be_read(self) -> None:
        """The same."""
        told = CachedFollower(stream="caches", saved=2)
        told.fake_catch_up.facts["caches", "master"] = [(3, [b'["f"]']), (4, [b'["f",null,1]'])]

        told.hears("POSITION caches master 4 4")

        assert told.since() == [CLEARED, *fact(4)]

    def test_the_first_row_of_a_writer_never_heard_of(self) -> None:
        """It may have written others before we were connected."""
        told = CachedFollower(saved=1).hears("POSITION to_device master 1 1")

        told.hears(*rows(6, 7, writer="w2"))

        assert told.since() == [CLEARED, *fact(6), *fact(7)]

    def test_a_cut_in_what_comes_out_of_order(self) -> None:
        """Of 211, 206, 207 the rest may have been lost, and no position would tell."""
        told = CachedFollower(stream="caches", saved=205).hears("POSITION caches master 205 205")
        told.hears(*[f'RDATA caches master {n} ["f{n}",null,1]' for n in (211, 206, 207)])
        told.reconnect()
        told.since()

        told.hears("POSITION caches master 211 211")

        assert told.since() == [CLEARED]

    def test_a_cut_in_what_comes_in_order(self) -> None:
        """Nothing is lost, and nothing is cleared; that some came twice says nothing."""
        told = CachedFollower(stream="caches", saved=1)
        told.fake_catch_up.facts["caches", "master"] = [(2, [b'["f2",null,1]'])]
        told.hears("POSITION caches master 2 2", 'RDATA caches master 2 ["f2",null,1]')
        told.hears('RDATA caches master 3 ["f3",null,1]')
        told.reconnect()
        told.since()

        told.hears("POSITION caches master 3 3")

        assert told.since() == []


class TestSettingUp:
    """Which caches go with which follower."""

    def test_raw_rows_and_caches_do_not_go_together(self) -> None:
        """Nobody could tell what raw rows invalidate."""
        with pytest.raises(ConfigError, match="typed rows"):
            Follower(instance="worker", raw=True, caches=cast(CacheRegistry, RecordedCaches([], ["caches"])))

    def test_another_source_and_caches_do_not_go_together(self) -> None:
        """A position that it moves would be told before our caches have dropped anything."""
        with pytest.raises(ValueError, match="both `external_position` and `caches`"):
            Follower(
                instance="worker",
                external_position=lambda stream, writer: 7,
                caches=cast(CacheRegistry, RecordedCaches([], ["caches"])),
            )

    def test_streams_of_no_caches_are_left_alone(self) -> None:
        """They pay nothing for it."""
        told = CachedFollower()

        assert not told.follower.server.streams.executors["push_rules"].machine.history.has_caches

    def test_streams_that_nobody_knows_are_not_followed(self) -> None:
        """A cache may name a stream that this worker's table does not have."""
        caches = RecordedCaches([], ["caches", "no_such_stream"])

        follower = Follower(instance="worker", caches=cast(CacheRegistry, caches))

        assert list(follower.server.streams.executors) == ["caches"]

    def test_caches_declared_late_begin_empty(self) -> None:
        """They have heard nothing of what came before."""
        told = CachedFollower().hears("POSITION push_rules master 1 1")
        told.caches.streams = ["to_device", "push_rules"]
        told.since()

        told.reconnect()
        told.hears("POSITION push_rules master 1 1", 'RDATA push_rules master 2 ["@a:hs"]')

        assert told.caches.cleared == ["push_rules"]
        assert told.since() == [CLEARED, ("caches", 2), ("again", 2)]
