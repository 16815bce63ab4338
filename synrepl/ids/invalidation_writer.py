"""The writer's side of cache invalidation: a transaction writes the invalidations that it causes.

Rows of the ``caches`` stream go into the same transaction as the facts: both are committed, or neither.
The rows are published after the commit. This process invalidates its own caches before it announces the ids
of the rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from synrepl.caches.changes import Changes
from synrepl.caches.registry import CacheRegistry
from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import ITransaction
from synrepl.storage.id_tables.layout import INVALIDATIONS
from synrepl.storage.sql import execute
from synrepl.storage.worker_database import identifier


class InvalidationWriter:
    """Writes cache invalidations of this process to a table, in the transactions that cause them.

    `ids` generates the ids of the ``caches`` stream. `seconds` gives the time in seconds since 1970, for
    example `reactor.seconds`. `caches` are this process's own, to be invalidated after each commit. `table`
    is laid out as in homeservers: ``stream_id``, ``instance_name``, ``cache_func``, ``keys`` (on PostgreSQL
    an array of text, on SQLite its JSON) and ``invalidation_ts`` in ms. Raises `ConfigError` if its name is
    no SQL identifier::

        writer = synrepl.InvalidationWriter(ids, seconds=reactor.seconds)

        def rename(transaction: Any) -> None:
            transaction.execute("UPDATE rooms SET name = ? WHERE room_id = ?", ("Lobby", "!r:hs"))
            with writer.within(transaction) as changes:
                changes.invalidate("get_room_name", ("!r:hs",))

        await synrepl.transact(pool, rename)
    """

    def __init__(
        self,
        ids: MultiWriterIdGenerator,
        *,
        seconds: Callable[[], float],
        caches: CacheRegistry | None = None,
        table: str = INVALIDATIONS,
    ) -> None:
        self._ids = ids
        self._seconds = seconds
        self._caches = caches
        self._table = identifier(table)
        self._is_postgres = ids.database.flavor == "postgresql"

    def create(self, cursor: Any) -> None:
        """Create the table if it is missing."""
        keys = "TEXT[]" if self._is_postgres else "TEXT"
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (stream_id BIGINT NOT NULL UNIQUE,"
            f" instance_name TEXT NOT NULL, cache_func TEXT NOT NULL, keys {keys}, invalidation_ts BIGINT)"
        )

    @contextmanager
    def within(self, transaction: ITransaction) -> Iterator[Changes]:
        """Collect the invalidations of the block, and write them to the same transaction at its end.

        The invalidations take as few rows as possible, each with its own id. After the commit `caches` are
        invalidated, too; after a rollback, they are not. Raises what reserving ids raises
        (`MultiWriterIdGenerator`).
        """
        changes = Changes()
        yield changes
        rows = changes.rows(int(self._seconds() * 1000))
        if not rows:
            return
        if self._caches is not None:
            # Registered before the ids are reserved, so that it runs before they are completed.
            transaction.call_after(self._caches.apply, "caches", rows)
        insert = (
            f"INSERT INTO {self._table} (stream_id, instance_name, cache_func, keys, invalidation_ts)"
            " VALUES (?, ?, ?, ?, ?)"
        )
        with self._ids.within(transaction, len(rows)) as tokens:
            for token, row in zip(tokens, rows, strict=True):
                execute(
                    transaction,
                    self._ids.database.flavor,
                    insert,
                    (token, self._ids.instance, row.cache_func, self._keys(row.keys), row.invalidation_ts),
                )

    def _keys(self, keys: list[str] | None) -> Any:
        return keys if self._is_postgres or keys is None else msgspec.json.encode(keys).decode()
