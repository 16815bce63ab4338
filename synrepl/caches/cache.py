"""Named caches: all sets of entries that one name invalidates."""

import weakref

import msgspec

from synrepl.caches.calls import Arguments
from synrepl.caches.entries import Counters, Entries, Shape
from synrepl.errors import ConfigError

__all__ = ["Cache", "CacheInfo"]


class CacheInfo(Counters, kw_only=True):
    """A snapshot of one cache: its `Counters` and its number of `entries`."""

    entries: int


class Cache:
    """A named cache: one set of entries, or one for each instance of a class, held weakly.

    `streams` are the declared streams that announce its changes.
    """

    def __init__(self, *, name: str, max_entries: int, tree: bool, streams: frozenset[str]) -> None:
        if max_entries < 0:
            raise ConfigError(
                f"cache {name}: max_entries must be at least 0, not {max_entries}; with 0 nothing is cached"
            )
        self.name = name
        self.max_entries = max_entries
        self.streams = streams
        self.counters = Counters()
        self.shape = Shape(length=0, tree=tree)
        # Weak references by number: iterating over a WeakSet would take most of the time of an invalidation.
        self._sets: dict[int, weakref.ref[Entries]] = {}

    def set_arguments(self, arguments: Arguments) -> None:
        """Use keys of these arguments from now on, and forget earlier sets of entries."""
        self.shape = Shape(length=len(arguments.names), tree=self.shape.tree)
        self._sets.clear()

    def new_entries(self) -> Entries:
        """Create a set of entries. The cache only holds a weak reference to it."""
        entries = Entries(self.shape, self.max_entries, self.counters)
        number = id(entries)
        self._sets[number] = weakref.ref(entries, lambda _: self._sets.pop(number, None))
        return entries

    def invalidate(self, key: tuple[str, ...] | None) -> None:
        """Drop `key` from every set; drop everything if the key does not have the shape of this cache."""
        self.counters.invalidations += 1
        if key is not None and not self.shape.fits(key):
            self.counters.misshapen += 1
        for entries in self._live():
            entries.invalidate(key)

    def info(self) -> CacheInfo:
        """The current counters, and the number of entries."""
        entries = sum(len(entries) for entries in self._live())
        return CacheInfo(**msgspec.structs.asdict(self.counters), entries=entries)

    def _live(self) -> list[Entries]:
        return [entries for reference in self._sets.values() if (entries := reference()) is not None]
