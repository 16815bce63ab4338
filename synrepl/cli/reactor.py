"""Runs the reactor for a command that ends with one result."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


def run_reactor(reactor: Any, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the reactor until `work` ends, and return its result. Raises what it raises.

    Raises `click.Abort` if a signal ends the reactor first.
    """
    results: list[Any] = []

    def start() -> None:
        done = Deferred.fromCoroutine(work())
        done.addBoth(results.append).addCallback(lambda _: reactor.stop() if reactor.running else None)

    reactor.callWhenRunning(start)
    reactor.run()
    if not results:
        raise click.Abort
    if isinstance(results[0], Failure):
        results[0].raiseException()
    found: T = results[0]
    return found
