"""Cache invalidations: as announced, and as expanded by workers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.caches.vintage import Vintage
from synrepl.pipeline.archive.row_files import map_files, read_listed
from synrepl.pipeline.driver import Driver
from synrepl.pipeline.report.counts import Bins, Row, count_in_tasks, grouped, query
from synrepl.pipeline.source.rows import row_schema
from synrepl.pipeline.store import Store
from synrepl.wire import dialect, jsontext

CACHES: Final = "caches"

_NEWEST: Final = Vintage.of(dialect.NEWEST)

READ: Final = row_schema(("key", "row", "committed_at"))

UNREADABLE: Final = "(rows that cannot be read)"

REMEMBERED: Final = 10_000
"""Maximum number of remembered meanings, of about 1 kB each."""

EXPANDED_ROWS: Final = 10_000
"""Rows whose meanings a task has in memory."""

_NAME: Final = msgspec.json.Decoder(tuple[str, str])
_KEYS: Final = msgspec.json.Decoder(list[str] | None)


class Meaning(msgspec.Struct, frozen=True):
    """The invalidations of one row: pairs of a cache and a key as JSON array (None: the whole cache).

    `name` is None if the row cannot be decoded. A `misshapen` row has keys that do not fit its alias, and
    invalidates all caches of the alias. `unreadable` counts keys that are skipped; it is 1 without a `name`.
    """

    name: str | None
    drops: tuple[tuple[str, str | None], ...] = ()
    whole: int = 0
    misshapen: int = 0
    unreadable: int = 0

    @property
    def keyed(self) -> int:
        """The number of invalidated entries."""
        return len(self.drops) - self.whole


@lru_cache(REMEMBERED)
def meaning(key: str | None) -> Meaning:
    """Return the invalidations of a row with this key (`synrepl.pipeline.keys`: name and keys as JSON)."""
    try:
        name, text = _NAME.decode(key or "")
        keys = _KEYS.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return Meaning(None, unreadable=1)
    unreadable: list[object] = []
    misshapen = 0
    try:
        meant = [(one.cache, one.key) for one in _NEWEST.expand(name, keys, unreadable=unreadable.append)]
    except ValueError:
        # As in `CacheRegistry`: the intended entry is unknown, so all caches of the alias are invalidated.
        misshapen = 1
        meant = [(cache, None) for cache in sorted(_NEWEST.reaches(name))]
    drops = tuple(
        (cache, None if key is None else jsontext.dumps(key).decode("ascii")) for cache, key in meant
    )
    whole = sum(key is None for _, key in drops)
    return Meaning(name, drops, whole, misshapen, len(unreadable))


SUMS: Final = ("keyed", "whole", "misshapen", "unreadable")

MEANT: Final = pa.schema(
    {
        "minute": pa.int64(),
        "rows": pa.int64(),
        "name": pa.string(),
        **dict.fromkeys(SUMS, pa.int64()),
        "drops": pa.list_(pa.struct({"cache": pa.string(), "key": pa.string()})),
    }
)
"""Counts of rows by minute (since 1970) and meaning, several with the same ones.

`keyed`, `whole`, `misshapen` and `unreadable` are sums over the `rows`; `drops` are those of one row.
"""


def expand_files(store: Store, batches: Iterable[Any]) -> Iterator[Any]:
    """Expand the rows of ``caches`` in files, which are audited, to invalidations (`MEANT`)."""
    for rows in read_listed(store, batches, READ, is_examined=True):
        its = rows.filter(pc.is_valid(rows["row"]))
        minutes = its["committed_at"].cast(pa.int64()).to_numpy() // 60_000_000
        announced = pa.table({"key": its["key"], "minute": minutes})
        yield from expand_batches(announced.to_batches(max_chunksize=EXPANDED_ROWS))


def expand_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Expand batches of `key` and `minute` to invalidations (`MEANT`)."""
    for batch in batches:
        counts = Counter(zip(batch["minute"].to_pylist(), batch["key"].to_pylist(), strict=True))
        meant = [(minute, rows, meaning(key)) for (minute, key), rows in counts.items()]
        sums = [[rows * getattr(one, name) for _, rows, one in meant] for name in SUMS]
        columns = [[getattr(one, name) for *_, one in meant] for name in ("name", "drops")]
        minutes = [minute for minute, *_ in meant]
        yield pa.record_batch([minutes, list(counts.values()), columns[0], *sums, columns[1]], schema=MEANT)


class Invalidations(msgspec.Struct, frozen=True, kw_only=True):
    """How often caches were invalidated, as rows of the report's tables.

    `names` counts by the announced name, `caches` by the cache that it stands for. `keys` has the most
    frequent keys of one cache, `subjects` those of all caches together, `minutes` the counts of each bin. In
    each row `keyed` counts invalidations of one entry, `whole` those of a whole cache, and `meant` both.
    """

    names: list[Row]
    caches: list[Row]
    keys: list[Row]
    subjects: list[Row]
    minutes: list[Row]

    def total(self, column: str) -> int:
        """Return the sum over all names of `rows`, `meant`, `keyed`, `whole`, `misshapen` or `unreadable`."""
        return sum(row[column] for row in self.names)


