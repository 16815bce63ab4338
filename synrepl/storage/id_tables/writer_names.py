"""Writers' names: one process at a time holds a name, and others can tell whether it is alive.

A name is a lock: on PostgreSQL an advisory lock of a session, on SQLite the lock of a file next to the
database. A lock is released when its holder dies for any reason. Neither a clock nor a stored status counts.
"""

from pathlib import Path
from typing import Any, Final

from synrepl.errors import StorageError
from synrepl.storage.lock import FileLock
from synrepl.storage.worker_database import ICursor

NAMES: Final = 0x5359_4E57
"""The class of the advisory locks for writers' names."""


class SessionNames:
    """Advisory locks of PostgreSQL, which go with the connection. Used in one thread, in its transactions."""

    def acquire(self, cursor: ICursor, name: str) -> str:
        """Acquire the name for the life of this session. Returns "", or the holder if it is taken."""
        cursor.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (NAMES, name))
        if cursor.fetchone()[0]:
            return ""
        cursor.execute(
            "SELECT activity.pid, activity.application_name, activity.client_addr"
            " FROM pg_locks LEFT JOIN pg_stat_activity AS activity USING (pid)"
            " WHERE locktype = 'advisory' AND granted AND classid::bigint = %s"
            " AND objid::bigint = hashtext(%s)::bigint & 4294967295",
            (NAMES, name),
        )
        found = cursor.fetchone()
        if found is None:
            return "a session that has just ended, so try again"
        pid, application, address = found
        return f"backend {pid} ({application or 'unnamed'}{f' at {address}' if address else ''})"

    def is_free(self, cursor: ICursor, name: str) -> bool:
        """Whether no process holds the name; then none can acquire it before this transaction ends."""
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, hashtext(%s))", (NAMES, name))
        return bool(cursor.fetchone()[0])

    def mark(self, cursor: ICursor) -> int:
        """The id of this transaction: every transaction that began to write before has a lower id."""
        cursor.execute("SELECT txid_current()", ())
        return int(cursor.fetchone()[0])

    def have_ended(self, cursor: ICursor, mark: int) -> bool:
        """Whether every transaction that was running at the `mark` has ended.

        A killed process leaves backends behind, which may still finish its last commands.
        """
        cursor.execute("SELECT txid_snapshot_xmin(txid_current_snapshot())", ())
        return bool(cursor.fetchone()[0] >= mark)

    def end_transaction(self) -> None:
        """Do nothing: the end of the transaction releases the names that `is_free` has locked."""

    def release_all(self) -> None:
        """Do nothing: the end of the connection releases the names."""


class FileNames:
    """Locks on files next to an SQLite database, with the methods of `SessionNames`."""

    def __init__(self) -> None:
        self._own: dict[str, FileLock] = {}
        self._probed: list[FileLock] = []

    def acquire(self, cursor: ICursor, name: str) -> str:
        """Acquire the name for the life of this session. Returns "", or why it is not available."""
        if name in self._own:
            return ""
        lock = FileLock(_path_of(cursor, name))
        try:
            lock.acquire()
        except StorageError as error:
            return error.why
        self._own[name] = lock
        return ""

    def is_free(self, cursor: ICursor, name: str) -> bool:
        """Whether no process holds the name; then none can acquire it before `end_transaction`."""
        lock = FileLock(_path_of(cursor, name))
        try:
            lock.acquire()
        except StorageError:
            return False
        self._probed.append(lock)
        return True

    def mark(self, cursor: ICursor) -> int:
        """Return 0: on SQLite a transaction ends with its process."""
        return 0

    def have_ended(self, cursor: ICursor, mark: int) -> bool:
        """True: SQLite rolls back what a dead process had not committed."""
        return True

    def end_transaction(self) -> None:
        """Release the names that `is_free` has locked."""
        while self._probed:
            self._probed.pop().release()

    def release_all(self) -> None:
        """Release the names held by this session."""
        while self._own:
            self._own.popitem()[1].release()


def _path_of(cursor: Any, name: str) -> Path:
    cursor.execute("PRAGMA database_list")
    path = cursor.fetchall()[0][2]
    safe = "".join(letter if letter.isalnum() or letter in "-_" else f"={ord(letter):x}=" for letter in name)
    return Path(f"{path}.writer-{safe}.lock")
