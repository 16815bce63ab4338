"""An engine in memory whose content tests read and change, and whose commits they let fail."""

from collections.abc import Sequence

from synrepl.base.history import AppendReceipt, LogPosition
from synrepl.base.interfaces import Head
from synrepl.errors import StorageError
from synrepl.storage.checked_rows import CHECKED_FACT, facts_of
from synrepl.storage.schema import NOTES, RECEIPTS, LogBounds, read_bounds, receipt_of
from synrepl.storage.sqlite import SQLiteConnection
from synrepl.streams.facts import Fact
from synrepl.testing.memory_engine import MemoryDatabase, MemoryEngine


class FaultyEngine(MemoryEngine):
    """A `MemoryEngine` that fails on request. `commits` counts the successful commits."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        super().__init__(database)
        self.commits = 0
        self.staged: FaultyEngine | None = None
        self._failure: tuple[StorageError, bool, int] | None = None
        self._head_failures: list[StorageError] = []
        self._facts: list[Fact] = []
        self._facts_at: tuple[SQLiteConnection, int] | None = None

    @property
    def facts(self) -> list[Fact]:
        """All facts, in order of serial."""
        connection = self.database.connection
        if self._facts_at != (connection, connection.total_changes):
            rows = connection.execute(f"SELECT {CHECKED_FACT} FROM facts ORDER BY serial")
            self._facts = list(facts_of(rows))
            self._facts_at = connection, connection.total_changes
        return self._facts

    @property
    def receipts_by_key(self) -> dict[str, AppendReceipt]:
        """All receipts, by the text of their keys."""
        rows = RECEIPTS.rows(self.database.connection.execute)
        return {receipt.key.text: receipt for receipt in map(receipt_of, rows)}

    @property
    def bounds(self) -> LogBounds:
        """The bounds of the log, open or not."""
        return read_bounds(self.database.connection)

    def read_note(self, name: str) -> str:
        """A note of the log, open or not."""
        notes: dict[str, str] = dict(NOTES.rows(self.database.connection.execute))
        return notes[name]

    def write_notes(self, **notes: str) -> None:
        """Store these notes, even in a log that was never open."""
        NOTES.put(self.database.connection, notes.items())

    def copy(self) -> "FaultyEngine":
        """A copy of what is on the disk, not opened."""
        made = FaultyEngine()
        self.database.connection.backup(made.database.connection)
        return made

    def fail_next(self, error: StorageError, *, kept: bool = False, silent: int | None = None) -> None:
        """Make the next commit raise `error`: before it stores anything, or, with `kept`, after it.

        Then `silent` calls of `head` fail as well, as for an unreachable database: with 1 (the default if
        `kept`) the outcome of the commit stays unknown; with 0 it can be read at once.
        """
        self._failure = (error, kept, int(kept) if silent is None else silent)

    def crash(self) -> None:
        """Close without cleanup, and forget failures that were requested."""
        super().crash()
        self._failure = None
        self._head_failures.clear()
        if self.staged is not None:
            self.staged.crash()

    def head(self) -> Head:
        self.database.check_open("head")
        if self._head_failures:
            raise self._head_failures.pop()
        return super().head()

    def commit(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        self.database.check_open("commit")
        failure, self._failure = self._failure, None
        if failure is not None:
            self._head_failures = [failure[0]] * failure[2]
            if not failure[1]:
                raise failure[0]
        super().commit(facts, receipts, upto=upto)
        self.commits += 1
        if failure is not None:
            raise failure[0]

    def staging(self) -> "FaultyEngine":
        if self.staged is None:
            self.staged = FaultyEngine(self.database.staging())
        return self.staged

    def adopt_staged(self) -> Head:
        head = super().adopt_staged()
        self.staged = None
        return head

    def drop_staged(self) -> None:
        super().drop_staged()
        self.staged = None
