"""A small cache with expiry, in place of the one that Synapse keeps in Redis.

What is not found costs Synapse a computation, and no more: so each daemon has its own, in memory alone.
"""

from collections import OrderedDict
from typing import Final

from synrepl.base.interfaces import IClock

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_VALUE: Final = 1024 * 1024
"""The most bytes of all keys and values, and of one value."""

ENTRY_BYTES: Final = 200
"""The approximate memory of an entry besides its key and value."""

DEFAULT_MS: Final = 3_600_000
"""How long a value is kept that was set without an expiry: an hour."""

CacheKey = tuple[int, bytes]
"""The number of a database (``SELECT``), and a key in it."""


class ExpiringCache:
    """Values by key, each until its time is over; beyond `max_bytes` the least recently used go first."""

    def __init__(self, clock: IClock, max_bytes: int = MAX_BYTES) -> None:
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        self.size = 0
        """The approximate memory of all entries, in bytes."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, tuple[bytes, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey, is_use: bool = True) -> bytes | None:
        """Return the value; None if there is none, or its time is over. With `is_use` it was used lately."""
        entry = self._find(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        if is_use:
            self._entries.move_to_end(key)
        return entry[0]

    def ms_left(self, key: CacheKey) -> int | None:
        """Return for how many milliseconds the value is still kept; None if there is none. This is no use."""
        entry = self._find(key)
        return None if entry is None else int(1000 * (entry[1] - self._clock.seconds()))

    def delete(self, key: CacheKey) -> bool:
        """Remove the value. False if there is none."""
        is_there = self._find(key) is not None
        self._remove(key)
        return is_there

    def set(self, key: CacheKey, value: bytes, ms: int = DEFAULT_MS) -> None:
        """Keep this value for so many milliseconds."""
        self._remove(key)
        self._entries[key] = value, self._clock.seconds() + ms / 1000
        self.size += _size(key, value)
        while self.size > self._max_bytes:
            self._remove(next(iter(self._entries)))
            self.evicted += 1

    def _find(self, key: CacheKey) -> tuple[bytes, float] | None:
        entry = self._entries.get(key)
        if entry is not None and entry[1] <= self._clock.seconds():
            self._remove(key)
            return None
        return entry

    def _remove(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= _size(key, entry[0])


def _size(key: CacheKey, value: bytes) -> int:
    return len(key[1]) + len(value) + ENTRY_BYTES
