"""Eager steps of coroutines: run one without a Deferred for as long as it need not wait."""

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

__all__ = ["resume", "step_eagerly"]


def step_eagerly(result: Awaitable[None]) -> Awaitable[None] | None:
    """Run a coroutine up to its first wait. None if it ended without one, as most do."""
    if not isinstance(result, types.CoroutineType):
        return result
    try:
        first = result.send(None)
    except StopIteration:
        return None
    return resume(result, first)


def resume(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> "Deferred[None]":
    """Continue a coroutine that has been sent None once and then waited for something."""
    return Deferred.fromCoroutine(_drive(coroutine, waits_for))


def _drive(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Drive a coroutine that was stepped up to its first wait."""
    while True:
        try:
            answer = yield waits_for
        except GeneratorExit:
            # The caller was cancelled. Closed, not thrown into: the garbage collector may have closed it.
            coroutine.close()
            raise
        except BaseException as error:
            step: Callable[[], Any] = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, answer)
        try:
            waits_for = step()
        except StopIteration:
            return
