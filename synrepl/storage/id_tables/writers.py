"""The table of writers' status: positions and unfinished ids, for finding out why a stream is stuck."""

from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.sql import Flavor, execute
from synrepl.storage.worker_database import ICursor, lock_table_creation

WRITERS: Final = """CREATE TABLE IF NOT EXISTS synrepl_writers (
    stream_name TEXT NOT NULL,
    instance_name TEXT NOT NULL,
    process TEXT NOT NULL,
    told_at DOUBLE PRECISION NOT NULL,
    position BIGINT NOT NULL,
    unfinished BIGINT NOT NULL,
    oldest_id BIGINT,
    oldest_since DOUBLE PRECISION,
    owner TEXT,
    PRIMARY KEY (stream_name, instance_name)
)"""

STUCK_SECONDS: Final = 30.0
"""The age in seconds at which an unfinished id is stuck."""


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """Reserved ids that are not finished, their owner and their age in seconds."""

    stream: str
    writer: str
    tokens: tuple[int, ...]
    owner: str
    age_seconds: float


class WriterState(msgspec.Struct, frozen=True, kw_only=True):
    """The last status of a writer in a stream. `told_at` and `oldest_since` are seconds since 1970.

    `position` ascends, even if ids descend. `process` is empty after the writer stopped with nothing
    unfinished, or was found dead and its ids were released.
    """

    stream: str
    writer: str
    process: str
    told_at: float
    position: int
    unfinished: int
    oldest_id: int | None
    oldest_since: float | None
    owner: str | None


def create_writers(cursor: ICursor, flavor: Flavor = "sqlite") -> None:
    """Create the table if it is missing. Safe in several processes at once if `flavor` is right."""
    lock_table_creation(cursor, flavor)
    cursor.execute(WRITERS)


def store_status(
    cursor: ICursor,
    database: IdDatabase,
    *,
    writer: str,
    process: str,
    position: int,
    unfinished: Sequence[Unfinished],
    now: float,
) -> None:
    """Store a writer's position, its number of unfinished ids, and the oldest. `now` is in Unix seconds."""
    oldest = unfinished[0] if unfinished else None
    values = (
        database.stream.name,
        writer,
        process,
        now,
        position,
        sum(len(one.tokens) for one in unfinished),
        None if oldest is None else oldest.tokens[0],
        None if oldest is None else now - oldest.age_seconds,
        None if oldest is None else oldest.owner,
    )
    execute(
        cursor,
        database.flavor,
        "INSERT INTO synrepl_writers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (stream_name, instance_name) DO UPDATE SET process = excluded.process,"
        " told_at = excluded.told_at, position = excluded.position, unfinished = excluded.unfinished,"
        " oldest_id = excluded.oldest_id, oldest_since = excluded.oldest_since, owner = excluded.owner",
        values,
    )


def last_process(cursor: ICursor, database: IdDatabase, writer: str) -> str | None:
    """The process of this writer's last status; empty if known to be gone, None if there is no status."""
    execute(
        cursor,
        database.flavor,
        "SELECT process FROM synrepl_writers WHERE stream_name = ? AND instance_name = ?",
        (database.stream.name, writer),
    )
    found = cursor.fetchone()
    return None if found is None else str(found[0])


def read_writers(cursor: ICursor) -> list[WriterState]:
    """The status of all writers, ordered by stream and writer."""
    cursor.execute(
        "SELECT stream_name, instance_name, process, told_at, position, unfinished, oldest_id, oldest_since,"
        " owner FROM synrepl_writers ORDER BY stream_name, instance_name"
    )
    names = WriterState.__struct_fields__
    return [WriterState(**dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
