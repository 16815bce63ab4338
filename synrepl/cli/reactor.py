"""Runs the reactor for a command that ends with one result."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


def run_reactor(reactor: Any, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the reactor until `work` ends, and return its result. Raises what it raises.

    Work that waits for nothing ends before the reactor runs. Raises `click.Abort` if a signal ends the
    reactor first.
    """
    results: list[Any] = []
    done = Deferred.fromCoroutine(work()).addBoth(results.append)
    if not results:
        done.addCallback(lambda _: reactor.stop())
        reactor.run()
    if not results:
        raise click.Abort
    if isinstance(results[0], Failure):
        results[0].raiseException()
    found: T = results[0]
    return found
