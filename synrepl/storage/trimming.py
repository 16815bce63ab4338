"""Trimming: the deletion of facts that newer facts have replaced, a slice of the log at a time.

A log cannot simply be cut off at its beginning: a row that was written once, long ago, may be the last word
on its key. So trimming is what a log-structured store calls compaction. Up to `trimmed_upto` a fact stays as
long as it is the newest with one of its rows' keys, and the table `newest_by_key` says which that is. A slice
is one transaction: it enters the keys of its facts, and deletes those facts, in the slice or before it, that
are the newest of no key any more.

A base that was copied from another log was trimmed there, and its keys are not in the table. They are entered
gradually, a slice of the base with each slice of the log; until that is done, some replaced facts of the base
remain.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Final, TypeVar

import msgspec

from synrepl.base.interfaces import KeysOf
from synrepl.storage.checked_rows import CHECKED_FACT, LogDamage, facts_of
from synrepl.storage.continuity import DiscardedRanges
from synrepl.storage.schema import LogBounds
from synrepl.storage.sql import SQLConnection, placeholders
from synrepl.streams.facts import NO_ROWS, Fact

UPSERT_KEY: Final = (
    "INSERT INTO newest_by_key (key, serial) VALUES (?, ?)"
    " ON CONFLICT (key) DO UPDATE SET serial = excluded.serial"
)

VALUES_AT_ONCE: Final = 128
"""The most values in one list of a statement."""

KEY_BYTES: Final = 16
"""The size in bytes of the hash of a stream and a key, large enough to exclude collisions."""

Newest = dict[bytes, int]
"""The serial of the newest fact for each key."""

V = TypeVar("V")


def trim_slice(
    connection: SQLConnection,
    known: LogBounds,
    upto: int,
    limit: int,
    *,
    keys: KeysOf,
    discarded: DiscardedRanges,
    whole: Callable[[int], int],
) -> LogBounds:
    """Trim the next slice up to the serial `upto`, in a transaction of the caller. Returns the new bounds.

    The slice has at most `limit` facts after `known.trimmed_upto`, and as many of a base that is not indexed.
    It goes on to the end of an atomic append: `whole` returns the end of the one that has a serial. `upto` is
    not inside one.
    """
    base = _slice(connection, known.indexed_upto, known.trimmed_upto.serial, limit)
    facts = _slice(connection, max(known.trimmed_upto.serial, known.indexed_upto), upto, limit)
    if len(facts) == limit and (end := whole(facts[-1].serial)) > facts[-1].serial:
        facts += _slice(connection, facts[-1].serial, end, end)
    check_dense(facts, known.floor.serial)
    bounds = _advance(known, upto, base, facts, limit)
    if bounds != known:
        _delete_replaced(connection, [*base, *facts], keys, discarded)
    return bounds


def _delete_replaced(
    connection: SQLConnection, facts: Sequence[Fact], keys: KeysOf, discarded: DiscardedRanges
) -> None:
    """Index the keys of these facts, in order of serial, and delete all facts that are now replaced.

    A fact is deleted only if its own keys, and the table by serial, say so: a damaged entry deletes nothing.
    """
    keys_of = {fact.serial: _hashed_keys(fact, keys, discarded) for fact in facts}
    newest: Newest = {key: fact.serial for fact in facts for key in keys_of[fact.serial]}
    known = _newest(connection, newest)
    for run in _in_batches(set(known.values()) - keys_of.keys()):
        found = connection.execute(
            f"SELECT {CHECKED_FACT} FROM facts WHERE serial IN ({placeholders(run)})", run
        )
        for fact in facts_of(found.fetchall()):
            keys_of[fact.serial] = _hashed_keys(fact, keys, discarded)
    known = {key: serial for key, serial in known.items() if key in keys_of.get(serial, ())}
    changed = {key: serial for key, serial in newest.items() if known.get(key, 0) < serial}
    connection.executemany(UPSERT_KEY, list(changed.items()))
    others = {key for found in keys_of.values() for key in found if key not in newest}
    newest = _newest(connection, others) | known | changed
    replaced = [
        serial
        for serial, found in keys_of.items()
        if not any(newest.get(key, serial) == serial for key in found)
    ]
    for run in _in_batches(replaced):
        connection.execute(
            f"DELETE FROM facts WHERE serial IN ({placeholders(run)})"
            f" AND NOT EXISTS (SELECT 1 FROM newest_by_key AS newest WHERE newest.serial = facts.serial)",
            run,
        )


def _newest(connection: SQLConnection, keys: Collection[bytes]) -> Newest:
    return {
        bytes(key): serial
        for run in _in_batches(keys)
        for key, serial in connection.execute(
            f"SELECT key, serial FROM newest_by_key WHERE key IN ({placeholders(run)})", run
        )
    }


def check_dense(facts: Sequence[Fact], floor: int) -> None:
    """Raise `LogDamage` if one of consecutive facts beyond the serial `floor` is missing."""
    for before, fact in pairwise(facts):
        if before.serial >= floor and fact.serial != before.serial + 1:
            raise LogDamage(f"serial {before.serial + 1} is missing")


def _hashed_keys(fact: Fact, keys: KeysOf, discarded: DiscardedRanges) -> set[bytes]:
    """The hashes of the keys of a fact's rows; empty if the fact need not be kept."""
    if fact.rows == NO_ROWS or discarded.contains(fact):
        return set()
    # Unambiguous: names contain no space.
    stream = f"{fact.stream} ".encode()
    return {
        blake2b(stream + key, digest_size=KEY_BYTES).digest() for key in keys(fact.stream, fact.rows) or ()
    }


def _slice(connection: SQLConnection, after: int, upto: int, limit: int) -> list[Fact]:
    if after >= upto:
        return []
    found = connection.execute(
        f"SELECT {CHECKED_FACT} FROM facts WHERE serial > ? AND serial <= ? ORDER BY serial LIMIT ?",
        (after, upto, limit),
    )
    return list(facts_of(found.fetchall()))


def _advance(
    bounds: LogBounds, upto: int, base: Sequence[Fact], facts: Sequence[Fact], limit: int
) -> LogBounds:
    trimmed_upto, indexed_upto = bounds.trimmed_upto, bounds.indexed_upto
    last = [fact.position for fact in facts[-1:]]
    if len(facts) < limit and bounds.floor.serial <= upto:
        last.append(bounds.floor)
    for position in last:
        if position.serial > trimmed_upto.serial:
            trimmed_upto = position
    # Once all of the base is indexed, so are the trimmed facts beyond it.
    indexed_upto = max(indexed_upto, trimmed_upto.serial) if len(base) < limit else base[-1].serial
    return msgspec.structs.replace(bounds, trimmed_upto=trimmed_upto, indexed_upto=indexed_upto)


def _in_batches(values: Collection[V]) -> Iterator[list[V]]:
    """Split values into batches whose sizes are powers of two; the last value is repeated to fill up.

    So few distinct statements are prepared, whatever the number of values.
    """
    every = list(values)
    for first in range(0, len(every), VALUES_AT_ONCE):
        run = every[first : first + VALUES_AT_ONCE]
        size = 1 << (len(run) - 1).bit_length()
        yield run + run[-1:] * (size - len(run))
