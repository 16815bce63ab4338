"""A gate at which a coroutine waits."""

from twisted.internet.defer import Deferred

from synrepl.ports.gate import Gate


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
