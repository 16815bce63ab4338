"""The reactor of a command with one result: it ends with the work, and the work with a signal."""

from collections.abc import Callable
from typing import Any

import click
import pytest
from twisted.internet.defer import Deferred

from synrepl.cli.reactor import run_reactor


class Reactor:
    """One that does what happens while it runs, and can be stopped."""

    def __init__(self, *happens: Callable[[], None]) -> None:
        self._happens = happens
        self._before: list[Callable[[], Any]] = []
        self.is_stopped = False
        self.has_run = False

    def addSystemEventTrigger(self, phase: str, event: str, work: Callable[[], Any]) -> None:
        assert ("before", "shutdown") == (phase, event)
        self._before.append(work)

    def stop(self) -> None:
        """Stop, as a signal does too, once the triggers have ended."""
        assert not self.is_stopped
        self.is_stopped = True
        self.waits = [done for work in self._before if (done := work()) is not None]

    def run(self) -> None:
        """Run until it is stopped, and what it waits for has ended."""
        self.has_run = True
        for work in self._happens:
            work()
        assert self.is_stopped
        assert all(one.called for one in self.waits)


def test_work_that_waits_for_nothing_needs_no_reactor() -> None:
    async def work() -> int:
        return 7

    reactor = Reactor()

    assert run_reactor(reactor, work) == 7
    assert not reactor.has_run


def test_the_reactor_ends_with_the_work() -> None:
    waits = Deferred[int]()

    async def work() -> int:
        return await waits

    assert run_reactor(Reactor(lambda: waits.callback(7)), work) == 7


def test_what_the_work_raises_is_raised() -> None:
    waits = Deferred[int]()

    async def work() -> int:
        return await waits

    with pytest.raises(ValueError, match="no"):
        run_reactor(Reactor(lambda: waits.errback(ValueError("no"))), work)


def test_a_signal_lets_the_work_clean_up() -> None:
    """The reactor goes on until that has ended."""
    steps: list[str] = []
    waits, cleans_up = Deferred[int](), Deferred[None]()

    async def work() -> int:
        try:
            return await waits
        finally:
            steps.append("cleans up")
            await cleans_up
            steps.append("clean")

    def interrupt() -> None:
        reactor.stop()

    reactor = Reactor(interrupt, lambda: cleans_up.callback(None))
    with pytest.raises(click.Abort):
        run_reactor(reactor, work)

    assert ["cleans up", "clean"] == steps
