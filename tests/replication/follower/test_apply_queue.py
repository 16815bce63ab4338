"""Waiting until a stream has got somewhere."""

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from synrepl.errors import NeverAllocated, NotConnected, UnknownStream, WaitTimeout
from synrepl.replication.follower.waiters import Waiters
from synrepl.streams.positions import VClock
from synrepl.testing import MemoryPositions
from synrepl.wire.commands import Rdata
from synrepl.wire.dialect import CURRENT, LEGACY, Dialect
from tests.replication.follower.test_strategy import TABLE, Setup, rows


class Allocations:
    """Somebody who knows what was allocated, once he answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[Deferred[int | None]] = []

    async def highest(self, stream: str) -> int | None:
        self.asked.append(stream)
        self.answers.append(Deferred())
        return await self.answers[-1]


class Waiting(Setup):
    """A follower that stands at 5, and what becomes of those who wait."""

    def __init__(self, dialect: Dialect = CURRENT, saved: int = 5, **options: Any) -> None:
        positions = MemoryPositions()
        positions.save({"to_device": {"master": saved}})
        self.allocations = Allocations()
        super().__init__(dialect, "to_device", positions=positions, allocated=self.allocations, **options)
        self.ended: list[tuple[str, Any]] = []

    def begin(self, name: str, timeout: float = 5.0, /, **positions: int) -> "Deferred[None]":
        """Somebody of this name waits for these."""
        waiter = self.follower.wait_for("to_device", positions, timeout)
        waiter.addCallbacks(
            lambda _: self.ended.append((name, None)),
            lambda failure: self.ended.append((name, failure.value)),
        )
        return waiter

    def answer(self, highest: int | None) -> None:
        """To the last question."""
        self.allocations.answers.pop().callback(highest)

    def names(self) -> list[str]:
        """Who has ended, in order."""
        return [name for name, _ in self.ended]

    def has_rest(self) -> bool:
        """Whether anything of those who waited is still around: in the list, or as a timer."""
        calls: Sequence[Any] = self.clock.getDelayedCalls()
        timers = [call for call in calls if call.func.__module__.endswith("waiters")]
        return bool(self.follower.server.waits.waiters.queues) or bool(timers)


class TestReaching:
    """Woken when it is reached, and by nothing else."""

    @pytest.mark.parametrize("wanted", [{"master": 5}, {"master": 1}, {}])
    def test_what_is_reached_already_is_done_at_once(self, wanted: dict[str, int]) -> None:
        """The usual case: no timer, no request, no turn of the reactor."""
        setup = Waiting()

        setup.begin("ada", **wanted)

        assert setup.ended == [("ada", None)]
        assert setup.allocations.asked == []
        assert not setup.has_rest()

    def test_it_wakes_in_the_turn_in_which_the_position_moves(self) -> None:
        """Without polling; each at its own token, the lowest first."""
        setup = Waiting().hears("POSITION to_device master 5 5")
        setup.begin("late", master=9)
        setup.begin("soon", master=6)
        setup.begin("then", master=7)
        at = setup.clock.seconds()

        setup.follower.server.received(handed_over(6, 7))

        assert setup.names() == ["soon", "then"]
        assert setup.clock.seconds() == at

    def test_several_writers_at_once(self) -> None:
        """Until the last of them is there."""
        setup = Waiting().hears("POSITION to_device master 5 5", "POSITION to_device w2 5 5")
        setup.begin("ada", master=6, w2=8)

        setup.hears(*rows(6, 7))
        before = setup.names()
        setup.hears(*rows(8, 8, writer="w2"))

        assert (before, setup.names()) == ([], ["ada"])
        assert not setup.has_rest()

    def test_the_positions_may_be_those_of_a_clock(self) -> None:
        """Another worker's positions, say, of which this stream counts."""
        setup = Waiting().hears("POSITION to_device master 5 5")
        done: list[None] = []
        clock = VClock({"to_device": {"master": 6}, "events": {"master": 900}})

        setup.follower.wait_for(TABLE["to_device"], clock, 5).addCallback(done.append)
        setup.hears(*rows(6, 6))

        assert done == [None]

    def test_a_position_wakes_as_a_fact_does(self) -> None:
        """It says that there are no others."""
        setup = Waiting().hears("POSITION to_device master 5 5")
        setup.begin("ada", master=8)

        setup.hears("POSITION to_device master 5 9")

        assert setup.ended == [("ada", None)]

    def test_a_stream_not_followed_yet_is_followed(self) -> None:
        """Nothing would ever be reached otherwise."""
        setup = Waiting()

        setup.follower.wait_for("push_rules", {"master": 1}, 5)

        assert "push_rules" in setup.follower.server.streams.executors

    def test_a_stream_that_nobody_knows_is_refused(self) -> None:
        """A name misspelled, most likely."""
        with pytest.raises(UnknownStream):
            Waiting().follower.wait_for("push_rulez", {"master": 1}, 5)

    def test_one_who_is_woken_may_call_off_another(self) -> None:
        """Or wait for more; both in the same turn."""
        setup = Waiting().hears("POSITION to_device master 5 5")
        first = setup.begin("first", master=6)
        second = setup.begin("second", master=6)
        first.addCallback(lambda _: second.cancel())

        def wait_for_more(_: None) -> None:
            setup.begin("third", master=7)

        first.addCallback(wait_for_more)

        setup.hears(*rows(6, 7))

        assert setup.names() == ["first", "second", "third"]
        assert isinstance(setup.ended[1][1], CancelledError)
        assert not setup.has_rest()


