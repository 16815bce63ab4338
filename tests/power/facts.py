"""What must be in a log after a power cut, by what was said before it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from synrepl.storage.engine import SQLEngine
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact
from tests.crash.scenarios import Acknowledged
from tests.processes.loading import ids_of

__all__ = ["Doubled", "Lost", "check_facts", "check_log"]

MANY = 10**9


class Lost(AssertionError):
    """Something that was acknowledged is not there."""


class Doubled(AssertionError):
    """Something is there twice, or was never sent."""


def check_log(engine: SQLEngine, said: Sequence[Acknowledged]) -> list[Fact]:
    """Raise unless the log of this open engine is whole, and has what was said. Return its facts."""
    head = engine.head()
    engine.check()
    facts, upto = engine.pages.facts(after=0, upto=head.serial, limit=MANY)
    trimmed_upto = head.trimmed_upto
    dense = [fact for fact in facts if fact.serial > trimmed_upto.serial]
    assert head.serial == upto
    assert [fact.serial for fact in dense] == list(range(trimmed_upto.serial + 1, head.serial + 1))
    assert verify(dense, trimmed_upto.digest) is None, "a digest does not follow from the facts before it"
    check_facts(facts, said, trimmed_upto=trimmed_upto.serial)
    told = _last(said)
    for what, there in (("epoch", head.epoch), ("trimmed_upto", trimmed_upto.serial)):
        if there < told.get(what, 0):
            raise Lost(f"{what} is {there}, and {told[what]} was acknowledged")
    leases = {lease.uuid for lease in engine.leases.all()}
    if gone := {one for what, one in said if what == "lease"} - leases:
        raise Lost(f"leases are gone: {sorted(gone)}")
    return facts


def check_facts(facts: Sequence[Fact], said: Sequence[Acknowledged], *, trimmed_upto: int = 0) -> None:
    """Raise unless each acknowledged fact is there once, no other than was sent, and no request in part.

    ``sending`` has the numbers of a request, in the order of its facts; ``append`` has its first number, and
    the serial of each fact. Trimming may have removed facts.
    """
    found = [(fact.serial, numbers[0]) for fact in facts if (numbers := ids_of(fact.rows.decode()))]
    if twice := [number for number, count in Counter(number for _, number in found).items() if count > 1]:
        raise Doubled(f"facts are there twice: {twice[:10]}")
    requests = {numbers[0]: numbers for what, numbers in said if what == "sending"}
    sent = {number for numbers in requests.values() for number in numbers}
    if more := [number for _, number in found if number not in sent]:
        raise Doubled(f"facts were never sent: {more[:10]}")
    serials = {number: serial for serial, number in found}
    known: dict[int, int] = {}
    for what, told in said:
        if what == "append":
            known.update(zip(requests[told[0]], told[1], strict=True))
    for number, serial in known.items():
        if number not in serials and serial > trimmed_upto:
            raise Lost(
                f"fact {number}, acknowledged with serial {serial}, is gone; the log ends at {_end(facts)}"
            )
        if serials.get(number, serial) != serial:
            raise Lost(f"fact {number}, acknowledged with serial {serial}, has serial {serials[number]}")
    for numbers in requests.values():
        there = next((number for number in numbers if number in serials), None)
        # The facts of a request have serials one after another.
        missing = [
            number
            for number in numbers
            if there is not None and number not in serials and serials[there] + number - there > trimmed_upto
        ]
        assert not missing, f"a request is there in part: {missing} of {numbers} are missing"


def _end(facts: Sequence[Fact]) -> int:
    return facts[-1].serial if facts else 0


def _last(said: Sequence[Acknowledged]) -> dict[str, Any]:
    return dict(said)
