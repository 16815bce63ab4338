"""The entries of one cache: bounded, and never older than an invalidation. Callers share computations.

A cache whose values come from a database has a race that no order of its statements removes: a caller reads
the old row, the row changes, the invalidation arrives and finds nothing to drop, and then the caller stores
what it has read. The value is stale, and nothing will ever correct it. So a computation is an entry from its
beginning: an invalidation drops it like a value, and `keep` stores a result only if its computation is still
the one that is listed. The caller gets its value, which was right when it asked; the next caller computes
again.

Callers that ask for a key while it is computed wait for the first one's result instead of asking the database
too. They must not inherit its fate: if the first caller is cancelled, the next one computes
(`Computation.retry`), and whoever began to wait before an invalidation gets the value of that time, as if it
had come first.

A hit only notes when the entry was used. To keep the entries in the order of use would take longer than the
look-up, and only a full cache needs that order: `Entries._evict` sorts them, once for many evictions.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Generator, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

Key = tuple[Hashable, ...]

WireKey = tuple[str, ...] | None
"""A key as writers spell it; None for all keys."""

MISSING: Final = object()

# The result for a waiter whose computation was abandoned: look up again.
AGAIN: Final = object()


class IWaiter(Protocol):
    """An awaitable of one caller; Twisted's Deferred is one.

    It is fired once, and firing it after its caller was cancelled must do no harm.
    """

    def callback(self, value: Any, /) -> object:
        """Make its `await` return this value."""

    def errback(self, error: Any, /) -> object:
        """Make its `await` raise this exception."""

    def __await__(self) -> Generator[Any, Any, Any]: ...


class Computation:
    """The computation of `key` by one caller; other callers wait for its result, in order."""

    __slots__ = ("key", "_waiters", "_last_number")

    def __init__(self, key: Key) -> None:
        self.key = key
        self._waiters: OrderedDict[int, IWaiter] = OrderedDict()
        self._last_number = 0

    async def wait(self, waiter: IWaiter) -> Any:
        """Wait for the value; AGAIN if the computing caller went away. Raises the computation's exception."""
        self._last_number = number = self._last_number + 1
        self._waiters[number] = waiter
        try:
            return await waiter
        finally:
            # If this caller is being cancelled, its waiter must not be fired.
            self._waiters.pop(number, None)

    # A waiter may resume at once, call again, or cancel another waiter, so they are fired one at a time.

    def resolve(self, value: Any) -> None:
        """Give this value to all waiters."""
        while self._waiters:
            self._waiters.popitem(last=False)[1].callback(value)

    def fail(self, error: Exception) -> None:
        """Raise this exception in all waiters."""
        while self._waiters:
            self._waiters.popitem(last=False)[1].errback(error)

    def retry(self) -> None:
        """Let all waiters look up again: the first computes the value, and the others wait for it."""
        self.resolve(AGAIN)


class Shape(msgspec.Struct, frozen=True):
    """The length of a cache's keys. With `tree`, a shorter key is a prefix and means all keys under it.

    The empty key belongs to a cache without arguments. In a tree it is no prefix: whoever sends it means
    another cache.
    """

    length: int
    tree: bool = False

    def fits(self, key: Key) -> bool:
        """Whether this is a valid key, or prefix, for an invalidation."""
        return len(key) == self.length or (self.tree and 0 < len(key) < self.length)


@dataclass(slots=True, kw_only=True)
class Counters:
    """The counters of one cache, shared by all instances of a class.

    * `calls`: hits and misses
    * `misses`: computations started
    * `evictions`: values dropped to make space
    * `invalidations`: invalidations applied, even if there was nothing to drop
    * `misshapen`: invalidations whose key did not have the shape of this cache's keys
    """

    calls: int = 0
    misses: int = 0
    evictions: int = 0
    invalidations: int = 0
    misshapen: int = 0

    @property
    def hits(self) -> int:
        """The number of values returned without a computation of their own, but maybe with a shared one."""
        return self.calls - self.misses


class Entry:
    """A value. `used_at` is the number of calls (`Counters.calls`) when it was last used."""

    __slots__ = ("value", "used_at")

    def __init__(self, value: Any, used_at: int) -> None:
        self.value = value
        self.used_at = used_at


