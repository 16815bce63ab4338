"""What is counted of a cache, and of names heard on the wire."""

from collections.abc import Iterator, Mapping

import msgspec

__all__ = ["CacheInfo", "Counters", "NameCounts"]


class Counters:
    """The numbers of one cache. Where every instance of a class has entries of its own, they share these.

    * `hits`: values given without computing them, those of a computation already under way included
    * `misses`: computations begun
    * `evictions`: values dropped to make room
    * `invalidations`: invalidations applied, whether or not there was anything to drop
    * `misshapen`: those of them whose key did not have the shape of this cache's keys
    """

    __slots__ = ("hits", "misses", "evictions", "invalidations", "misshapen")

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.invalidations = 0
        self.misshapen = 0


class CacheInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one cache at one moment: its `Counters`, and how many `entries` it holds."""

    hits: int
    misses: int
    evictions: int
    invalidations: int
    misshapen: int
    entries: int


class NameCounts(Mapping[str, int]):
    """How often names were heard. They come from outside: beyond `most`, the rest share one count."""

    REST = "(other names)"

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._counts: dict[str, int] = {}
        self._rest = 0

    def add(self, name: str) -> None:
        """Counts a name once more."""
        if name in self._counts:
            self._counts[name] += 1
        elif len(self._counts) < self._most:
            self._counts[name] = 1
        else:
            self._rest += 1

    def __getitem__(self, name: str) -> int:
        if name == self.REST and self._rest:
            return self._rest
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._counts
        if self._rest:
            yield self.REST

    def __len__(self) -> int:
        return len(self._counts) + bool(self._rest)

    def __repr__(self) -> str:
        return f"NameCounts({dict(self)!r})"
