"""The writer's side of cache invalidation: what a transaction changes is said in that transaction.

Rows of the ``caches`` stream are written beside the facts that they follow from, so that both are committed,
or neither is; they are published once they are, and this process forgets before anybody is told of its ids.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from synrepl.caches import CacheRegistry, Changes
from synrepl.storage.ids import ITransaction, MultiWriterIdGenerator
from synrepl.storage.ids.layout import identifier
from synrepl.storage.sql import execute

__all__ = ["InvalidationWriter"]

TABLE: Final = "cache_invalidation_stream_by_instance"


class InvalidationWriter:
    """Writes the invalidations of this process, with ids from `ids`, into `table`.

    The table is that of homeservers: ``stream_id``, ``instance_name``, ``cache_func``, ``keys`` (on
    PostgreSQL an array of text, on SQLite its JSON) and ``invalidation_ts`` in ms. `caches` are this
    process's own.
    """

    def __init__(
        self,
        ids: MultiWriterIdGenerator,
        *,
        seconds: Callable[[], float],
        caches: CacheRegistry | None = None,
        table: str = TABLE,
    ) -> None:
        self._ids = ids
        self._seconds = seconds
        self._caches = caches
        self._table = identifier(table)
        self._is_postgres = ids.database.flavor == "postgresql"

    def create(self, cursor: Any) -> None:
        """Make the table if it is missing."""
        keys = "TEXT[]" if self._is_postgres else "TEXT"
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (stream_id BIGINT NOT NULL UNIQUE,"
            f" instance_name TEXT NOT NULL, cache_func TEXT NOT NULL, keys {keys}, invalidation_ts BIGINT)"
        )

    @contextmanager
    def within(self, transaction: ITransaction) -> Iterator[Changes]:
        """Collects what the block changes; at its end it is written into the same transaction, in the fewest
        rows, each with an id of its own.

        After the commit the own caches forget; after a rollback nothing happened.
        """
        changes = Changes()
        yield changes
        rows = changes.rows(int(self._seconds() * 1000))
        if not rows:
            return
        if self._caches is not None:
            # Asked for before the ids are: so it is done before they are complete.
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
