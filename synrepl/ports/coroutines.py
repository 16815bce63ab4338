"""Running a coroutine at once for as long as it need not wait, without a Deferred."""

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

__all__ = ["resume", "step_eagerly"]


def step_eagerly(result: Awaitable[None]) -> Awaitable[None] | None:
    """Run a coroutine up to where it waits. None: it did not have to, as most do not."""
    if not isinstance(result, types.CoroutineType):
        return result
    try:
        first = result.send(None)
    except StopIteration:
        return None
    return resume(result, first)


def resume(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> "Deferred[None]":
    """The rest of a coroutine that was sent None once, and then waited for something."""
    return Deferred.fromCoroutine(_go_on(coroutine, waits_for))


def _go_on(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that was run by hand up to its first wait."""
    while True:
        try:
            answer = yield waits_for
        except GeneratorExit:
            # Nobody waits any more. Closed, not thrown into: the collector may have closed it before us.
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
