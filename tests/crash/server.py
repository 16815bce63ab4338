"""Forks a process for each death, so that it costs no start of Python.

Reads lines of JSON from its standard input, `Order`s, and answers each with a line, an `Outcome`. Started
by `tests/crash/sweep.py`.
"""

import gc
import importlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from tests.crash.effects import DIED, Effects, Side
from tests.crash.scenarios import Acknowledged, named

__all__ = ["Order", "Outcome"]

PATIENCE: Final = 60
"""Seconds after which a process that hangs is killed."""


class Order(msgspec.Struct):
    """Run this scenario in this place, die at effect `at` (0: do not), look, and run it to its end."""

    scenario: str
    position: str
    at: int = 0
    side: Side = "before"


class Outcome(msgspec.Struct):
    """What came of it. `why` is what was wrong, if anything; `state` is how it ended."""

    died: bool
    effects: list[str]
    acknowledged: list[Acknowledged]
    state: Any = None
    why: str = ""


def main() -> None:
    """Answer until there are no more orders."""
    warm = ""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        if order.scenario != warm:
            warm = order.scenario
            _warm_up(order)
        sys.stdout.buffer.write(msgspec.json.encode(_carry_out(order)) + b"\n")
        sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()
    # Nothing is left to be tidied up, and a frozen heap would be complained of.
    os._exit(0)


def _warm_up(order: Order) -> None:
    """Have here what would be imported and set up in each process anew."""
    scenario = named(order.scenario, f"{order.position}-warm")

    def whole(say: Callable[[Any], None]) -> None:
        scenario.run(lambda acknowledged: None)
        scenario.state()
        say(["modules", [name for name in sys.modules if name not in known]])

    known = {*sys.modules}
    if scenario.HAS_THREADS:
        # A process with threads cannot be forked well: another one says what it imports.
        _, told = _forked(whole)
        for name in next((what for word, what in told if word == "modules"), []):
            with suppress(ImportError):  # made by another module, such as those of Cython
                importlib.import_module(name)
    else:
        whole(lambda told: None)
    scenario.forget()
    shutil.rmtree(scenario.position, ignore_errors=True)
    gc.collect()
    # Or each process would copy what it only counts.
    gc.freeze()


def _carry_out(order: Order) -> Outcome:
    scenario = named(order.scenario, order.position)
    effects = Effects(order.at, order.side)

    def first(say: Callable[[Any], None]) -> None:
        effects.install()
        scenario.run(lambda acknowledged: say(["acknowledged", acknowledged]))
        say(["effects", effects.names])

    code, told = _forked(first)
    outcome = Outcome(
        died=code == DIED,
        effects=next((what for word, what in told if word == "effects"), []),
        acknowledged=[tuple(what) for word, what in told if word == "acknowledged"],
        why=_why(code, told),
    )

    def second(say: Callable[[Any], None]) -> None:
        scenario.check(outcome.acknowledged)
        scenario.run(lambda acknowledged: None)
        say(["state", scenario.state()])

    if not outcome.why and scenario.HAS_THREADS:
        code, told = _forked(second)
        outcome.why = _why(code, told)
        outcome.state = next((what for word, what in told if word == "state"), None)
    elif not outcome.why:
        # Here, where nothing counts: a second process would cost as much as the first.
        signal.alarm(PATIENCE)
        try:
            second(lambda word_state: setattr(outcome, "state", word_state[1]))
        except Exception:
            outcome.why = traceback.format_exc()
        signal.alarm(0)
    scenario.forget()
    shutil.rmtree(order.position, ignore_errors=True)
    return outcome


def _forked(work: Callable[[Callable[[Any], None]], None]) -> tuple[int, list[Any]]:
    """Do this in a process of its own; its exit code, and what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        write = os.write
        signal.alarm(PATIENCE)
        try:
            work(lambda what: _say(write, writing, what))
            os._exit(0)
        except BaseException:
            _say(write, writing, ["why", traceback.format_exc()])
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), [msgspec.json.decode(line) for line in lines]


def _say(write: Callable[[int, bytes], int], pipe: int, what: Any) -> None:
    data = msgspec.json.encode(what) + b"\n"
    while data:
        data = data[write(pipe, data) :]


def _why(code: int, told: list[Any]) -> str:
    if code in (0, DIED):
        return ""
    return next((what for word, what in told if word == "why"), f"it ended with code {code}")


if __name__ == "__main__":
    main()
