"""What one cache holds: bounded, and never older than what was invalidated."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

import msgspec

from synrepl.caches.computation import Computation
from synrepl.caches.counters import Counters

__all__ = ["MISSING", "Entries", "Key", "Shape"]

Key = tuple[Hashable, ...]

MISSING: Final = object()


class Shape(msgspec.Struct, frozen=True):
    """How long the keys of a cache are, and whether (`tree`) a shorter one means all that begin with it.

    The empty key is the key of a cache without arguments. To a tree with arguments it is no prefix: who
    sends it takes the cache for another one.
    """

    length: int
    tree: bool = False

    def fits(self, key: Key) -> bool:
        """Whether an invalidation can mean something by this key."""
        return len(key) == self.length or (self.tree and 0 < len(key) < self.length)


class Entries:
    """At most `max_entries` values by key; whoever was not asked for longest goes first.

    What is computed is kept only if nothing invalidated it meanwhile: `begin` before, `keep` or `give_up`
    after. Everything happens in one thread.
    """

    __slots__ = (
        "shape", "max_entries", "counters", "_values", "_computing", "_below", "_texts_until", "__weakref__",
    )  # fmt: skip

    def __init__(self, shape: Shape, max_entries: int, counters: Counters | None = None) -> None:
        self.shape = shape
        self.max_entries = max_entries
        self.counters = Counters() if counters is None else counters
        self._values: OrderedDict[Key, Any] = OrderedDict()
        self._computing: dict[Key, Computation] = {}
        # The keys under each prefix, for trees; dicts are sets with an order.
        self._below: dict[Key, dict[Key, None]] = {}
        # How many keys have their first argument that is no string at each place.
        self._texts_until = [0] * shape.length

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Any:
        """The value, or MISSING."""
        value = self._values.get(key, MISSING)
        if value is not MISSING:
            self._values.move_to_end(key)
            self.counters.hits += 1
        return value

    def computing(self, key: Key) -> Computation | None:
        """The computation of this key which nothing has invalidated yet."""
        return self._computing.get(key)

    def begin(self, key: Key) -> Computation:
        """Somebody starts to compute the value of this key."""
        self.counters.misses += 1
        self._list(key)
        computation = self._computing[key] = Computation(key)
        return computation

    def keep(self, computation: Computation, value: Any) -> None:
        """It has been computed. What was invalidated, or begun anew, in the meantime is not kept."""
        key = computation.key
        if self._computing.get(key) is not computation:
            return
        self._values[key] = value
        self._values.move_to_end(key)
        del self._computing[key]
        while len(self._values) > self.max_entries:
            evicted, _ = self._values.popitem(last=False)
            # With no room at all, nothing ever was an entry.
            self.counters.evictions += self.max_entries > 0
            self._unlist(evicted)

    def give_up(self, computation: Computation) -> None:
        """It will not be computed."""
        if self._computing.get(computation.key) is computation:
            del self._computing[computation.key]
            self._unlist(computation.key)

    def invalidate(self, key: tuple[str, ...] | None) -> None:
        """Drops what somebody elsewhere means by `key`, and all of it if that cannot be told for sure."""
        # An argument that is no string has no text that all writers agree on (None: `null`, `None`, nothing
        # at all?), so strings in its place may mean it. To search for what they surely do not mean would
        # take as long as there are entries. Places behind the end of the key are not spoken of.
        if key is None or not self.shape.fits(key) or any(self._texts_until[: len(key)]):
            self.clear()
        elif len(key) == self.shape.length:
            self.drop(key)
        else:
            for found in list(self._below.get(key, ())):
                self.drop(found)

    def drop(self, key: Key) -> None:
        """Drops the entry of just these arguments, and a computation of it."""
        held = self._values.pop(key, MISSING) is not MISSING
        if self._computing.pop(key, None) is not None or held:
            self._unlist(key)

    def clear(self) -> None:
        """Drops everything, and every computation."""
        self._values.clear()
        self._computing.clear()
        self._below.clear()
        self._texts_until = [0] * self.shape.length

    # A key is listed while it is held or computed.

    def _list(self, key: Key) -> None:
        if key in self._values or key in self._computing:
            return
        if self.shape.tree:
            for end in range(1, len(key)):
                self._below.setdefault(key[:end], {})[key] = None
        texts = _texts(key)
        if texts < len(key):
            self._texts_until[texts] += 1

    def _unlist(self, key: Key) -> None:
        if key in self._values or key in self._computing:
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


def _texts(key: Key) -> int:
    """How many strings the key begins with."""
    for position, argument in enumerate(key):
        if not isinstance(argument, str):
            return position
    return len(key)
