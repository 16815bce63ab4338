"""Letting go of facts that others have replaced, a slice at a time, in an SQL database.

Up to `begin` the log is sparse: a fact is there while it is the newest that has one of its rows' keys. The
table `keyed` knows for each key which one that is. Facts beyond `begin` are all there.

A base that came from another log is sparse already, and its keys are not known here. They are learned bit by
bit, a slice of the base with each slice of the log: until that is over, some facts of the base stay that
could go.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from synrepl.ports.history import LogPosition
from synrepl.ports.interfaces import KeysOf
from synrepl.storage.sql_base import COLUMNS, SQLBase, facts_of, in_runs, marks
from synrepl.storage.writer_positions import WriterPositions
from synrepl.streams.facts import NO_ROWS, Fact

__all__ = ["SQLTrimming"]

KEY_BYTES: Final = 16
"""Of the hash that stands for a stream and a key: no two of them will ever share one."""

SAMPLES: Final = 16
SAMPLED: Final = 16
"""So many places are looked at for the size of a log, so many serials at each."""

Newest = dict[bytes, int]


class SQLTrimming(SQLBase):
    """The part of an engine that lets go."""

    def trim(self, upto: int, keys: KeysOf, limit: int) -> LogPosition:
        """Trim a slice of the log; gives the new beginning.

        That is the last place up to there whose digest is known: where a log was filled with holes, it may be
        before `upto`, and stay where it is. Facts that are void replace nothing, and go.
        """
        with self._map_errors("trim"):
            database = self._writer("trim")
            with self._transaction(database):
                upto = min(upto, self._last(database)[0])
                known = self._known_places(database)
                base = self._slice(database, known.indexed, known.trimmed_upto.serial, limit)
                facts = self._slice(database, max(known.trimmed_upto.serial, known.indexed), upto, limit)
                places = _moved(known, upto, base, facts, limit)
                if places != known:
                    self._thin(database, [*base, *facts], keys)
                    self._store_places(database, places)
            self._places = places
            if places != known:
                self._return_space(database)
        return places.trimmed_upto

    def size(self, after: int) -> int:
        """About how many bytes the facts beyond this serial take.

        From some of them, in runs spread evenly over the serials; few facts are all looked at.
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
        """Give some of the room back to the disk, after a slice, where the database does not do so itself."""

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

    def _thin(self, database: Any, facts: Sequence[Fact], keys: KeysOf) -> None:
        """Learn the keys of these facts, in order of serial, and remove all that is replaced now."""
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
        for run in in_runs(replaced):
            self._execute(
                database,
                f"DELETE FROM facts WHERE serial IN ({marks(run)})"
                f" AND NOT EXISTS (SELECT 1 FROM keyed WHERE keyed.serial = facts.serial)",
                run,
            )

    def _keys(self, fact: Fact, keys: KeysOf) -> set[bytes]:
        """The hashes of the keys of its rows; none where nothing needs the fact."""
        if fact.rows == NO_ROWS or self._voids.hold(fact):
            return set()
        # No name has a space in it.
        stream = f"{fact.stream} ".encode()
        return {
            blake2b(stream + key, digest_size=KEY_BYTES).digest()
            for key in keys(fact.stream, fact.rows) or ()
        }

    def _newest(self, database: Any, wanted: Newest) -> Newest:
        """The serial that has each of these keys, as far as one has."""
        return {
            bytes(key): serial
            for run in in_runs(wanted)
            for key, serial in self._execute(
                database, f"SELECT key, serial FROM keyed WHERE key IN ({marks(run)})", run
            )
        }


def _moved(
    places: WriterPositions, upto: int, base: Sequence[Fact], facts: Sequence[Fact], limit: int
) -> WriterPositions:
    """Where these places are once these facts were looked at."""
    trimmed_upto, indexed = places.trimmed_upto, places.indexed
    last = [LogPosition(fact.epoch, fact.serial, fact.digest) for fact in facts[-1:]]
    if len(facts) < limit and places.floor.serial <= upto:
        last.append(places.floor)
    for position in last:
        if position.serial > trimmed_upto.serial:
            trimmed_upto = position
    # Once all of the base is known, what is beyond it is as well.
    indexed = max(indexed, trimmed_upto.serial) if len(base) < limit else base[-1].serial
    return msgspec.structs.replace(places, trimmed_upto=trimmed_upto, indexed=indexed)
