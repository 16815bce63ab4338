"""The positions from which a process starts that writes or reads a stream's ids."""

from collections.abc import Mapping

import msgspec

from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.worker_database import ICursor


class IdStart(msgspec.Struct, frozen=True, kw_only=True):
    """The positions from which a process starts its `Tracker`.

    `own_row` is the last row of this writer, if it is beyond the linear position; any lower one is ignored.
    """

    positions: Mapping[str, int]
    persisted_upto: int
    own_row: int = 0


def id_start(cursor: ICursor, database: IdDatabase, instance: str | None) -> IdStart:
    """The positions from which a process starts, after any repair. `instance` is None for a reader.

    A writer has nothing unfinished at its start. So it starts at its last row at or above the lowest position
    of all writers; without such a row, at the last allocated id. The linear position is that lowest one,
    extended over rows without a gap, or the highest row if no position is stored. It is also the position of
    a writer that has stored none.

    If the stream names no writers, a reader counts every stored position. A writer starts at the highest row:
    later ids of the sequence may be unfinished in another process.
    """
    stream = database.stream
    positions = {
        name: token
        for name, token in database.positions(cursor).items()
        if name in stream.writers or (not stream.writers and instance is None)
    }
    own_row = 0
    if instance is not None and not stream.writers:
        positions[instance] = max(1, database.highest_row(cursor))
    elif instance is not None and stream.is_writer(instance):
        positions[instance] = max(1, database.allocated(cursor))
    if positions:
        lowest = min(positions.values())
        upto = database.end_of_run(cursor, lowest)
        if instance in positions and instance is not None:
            own_row = database.last_row_of(cursor, instance, lowest) or 0
            positions[instance] = own_row or positions[instance]
    else:
        upto = max(database.highest_row(cursor), 1)
    for writer in stream.writers:
        positions.setdefault(writer, upto)
    return IdStart(positions=positions, persisted_upto=upto, own_row=own_row)
