"""The caches of a worker by name, and what drops their entries."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from synrepl.caches.cache import Cache
from synrepl.caches.cached import CachedCoroutine, CachedFunction, CacheSettings
from synrepl.caches.computation import IWaiter
from synrepl.caches.counters import CacheInfo, NameCounts
from synrepl.caches.invalidation import Invalidation
from synrepl.caches.vintage import Vintage
from synrepl.caches.vintages.release_1_163 import NEWEST
from synrepl.errors import ConfigError

__all__ = ["CacheRegistry"]


class CacheRegistry:
    """A worker's caches by name, and what invalidates them.

    `vintage` says what names on the wire mean. `waiter` makes what callers wait on while another computes
    the same (Twisted: ``Deferred``); exceptions of type `abandoned` mean that a caller went away, not that it
    failed. Everything happens in one thread.

    * `on_invalidation`: each is called with every invalidation, after it was applied
    * `seen`: how often names were heard on ``caches``
    * `unknown`: those of them that are neither cache nor alias here
    * `misshapen`: how often an alias came with keys that it does not take
    * `unreadable`: how often an alias left out a key that it could not read
    """

    def __init__(
        self,
        *,
        waiter: Callable[[], IWaiter],
        vintage: Vintage = NEWEST,
        abandoned: tuple[type[BaseException], ...] = (GeneratorExit,),
    ) -> None:
        self.vintage = vintage
        self.on_invalidation: list[Callable[[Invalidation], object]] = []
        self.seen = NameCounts()
        self.unknown = NameCounts()
        self.misshapen = NameCounts()
        self.unreadable = NameCounts()
        self._waiter = waiter
        self._abandoned = abandoned
        self._caches: dict[str, Cache] = {}

    # -- making caches ---------------------------------------------------------------------------------

    def cached(
        self,
        *,
        name: str | None = None,
        max_entries: int = 10_000,
        tree: bool = False,
        streams: Collection[str] = ("caches",),
    ) -> CacheSettings:
        """Decorates a function, coroutine function or method, so that it is computed once for each key.

        What it returns is given to many callers, so nobody may change it. With `tree`, a shorter key means
        all that begin with it. `streams` are those on which it is told that something changed: after a loss
        on one of them everything is dropped; none (``()``) if nothing ever changes.
        """
        if isinstance(streams, str):
            raise ConfigError(f"streams of a cache are a collection of names, not the text {streams!r}")

        def decorate(function: Callable[..., Any]) -> Any:
            if not inspect.isroutine(function) or isinstance(function, (staticmethod, classmethod)):
                raise ConfigError(f"{function!r} cannot be cached; @cached goes right above `def`")
            cache = Cache(
                name=function.__name__ if name is None else name,
                max_entries=max_entries,
                tree=tree,
                streams=frozenset(streams),
            )
            is_async = inspect.iscoroutinefunction(function)
            made: type[CachedCoroutine[..., Any] | CachedFunction[..., Any]]
            made = CachedCoroutine if is_async else CachedFunction
            decorated = made(function, cache, self._waiter, self._abandoned)
            self._add(cache)
            return decorated

        return cast(CacheSettings, decorate)

    def _add(self, cache: Cache) -> None:
        if cache.name in self._caches:
            raise ConfigError(f"there are two caches named {cache.name}")
        if self.vintage.is_alias(cache.name) and cache.name not in self.vintage.reaches(cache.name):
            raise ConfigError(f"a cache named {cache.name} would never hear of changes: that is an alias")
        self._caches[cache.name] = cache

    # -- dropping entries ------------------------------------------------------------------------------

    @property
    def streams(self) -> frozenset[str]:
        """Every stream that can invalidate something here."""
        declared = frozenset().union(*(cache.streams for cache in self._caches.values()))
        return declared | {"caches"} | frozenset(self.vintage.implications)

    def apply(self, stream: str, rows: Sequence[Any], *, token: int = 0) -> None:
        """Drops what the typed rows of one fact invalidate. `token` is the fact's; nothing depends on it.

        If the vintage's own code fails, everything that this stream can reach is dropped before its
        exception is raised.
        """
        applied: list[Invalidation] | None = [] if self.on_invalidation else None
        expand = self._told if stream == "caches" else self._implied
        try:
            for row in rows:
                for invalidation in expand(stream, row):
                    self._drop(invalidation, applied)
        except Exception:
            self.skipped(stream)
            raise
        self._tell(applied)

    def skipped(self, stream: str) -> None:
        """Facts of this stream may have been missed for good: clears every cache that they could reach."""
        applied: list[Invalidation] | None = [] if self.on_invalidation else None
        for name in self._caches:
            if stream in self.routes(name):
                self._drop(Invalidation(name, None), applied)
        self._tell(applied)

    def invalidate(self, cache: str, key: tuple[str, ...] | None) -> None:
        """Drops what `key` means from a cache of this worker; None is all of it."""
        if cache not in self._caches:
            raise ConfigError(f"there is no cache named {cache} here")
        applied: list[Invalidation] = []
        self._drop(Invalidation(cache, key), applied)
        self._tell(applied)

    def _told(self, stream: str, row: Any) -> Iterator[Invalidation]:
        """What a row of ``caches`` means."""
        name = row.cache_func
        self.seen.add(name)
        if name not in self._caches and not self.vintage.is_alias(name):
            self.unknown.add(name)
        try:
            yield from self.vintage.expand(name, row.keys, unreadable=lambda key: self.unreadable.add(name))
        except ValueError:
            self.misshapen.add(name)
            # It meant something, and there is no telling what.
            for cache in sorted(self.vintage.reaches(name)):
                yield Invalidation(cache, None)

    def _implied(self, stream: str, row: Any) -> Iterator[Invalidation]:
        return self.vintage.implied_by(stream, row)

    def _drop(self, invalidation: Invalidation, applied: list[Invalidation] | None) -> None:
        cache = self._caches.get(invalidation.cache)
        if cache is not None:
            cache.invalidate(invalidation.key)
        if applied is not None:
            applied.append(invalidation)

    def _tell(self, applied: list[Invalidation] | None) -> None:
        for invalidation in applied or ():
            for hear in self.on_invalidation:
                hear(invalidation)

    # -- looking at them -------------------------------------------------------------------------------

    def routes(self, cache: str) -> frozenset[str]:
        """The streams that can invalidate something of a cache: those it names, and those of the vintage."""
        found = set(self._caches[cache].streams)
        for stream in ("caches", *self.vintage.implications):
            reached = self.vintage.reached_by(stream)
            if reached is None or cache in reached:
                found.add(stream)
        return frozenset(found)

    @property
    def caches(self) -> Mapping[str, CacheInfo]:
        """The numbers of every cache now."""
        return MappingProxyType({name: cache.info() for name, cache in self._caches.items()})

    def cache(self, name: str) -> Cache:
        """The cache of this name, as it was declared."""
        return self._caches[name]
