"""Counters of caches, and of cache names on the wire."""

from collections.abc import Iterator, Mapping

import msgspec

__all__ = ["CacheInfo", "Counters", "NameCounts"]


class Counters:
    """The counters of one cache, shared by all instances of a class.

    * `hits`: values returned without a computation of their own, including shared computations
    * `misses`: computations started
    * `evictions`: values dropped to make room
    * `invalidations`: invalidations applied, even if there was nothing to drop
    * `misshapen`: invalidations whose key did not have the shape of this cache's keys
    """

    __slots__ = ("hits", "misses", "evictions", "invalidations", "misshapen")

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.invalidations = 0
        self.misshapen = 0


class CacheInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one cache: its `Counters` and its number of `entries`."""

    hits: int
    misses: int
    evictions: int
    invalidations: int
    misshapen: int
    entries: int


class NameCounts(Mapping[str, int]):
    """Counts of names on the wire. As peers choose them, names beyond the first `most` share one count."""

    REST = "(other names)"

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._counts: dict[str, int] = {}
        self._rest = 0

    def add(self, name: str) -> None:
        """Count a name."""
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
