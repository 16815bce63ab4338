"""Results that are made one after another, each for all who wait for it."""

from collections.abc import Awaitable, Callable

from twisted.internet.defer import DeferredLock


class _Result:
    """A result that several callers wait for."""

    body: bytes | None = None


class SharedWork:
    """Makes one result at a time, and each of them once: whoever asks while it is made shares the next one.

    A result shows the state at a moment after it was asked for, and many who ask cost no more than a few.
    """

    def __init__(self) -> None:
        self._lock = DeferredLock()
        self._next: dict[object, _Result] = {}
        """By kind, the results that are asked for and not begun yet."""

    async def run(self, kind: object, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return a result that `make` starts after this call; calls of one `kind` that wait share it.

        `make` starts at once, or when the result that is being made is done."""
        result = self._next.setdefault(kind, _Result())
        async with self._lock:
            if result.body is None:
                if self._next.get(kind) is result:
                    del self._next[kind]
                result.body = await make()
        return result.body
