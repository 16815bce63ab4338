"""Trimming in an SQL database: deletes facts that newer facts replaced, a slice at a time.

Up to `trimmed_upto` the log is sparse: a fact is there while it is the newest with one of its rows' keys. The
table `keyed` has the serial of the newest fact for each key. Facts beyond `trimmed_upto` are all there.

A base copied from another log is sparse already, and its keys are not indexed. They are indexed gradually, a
slice of the base with each slice of the log. Until that is done, some replaced facts of the base remain.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from synrepl.ports.history import LogPosition
from synrepl.ports.interfaces import KeysOf
from synrepl.storage.sql_base import COLUMNS, LogBounds, SQLBase, facts_of, in_batches, placeholders
from synrepl.streams.facts import NO_ROWS, Fact

__all__ = ["SQLTrimming"]

KEY_BYTES: Final = 16
"""The size of the hash of a stream and a key, large enough to exclude collisions."""

SAMPLES: Final = 16
SAMPLED: Final = 16
"""The size of a log is estimated from this many samples of this many serials."""

Newest = dict[bytes, int]


class SQLTrimming(SQLBase):
    """The trimming part of an engine."""

    def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Trim a slice of the log. Returns the new `trimmed_upto`.

        That is the last position up to `upto` whose digest is known. In a log that was filled with gaps it
        may be before `upto`, and may not move. Discarded facts replace nothing and are deleted.
        """
        with self._map_errors("trim"):
            database = self._writer("trim")
            with self._transaction(database):
                upto = min(upto, self._last(database)[0])
                known = self._current_bounds(database)
                base = self._slice(database, known.indexed, known.trimmed_upto.serial, limit)
                facts = self._slice(database, max(known.trimmed_upto.serial, known.indexed), upto, limit)
                bounds = _advance_bounds(known, upto, base, facts, limit)
                if bounds != known:
                    self._delete_replaced(database, [*base, *facts], keys)
                    self._store_bounds(database, bounds)
            self._bounds = bounds
            if bounds != known:
                self._return_space(database)
        return bounds.trimmed_upto

    def size(self, after: int) -> int:
        """The approximate size in bytes of the facts beyond this serial.

        Estimated from runs of facts spread evenly over the serials; few facts are measured completely.
        """
        with self._map_errors("size"):
            database = self._writer("size")
            after = max(0, after)
            span = self._last(database)[0] - after
            if span <= 0:
                return 0
            runs = SAMPLES if span > SAMPLES * SAMPLED else 1
            seen = SAMPLED if runs > 1 else span
            found = 0
            for run in range(runs):
                first = after + run * (span - seen) // max(1, runs - 1)
                found += self._execute(
                    database,
                    f"SELECT coalesce(sum({self.ROWS_BYTES} + 2 * length(stream) + length(writer)"
                    f" + {self.FACT_BYTES}), 0) FROM facts WHERE serial > ? AND serial <= ?",
                    (first, first + seen),
                ).fetchone()[0]
        return int(found) * span // (runs * seen)

    def _return_space(self, database: Any) -> None:
        """Return some free space to the disk after a slice, if the database does not do so itself."""

    def _slice(self, database: Any, after: int, upto: int, limit: int) -> list[Fact]:
        if after >= upto:
            return []
        return list(
            facts_of(
                self._execute(
                    database,
                    f"SELECT {COLUMNS} FROM facts WHERE serial > ? AND serial <= ? ORDER BY serial LIMIT ?",
                    (after, upto, limit),
                ).fetchall()
            )
        )

    def _delete_replaced(self, database: Any, facts: Sequence[Fact], keys: KeysOf) -> None:
        """Index the keys of these facts, in order of serial, and delete all facts that are now replaced."""
        newest: Newest = {}
        replaced: set[int] = set()
        for fact in facts:
            for key in self._keys(fact, keys):
                newest[key] = fact.serial
            replaced.add(fact.serial)
        known = self._newest(database, newest)
        replaced.update(known.values())
        self._execute_many(
            database,
            "INSERT INTO keyed (key, serial) VALUES (?, ?)"
            " ON CONFLICT (key) DO UPDATE SET serial = excluded.serial",
            [(key, serial) for key, serial in newest.items() if known.get(key, 0) < serial],
        )
        for run in in_batches(replaced):
            self._execute(
                database,
                f"DELETE FROM facts WHERE serial IN ({placeholders(run)})"
                f" AND NOT EXISTS (SELECT 1 FROM keyed WHERE keyed.serial = facts.serial)",
                run,
            )

    def _keys(self, fact: Fact, keys: KeysOf) -> set[bytes]:
        """The hashes of the keys of a fact's rows; empty if the fact need not be kept."""
        if fact.rows == NO_ROWS or self._discarded.contains(fact):
            return set()
        # Unambiguous: names contain no space.
        stream = f"{fact.stream} ".encode()
        return {
            blake2b(stream + key, digest_size=KEY_BYTES).digest()
            for key in keys(fact.stream, fact.rows) or ()
        }

    def _newest(self, database: Any, keys: Newest) -> Newest:
        """The serials known for these keys."""
        return {
            bytes(key): serial
            for run in in_batches(keys)
            for key, serial in self._execute(
                database, f"SELECT key, serial FROM keyed WHERE key IN ({placeholders(run)})", run
            )
        }


def _advance_bounds(
    bounds: LogBounds, upto: int, base: Sequence[Fact], facts: Sequence[Fact], limit: int
) -> LogBounds:
    """The bounds after these facts were processed."""
    trimmed_upto, indexed = bounds.trimmed_upto, bounds.indexed
    last = [LogPosition(fact.epoch, fact.serial, fact.digest) for fact in facts[-1:]]
    if len(facts) < limit and bounds.floor.serial <= upto:
        last.append(bounds.floor)
    for position in last:
        if position.serial > trimmed_upto.serial:
            trimmed_upto = position
    # Once all of the base is indexed, so are the trimmed facts beyond it.
    indexed = max(indexed, trimmed_upto.serial) if len(base) < limit else base[-1].serial
    return msgspec.structs.replace(bounds, trimmed_upto=trimmed_upto, indexed=indexed)
