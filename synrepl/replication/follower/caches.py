"""Caches of a worker that uses Twisted."""

from twisted.internet.defer import CancelledError, Deferred

from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintage import Vintage


class Caches(CacheRegistry):
    """A worker's caches, for functions and coroutines that may await Deferreds and be cancelled.

    Pass it to `Follower`, which drops what a fact invalidates before its first subscriber is called, and
    again before the position moves. `vintage` defines the meaning of cache names on the wire; by default
    that of the release that the follower's connection speaks, of all of them if there are several. Give one
    (`Vintage.of`) if the writers are of another release. `CacheRegistry` documents the methods and counters.

    >>> caches = Caches()
    >>> @caches.cached(max_entries=100)
    ... def get_topic(room_id: str) -> str:
    ...     return f"the topic of {room_id}"
    >>> get_topic("!a:hs"), get_topic("!a:hs"), caches.caches["get_topic"].hits
    ('the topic of !a:hs', 'the topic of !a:hs', 1)
    >>> caches.invalidate("get_topic", ("!a:hs",))
    """

    def __init__(self, *, vintage: Vintage | None = None) -> None:
        super().__init__(waiter=Deferred, vintage=vintage, abandoned=(GeneratorExit, CancelledError))
