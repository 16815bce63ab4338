"""The queue of missing files, with the order and the retries of their downloads."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from synrepl.files.records import FailingFile, LogProgress, MissingFile, NamedFile, QueueSummary, WantedFile
from synrepl.files.tables import Tables

__all__ = ["FileQueue"]

FIRST_DELAY_MS: Final = 1_000
LONGEST_DELAY_MS: Final = 600_000

_INSERT_WANTED: Final = (
    "INSERT INTO wanted (sha256, size, name, serial, is_queued, since_ms) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (sha256) DO UPDATE SET is_queued = max(is_queued, excluded.is_queued)"
)
_SELECT_NAMED: Final = "SELECT name, sha256, size, serial FROM names"


class FileQueue:
    """The names of files, the missing files, and the order of their downloads. Durable and blocking; one
    thread at a time. All times are in milliseconds.

    It is the file ``queue.db`` of `directory`, created when first needed.

    Downloads in flight are known only in memory: after a kill they are due again.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._tables = Tables(Path(directory) / "queue.db")
        self._in_flight: set[str] = set()

    def open(self) -> LogProgress:
        """Open the queue. Returns the position up to which the log was read."""
        return LogProgress.read(self.recall("seen"))

    def close(self) -> None:
        """Close the queue. Idempotent."""
        self._tables.close()
        self._in_flight.clear()

    # -- rows of the log -----------------------------------------------------------------------------------

    def note(
        self,
        rows: Sequence[NamedFile],
        seen: LogProgress,
        *,
        now_ms: int,
        has: Callable[[str], bool],
        fetches: bool,
    ) -> None:
        """Apply rows in the order of the log, up to `seen`, in one transaction."""
        if not rows:
            self.remember("seen", seen.text)
            return
        with self._tables.writing("note files") as database:
            unreferenced: set[str] = set()
            for row in rows:
                found = database.execute("SELECT sha256 FROM names WHERE name = ?", (row.name,)).fetchone()
                if found is not None and found[0] != row.sha256:
                    unreferenced.add(found[0])
                if row.sha256 is None:
                    database.execute("DELETE FROM names WHERE name = ?", (row.name,))
                    continue
                database.execute(
                    "INSERT OR REPLACE INTO names (name, sha256, size, serial) VALUES (?, ?, ?, ?)",
                    (row.name, row.sha256, row.size, row.serial),
                )
                if not has(row.sha256):
                    values = row.sha256, row.size, row.name, row.serial, fetches, now_ms
                    database.execute(_INSERT_WANTED, values)
                database.execute("DELETE FROM unnamed WHERE sha256 = ?", (row.sha256,))
            for sha256 in unreferenced:
                self._drop_reference(database, sha256, now_ms, has)
            _store_note(database, "seen", seen.text)

    def _drop_reference(
        self, database: sqlite3.Connection, sha256: str, now_ms: int, has: Callable[[str], bool]
    ) -> None:
        """Handle a file that has lost a name: it may have been the last one."""
        other = database.execute(
            "SELECT name FROM names WHERE sha256 = ? ORDER BY serial LIMIT 1", (sha256,)
        ).fetchone()
        if other is not None:
            database.execute("UPDATE wanted SET name = ? WHERE sha256 = ?", (other[0], sha256))
            return
        database.execute("DELETE FROM wanted WHERE sha256 = ?", (sha256,))
        if has(sha256):
            database.execute("INSERT OR IGNORE INTO unnamed VALUES (?, ?)", (sha256, now_ms))

    def reset(self) -> None:
        """Delete all names: the log was replaced."""
        if self._exists():
            with self._tables.writing("reset") as database:
                for table in ("names", "wanted"):
                    database.execute(f"DELETE FROM {table}")
                _store_note(database, "seen", "")

    def follow(self, rule: Literal["eager", "lazy", "none"]) -> None:
        """Queue all missing files, only the demanded ones, or none."""
        if self._exists():
            queued = {"eager": "1", "lazy": "is_demanded", "none": "0"}[rule]
            with self._tables.writing("follow a rule") as database:
                database.execute(f"UPDATE wanted SET is_queued = {queued}")

    # -- fetching ------------------------------------------------------------------------------------------

    def take(self, now_ms: int, limit: int) -> list[WantedFile]:
        """Take the next files to fetch; they are in flight then."""
        batch: list[WantedFile] = []
        with self._tables.reading("take a file") as database:
            rows = (
                ()
                if database is None
                else database.execute(
                    "SELECT sha256, size, name, serial, is_demanded, tries FROM wanted"
                    " WHERE is_queued = 1 AND next_at_ms <= ? ORDER BY is_demanded DESC, serial LIMIT ?",
                    (now_ms, limit + len(self._in_flight)),
                ).fetchall()
            )
        for sha256, size, name, serial, is_demanded, tries in rows:
            if len(batch) < limit and sha256 not in self._in_flight:
                self._in_flight.add(sha256)
                batch.append(WantedFile(sha256, size, name, serial, bool(is_demanded), tries))
        return batch

    def next_at(self) -> int | None:
        """When the next file that is not in flight is due, in ms; None if there is none."""
        with self._tables.reading("take a file") as database:
            rows = (
                ()
                if database is None
                else database.execute(
                    "SELECT sha256, next_at_ms FROM wanted WHERE is_queued = 1 ORDER BY next_at_ms LIMIT ?",
                    (1 + len(self._in_flight),),
                ).fetchall()
            )
        return next((at for sha256, at in rows if sha256 not in self._in_flight), None)

    def mark_arrived(self, sha256: str, now_ms: int) -> None:
        """Record that the file is stored."""
        self._in_flight.discard(sha256)
        with self._tables.writing("note a file") as database:
            database.execute("DELETE FROM wanted WHERE sha256 = ?", (sha256,))
            if not _is_named(database, sha256):
                # With a new time: the uploader has time to give it a name.
                database.execute("INSERT OR REPLACE INTO unnamed VALUES (?, ?)", (sha256, now_ms))

    def mark_failed(self, sha256: str, why: str, now_ms: int) -> None:
        """Record a failed download, and schedule a retry with backoff."""
        self._in_flight.discard(sha256)
        with self._tables.writing("note a failure") as database:
            # The shift is bounded so that it cannot overflow; 20 doublings exceed the longest delay.
            database.execute(
                "UPDATE wanted SET tries = tries + 1, why = ?,"
                f" next_at_ms = ? + min({LONGEST_DELAY_MS}, {FIRST_DELAY_MS} << min(tries, 20))"
                " WHERE sha256 = ?",
                (why[:1_000], now_ms, sha256),
            )

    def release(self, sha256: str) -> None:
        """Take the file out of flight, with unknown outcome."""
        self._in_flight.discard(sha256)

    def demand(self, sha256: str, now_ms: int) -> bool:
        """Fetch the file soon, if it is missing and has a name. Returns whether it is."""
        if not self._exists():
            return False
        with self._tables.writing("demand a file") as database:
            if not self._add_wanted(database, sha256, now_ms, is_queued=True):
                return False
            # However many demand it, a failed file is retried no sooner than after the first delay.
            database.execute(
                f"UPDATE wanted SET is_demanded = 1, next_at_ms = min(next_at_ms, ? + {FIRST_DELAY_MS})"
                " WHERE sha256 = ?",
                (now_ms, sha256),
            )
        return True

    def mark_lost(self, sha256: str, now_ms: int, *, fetches: bool) -> str | None:
        """Record that a stored file is gone. Returns one of its names; None if it has none."""
        if not self._exists():
            return None
        with self._tables.writing("note a loss") as database:
            database.execute("DELETE FROM unnamed WHERE sha256 = ?", (sha256,))
            return self._add_wanted(database, sha256, now_ms, is_queued=fetches)

    @staticmethod
    def _add_wanted(database: sqlite3.Connection, sha256: str, now_ms: int, *, is_queued: bool) -> str | None:
        found = database.execute(
            f"{_SELECT_NAMED} WHERE sha256 = ? ORDER BY serial LIMIT 1", (sha256,)
        ).fetchone()
        if found is None:
            return None
        row = NamedFile(*found)
        database.execute(_INSERT_WANTED, (sha256, row.size, row.name, row.serial, is_queued, now_ms))
        return row.name

    # -- queries -------------------------------------------------------------------------------------------

    def is_named(self, sha256: str) -> bool:
        """Whether the file has a name."""
        with self._tables.reading("look up a file") as database:
            return database is not None and _is_named(database, sha256)

    def is_missing(self, sha256: str) -> bool:
        """Whether the file has a name and is not stored."""
        with self._tables.reading("look up a file") as database:
            return database is not None and bool(
                database.execute("SELECT 1 FROM wanted WHERE sha256 = ?", (sha256,)).fetchone()
            )

    def names_after(self, name: str, limit: int) -> list[NamedFile]:
        """The names after this one, in alphabetical order."""
        with self._tables.reading("list names") as database:
            rows = (
                ()
                if database is None
                else database.execute(
                    f"{_SELECT_NAMED} WHERE name > ? ORDER BY name LIMIT ?", (name, limit)
                ).fetchall()
            )
        return [NamedFile(*row) for row in rows]

    def missing(self, upto: int | None = None, limit: int = 1_000_000) -> list[MissingFile]:
        """Names whose files are not stored, oldest first."""
        with self._tables.reading("list files") as database:
            rows = (
                ()
                if database is None
                else database.execute(
                    "SELECT names.name, sha256 FROM names JOIN wanted USING (sha256)"
                    " WHERE names.serial <= ? ORDER BY names.serial, names.name LIMIT ?",
                    (2**63 - 1 if upto is None else upto, limit),
                ).fetchall()
            )
        return [MissingFile(*row) for row in rows]

    def mark_stored(self, stored: Sequence[str], now_ms: int) -> None:
        """Record that these files are stored; those without a name may become garbage."""
        with self._tables.writing("note files") as database:
            for sha256 in stored:
                database.execute("DELETE FROM wanted WHERE sha256 = ?", (sha256,))
                if not _is_named(database, sha256):
                    database.execute("INSERT OR IGNORE INTO unnamed VALUES (?, ?)", (sha256, now_ms))

    def garbage(self, before_ms: int, limit: int) -> list[str]:
        """Up to `limit` stored files that no fact has named since `before_ms` or earlier."""
        with self._tables.reading("list garbage") as database:
            rows = (
                ()
                if database is None
                else database.execute(
                    "SELECT sha256 FROM unnamed WHERE since_ms <= ? ORDER BY since_ms LIMIT ?",
                    (before_ms, limit),
                ).fetchall()
            )
        return [sha256 for (sha256,) in rows]

    def mark_removed(self, sha256: str) -> None:
        """Record that the file was deleted as garbage."""
        with self._tables.writing("note a removal") as database:
            database.execute("DELETE FROM unnamed WHERE sha256 = ?", (sha256,))

    def remember(self, key: str, value: str) -> None:
        """Store a short text, if the queue exists."""
        if self._exists():
            with self._tables.writing("note") as database:
                _store_note(database, key, value)

    def recall(self, key: str) -> str:
        """The stored text; empty if there is none."""
        with self._tables.reading("recall") as database:
            found = (
                None
                if database is None
                else database.execute("SELECT value FROM notes WHERE key = ?", (key,)).fetchone()
            )
        return str(found[0]) if found else ""

    def summary(self, failing: int) -> QueueSummary:
        """The counts, and at most this many of the failing files."""
        with self._tables.reading("count") as database:
            if database is None:
                return QueueSummary()
            missing, wanted, failed, oldest = database.execute(
                "SELECT count(*), coalesce(sum(is_queued), 0), coalesce(sum(tries > 0), 0), min(since_ms)"
                " FROM wanted"
            ).fetchone()
            rows = database.execute(
                "SELECT name, sha256, why, tries, next_at_ms, since_ms FROM wanted WHERE tries > 0"
                " ORDER BY since_ms, serial LIMIT ?",
                (failing,),
            ).fetchall()
            first = database.execute("SELECT name FROM wanted ORDER BY since_ms, serial LIMIT 1").fetchone()
        return QueueSummary(
            missing=missing,
            wanted=wanted,
            failing_count=failed,
            oldest_since_ms=oldest,
            failing=[FailingFile(*row) for row in rows],
            first_missing=first[0] if first else "",
        )

    def _exists(self) -> bool:
        with self._tables.reading("open") as database:
            return database is not None


def _is_named(database: sqlite3.Connection, sha256: str) -> bool:
    return database.execute("SELECT 1 FROM names WHERE sha256 = ?", (sha256,)).fetchone() is not None


def _store_note(database: sqlite3.Connection, key: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO notes (key, value) VALUES (?, ?)", (key, value))
