"""Invalidations of caches."""

from collections.abc import Hashable

from synrepl.streams import jsontext
from synrepl.streams.stream import Stream, row

__all__ = ["CACHES", "CacheInvalidation"]


@row
class CacheInvalidation:
    """A request to drop an entry of a cache, or all of them if `keys` is null.

    The empty list is an ordinary key: that of a cache without arguments.
    """

    cache_func: str
    keys: list[str] | None
    invalidation_ts: int | None


def _key(row: CacheInvalidation) -> tuple[Hashable, ...]:
    return (row.cache_func, jsontext.dumps(row.keys).decode("ascii"))


# Real masters send rows ahead of their position, and then again (docs/reference/peers.md#tokens).
CACHES = Stream("caches", CacheInvalidation, key=_key, ordered=False)