KEYS: Final = {"names": ("name",), "caches": ("cache", "name"), "minutes": ("minute",)}
"""The counts of invalidations that are small, and their keys."""

ENTRIES: Final = pa.schema([("cache", pa.string()), ("key", pa.string()), ("rows", pa.int64())])
"""Numbers of invalidations by entry, several with the same one."""

KEYS_OF_CACHES: Final = """
SELECT cache, count(*) AS keys FROM (SELECT cache, key FROM {rows} GROUP BY cache, key) AS entries
GROUP BY cache
"""

HOTTEST_KEYS: Final = """
SELECT cache, key, CAST(sum(rows) AS bigint) AS invalidations FROM {rows} GROUP BY cache, key
ORDER BY invalidations DESC, cache, key
"""

HOTTEST_SUBJECTS: Final = """
SELECT key, CAST(sum(keyed) AS bigint) AS invalidations, count(*) AS caches,
    max_by(cache, struct(keyed, cache)) AS mostly
FROM (SELECT cache, key, sum(rows) AS keyed FROM {rows} GROUP BY cache, key) AS entries
GROUP BY key
ORDER BY invalidations DESC, key
"""


def invalidations(driver: Driver, archive: Store, files: Any, bins: Bins, top: int) -> Invalidations:
    """Count the invalidations by the rows of ``caches`` in these files; `bins` are of whole minutes.

    Returns the counts by name, cache, entry, subject and minute; of entries and subjects the `top` most
    invalidated. Executors of Spark need synrepl to expand names.
    """
    with map_files(driver, files, partial(expand_files, archive), MEANT).kept() as meant:
        tables = count_in_tasks(meant, _count, _merge)
        with meant.map(_list_entries, ENTRIES).kept() as entries:
            keys = {row["cache"]: row["keys"] for row in query(driver, KEYS_OF_CACHES, entries)}
            return Invalidations(
                names=_names(tables["names"]) if tables else [],
                caches=_caches(tables["caches"], keys) if tables else [],
                keys=query(driver, f"{HOTTEST_KEYS} LIMIT {top}", entries),
                subjects=query(driver, f"{HOTTEST_SUBJECTS} LIMIT {top}", entries),
                minutes=_minutes(tables["minutes"], bins) if tables else [],
            )


def _merge(name: str, counts: Any) -> Any:
    return grouped(counts, KEYS[name])


def _count(meant: Any) -> dict[str, Any]:
    """Count some rows of `MEANT`: a table for each of `KEYS`."""
    drops = _flatten(meant)
    whole = pc.if_else(pc.is_null(drops["key"]), drops["rows"], 0)
    return {
        "names": meant.select(["name", "rows", *SUMS]),
        "caches": drops.select(["cache", "name", "rows"]).append_column("whole", whole),
        "minutes": meant.select(["minute", "rows", "keyed", "whole"]),
    }


def _list_entries(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the invalidated entries of `MEANT` (`ENTRIES`)."""
    for batch in batches:
        drops = _flatten(pa.Table.from_batches([batch]))
        keyed = drops.filter(pc.is_valid(drops["key"])).select(ENTRIES.names)
        yield from grouped(keyed, ("cache", "key")).cast(ENTRIES).combine_chunks().to_batches()


def _flatten(meant: Any) -> Any:
    """Return a line per drop of `MEANT`, with the `rows` and the `name` that caused it."""
    parents = pc.list_parent_indices(meant["drops"])
    drops = pc.list_flatten(meant["drops"])
    columns = {name: pc.struct_field(drops, name) for name in ("cache", "key")}
    return pa.table(columns | {name: meant[name].take(parents) for name in ("rows", "name")})


def _names(counts: Any) -> list[Row]:
    rows = counts.to_pylist()
    for row in rows:
        row["name"] = UNREADABLE if row["name"] is None else row["name"]
        row["meant"] = row["keyed"] + row["whole"]
        row["meant_per_row"] = row["meant"] / row["rows"]
    return sorted(rows, key=lambda row: (-row["rows"], row["name"]))


def _caches(counts: Any, keys: dict[str, int]) -> list[Row]:
    """Return the counts of caches, from those by cache and name."""
    names = defaultdict(list)
    for cache, name in zip(counts["cache"].to_pylist(), counts["name"].to_pylist(), strict=True):
        names[cache].append(name)
    rows = [
        {
            "cache": row["cache"],
            "invalidations": row["rows"],
            "whole": row["whole"],
            "keys": keys.get(row["cache"], 0),
            "told_as": ", ".join(sorted(names[row["cache"]])),
        }
        for row in grouped(counts.drop_columns("name"), ["cache"]).to_pylist()
    ]
    return sorted(rows, key=lambda row: (-row["invalidations"], row["cache"]))


def _minutes(counts: Any, bins: Bins) -> list[Row]:
    """Return the counts of bins, from those by minute."""
    numbers = (counts["minute"].to_numpy() * 60 - bins.first) // bins.width
    columns = {name: counts[name] for name in ("rows", "keyed", "whole")}
    meant = pc.add(counts["keyed"], counts["whole"])
    found: list[Row] = (
        grouped(pa.table({"bin": numbers, **columns, "busiest_minute": meant}), ["bin"])
        .sort_by("bin")
        .to_pylist()
    )
    return found
