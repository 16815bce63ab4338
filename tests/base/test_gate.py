"""A gate at which a coroutine waits."""

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.base.gate import Gate, Wakeup
from synrepl.testing.heap_clock import HeapClock


def waiting(gate: Gate) -> list[object]:
    """What becomes of a coroutine that waits for the gate."""
    found: list[object] = []
    Deferred.fromCoroutine(gate.wait_open()).addBoth(found.append)
    return found


def test_an_open_gate_lets_pass_at_once() -> None:
    """As it is at first, and after it was opened again."""
    gate = Gate()
    assert waiting(gate) == [None]
    gate.close()
    gate.open()
    assert waiting(gate) == [None]


def test_a_closed_gate_holds_until_it_opens() -> None:
    """Once, however often it opens."""
    gate = Gate()
    gate.close()
    passed = [waiting(gate), waiting(gate)]
    assert passed == [[], []]
    gate.open()
    gate.open()
    assert passed == [[None], [None]]


def test_a_cancelled_wait_leaves_the_gate_usable() -> None:
    """As when a client disconnects."""
    gate = Gate()
    gate.close()
    wait = Deferred.fromCoroutine(gate.wait_open())
    wait.addErrback(lambda _: None)
    wait.cancel()
    gate.open()
    assert gate.is_open
    assert waiting(gate) == [None]


class WakeupTests(SynchronousTestCase):
    """A gate that closes behind the coroutine that passes."""

    def setUp(self) -> None:
        self.clock = HeapClock()
        self.wakeup = Wakeup(self.clock)

    def wait(self, seconds: float | None = None) -> "Deferred[None]":
        return Deferred.fromCoroutine(self.wakeup.wait(seconds))

    def test_each_opening_is_for_one_wait(self) -> None:
        """One that came before the wait counts."""
        self.wakeup.open()
        self.successResultOf(self.wait())

        waiting = self.wait()
        self.assertNoResult(waiting)
        self.wakeup.open()

        self.successResultOf(waiting)
        self.assertNoResult(self.wait())

    def test_a_wait_has_an_end(self) -> None:
        """And leaves no timer behind."""
        waiting = self.wait(3)
        self.clock.advance(2.9)
        self.assertNoResult(waiting)
        self.clock.advance(0.1)
        self.successResultOf(waiting)

        early = self.wait(3)
        self.wakeup.open()

        self.successResultOf(early)
        self.assertEqual([], self.clock.getDelayedCalls())