class Entries:
    """An LRU map of at most `max_entries` values by key. For one thread only.

    A computation starts with `begin` and ends with `keep` or `give_up`. Its value is kept only if no
    invalidation came in between.

    `values` is the same dict for the life of this object. Code that takes a value from it counts a hit, as
    `get` does.
    """

    __slots__ = (
        "shape", "max_entries", "counters", "values", "_computing", "_below", "_texts_until", "_oldest",
        "_ordered_at", "__weakref__",
    )  # fmt: skip

    def __init__(self, shape: Shape, max_entries: int, counters: Counters | None = None) -> None:
        self.shape = shape
        self.max_entries = max_entries
        self.counters = Counters() if counters is None else counters
        self.values: dict[Key, Entry] = {}
        self._computing: dict[Key, Computation] = {}
        # The keys under each prefix, for trees; the dicts are ordered sets.
        self._below: dict[Key, dict[Key, None]] = {}
        # The number of keys by the position of their first argument that is not a string.
        self._texts_until: Counter[int] = Counter()
        # The keys in the order of use when `Counters.calls` was `_ordered_at`, without those evicted since.
        self._oldest: deque[Key] = deque()
        self._ordered_at = 0

    def __len__(self) -> int:
        return len(self.values)

    def get(self, key: Key) -> Any:
        """Return the value, or MISSING."""
        entry = self.values.get(key)
        if entry is None:
            return MISSING
        self.counters.calls = entry.used_at = self.counters.calls + 1
        return entry.value

    def computing(self, key: Key) -> Computation | None:
        """Return the running computation of this key; None if there is none or it was invalidated."""
        return self._computing.get(key)

    def begin(self, key: Key) -> Computation:
        """Start a computation of this key, which has no value."""
        self.counters.calls += 1
        self.counters.misses += 1
        self._list(key)
        computation = self._computing[key] = Computation(key)
        return computation

    def keep(self, computation: Computation, value: Any) -> None:
        """Store a computed value, unless it was invalidated or restarted meanwhile."""
        key = computation.key
        if self._computing.get(key) is not computation:
            return
        del self._computing[key]
        self.values[key] = Entry(value, self.counters.calls)
        if len(self.values) > self.max_entries:
            self._evict()

    def _evict(self) -> None:
        """Drop the least recently used value.

        Whatever was used or computed after all entries were put in order is younger than the rest of that
        order. So one order serves until nothing is left of it. To order 10,000 entries takes less than 1 ms.
        """
        while True:
            if not self._oldest:
                self._ordered_at = self.counters.calls
                # Entries of the same call are in the order of their computation, as the dict is.
                self._oldest.extend(sorted(self.values, key=lambda key: self.values[key].used_at))
            key = self._oldest.popleft()
            entry = self.values.get(key)
            if entry is not None and entry.used_at <= self._ordered_at:
                break
        del self.values[key]
        # With max_entries of 0, nothing ever was an entry.
        self.counters.evictions += self.max_entries > 0
        self._unlist(key)

    def give_up(self, computation: Computation) -> None:
        """Drop a computation that has no value."""
        if self._computing.get(computation.key) is computation:
            del self._computing[computation.key]
            self._unlist(computation.key)

    def invalidate(self, keys: Iterable[WireKey]) -> bool:
        """Drop the entries that a writer means by `keys`: all for one that is ambiguous or of another shape.

        Returns whether all keys were as long as those of the entries, or None.
        """
        are_full = True
        length, drop_value = self.shape.length, self.values.pop
        has_only_values = not (self.shape.tree or self._computing or self._texts_until)
        for key in keys:
            if key is None:
                self.clear()
            elif has_only_values and len(key) == length:
                drop_value(key, None)
            else:
                are_full &= len(key) == length
                self._invalidate(key)
        return are_full

    def _invalidate(self, key: tuple[str, ...]) -> None:
        # Writers do not agree on the text of an argument that is not a string (None: `null`, `None`, nothing
        # at all?), so any string in its position may mean it. Searching for entries that are surely not meant
        # would take time linear in the entries. Positions after the end of the key do not matter.
        if not self.shape.fits(key) or min(self._texts_until, default=len(key)) < len(key):
            self.clear()
        elif len(key) == self.shape.length:
            self.drop(key)
        else:
            for found in list(self._below.get(key, ())):
                self.drop(found)

    def drop(self, key: Key) -> None:
        """Drop the entry of exactly these arguments, and its computation."""
        had_value = self.values.pop(key, None) is not None
        if self._computing.pop(key, None) is not None or had_value:
            self._unlist(key)

    def clear(self) -> None:
        """Drop all entries and computations."""
        self.values.clear()
        self._oldest.clear()
        self._computing.clear()
        self._below.clear()
        self._texts_until.clear()

    # A key is listed while it has a value or a computation.

    def _list(self, key: Key) -> None:
        if key in self.values or key in self._computing:
            return
        if self.shape.tree:
            for end in range(1, len(key)):
                self._below.setdefault(key[:end], {})[key] = None
        texts = _texts(key)
        if texts < len(key):
            self._texts_until[texts] += 1

    def _unlist(self, key: Key) -> None:
        if key in self.values or key in self._computing:
            return
        if self.shape.tree:
            for end in range(1, len(key)):
                keys = self._below[key[:end]]
                del keys[key]
                if not keys:
                    del self._below[key[:end]]
        texts = _texts(key)
        if texts < len(key):
            self._texts_until[texts] -= 1
            if not self._texts_until[texts]:
                del self._texts_until[texts]


def _texts(key: Key) -> int:
    for index, argument in enumerate(key):
        if not isinstance(argument, str):
            return index
    return len(key)
