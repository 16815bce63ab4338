"""Expansion of rows of ``caches`` to invalidations, as workers apply them, in batches (runs in tasks)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.caches import NEWEST, Vintage
from synrepl.streams import jsontext

__all__ = ["MEANT", "MEANT_DDL", "Meaning", "expand_batches", "meaning", "count_by_minute"]

MEANT: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("minute", pa.int64()),
        pa.field("cache", pa.string()),
        pa.field("key", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("keyed", pa.int64()),
        pa.field("whole", pa.int64()),
        pa.field("misshapen", pa.int64()),
        pa.field("unreadable", pa.int64()),
    ]
)
"""The result schema, with lines of two kinds.

A line with a `minute` counts the rows with this `name` in that minute, and their invalidations: entries
(`keyed`) and `whole` caches. `misshapen` rows have keys that do not fit their alias, and invalidate all
caches of the alias. `unreadable` counts keys that were skipped, and rows (without a name) that cannot be
decoded.

A line with a `cache` counts how often this name invalidated the entry `key` (a JSON array), or the whole
cache (null).
"""

MEANT_DDL: Final = ", ".join(
    f"`{field.name}` {'string' if field.type == pa.string() else 'bigint'}" for field in MEANT
)

REMEMBERED: Final = 50_000
HELD: Final = 200_000
"""Maximum number of buffered entries."""

_told: Final = msgspec.json.Decoder(tuple[str, str])
_keys: Final = msgspec.json.Decoder(list[str] | None)


class Meaning(msgspec.Struct, frozen=True):
    """The invalidations of one row: pairs of a cache and a key (None: the whole cache)."""

    name: str | None
    drops: tuple[tuple[str, str | None], ...] = ()
    whole: int = 0
    misshapen: int = 0
    unreadable: int = 0


def meaning(told: str | None, vintage: Vintage = NEWEST) -> Meaning:
    """Return the invalidations of a row with this key (`synrepl.pipeline.keys`: name and keys as JSON)."""
    try:
        name, text = _told.decode(told or "")
        keys = _keys.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return Meaning(None, unreadable=1)
    unreadable: list[object] = []
    misshapen = 0
    try:
        meant = [(one.cache, one.key) for one in vintage.expand(name, keys, unreadable=unreadable.append)]
    except ValueError:
        # As in `CacheRegistry`: the intended entry is unknown, so all caches of the alias are invalidated.
        misshapen = 1
        meant = [(cache, None) for cache in sorted(vintage.reaches(name))]
    drops = tuple(
        (cache, None if key is None else jsontext.dumps(key).decode("ascii")) for cache, key in meant
    )
    whole = sum(key is None for _, key in drops)
    return Meaning(name, drops, whole, misshapen, len(unreadable))


def count_by_minute(rows: Any) -> Any:
    """Count the keys of a record batch (`key`, `row`, `committed_at`) by minute: `key`, `minute`, `count`."""
    told = rows.filter(pc.is_valid(rows["row"]))
    minutes = pc.divide(told["committed_at"].cast(pa.int64()), 60_000_000)
    counted = pa.table({"key": told["key"], "minute": minutes}).group_by(["key", "minute"], use_threads=False)
    return counted.aggregate([([], "count_all")]).rename_columns(["key", "minute", "count"])


def expand_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Expand batches of `key`, `minute` and `count` to invalidations (`MEANT`)."""
    known: dict[str | None, Meaning] = {}
    drops: Counter[tuple[str | None, str, str | None]] = Counter()
    for batch in batches:
        names: dict[tuple[str | None, int], list[int]] = defaultdict(lambda: [0] * 5)
        columns = (batch[name].to_pylist() for name in ("key", "minute", "count"))
        for told, minute, count in zip(*columns, strict=True):
            found = known.get(told)
            if found is None:
                if len(known) >= REMEMBERED:
                    known.clear()
                found = known[told] = meaning(told)
            sums = names[found.name, minute]
            sums[0] += count
            sums[1] += count * (len(found.drops) - found.whole)
            sums[2] += count * found.whole
            sums[3] += count * found.misshapen
            sums[4] += count * found.unreadable
            for cache, key in found.drops:
                drops[found.name, cache, key] += count
        yield _names(names)
        if len(drops) >= HELD:
            yield _drops(drops)
            drops.clear()
    yield _drops(drops)


def _names(found: dict[tuple[str | None, int], list[int]]) -> Any:
    sums = list(zip(*found.values(), strict=True)) or [()] * 5
    names = [name for name, _ in found]
    nothing = [None] * len(found)
    return _batch([names, [minute for _, minute in found], nothing, nothing, *sums])


def _drops(found: Counter[tuple[str | None, str, str | None]]) -> Any:
    names, caches, keys = list(zip(*found, strict=True)) or [()] * 3
    nothing = [None] * len(found)
    keyed = [count if key is not None else 0 for (_, _, key), count in found.items()]
    whole = [count if key is None else 0 for (_, _, key), count in found.items()]
    return _batch([names, nothing, caches, keys, nothing, keyed, whole, nothing, nothing])


def _batch(columns: list[Any]) -> Any:
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, MEANT, strict=True)]
    return pa.record_batch(arrays, schema=MEANT)
