"""Who writes: one process of a name at a time, and who can tell whether it is still there.

A name is held by a lock that the database (PostgreSQL: of a session) or the system (SQLite: on a file) takes
back when its holder dies, however it dies. Nothing here trusts clocks, or what a process once wrote of
itself.
"""

from pathlib import Path
from typing import Any, Final, Protocol

from synrepl.errors import StorageError
from synrepl.storage.ids.transactions import ICursor
from synrepl.storage.lock import FileLock

__all__ = ["FileNames", "INames", "SessionNames"]

NAMES: Final = 0x5359_4E57
"""The class of the advisory locks that stand for writers' names."""


class INames(Protocol):
    """The names of writers over one database. Called in one thread, inside a transaction of the session's."""

    def take(self, cursor: ICursor, name: str) -> str:
        """Take the name for as long as this session lives. The empty string, or who has it."""

    def is_free(self, cursor: ICursor, name: str) -> bool:
        """Whether nobody holds the name; if so, nobody can take it before this transaction ends."""

    def has_settled(self, cursor: ICursor, mark: int) -> bool:
        """Whether every transaction has ended that was under way at the `mark`."""

    def mark(self, cursor: ICursor) -> int:
        """A mark between the transactions that have begun to write, and those that have not."""

    def end_transaction(self) -> None:
        """The transaction of the last calls has ended."""

    def give_back(self) -> None:
        """Let the own names go."""


class SessionNames:
    """Advisory locks of PostgreSQL."""

    def take(self, cursor: ICursor, name: str) -> str:
        """Take the name, or say which backend has it."""
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
            return "a session that has just ended"
        pid, application, address = found
        return f"backend {pid} ({application or 'unnamed'}{f' at {address}' if address else ''})"

    def is_free(self, cursor: ICursor, name: str) -> bool:
        """Held until the transaction ends, so that a new process of this name waits for us."""
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, hashtext(%s))", (NAMES, name))
        return bool(cursor.fetchone()[0])

    def mark(self, cursor: ICursor) -> int:
        """A number of our own: all that have begun to write have lower ones."""
        cursor.execute("SELECT txid_current()", ())
        return int(cursor.fetchone()[0])

    def has_settled(self, cursor: ICursor, mark: int) -> bool:
        """A killed process leaves backends behind that may yet finish what they were told."""
        cursor.execute("SELECT txid_snapshot_xmin(txid_current_snapshot())", ())
        return bool(cursor.fetchone()[0] >= mark)

    def end_transaction(self) -> None:
        """The server has let go of what was held for it."""

    def give_back(self) -> None:
        """It goes with the connection."""


class FileNames:
    """Locks on files beside an SQLite database."""

    def __init__(self) -> None:
        self._own: dict[str, FileLock] = {}
        self._tried: list[FileLock] = []

    def take(self, cursor: ICursor, name: str) -> str:
        """Take the name, or say which process has it."""
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
        """Held until `end_transaction`."""
        lock = FileLock(_path_of(cursor, name))
        try:
            lock.acquire()
        except StorageError:
            return False
        self._tried.append(lock)
        return True

    def mark(self, cursor: ICursor) -> int:
        """Nothing to remember: whoever asks has the one lock for writing."""
        return 0

    def has_settled(self, cursor: ICursor, mark: int) -> bool:
        """Only we write now; what a dead process had written is rolled back by whoever comes next."""
        return True

    def end_transaction(self) -> None:
        """Let the names of others go again."""
        while self._tried:
            self._tried.pop().release()

    def give_back(self) -> None:
        """Let the own names go."""
        while self._own:
            self._own.popitem()[1].release()


def _path_of(cursor: Any, name: str) -> Path:
    cursor.execute("PRAGMA database_list")
    path = cursor.fetchall()[0][2]
    safe = "".join(letter if letter.isalnum() or letter in "-_" else f"={ord(letter):x}=" for letter in name)
    return Path(f"{path}.writer-{safe}.lock")
