"""Ownership of running coroutines: every failure is logged, and all are cancelled with their owner."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

__all__ = ["Tasks"]

T = TypeVar("T")


class Tasks:
    """The running coroutines of one object.

    `what` names the owner in log lines.
    """

    def __init__(self, log: Logger, what: str = "task") -> None:
        self._log = log
        self._what = what
        self._running: set[Deferred[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, coro: Coroutine[Any, Any, T], name: str) -> "Deferred[T | None]":
        """Run `coro` now, up to its first wait. The Deferred fires with its result, and never fails.

        A failure is logged once, under `name`, and gives None; so does a cancellation, without a log line.
        """
        running: Deferred[Any] = Deferred.fromCoroutine(coro)
        self._running.add(running)

        def ended(result: Any) -> Any:
            self._running.discard(running)
            if isinstance(result, Failure):
                if not isinstance(result.value, CancelledError):
                    self._log.failure("{what}: {name} failed", result, what=self._what, name=name)
                return None
            return result

        return running.addBoth(ended)

    def cancel_all(self) -> None:
        """Cancel all running coroutines; some may take time to end."""
        for running in list(self._running):
            running.cancel()
