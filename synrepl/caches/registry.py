"""The cache registry: a worker's caches by name, and the invalidations that reach them."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from synrepl.caches.cached import Cache, CachedCoroutine, CachedFunction, CacheInfo, CacheSettings
from synrepl.caches.entries import IWaiter, WireKey
from synrepl.caches.vintage import Drop, Invalidation, Unreadable, Vintage, invalidations, of_connections
from synrepl.errors import ConfigError
from synrepl.wire.dialect import SYNAPSE, Dialect


class NameCounts(dict[str, int]):
    """Counts of names on the wire. As peers choose them, names beyond the first `most` share one count."""

    REST = "(other names)"

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self._most = most

    def add(self, name: str) -> None:
        """Count a name."""
        if name not in self and len(self) >= self._most:
            name = self.REST
        self[name] = self.get(name, 0) + 1

    def __repr__(self) -> str:
        return f"NameCounts({dict(self)!r})"


class CacheRegistry:
    """A worker's caches by name. For one thread only.

    `vintage` defines the meaning of names on the wire; None is that of the connections, of which `connected`
    tells, and until then that of any release. `waiter` creates an awaitable for callers that wait
    for a shared computation (Twisted: ``Deferred``). An exception of type `abandoned` means that the
    computing caller went away, not that the computation failed.

    * `on_invalidation`: subscribers, called with every invalidation after it was applied: twice for that of a
      fact with subscribers, which is applied before and after them
    * `seen`: counts of the names on the ``caches`` stream
    * `unknown`: counts of those names that are neither a cache nor an alias of this worker
    * `misshapen`: counts, by alias, of rows with unsupported keys
    * `unreadable`: counts, by alias, of keys that were skipped as unreadable
    """

    def __init__(
        self,
        *,
        waiter: Callable[[], IWaiter],
        vintage: Vintage | None = None,
        abandoned: tuple[type[BaseException], ...] = (GeneratorExit,),
    ) -> None:
        self.is_vintage_given = vintage is not None
        self.vintage = Vintage.of() if vintage is None else vintage
        self.on_invalidation: list[Callable[[Invalidation], object]] = []
        self.seen = NameCounts()
        self.unknown = NameCounts()
        self.misshapen = NameCounts()
        self.unreadable = NameCounts()
        self._waiter = waiter
        self._abandoned = abandoned
        self._caches: dict[str, Cache] = {}
        self._dialects: set[Dialect | None] = set()

    def connected(self, dialect: Dialect | None) -> dict[str, list[str]]:
        """Learn the release that a connection speaks; None: it does not say, so that it may be any.

        Without a vintage of its own the registry drops what any of its connections does. With one, this
        returns the caches that it drops less often than this connection would, each with the aliases and
        streams that drop less.
        """
        if dialect is not None and dialect.release not in SYNAPSE:
            dialect = None
        if self.is_vintage_given:
            own = Vintage.of() if dialect is None else Vintage.of(dialect)
            return own.spared_by(self.vintage, self._caches)
        self._dialects.add(dialect)
        self.vintage = of_connections(self._dialects)
        return {}

    def cached(
        self,
        *,
        name: str | None = None,
        max_entries: int = 10_000,
        tree: bool = False,
        streams: Collection[str] = ("caches",),
    ) -> CacheSettings:
        """Decorate a function, coroutine function or method, so that it keeps its values, by arguments.

        A method is what is defined in a class. It has entries for each instance.

        Many callers share a returned value, so they must not change it.

        * `name`: the name in invalidations; by default that of the function
        * `max_entries`: the number of entries to keep, of each instance for a method
        * `tree`: a shorter key is a prefix, and drops all entries under it
        * `streams`: the streams that announce changes. After a loss on one of them all entries are dropped.
          ``()`` if the value never changes.

        Raises `ConfigError` for the name of another cache, or of an alias that does not reach a cache of this
        name; a negative `max_entries`; a text as `streams`; and a function that cannot be cached.
        """
        if isinstance(streams, str):
            raise ConfigError(f"`streams` of a cache must be a collection of names, not the text {streams!r}")

        def decorate(function: Callable[..., Any]) -> Any:
            if not inspect.isroutine(function) or isinstance(function, (staticmethod, classmethod)):
                raise ConfigError(f"{function!r} cannot be cached; put @cached right above `def`")
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
            return decorated if _is_defined_in_class(function) else decorated.as_function()

        return cast(CacheSettings, decorate)

    def _add(self, cache: Cache) -> None:
        if cache.name in self._caches:
            raise ConfigError(f"there are two caches named {cache.name}")
        if self.vintage.is_alias(cache.name) and cache.name not in self.vintage.reaches(cache.name):
            raise ConfigError(
                f"{cache.name} is an alias in the caches stream, so a cache of this name would never be"
                " invalidated; rename it"
            )
        self._caches[cache.name] = cache

    @property
    def streams(self) -> frozenset[str]:
        """The streams to follow: ``caches``, and those that can invalidate one of the caches (`routes`).

        With subscribers in `on_invalidation` all that imply an invalidation.
        """
        reached = frozenset().union(*map(self.routes, self._caches))
        everything = self.vintage.implications if self.on_invalidation else ()
        return reached | {"caches"} | frozenset(everything)

    def apply(self, stream: str, rows: Sequence[Any]) -> Sequence[Drop]:
        """Drop the entries that the typed rows of one fact invalidate.

        Returns what it dropped, for `repeat`. If the vintage's code raises, every cache that the stream can
        reach is emptied; the error passes on.
        """
        drops: list[Drop] = []
        try:
            for row in rows:
                if stream == "caches":
                    self._expand_row(row, drops)
                else:
                    drops += self.vintage.implied_drops(stream, row)
            if len(rows) > 1:
                drops = _by_cache(drops)
            self._drop(drops)
        except Exception:
            self.invalidate_stream(stream)
            raise
        self._notify(drops)
        return drops

    def repeat(self, drops: Sequence[Drop]) -> None:
        """Drop once more what `apply` returned, as subscribers may have filled caches since.

        The counters do not count it again.
        """
        self._drop(drops, is_counted=False)
        self._notify(drops)

    def invalidate_stream(self, stream: str) -> None:
        """Drop all entries of every cache that the stream can reach, as facts of the stream may be lost."""
        drops: list[Drop] = [(name, None) for name in self._caches if stream in self.routes(name)]
        self._drop(drops)
        self._notify(drops)

    def invalidate(self, cache: str, key: tuple[str, ...] | None) -> None:
        """Drop an entry of a cache of this worker; all entries if `key` is None.

        Raises `ConfigError` if there is no such cache.
        """
        if cache not in self._caches:
            raise ConfigError(f"there is no cache named {cache}")
        self._drop([(cache, key)])
        self._notify([(cache, key)])

    def _expand_row(self, row: Any, drops: list[Drop]) -> None:
        name = row.cache_func
        self.seen.add(name)
        if name not in self._caches and not self.vintage.is_alias(name):
            self.unknown.add(name)
        try:
            for drop in self.vintage.drops(name, row.keys):
                if isinstance(drop, Unreadable):
                    self.unreadable.add(name)
                else:
                    drops.append(drop)
        except ValueError:
            self.misshapen.add(name)
            # It invalidates something, but it is unknown what.
            drops += [(cache, None) for cache in sorted(self.vintage.reaches(name))]

    def _drop(self, drops: Sequence[Drop], *, is_counted: bool = True) -> None:
        for name, keys in drops:
            if (cache := self._caches.get(name)) is not None:
                cache.invalidate(keys if isinstance(keys, list) else (keys,), is_counted=is_counted)

    def _notify(self, drops: Sequence[Drop]) -> None:
        if self.on_invalidation:
            for drop in drops:
                for invalidation in invalidations(drop):
                    for subscriber in self.on_invalidation:
                        subscriber(invalidation)

    def routes(self, cache: str) -> frozenset[str]:
        """The streams of `cached` and of the vintage that can invalidate a cache. Raises KeyError."""
        found = set(self._caches[cache].streams)
        for stream in ("caches", *self.vintage.implications):
            reached = self.vintage.reached_by(stream)
            if reached is None or cache in reached:
                found.add(stream)
        return frozenset(found)

    @property
    def caches(self) -> Mapping[str, CacheInfo]:
        """The current counters and number of entries of every cache, by name."""
        return MappingProxyType({name: cache.info() for name, cache in self._caches.items()})

    def cache(self, name: str) -> Cache:
        """Return the cache of this name. Raises KeyError."""
        return self._caches[name]


def _by_cache(drops: Iterable[Drop]) -> list[Drop]:
    """Collect the keys of each cache, which drops many faster together. Those of one row are too few."""
    collected: defaultdict[str, list[WireKey]] = defaultdict(list)
    for cache, keys in drops:
        if isinstance(keys, list):
            collected[cache] += keys
        else:
            collected[cache].append(keys)
    return list(collected.items())


def _is_defined_in_class(function: Callable[..., Any]) -> bool:
    scope = function.__qualname__.rpartition(".")[0]
    return bool(scope) and not scope.endswith("<locals>")