class TestGivingUp:
    """Those who wait in vain, or no longer want to."""

    def test_a_timeout_says_all_there_is_to_know(self) -> None:
        """The writer furthest behind first, and what holds the stream up."""
        setup = Waiting().hears("POSITION to_device master 5 5", "POSITION to_device w2 5 5")
        setup.fake_catch_up.waiting = []
        setup.begin("ada", 2.5, master=8, w2=55, w3=4)
        setup.hears("POSITION to_device master 8 8", *rows(9, 10))

        setup.wait(2.5)
        setup.clock.advance(2.5)

        assert setup.names() == ["ada"]
        error = setup.ended[0][1]
        assert isinstance(error, WaitTimeout)
        assert (error.stream, error.writer, error.have, error.want) == ("to_device", "w2", 5, 55)
        assert (error.connection, error.queued, error.retryable) == ("connected", 2, True)
        assert error.lacks == {"w2": (5, 55), "w3": (None, 4), "master": (5, 8)}
        assert str(error) == (
            "waited 2.5 seconds for to_device: w2: have 5, want 55; w3: have nothing, want 4;"
            " master: have 5, want 8; connected, 2 rows and positions are not applied yet"
        )
        assert not setup.has_rest()

    def test_a_timeout_while_disconnected_says_so(self) -> None:
        """It is the first thing to look at."""
        setup = Waiting()
        setup.network.stop_listening("master")
        setup.master.drop()

        setup.begin("ada", 1, master=8)
        setup.wait(1.2)

        assert setup.ended[0][1].connection == "disconnected"

    def test_no_time_at_all(self) -> None:
        """Whoever cannot wait is told in the next turn."""
        setup = Waiting()

        setup.begin("ada", 0, master=8)
        setup.wait(0.1)

        assert isinstance(setup.ended[0][1], WaitTimeout)

    def test_a_cancelled_wait_leaves_no_timer_or_list_entry(self) -> None:
        """Neither in a list nor as a timer, however many writers it waited for."""
        setup = Waiting()
        waiting = [setup.begin(str(n), master=9 + n % 2, w2=9) for n in range(6)]

        for waiter in reversed(waiting):
            waiter.cancel()

        assert len(setup.ended) == 6
        assert not setup.has_rest()

    def test_what_came_in_part_before_giving_up_leaves_nothing_either(self) -> None:
        """One writer was there already."""
        setup = Waiting().hears("POSITION to_device master 5 5")
        waiter = setup.begin("ada", master=6, w2=9)
        setup.hears(*rows(6, 6))

        waiter.cancel()

        assert not setup.has_rest()

    def test_the_books_of_many(self) -> None:
        """Whatever happens in whatever order: nobody is forgotten, nobody stays."""
        waiters = Waiters()
        held = [waiters.add("s", {"a": n % 7, "b": n % 5}, {"a": 0}) for n in range(70)]
        for waiter in held:
            waiter.done.addErrback(lambda failure: failure.trap(CancelledError))

        for n in range(0, 70, 3):
            held[n].done.cancel()
        waiters.wake("s", {"a": 3})
        waiters.wake("s", {"a": 3, "b": 2})
        early = [n for n, waiter in enumerate(held) if waiter.done.called and n % 3]
        waiters.wake("s", {"a": 9, "b": 9})

        assert early == [n for n in range(70) if n % 3 and n % 7 <= 3 and n % 5 <= 2]
        assert all(waiter.done.called for waiter in held)
        assert not waiters.queues


