"""The layout of a stream's ids in the database: its sequence, tables and writers."""

from typing import Final

import msgspec

from synrepl.storage.worker_database import identifier

INVALIDATIONS: Final = "cache_invalidation_stream_by_instance"
"""The table of the stream ``caches``."""


class IdTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of facts.

    `id_column` has the ids, and `writer_column` (None if there is no such column) the instance that wrote
    each fact. Raises `ConfigError` if a name is no SQL identifier::

        receipts = synrepl.IdTable(name="receipts_linearized")
    """

    name: str
    id_column: str = "stream_id"
    writer_column: str | None = "instance_name"

    def __post_init__(self) -> None:
        for given in (self.name, self.id_column, self.writer_column):
            if given is not None:
                identifier(given)


class IdStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as the database has it.

    `name` is its name in ``stream_positions``. `sequence` allocates its ids; on SQLite it is a row of the
    table ``synrepl_sequences``; a reader may leave it empty. `tables` hold the facts. `writers` are the
    instances that may write them; empty means any one process at a time, and no positions are stored then.
    `negative` ids descend from -2, as those of backfilled events. Raises `ConfigError` if the sequence is no
    SQL identifier::

        stream = synrepl.IdStream(
            name="receipts", sequence="receipts_sequence", tables=(receipts,), writers=("w1", "w2")
        )
    """

    name: str
    sequence: str
    tables: tuple[IdTable, ...]
    writers: tuple[str, ...] = ()
    negative: bool = False

    def __post_init__(self) -> None:
        if self.sequence:
            identifier(self.sequence)

    @property
    def sign(self) -> int:
        """The factor between ids and ascending numbers: 1 or -1."""
        return -1 if self.negative else 1

    def is_writer(self, instance: str) -> bool:
        """Whether this instance may write the stream."""
        return not self.writers or instance in self.writers
