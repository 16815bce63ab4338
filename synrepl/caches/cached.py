"""Named caches, and cached functions and methods, which are called like the originals."""

import functools
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from synrepl.caches.calls import Arguments, AsyncCalls, Calls, Plan
from synrepl.caches.entries import Counters, Entries, IWaiter, Shape, WireKey
from synrepl.errors import ConfigError

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
T = TypeVar("T")

CoroutineFunction = Callable[P, Coroutine[Any, Any, T]]


@dataclass(slots=True, kw_only=True)
class CacheInfo(Counters):
    """A snapshot of one cache: its `Counters` and its number of `entries`."""

    entries: int


class Cache:
    """A named cache: one set of entries, or one for each instance of a class, held weakly.

    `streams` are the streams that announce its changes, as given to `CacheRegistry.cached`.
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

    def invalidate(self, keys: Sequence[WireKey], *, is_counted: bool = True) -> None:
        """Drop what these keys mean (`Entries.invalidate`) from every set of entries, and count them."""
        are_full = True
        for reference in [*self._sets.values()]:
            if (entries := reference()) is not None:
                are_full &= entries.invalidate(keys)
        if is_counted:
            self.counters.invalidations += len(keys)
            if not (are_full and self._sets):
                self.counters.misshapen += sum(key is not None and not self.shape.fits(key) for key in keys)

    def info(self) -> CacheInfo:
        """The current counters, and the number of entries."""
        live = [reference() for reference in self._sets.values()]
        entries = sum(len(entries) for entries in live if entries is not None)
        return CacheInfo(**asdict(self.counters), entries=entries)


class CacheSettings(Protocol):
    """A decorator that puts a cache behind a function."""

    # The overloads overlap for a plain function that returns a coroutine, which is an error at run time.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: CoroutineFunction[P, T], /
    ) -> "CachedCoroutine[P, T]": ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> "CachedFunction[P, T]": ...


class Cached:
    """Base of cached functions: their named cache and its keys. A method has entries for each instance."""

    __wrapped__: Callable[..., Any]
    _plan: Plan

    def __init__(
        self,
        function: Callable[..., Any],
        cache: Cache,
        waiter: Callable[[], IWaiter],
        abandoned: tuple[type[BaseException], ...],
    ) -> None:
        self._cache = cache
        self._is_method = False
        self._instances: dict[int, tuple[weakref.ref[Any], Entries]] = {}
        functools.update_wrapper(cast(Any, self), function)
        self._plan = Plan(
            name=cache.name,
            function=function,
            arguments=Arguments(function),
            waiter=waiter,
            abandoned=abandoned,
        )
        cache.set_arguments(self._plan.arguments)
        # The next class in the method resolution order is `Calls` or `AsyncCalls`.
        super().__init__(self._plan, cache.new_entries())  # type: ignore[call-arg]

    def invalidate_all(self) -> None:
        """Drop all entries in this process; for a method, those of all instances."""
        self._cache.invalidate([None])

    def __set_name__(self, owner: type, name: str) -> None:
        self._become_method()

    def _become_method(self) -> None:
        self._is_method = True
        arguments = Arguments(self._plan.function, is_method=True)
        self._plan = msgspec.structs.replace(self._plan, arguments=arguments)
        self._cache.set_arguments(self._plan.arguments)

    def _entries_of(self, instance: object) -> Entries:
        # By identity: instances need not be hashable, and equal ones have separate entries. A new instance
        # may get the id of a dead one before the weak reference's callback runs.
        found = self._instances.get(id(instance))
        if found is not None and found[0]() is instance:
            return found[1]
        if not self._is_method:
            self._become_method()
        return self._add_instance(instance)

    def _add_instance(self, instance: object) -> Entries:
        number = id(instance)
        instances = self._instances

        def forget(reference: weakref.ref[Any]) -> None:
            if number in instances and instances[number][0] is reference:
                del instances[number]

        try:
            reference = weakref.ref(instance, forget)
        except TypeError:
            raise ConfigError(
                f"cannot cache {self._plan.name} for each {type(instance).__name__}: the class needs"
                " __weakref__ among its __slots__"
            ) from None
        entries = self._cache.new_entries()
        instances[number] = (reference, entries)
        return entries


class CachedFunction(Cached, Calls[P, T]):
    """A plain function, or method, with a cache behind it."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> "CachedFunction[P, T]": ...
    @overload
    def __get__(
        self: "CachedFunction[Concatenate[S, Q], T]", instance: S, owner: type | None = None, /
    ) -> Calls[Q, T]: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any:
        if instance is None:
            return OfAnyInstance(self)
        entries = self._entries_of(instance)
        return Calls(self._plan, entries, (instance,))


class CachedCoroutine(Cached, AsyncCalls[P, T]):
    """A coroutine function, or method, with a cache behind it."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> "CachedCoroutine[P, T]": ...
    @overload
    def __get__(
        self: "CachedCoroutine[Concatenate[S, Q], T]", instance: S, owner: type | None = None, /
    ) -> AsyncCalls[Q, T]: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any:
        if instance is None:
            return OfAnyInstance(self)
        entries = self._entries_of(instance)
        return AsyncCalls(self._plan, entries, (instance,))


class OfAnyInstance:
    """A cached method accessed on its class; the first argument is the instance."""

    __wrapped__: Callable[..., Any]

    def __init__(self, cached: CachedFunction[..., Any] | CachedCoroutine[..., Any]) -> None:
        functools.update_wrapper(self, cached.__wrapped__)
        self.name = cached.name
        self.invalidate_all = cached.invalidate_all
        self._cached = cached

    def __call__(self, instance: object, /, *args: Any, **kwargs: Any) -> Any:
        return self._cached.__get__(instance)(*args, **kwargs)

    def invalidate(self, instance: object, /, *args: Any, **kwargs: Any) -> None:
        """Drop the entry of this call of this instance, in this process."""
        self._cached.__get__(instance).invalidate(*args, **kwargs)