class TestTokensThatDoNotExist:
    """Refused at once, rather than waited for."""

    def test_a_token_beyond_all_that_was_allocated_is_refused(self) -> None:
        """As from the future, after a database was restored."""
        setup = Waiting()

        setup.begin("ada", master=99)
        setup.answer(54)

        error = setup.ended[0][1]
        assert isinstance(error, NeverAllocated)
        assert str(error) == "to_device has no token 99 of master: the highest is 54"
        assert (error.writer, error.want, error.allocated) == ("master", 99, 54)
        assert not setup.has_rest()

    @pytest.mark.parametrize("highest", [99, 100, None])
    def test_a_token_that_exists_or_may_exist_is_waited_for(self, highest: int | None) -> None:
        """Who cannot tell is no reason to refuse."""
        setup = Waiting().hears("POSITION to_device master 5 5")

        setup.begin("ada", master=99)
        setup.answer(highest)
        before = setup.names()
        setup.hears("POSITION to_device master 5 99")

        assert (before, setup.ended) == ([], [("ada", None)])

    def test_a_failure_to_ask_is_no_answer(self) -> None:
        """And not worth a word, but for a bug of whoever is asked."""
        setup = Waiting()

        setup.begin("ada", master=99)
        setup.allocations.answers.pop().errback(NotConnected("refused"))
        quiet = setup.errors()
        setup.begin("bob", master=99)
        setup.allocations.answers.pop().errback(KeyError("oops"))

        assert quiet == []
        assert setup.errors() == ["querying the highest token of to_device failed: KeyError('oops')"]
        assert setup.ended == []

    def test_a_token_that_somebody_has_reached_costs_no_request(self) -> None:
        """Another writer is further, so it was allocated."""
        setup = Waiting().hears("POSITION to_device master 5 5", "POSITION to_device w2 60 60")

        setup.begin("ada", master=50)

        assert setup.allocations.asked == []

    def test_one_request_for_the_highest_token_at_a_time(self) -> None:
        """For all who want to know. Its answer binds nobody who came later: their token may be younger."""
        setup = Waiting()

        setup.begin("ada", master=50)
        setup.begin("bob", master=90)
        setup.begin("cy", master=70)
        asked = len(setup.allocations.asked)
        setup.answer(60)
        after = (len(setup.allocations.asked), setup.names())
        setup.answer(80)

        assert asked == 1
        assert after == (2, [])
        assert setup.names() == ["bob"]

    def test_what_is_known_to_exist_is_not_asked_again(self) -> None:
        """Until a connection is lost: the server may have another history then."""
        setup = Waiting()
        setup.begin("ada", master=50)
        setup.answer(60)

        setup.begin("bob", master=55)
        asked = len(setup.allocations.asked)
        setup.reconnect()
        setup.begin("cy", master=56)

        assert asked == 1
        assert len(setup.allocations.asked) == 2

    def test_without_anybody_to_ask_it_is_just_waited_for(self) -> None:
        """As with a real homeserver."""
        setup = Waiting()
        setup.follower.server.waits.allocation.source = None

        setup.begin("ada", 1, master=99)
        setup.wait(1.1)

        assert isinstance(setup.ended[0][1], WaitTimeout)


class TestLostHistory:
    """A writer that is found to have gone back."""

    @pytest.mark.parametrize(
        ("dialect", "line"), [(CURRENT, "POSITION to_device master 3 3"), (LEGACY, "POSITION to_device 3")]
    )
    def test_a_token_of_the_history_that_is_lost_is_refused(self, dialect: Dialect, line: str) -> None:
        """Only what is beyond where the writer stands now."""
        first = "POSITION to_device 5" if dialect is LEGACY else "POSITION to_device master 5 5"
        setup = Waiting(dialect).hears(first)
        setup.follower.server.waits.allocation.source = None
        setup.begin("gone", master=8)
        setup.reconnect()

        setup.hears(line)

        error = setup.ended[0][1]
        assert isinstance(error, NeverAllocated)
        assert (error.want, error.allocated) == (8, 3)
        assert not setup.has_rest()

    def test_a_token_told_since_may_be_of_the_new_history(self) -> None:
        """So whoever knows is asked again."""
        setup = Waiting().hears("POSITION to_device master 5 5")
        setup.reconnect()
        setup.begin("ada", master=8)
        setup.answer(None)

        setup.hears("POSITION to_device master 3 3")
        before = setup.names()
        setup.answer(7)

        assert before == []
        assert isinstance(setup.ended[0][1], NeverAllocated)

    def test_a_writer_that_did_not_go_back_proves_nothing(self) -> None:
        """It may just not be there yet."""
        setup = Waiting().hears("POSITION to_device master 5 5")
        setup.follower.server.waits.allocation.source = None
        setup.begin("ada", master=8)
        setup.reconnect()

        setup.hears("POSITION to_device master 5 5", "POSITION to_device master 3 3")

        assert setup.ended == []

    def test_a_wait_for_one_writer_ignores_others(self) -> None:
        """Their history is whole."""
        setup = Waiting().hears("POSITION to_device master 5 5", "POSITION to_device w2 5 5")
        setup.follower.server.waits.allocation.source = None
        setup.begin("ada", w2=8)
        setup.reconnect()

        setup.hears("POSITION to_device master 3 3", "POSITION to_device w2 5 8")

        assert setup.ended == [("ada", None)]


def handed_over(first: int, last: int) -> list[Any]:
    """Rows as the connection hands them over."""
    return [
        Rdata(stream="to_device", instance="master", token=n, row=b'["@u:hs"]')
        for n in range(first, last + 1)
    ]
