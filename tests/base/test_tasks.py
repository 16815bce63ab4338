"""No coroutine fails unheard."""

from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, Logger, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from synrepl.base.tasks import Loops, Tasks
from synrepl.errors import NotConnected
from synrepl.testing.heap_clock import HeapClock


class TasksTests(SynchronousTestCase):
    """One owner and its coroutines."""

    def setUp(self) -> None:
        self.told: list[LogEvent] = []
        logger = Logger(observer=self.told.append)  # type: ignore[arg-type]
        self.tasks = Tasks(logger, "owner")

    async def waits_for(self, what: "Deferred[int]") -> int:
        return await what

    def test_the_result_is_handed_on(self) -> None:
        """Whoever starts it may want to know."""
        what: Deferred[int] = Deferred()
        task = self.tasks.start(self.waits_for(what), "waiting")
        self.assertEqual(1, len(self.tasks))

        what.callback(3)

        self.assertEqual(3, self.successResultOf(task))
        self.assertEqual(0, len(self.tasks))

    def test_a_failure_is_told_once_under_its_name(self) -> None:
        """An operator should read which task it was, and not read it twice."""
        what: Deferred[int] = Deferred()
        task = self.tasks.start(self.waits_for(what), "waiting")

        what.errback(ZeroDivisionError())

        self.assertIsNone(self.successResultOf(task))
        self.assertEqual(["owner: waiting failed"], [formatEvent(event) for event in self.told])
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_failure_that_is_known_is_told_in_a_line(self) -> None:
        """A full disk is no bug: its reason says more than the stack."""
        what: Deferred[int] = Deferred()
        task = self.tasks.start(self.waits_for(what), "waiting")

        what.errback(NotConnected("the disk is full"))

        self.assertIsNone(self.successResultOf(task))
        self.assertEqual(
            ["owner: waiting failed: the disk is full"], [formatEvent(event) for event in self.told]
        )
        self.assertNotIn("log_failure", self.told[0])

    def test_all_end_with_their_owner_in_silence(self) -> None:
        """Ending is no failure."""
        tasks = [self.tasks.start(self.waits_for(Deferred()), "waiting") for _ in range(3)]

        self.tasks.cancel_all()

        self.assertEqual([None] * 3, [self.successResultOf(task) for task in tasks])
        self.assertEqual(([], 0), (self.told, len(self.tasks)))

    def test_they_are_cancelled_in_the_order_of_their_start(self) -> None:
        """A simulation whose end depends on addresses in memory could not be repeated."""
        waits: list[Deferred[int]] = []
        ended: list[int] = []
        for _ in range(20):
            waits.append(Deferred(lambda waited: ended.append(waits.index(waited))))
            self.tasks.start(self.waits_for(waits[-1]), "waiting")

        self.tasks.cancel_all()

        self.assertEqual(list(range(20)), ended)

    def test_after_the_stop_nothing_runs(self) -> None:
        """What a request begins while the daemon stops would find its threads and files closed."""
        waiting = self.tasks.start(self.waits_for(Deferred()), "waiting")
        self.tasks.stop()
        late = self.tasks.start(self.waits_for(Deferred()), "late")

        self.assertEqual([None, None], [self.successResultOf(task) for task in (waiting, late)])
        self.assertEqual(([], 0), (self.told, len(self.tasks)))


class LoopsTests(SynchronousTestCase):
    """Steps that are repeated."""

    def setUp(self) -> None:
        self.clock = HeapClock()
        self.told: list[LogEvent] = []
        self.loops = Loops(self.clock, Logger(observer=self.told.append), "owner")  # type: ignore[arg-type]
        self.outcomes: list[Exception | None] = []
        self.steps = 0

    async def step(self) -> None:
        if not self.outcomes:
            await Deferred[None]()
        self.steps += 1
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome

    def test_a_step_that_fails_is_retried_ever_later_and_told_once(self) -> None:
        """The same trouble every second says nothing new; until it is over it is known."""
        self.outcomes = [NotConnected("it rains")] * 3 + [None]
        self.loops.repeat(self.step, "going out")
        since = self.clock.seconds()

        for seconds, steps in ((0, 1), (1, 2), (1.9, 2), (0.1, 3)):
            self.clock.advance(seconds)
            self.assertEqual(steps, self.steps)
            self.assertEqual({"going out": ("going out: it rains", since)}, self.loops.failing)
        self.clock.advance(4)

        self.assertEqual((4, {}), (self.steps, self.loops.failing))
        self.assertEqual(
            ["owner: going out: it rains; will retry", "owner: going out works again"],
            [formatEvent(event) for event in self.told],
        )

    def test_a_step_that_need_be_done_once_is_tried_until_it_is(self) -> None:
        """A log that could not be read as a copy took its place can be read a moment later."""
        self.outcomes = [NotConnected("it rains"), None, None]
        self.loops.finish(self.step, "going out")
        self.clock.pump([1] * 9)

        self.assertEqual((2, {}, 0), (self.steps, self.loops.failing, len(self.loops)))

    def test_a_fault_of_ours_is_told_with_its_traceback(self) -> None:
        """The step goes on nevertheless."""
        self.outcomes = [ZeroDivisionError(), None]
        self.loops.repeat(self.step, "going out")
        self.clock.advance(1)

        self.assertEqual(2, self.steps)
        self.assertIn("log_failure", self.told[0])
        self.assertEqual([], self.flushLoggedErrors())

    def test_cancelled_ones_end(self) -> None:
        """Also while they wait for a retry."""
        self.outcomes = [NotConnected("it rains"), None]
        self.loops.repeat(self.step, "going out")

        self.loops.cancel_all()
        self.clock.advance(99)

        self.assertEqual((1, 0), (self.steps, len(self.loops)))
