"""Writes cache invalidations to the database of a homeserver that others run, under a name of our own.

The rows are those of Synapse: its table, ids of its sequence. Nothing is announced here.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from synrepl.errors import StorageError
from synrepl.storage.databases import Database
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import INVALIDATIONS, IdStream, IdTable
from synrepl.storage.id_tables.writer_names import SessionNames
from synrepl.streams.catalog import CacheInvalidation

SEQUENCE: Final = "cache_invalidation_stream_seq"
OP: Final = "invalidate"

STREAM: Final = IdStream(name="caches", sequence=SEQUENCE, tables=(IdTable(name=INVALIDATIONS),))


class Standing(msgspec.Struct, frozen=True):
    """Where the stream ``caches`` stands: the last row of our name (0: none), and the sequence's last id."""

    last_row: int
    allocated: int


class HomeserverInvalidations:
    """Writes rows as `instance`, in transactions of their own. For one thread at a time.

    `open` takes the name, so that of two programs the second is refused: rows announced out of order would
    be dropped by their receivers. The name is free again after `close`.
    """

    def __init__(self, database: Database, *, instance: str) -> None:
        self._database = database
        self._instance = instance
        self._holder: Any = None
        self._ids = IdDatabase(STREAM, database.flavor)

    def open(self) -> Standing:
        """Take the name, and look where the stream stands.

        Raises `StorageError` if this is no homeserver's PostgreSQL, or another process has the name.
        """
        if self._database.flavor != "postgresql":
            raise self._refusal(
                "the homeserver uses SQLite, and is one process that hears of nothing", "restart it"
            )
        self._holder = self._database.connect()
        try:
            with self._database.map_errors(OP):
                # The transaction stays open until `close`, and holds the lock: also behind a pgbouncer.
                cursor = self._holder.cursor()
                if not SessionNames().is_free(cursor, self._instance):
                    raise self._refusal(
                        f"another process writes as {self._instance} now", "wait until it has ended"
                    )
            return self._database.read_transaction(OP, self._look)
        except BaseException:
            self.close()
            raise

    def write(self, rows: Sequence[CacheInvalidation]) -> list[int]:
        """Write the rows in one transaction; return their ids. Raises `StorageError`: nothing was written."""
        return self._database.write_transaction(OP, lambda cursor: self._write(cursor, rows))

    def close(self) -> None:
        """Let the name go. Harmless when repeated."""
        holder, self._holder = self._holder, None
        if holder is not None:
            # The end of the transaction frees the name at once, the end of the connection a moment later.
            with suppress(StorageError), self._database.map_errors(OP):
                holder.rollback()
            holder.close()

    def _look(self, cursor: Any) -> Standing:
        for name in (INVALIDATIONS, SEQUENCE, "stream_positions"):
            cursor.execute("SELECT to_regclass(%s)", (name,))
            if cursor.fetchone()[0] is None:
                raise self._refusal(
                    f"{self._database.name} has no {name}: it is not a homeserver's database",
                    "check `database` in the homeserver's configuration, and this user's search_path",
                )
        # No process stores a position of `caches`: this is one that writes another stream.
        cursor.execute(
            "SELECT stream_name FROM stream_positions WHERE instance_name = %s LIMIT 1", (self._instance,)
        )
        if found := cursor.fetchone():
            raise self._refusal(
                f"a process of the homeserver has the name {self._instance}: it writes {found[0]}",
                "rename that process",
            )
        last = self._ids.last_row_of(cursor, self._instance, 0)
        return Standing(last or 0, self._ids.allocated(cursor))

    def _write(self, cursor: Any, rows: Sequence[CacheInvalidation]) -> list[int]:
        highest = self._ids.highest_row(cursor)
        ids, _ = self._ids.allocate(cursor, len(rows), 0)
        if min(ids) <= highest:
            raise self._refusal(
                f"{SEQUENCE} gave {min(ids)}, and the table has rows up to {highest}",
                "synrepl doctor --database URL prints the repair",
            )
        cursor.executemany(
            f"INSERT INTO {INVALIDATIONS} (stream_id, instance_name, cache_func, keys, invalidation_ts)"
            " VALUES (%s, %s, %s, %s, %s)",
            [
                (token, self._instance, row.cache_func, row.keys, row.invalidation_ts)
                for token, row in zip(ids, rows, strict=True)
            ],
        )
        return ids

    def _refusal(self, why: str, hint: str) -> StorageError:
        return StorageError(op=OP, why=why, hint=hint, stream="caches", tried=False)
