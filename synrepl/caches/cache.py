"""A cache by its name, wherever its entries are."""

import weakref

from synrepl.caches.arguments import Arguments
from synrepl.caches.counters import CacheInfo, Counters
from synrepl.caches.entries import Entries, Shape
from synrepl.errors import ConfigError

__all__ = ["Cache"]


class Cache:
    """A cache by its name: one set of entries, or one for each instance of a class, known weakly.

    `streams` are those on which it is announced that something of it changed, as its author says.
    """

    def __init__(self, *, name: str, max_entries: int, tree: bool, streams: frozenset[str]) -> None:
        if max_entries < 0:
            raise ConfigError(f"cache {name} cannot hold {max_entries} entries; 0 is none")
        self.name = name
        self.max_entries = max_entries
        self.streams = streams
        self.counters = Counters()
        self.shape = Shape(length=0, tree=tree)
        # Weakly held, by number; a WeakSet takes most of the time of an invalidation to be gone through.
        self._sets: dict[int, weakref.ref[Entries]] = {}

    def takes(self, arguments: Arguments) -> None:
        """Its keys are these arguments from now on; what it held is not known here any more."""
        self.shape = Shape(length=len(arguments.names), tree=self.shape.tree)
        self._sets.clear()

    def entries(self) -> Entries:
        """A new set of entries. It is forgotten here when nobody else holds it."""
        entries = Entries(self.shape, self.max_entries, self.counters)
        number = id(entries)
        self._sets[number] = weakref.ref(entries, lambda _: self._sets.pop(number, None))
        return entries

    def invalidate(self, key: tuple[str, ...] | None) -> None:
        """Drops what `key` means from every set; a key that cannot be one of ours drops everything."""
        self.counters.invalidations += 1
        if key is not None and not self.shape.fits(key):
            self.counters.misshapen += 1
        for entries in self._held():
            entries.invalidate(key)

    def info(self) -> CacheInfo:
        """Its numbers now."""
        return CacheInfo(
            hits=self.counters.hits,
            misses=self.counters.misses,
            evictions=self.counters.evictions,
            invalidations=self.counters.invalidations,
            misshapen=self.counters.misshapen,
            entries=sum(len(entries) for entries in self._held()),
        )

    def _held(self) -> list[Entries]:
        return [entries for reference in self._sets.values() if (entries := reference()) is not None]
