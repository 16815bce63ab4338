"""Stories that need a real reactor: one is made, runs the story, and is thrown away."""

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.posixbase import PosixReactorBase
from twisted.internet.task import deferLater

__all__ = ["eventually", "in_reactor"]


def in_reactor(story: Callable[[Any], Coroutine[Any, Any, None]], *, seconds: float = 60) -> None:
    """Run `story(reactor)` to its end, and raise what it raises; nothing of it may be left in the reactor."""
    reactor: Any = _default_reactor()()
    ends: list[Any] = []

    def begin() -> None:
        told: Deferred[None] = Deferred.fromCoroutine(story(reactor))
        told.addTimeout(seconds, reactor).addBoth(ends.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)
    if ends[0] is not None:
        ends[0].raiseException()
    left = [call for call in reactor.getDelayedCalls() if call.active()]
    assert left == [], left
    readers = [one for one in reactor.getReaders() if not type(one).__name__.endswith("Waker")]
    assert readers == [], readers


def _default_reactor() -> type[PosixReactorBase]:
    """What a daemon runs on here: epoll minds a socket that was closed under it, where select does not."""
    try:
        from twisted.internet.epollreactor import EPollReactor
    except ImportError:
        from twisted.internet.selectreactor import SelectReactor

        return SelectReactor
    return EPollReactor


async def eventually(reactor: Any, is_so: Callable[[], object], what: str, *, seconds: float = 20) -> None:
    """Wait until it is so."""
    until = reactor.seconds() + seconds
    while not is_so():
        assert reactor.seconds() < until, what
        await deferLater(reactor, 0.005)
