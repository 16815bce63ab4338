"""Measures the turns of a reactor: from the return of its poll to the next poll.

While a turn lasts, nobody else is served. The wall time of turns tells operators whether peers wait; the CPU
time, which other processes do not lengthen, tells tests whether a peer can keep the reactor busy.
"""

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, Final

from synrepl.base.metrics import TurnNumbers

POLLERS: Final = (("_poller", "poll"), ("_kq", "control"), ("_selector", "select"))
"""The attribute in which a reactor, or the loop of the asyncio reactor, has its poller, and its method."""


class TurnMeter:
    """A poller in place of the reactor's own, which counts the time between two polls.

    Costs some microseconds a turn, most of them for reading the CPU time. All other attributes are
    those of the wrapped poller.
    """

    def __init__(
        self,
        poller: Any,
        method: str,
        numbers: TurnNumbers,
        *,
        seconds: Callable[[], float] = perf_counter,
        cpu_seconds: Callable[[], float] = thread_time,
    ) -> None:
        poll = getattr(poller, method)
        began = began_cpu = 0.0

        def measured(*arguments: Any) -> Any:
            nonlocal began, began_cpu
            if began:
                elapsed = seconds() - began
                # A turn has no more CPU time than wall time: most need not ask the system for it again.
                is_longest = elapsed > numbers.longest_cpu_seconds
                numbers.count(elapsed, cpu_seconds() - began_cpu if is_longest else 0.0)
            try:
                return poll(*arguments)
            finally:
                began, began_cpu = seconds(), cpu_seconds()

        self._poller = poller
        setattr(self, method, measured)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)


def measure_turns(reactor: Any, numbers: TurnNumbers) -> bool:
    """Measure the turns of this reactor from now on. False if its kind is unknown: nothing is measured."""
    for owner in (reactor, getattr(reactor, "_asyncioEventloop", None)):
        for attribute, method in POLLERS:
            if (poller := getattr(owner, attribute, None)) is not None and hasattr(poller, method):
                setattr(owner, attribute, TurnMeter(poller, method, numbers))
                return True
    return False
