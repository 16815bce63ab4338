"""Which cache entries no longer hold."""

from collections.abc import Hashable

from synrepl.streams import jsontext
from synrepl.streams.stream import Stream, row

__all__ = ["CACHES", "CacheInvalidation"]


@row
class CacheInvalidation:
    """An entry of a cache is to be dropped; with `keys` null, all of them are.

    An empty list is a key like others: that of a cache without arguments.
    """

    cache_func: str
    keys: list[str] | None
    invalidation_ts: int | None


def _key(row: CacheInvalidation) -> tuple[Hashable, ...]:
    return (row.cache_func, jsontext.dumps(row.keys).decode("ascii"))


# Real masters send rows ahead of their position, and then again.
CACHES = Stream("caches", CacheInvalidation, key=_key, ordered=False)
