"""The queue of missing files, with the order and the retries of their downloads."""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from synrepl.files.queue_database import QueueDatabase
from synrepl.ports.history import EMPTY
from synrepl.wire import jsontext

FIRST_DELAY_MS: Final = 1_000
LONGEST_DELAY_MS: Final = 600_000

_INSERT_WANTED: Final = (
    "INSERT INTO wanted (sha256, size, name, serial, is_queued, since_ms) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (sha256) DO UPDATE"
    " SET is_queued = max(is_queued, excluded.is_queued), size = max(size, excluded.size)"
)
_SELECT_IS_NAMED: Final = "SELECT 1 FROM names WHERE sha256 = ?"
_SELECT_NAMED: Final = "SELECT name, sha256, size, serial FROM names"


MAX_KEY_TEXT: Final = 1_000
SHOWN_KEY_TEXT: Final = 200
"""Of a key of more than `MAX_KEY_TEXT` characters so many are in a reference's name, and its checksum."""

_REFERENCE: Final = "\x00\x01"
"""How the names begin that rows of declared streams give; those of the stream ``files`` do not."""
_AFTER_REFERENCES: Final = "\x00\x02"


def reference(stream: str, key: Iterable[object], column: str) -> str:
    """Return the name of a file that a column of a row refers to; the key is that of the row."""
    text = jsontext.dumps(list(key)).decode()
    if len(text) > MAX_KEY_TEXT:
        text = f"{text[:SHOWN_KEY_TEXT]}... {hashlib.sha256(text.encode()).hexdigest()}"
    return f"{_REFERENCE}{stream} {text} {column}"


def shown(name: str) -> str:
    """Return a name as it is shown: of a reference, the stream, the key and the column."""
    return name.removeprefix(_REFERENCE)


class NamedFile(msgspec.Struct, frozen=True):
    """A row of ``files``: from `serial` on the name refers to this file, or to none (`sha256` is None)."""

    name: str
    sha256: str | None
    size: int | None
    serial: int


class LogProgress(msgspec.Struct, frozen=True):
    """The position up to which the log was read: `serial`, with its `digest`."""

    serial: int = 0
    digest: str = EMPTY

    @property
    def text(self) -> str:
        """The text that is stored in a note; `read` parses it."""
        return f"{self.serial} {self.digest}"

    @classmethod
    def read(cls, text: str) -> "LogProgress":
        """Parse a note; the beginning of the log if it is empty."""
        serial, _, digest = text.partition(" ")
        return cls(int(serial), digest) if serial else cls()


class WantedFile(msgspec.Struct, frozen=True):
    """A file to be fetched, before others if `demanded`; `tries` is the number of failed downloads.

    `size` is the number of bytes that its row states, the largest of several rows.
    """

    sha256: str
    size: int
    name: str
    serial: int
    demanded: bool
    tries: int


class FailingFile(msgspec.Struct, frozen=True):
    """A file whose `tries` downloads failed, the last one because of `why`. `next_at` is the time of the next
    retry, in seconds; `since_ms` is when the file was found to be missing, in milliseconds."""

    name: str
    sha256: str
    why: str
    tries: int
    next_at: float
    since_ms: int


class QueueSummary(msgspec.Struct, frozen=True):
    """Counts of `missing` files, of those queued (`wanted`), and of those whose downloads failed
    (`failing_count`), some of which are in `failing`. The file that has been missing longest is so since
    `oldest_since_ms`, and is named `first_missing`."""

    missing: int = 0
    wanted: int = 0
    failing_count: int = 0
    oldest_since_ms: int | None = None
    failing: Sequence[FailingFile] = ()
    first_missing: str = ""


