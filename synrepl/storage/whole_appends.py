"""Where atomic appends begin and end in the log, so that no page and no trim divides one."""

from collections.abc import Collection

from synrepl.storage.checked_rows import CHECKED_FACT, fact_of
from synrepl.storage.sql import SQLConnection
from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS, STREAM, end_of
from synrepl.streams.writer import Writer


class WholeAppends:
    """Finds the atomic append in which a serial lies.

    `stream_column` is the column of the stream without its index. A log that never had an atomic append is
    not searched.
    """

    def __init__(self, stream_column: str) -> None:
        self._find = (
            f"SELECT {CHECKED_FACT} FROM facts WHERE serial > ? AND serial <= ? AND {stream_column} = ?"
            " ORDER BY serial DESC LIMIT 1"
        )
        self._are_there = False

    def load(self, connection: SQLConnection) -> None:
        """Look whether the log has any."""
        found = connection.execute("SELECT 1 FROM positions WHERE stream = ? LIMIT 1", (STREAM,)).fetchone()
        self._are_there = found is not None

    def add(self, positions: Collection[Writer]) -> None:
        """Note that facts of these streams and writers are stored."""
        self._are_there = self._are_there or any(stream == STREAM for stream, _ in positions)

    def end(self, connection: SQLConnection, serial: int) -> int:
        """Return the last serial of the atomic append that has this serial, else this serial."""
        return self._bounds(connection, serial)[1]

    def begin(self, connection: SQLConnection, serial: int) -> int:
        """Return the last serial up to this one that ends no part of an atomic append."""
        first, last = self._bounds(connection, serial)
        return serial if last == serial else first - 1

    def _bounds(self, connection: SQLConnection, serial: int) -> tuple[int, int]:
        if not self._are_there:
            return serial, serial
        after = serial - MAX_ATOMIC_FACTS - 1
        found = connection.execute(self._find, (after, serial, STREAM)).fetchone()
        if found is None:
            return serial, serial
        mark = fact_of(found)
        return mark.serial, max(serial, end_of(mark))
