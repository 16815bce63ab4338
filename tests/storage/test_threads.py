"""The three kinds of thread keep one contract: one thing at a time, in order."""

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.errors import StorageError
from synrepl.storage import DelayedThread, ImmediateThread, ReactorThread


class ImmediateThreadTests(SynchronousTestCase):
    """No thread at all."""

    def test_work_is_done_in_the_call(self) -> None:
        """Tests that use it need no clock and no waiting."""
        thread = ImmediateThread()

        self.assertEqual(3, self.successResultOf(thread.run(lambda: 3)))
        self.failureResultOf(thread.run(lambda: 1 // 0), ZeroDivisionError)

    def test_a_stopped_thread_refuses(self) -> None:
        """Work after the end is a mistake that must be heard of."""
        thread = ImmediateThread()
        self.successResultOf(Deferred.fromCoroutine(thread.stop()))

        self.failureResultOf(thread.run(lambda: 3), StorageError)


class DelayedThreadTests(SynchronousTestCase):
    """A thread on a fake clock."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.done: list[object] = []
        self.thread = DelayedThread(self.clock, lambda: 1.0)

    def do(self, what: object) -> None:
        self.thread.run(lambda: self.done.append(what))

    def test_things_are_done_one_after_the_other(self) -> None:
        """A real thread that takes a second for each takes three for three."""
        seen = []
        for what in "abc":
            self.do(what)
        for _ in range(4):
            seen.append("".join(map(str, self.done)))
            self.clock.advance(1)

        self.assertEqual(["", "a", "ab", "abc"], seen)

    def test_a_failure_does_not_hold_up_what_follows(self) -> None:
        """One bad piece of work must not end the simulation."""
        failing = self.thread.run(lambda: 1 // 0)
        self.do("after")

        self.clock.pump([1, 1])

        self.failureResultOf(failing, ZeroDivisionError)
        self.assertEqual(["after"], self.done)

    def test_what_has_not_run_when_it_stops_never_does(self) -> None:
        """A killed process neither does it nor says that it did not."""
        waiting = self.thread.run(lambda: self.done.append("never"))

        self.successResultOf(Deferred.fromCoroutine(self.thread.stop()))
        self.clock.advance(9)

        self.assertNoResult(waiting)
        self.assertEqual([], self.done)
        self.assertEqual([], self.clock.getDelayedCalls())


class ReactorThreadTests(SynchronousTestCase):
    """A real thread beside a real reactor, which is this test's own."""

    def in_reactor(self, use: Callable[[SelectReactor], Coroutine[Any, Any, object]]) -> list[object]:
        """Run a coroutine function in a reactor until it ends."""
        reactor = SelectReactor()
        ended: list[object] = []

        def go() -> None:
            running = Deferred.fromCoroutine(use(reactor))
            running.addBoth(ended.append)
            running.addBoth(lambda _: reactor.stop())

        reactor.callWhenRunning(go)
        reactor.run(installSignalHandlers=False)
        return ended

    def test_work_runs_elsewhere_in_order_and_answers_here(self) -> None:
        """A database call in the reactor's thread would hold up every connection."""
        done: list[int] = []

        async def use(reactor: SelectReactor) -> tuple[bool, bool, list[int]]:
            thread = ReactorThread(reactor, "test")
            others = [thread.run(partial(done.append, n)) for n in range(100)]
            elsewhere = await thread.run(threading.get_ident)
            here = threading.get_ident()
            self.assertTrue(all(other.called for other in others))
            last = thread.run(lambda: done.append(100))
            await thread.stop()
            await thread.stop()
            self.assertTrue(last.called)
            with self.assertRaises(StorageError):
                await thread.run(lambda: None)
            return elsewhere != here, threading.get_ident() == here, done

        before = threading.active_count()

        self.assertEqual([(True, True, list(range(101)))], self.in_reactor(use))
        self.assertEqual(before, threading.active_count())

    def test_one_that_was_never_used_stops_at_once(self) -> None:
        """A daemon that fails to start must be able to end."""

        async def use(reactor: SelectReactor) -> str:
            await ReactorThread(reactor, "test").stop()
            return "stopped"

        self.assertEqual(["stopped"], self.in_reactor(use))
