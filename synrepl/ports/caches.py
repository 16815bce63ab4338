"""A worker's caches under Twisted."""

from twisted.internet.defer import CancelledError, Deferred

from synrepl.caches import NEWEST, CacheRegistry, Vintage

__all__ = ["Caches"]


class Caches(CacheRegistry):
    """A `CacheRegistry` whose coroutines may await Deferreds and be cancelled, for use with `Follower`."""

    def __init__(self, *, vintage: Vintage = NEWEST) -> None:
        super().__init__(waiter=Deferred, vintage=vintage, abandoned=(GeneratorExit, CancelledError))
