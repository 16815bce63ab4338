"""Rows of real masters, applied by a worker with entries in every cache."""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from synrepl.caches.registry import CacheRegistry
from synrepl.caches.vintage import PACKED, Vintage
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import NEWEST as NEWEST_DIALECT
from tests.caches import tables
from tests.caches.fakes import LEGACY, NEWEST, new_registry
from tests.streams.captures import Recorded, redis_rows, tcp_rows

Entry = tuple[str, tuple[str, ...]]

TABLE = StreamTable.default()
# The row that has the shape of no release is refused before it gets this far.
ROWS = [row for row in tcp_rows() + redis_rows() if row.stream in ("caches", "events", "backfill")]
ROWS = [row for row in ROWS if not re.fullmatch(rb'\["ev", ?\["\$e"\]\]', row.text)]


class Worker:
    """A worker with every cache of the tables, which fills them for the subject of a row."""

    def __init__(self, vintage: Vintage) -> None:
        self.registry: CacheRegistry = new_registry(vintage)
        self.computed: list[Entry] = []
        self._caches = {name: self._cache(name, keys.split()) for name, keys in tables.KEYS.items()}

    def _cache(self, name: str, keys: list[str]) -> Callable[..., None]:
        computed = self.computed

        def none() -> None:
            computed.append((name, ()))

        def one(a: str) -> None:
            computed.append((name, (a,)))

        def two(a: str, b: str) -> None:
            computed.append((name, (a, b)))

        made: dict[int, Callable[..., None]] = {0: none, 1: one, 2: two}
        return self.registry.cached(name=name, tree=name in tables.TREES)(made[len(keys)])

    def ask(self, entries: list[Entry]) -> set[Entry]:
        """Looks up all of these; returns those that had to be computed."""
        self.computed.clear()
        for name, key in entries:
            self._caches[name](*key)
        return set(self.computed)


def strings(value: Any) -> list[str]:
    """Every string in a value, including those in strings of JSON."""
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    if not isinstance(value, str):
        return []
    return strings(json.loads(value)) if value.startswith("[") else [value]


def entries_about(row: list[Any]) -> list[Entry]:
    """Entries of every cache, for all names in a row, and for others."""
    texts = strings(row)
    users = {text for text in texts if text.startswith("@")}
    words = {text for text in texts if text[:1] not in "!@$"}
    known = {
        "room": {text for text in texts if text.startswith("!")} | {"!other:hs", "!another:hs"},
        "user": users | {"@other:hs", "@another:elsewhere"},
        "server": {user.partition(":")[2] for user in users} | words | {"hs", "elsewhere"},
        "event": {text for text in texts if text.startswith("$")} | {"$other", "$another"},
        "word": words | {"other"},
    }
    return [
        (name, key)
        for name, kinds in tables.KEYS.items()
        for key in itertools.product(*(sorted(known[kind]) for kind in kinds.split()))
    ]


def gone(entries: list[Entry], drops: tables.Drops) -> set[Entry]:
    """The entries that these drops mean."""
    found = set()
    for cache, key in drops:
        for name, held in entries:
            if name == cache:
                is_whole = key is None or (len(key) != len(held) and cache not in tables.TREES)
                if is_whole or (key is not None and held[: len(key)] == key):
                    found.add((name, held))
    return found


def expected_drops(vintage: Vintage, recorded: Recorded) -> tables.Drops:
    """The drops of a recorded row, by the tables."""
    row = json.loads(recorded.text)
    if recorded.stream == "caches":
        return (tables.newest if vintage is NEWEST else tables.legacy)(row[0], row[1])
    if recorded.stream == "events" and len(row) > 2:
        row = ["ev", row]
    return (tables.implied if vintage is NEWEST else tables.legacy_implied)(recorded.stream, row)


@pytest.mark.parametrize("vintage", [LEGACY, NEWEST], ids=repr)
def test_recorded_rows_drop_exactly_the_entries_of_the_tables(vintage: Vintage) -> None:
    """One entry too few leaves stale data; one too many costs a query each time."""
    worker = Worker(vintage)
    dropped = set()

    for recorded in ROWS:
        row = TABLE[recorded.stream].decode(recorded.text, recorded.dialect)
        entries = entries_about(json.loads(recorded.text))
        worker.ask(entries)
        worker.registry.apply(recorded.stream, [row])
        expected = gone(entries, expected_drops(vintage, recorded))

        assert expected == worker.ask(entries), recorded
        assert len(expected) < len(entries)
        dropped |= {name for name, _ in expected}

    # All but those of 1.0, and one that stands for what nobody invalidates.
    if vintage is NEWEST:
        assert {"was_host_joined", "get_current_state_ids", "get_profile"} == (set(tables.KEYS) - dropped)


def test_captures_have_the_expected_rows() -> None:
    """With truncated captures the test above would prove nothing."""
    names = [json.loads(row.text)[0] for row in ROWS if row.stream == "caches"]

    for name in ("cs_cache_fake", "ph_cache_fake", "dr_cache_fake", "have_seen_event", "get_user_by_id"):
        assert name in names
    assert {"legacy", "current", NEWEST_DIALECT.name} <= {row.dialect.name for row in ROWS}
    assert len(names) > 70


@pytest.mark.parametrize("vintage", [LEGACY, NEWEST], ids=repr)
def test_unknown_names_are_counted(vintage: Vintage) -> None:
    """A worker of 1.0 does not know `ph_cache_fake`, but an operator does."""
    worker = Worker(vintage)
    rows = [row for row in ROWS if row.stream == "caches"]
    names = {json.loads(row.text)[0] for row in rows}

    for recorded in rows:
        worker.registry.apply("caches", [TABLE["caches"].decode(recorded.text, recorded.dialect)])

    assert names == set(worker.registry.seen)
    assert names - set(tables.KEYS) - set(vintage.aliases) == set(worker.registry.unknown)
    assert ("ph_cache_fake" in worker.registry.unknown) == (vintage is LEGACY)
    assert dict(worker.registry.misshapen) == dict(worker.registry.unreadable) == {}
    # Only who takes packed keys for plain ones gets their shape wrong.
    misshapen = {name for name, info in worker.registry.caches.items() if info.misshapen}
    assert (set(PACKED) if vintage is LEGACY else set()) == misshapen
