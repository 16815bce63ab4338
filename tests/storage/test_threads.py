"""Threads: a real one that nothing stops, and two others that keep its contract (tests/trial/storage)."""

import subprocess
import sys

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.errors import StorageError
from synrepl.storage.threads import ImmediateThread
from synrepl.testing.memory_engine import DelayedThread

FORGETFUL = """
from twisted.internet import task
from synrepl.storage.threads import ReactorThread

async def main(reactor):
    await ReactorThread(reactor, "never stopped").run(lambda: None)

task.react(main)
"""


class ReactorThreadTests(SynchronousTestCase):
    """The real one, in a process of its own."""

    def test_a_process_that_never_stops_it_ends(self) -> None:
        """It could only be killed: the interpreter waited for the idle thread."""
        subprocess.run([sys.executable, "-c", FORGETFUL], check=True, timeout=60)


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