class FileQueue:
    """The names of files, the missing files, and the order of their downloads, in the file ``queue.db`` of
    `directory`, which the first write creates. Blocking; one thread at a time.

    Times are in milliseconds, unless a field says seconds. A power cut may lose the last commits. Downloads
    in flight are known only in memory: after a kill they are due again.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._database = QueueDatabase(Path(directory) / "queue.db")
        self._in_flight: set[str] = set()

    def open(self) -> LogProgress:
        """Open the queue. Returns the position up to which the log was read."""
        return LogProgress.read(self.recall("seen"))

    def close(self) -> None:
        """Close the queue. Idempotent."""
        self._database.close()
        self._in_flight.clear()

    def note(
        self,
        rows: Sequence[NamedFile],
        seen: LogProgress,
        *,
        now_ms: int,
        has: Callable[[str], bool],
        fetches: bool,
    ) -> None:
        """Apply rows up to `seen`, in one transaction. Missing files (by `has`) are queued if `fetches`."""
        if not rows:
            self.remember("seen", seen.text)
            return
        with self._database.writing("store file names") as database:
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
        if self._database.exists():
            with self._database.writing("delete file names") as database:
                for table in ("names", "wanted"):
                    database.execute(f"DELETE FROM {table}")
                _store_note(database, "seen", "")

    def follow(self, rule: Literal["eager", "lazy", "none"]) -> None:
        """Queue all missing files (``eager``), the demanded ones (``lazy``), or none."""
        if self._database.exists():
            queued = {"eager": "1", "lazy": "is_demanded", "none": "0"}[rule]
            with self._database.writing("queue missing files") as database:
                database.execute(f"UPDATE wanted SET is_queued = {queued}")

    def take(self, now_ms: int, limit: int) -> list[WantedFile]:
        """Take up to `limit` queued files that are due, and count them as in flight."""
        batch: list[WantedFile] = []
        rows = self._database.read(
            "take a file",
            "SELECT sha256, size, name, serial, is_demanded, tries FROM wanted"
            " WHERE is_queued = 1 AND next_at_ms <= ? ORDER BY is_demanded DESC, serial LIMIT ?",
            now_ms,
            limit + len(self._in_flight),
        )
        for sha256, size, name, serial, is_demanded, tries in rows:
            if len(batch) < limit and sha256 not in self._in_flight:
                self._in_flight.add(sha256)
                batch.append(WantedFile(sha256, size, shown(name), serial, bool(is_demanded), tries))
        return batch

    def next_at(self) -> int | None:
        """When the next queued file that is not in flight is due; None if there is none."""
        rows = self._database.read(
            "take a file",
            "SELECT sha256, next_at_ms FROM wanted WHERE is_queued = 1 ORDER BY next_at_ms LIMIT ?",
            1 + len(self._in_flight),
        )
        return next((at for sha256, at in rows if sha256 not in self._in_flight), None)

    def mark_arrived(self, sha256: str, now_ms: int) -> None:
        """Record that the file is stored."""
        self._in_flight.discard(sha256)
        with self._database.writing("record a stored file") as database:
            database.execute("DELETE FROM wanted WHERE sha256 = ?", (sha256,))
            if not _is_named(database, sha256):
                # With a new time: the uploader has time to give it a name.
                database.execute("INSERT OR REPLACE INTO unnamed VALUES (?, ?)", (sha256, now_ms))

    def mark_failed(self, sha256: str, why: str, now_ms: int, *, is_wrong: bool = False) -> None:
        """Record a failed download, and schedule a retry with backoff.

        `is_wrong`: the source sent other bytes. Requests for the file do not hasten the retry then: it would
        take all bytes again.
        """
        self._in_flight.discard(sha256)
        with self._database.writing("schedule a retry") as database:
            # The shift is bounded so that it cannot overflow; 20 doublings exceed the longest delay.
            database.execute(
                "UPDATE wanted SET tries = tries + 1, why = ?, is_wrong = ?,"
                f" next_at_ms = ? + min({LONGEST_DELAY_MS}, {FIRST_DELAY_MS} << min(tries, 20))"
                " WHERE sha256 = ?",
                (why[:1_000], is_wrong, now_ms, sha256),
            )

    def release(self, sha256: str) -> None:
        """Count the file as no longer in flight: its download was cancelled."""
        self._in_flight.discard(sha256)

    def demand(self, sha256: str, now_ms: int) -> bool:
        """Queue this missing file before others, if it has a name. Returns whether it has."""
        if not self._database.exists():
            return False
        with self._database.writing("request a file") as database:
            if not self._add_wanted(database, sha256, now_ms, is_queued=True):
                return False
            # However many demand it, a failed file is retried no sooner than after the first delay.
            database.execute(
                "UPDATE wanted SET is_demanded = 1, next_at_ms ="
                f" CASE WHEN is_wrong THEN next_at_ms ELSE min(next_at_ms, ? + {FIRST_DELAY_MS}) END"
                " WHERE sha256 = ?",
                (now_ms, sha256),
            )
        return True

    def mark_lost(self, sha256: str, now_ms: int, *, fetches: bool) -> str | None:
        """Record that a stored file is gone; queue it if `fetches`. Returns a name of it, or None."""
        if not self._database.exists():
            return None
        with self._database.writing("record a lost file") as database:
            database.execute("DELETE FROM unnamed WHERE sha256 = ?", (sha256,))
            return self._add_wanted(database, sha256, now_ms, is_queued=fetches)

    @staticmethod
    def _add_wanted(database: sqlite3.Connection, sha256: str, now_ms: int, *, is_queued: bool) -> str | None:
        found = database.execute(
            "SELECT name, serial, (SELECT max(size) FROM names WHERE sha256 = ?1) FROM names"
            " WHERE sha256 = ?1 ORDER BY serial LIMIT 1",
            (sha256,),
        ).fetchone()
        if found is None:
            return None
        name, serial, size = found
        database.execute(_INSERT_WANTED, (sha256, size, name, serial, is_queued, now_ms))
        return shown(name)

    def is_named(self, sha256: str) -> bool:
        """Whether the file has a name."""
        return bool(self._database.read("look up a file", _SELECT_IS_NAMED, sha256))

    def is_missing(self, sha256: str) -> bool:
        """Whether the file has a name and is not stored."""
        return bool(self._database.read("look up a file", "SELECT 1 FROM wanted WHERE sha256 = ?", sha256))

    def names_after(self, name: str, limit: int, *, prefix: str = "") -> list[NamedFile]:
        """Up to `limit` names after this one that begin with `prefix`, in the order of their UTF-8 bytes.

        Those of rows of declared streams are not among them.
        """
        query = f"{_SELECT_NAMED} WHERE name > ? AND name >= ? AND NOT (name >= ? AND name < ?)"
        order = " ORDER BY name LIMIT ?"
        rows = self._database.read(
            "list names", query + order, name, prefix, _REFERENCE, _AFTER_REFERENCES, limit
        )
        return [NamedFile(*row) for row in rows if row[0].startswith(prefix)]

    def references_after(self, name: str, limit: int) -> list[NamedFile]:
        """Up to `limit` names after this one, those of rows of declared streams too."""
        query = f"{_SELECT_NAMED} WHERE name > ? ORDER BY name LIMIT ?"
        return [NamedFile(*row) for row in self._database.read("list names", query, name, limit)]

    def find(self, name: str) -> NamedFile | None:
        """The file to which this name refers; None if the name is not used."""
        rows = self._database.read("look up a name", f"{_SELECT_NAMED} WHERE name = ?", name)
        return NamedFile(*rows[0]) if rows else None

    def missing(self, upto: int | None = None, limit: int = 1_000_000) -> list[tuple[str, str]]:
        """Names up to the serial `upto` (None: all) whose files are missing, with checksums, oldest first."""
        rows = self._database.read(
            "list files",
            "SELECT names.name, sha256 FROM names JOIN wanted USING (sha256)"
            " WHERE names.serial <= ? ORDER BY names.serial, names.name LIMIT ?",
            2**63 - 1 if upto is None else upto,
            limit,
        )
        return [(shown(name), sha256) for name, sha256 in rows]

    def mark_stored(self, stored: Sequence[str], now_ms: int) -> None:
        """Record that these files are stored; those without a name may become garbage."""
        with self._database.writing("record stored files") as database:
            for sha256 in stored:
                database.execute("DELETE FROM wanted WHERE sha256 = ?", (sha256,))
                if not _is_named(database, sha256):
                    database.execute("INSERT OR IGNORE INTO unnamed VALUES (?, ?)", (sha256, now_ms))

    def garbage(self, before_ms: int, limit: int) -> list[str]:
        """Up to `limit` stored files that have had no name since `before_ms` or longer."""
        query = "SELECT sha256 FROM unnamed WHERE since_ms <= ? ORDER BY since_ms LIMIT ?"
        return [sha256 for (sha256,) in self._database.read("list unnamed files", query, before_ms, limit)]

    def mark_removed(self, sha256: str) -> None:
        """Record that the file was deleted as garbage."""
        with self._database.writing("record a deleted file") as database:
            database.execute("DELETE FROM unnamed WHERE sha256 = ?", (sha256,))

    def remember(self, key: str, value: str) -> None:
        """Store a short text under this key, if the queue exists."""
        if self._database.exists():
            with self._database.writing("store progress") as database:
                _store_note(database, key, value)

    def recall(self, key: str) -> str:
        """The text stored under this key; empty if there is none."""
        found = self._database.read("read progress", "SELECT value FROM notes WHERE key = ?", key)
        return str(found[0][0]) if found else ""

    def summary(self, failing: int) -> QueueSummary:
        """The counts, and at most this many of the failing files."""
        if not self._database.exists():
            return QueueSummary()
        ((missing, wanted, failed, oldest, first),) = self._database.read(
            "count missing files",
            "SELECT count(*), coalesce(sum(is_queued), 0), coalesce(sum(tries > 0), 0), min(since_ms),"
            " (SELECT name FROM wanted ORDER BY since_ms, serial LIMIT 1) FROM wanted",
        )
        rows = self._database.read(
            "count missing files",
            "SELECT name, sha256, why, tries, next_at_ms / 1000.0, since_ms FROM wanted WHERE tries > 0"
            " ORDER BY since_ms, serial LIMIT ?",
            failing,
        )
        return QueueSummary(
            missing=missing,
            wanted=wanted,
            failing_count=failed,
            oldest_since_ms=oldest,
            failing=[FailingFile(shown(name), *rest) for name, *rest in rows],
            first_missing=shown(first or ""),
        )


def _is_named(database: sqlite3.Connection, sha256: str) -> bool:
    return database.execute(_SELECT_IS_NAMED, (sha256,)).fetchone() is not None


def _store_note(database: sqlite3.Connection, key: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO notes (key, value) VALUES (?, ?)", (key, value))
