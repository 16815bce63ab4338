"""Runs the reactor for a command that ends with one result."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


def run_reactor(reactor: Any, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the reactor until `work` ends, and return its result. Raises what it raises.

    Work that waits for nothing ends before the reactor runs. A signal cancels the work; the reactor ends when
    the work has cleaned up. Raises `click.Abort` then.
    """
    results: list[Any] = []
    is_interrupted = False
    done: Deferred[Any] = Deferred.fromCoroutine(work()).addBoth(results.append)

    def interrupt() -> "Deferred[Any] | None":
        nonlocal is_interrupted
        if results:
            return None
        is_interrupted = True
        done.cancel()
        return done

    if not results:
        reactor.addSystemEventTrigger("before", "shutdown", interrupt)
        done.addCallback(lambda _: None if is_interrupted else reactor.stop())
        reactor.run()
    if is_interrupted:
        raise click.Abort
    if isinstance(results[0], Failure):
        results[0].raiseException()
    found: T = results[0]
    return found
