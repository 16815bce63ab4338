"""The names that facts give to files, copied from the log into a table, and which of these files are missing.

The stream ``files`` gives files names. Rows of declared streams may refer to files as well: each such column
of each key is a name that only this index knows (`reference`).
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from twisted.internet.defer import Deferred

from synrepl.base.gate import Wakeup
from synrepl.base.interfaces import IClock
from synrepl.errors import StorageError
from synrepl.files.store import DiskThread
from synrepl.storage.lock import DatabaseFile
from synrepl.storage.log import Log
from synrepl.storage.private_files import DiskFull, make_directory, map_errors
from synrepl.storage.sqlite import SQLiteConnection, connect
from synrepl.storage.sqlite_errors import map_sqlite_errors
from synrepl.streams.catalog import FILES, REFERENCE
from synrepl.streams.digest import EMPTY
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST
from synrepl.wire.filter import Filter

Rule = Literal["eager", "lazy", "none"]
"""Which missing files are fetched: all, the requested ones, or, without a source, none."""

FIRST_DELAY_MS: Final = 1_000
LONGEST_DELAY_MS: Final = 600_000

MAX_KEY_TEXT: Final = 1_000
SHOWN_KEY_TEXT: Final = 200
"""Of a key of more than `MAX_KEY_TEXT` characters so many are in a reference's name, and its checksum."""

PAGE_ROWS: Final = 1_000
_READING: Final = "2"
"""In which way the log was read. Releases up to 26.11.2 wrote none, and took names of ``files`` that began as
references do for these."""

UNSAVED_SERIALS: Final = 10_000
"""After how many serials without files the progress is saved."""

TABLES: Final = (
    # The file of each name; deleted names are not kept.
    """CREATE TABLE names (
        name TEXT PRIMARY KEY,
        sha256 TEXT NOT NULL,
        size INTEGER NOT NULL,
        serial INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX names_by_sha256 ON names (sha256)",
    # Missing files that have a name; `is_queued` if they are to be fetched, `is_wrong` if the last download
    # had other bytes than the name states.
    """CREATE TABLE wanted (
        sha256 TEXT PRIMARY KEY,
        size INTEGER NOT NULL,
        name TEXT NOT NULL,
        serial INTEGER NOT NULL,
        is_queued INTEGER NOT NULL,
        is_demanded INTEGER NOT NULL DEFAULT 0,
        tries INTEGER NOT NULL DEFAULT 0,
        next_at_ms INTEGER NOT NULL DEFAULT 0,
        why TEXT NOT NULL DEFAULT '',
        is_wrong INTEGER NOT NULL DEFAULT 0,
        since_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX wanted_in_turn ON wanted (is_queued, is_demanded DESC, serial)",
    "CREATE INDEX wanted_by_time ON wanted (is_queued, next_at_ms)",
    # Stored files without a name.
    "CREATE TABLE unnamed (sha256 TEXT PRIMARY KEY, since_ms INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
VERSION: Final = 2

SUM_TABLE: Final = "CREATE TABLE sums (sum INTEGER NOT NULL)"
"""The sum over all rows. Release 26.11.1 has no such table, and leaves it as it is."""

SUMMED: Final = ("names", "wanted", "unnamed", "notes")

_INSERT_WANTED: Final = (
    "INSERT INTO wanted (sha256, size, name, serial, is_queued, since_ms)"
    " SELECT sha256, (SELECT max(size) FROM names WHERE sha256 = ?1), name, serial, ?2, ?3 FROM names"
    " WHERE sha256 = ?1 ORDER BY serial LIMIT 1 ON CONFLICT (sha256) DO UPDATE SET name = excluded.name,"
    " is_queued = max(is_queued, excluded.is_queued), size = max(size, excluded.size)"
)
_SELECT_NAMED: Final = "SELECT name, sha256, size, serial FROM names"

_AFTER_REFERENCES: Final = "\x00\x02"


def reference(stream: str, key: Iterable[object], column: str) -> str:
    """Return the name of a file that a column of a row refers to; the key is that of the row."""
    text = jsontext.dumps(list(key)).decode()
    if len(text) > MAX_KEY_TEXT:
        text = f"{text[:SHOWN_KEY_TEXT]}... {hashlib.sha256(text.encode()).hexdigest()}"
    return f"{REFERENCE}{stream} {text} {column}"


def shown(name: str) -> str:
    """Return a name as it is shown: of a reference, the stream, the key and the column."""
    return name.removeprefix(REFERENCE)


def _stream_of(name: str) -> str:
    """Return the stream whose row gives a file this name."""
    return shown(name).partition(" ")[0] if name.startswith(REFERENCE) else FILES.name


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
        return f"{self.serial} {self.digest} {_READING}"

    @classmethod
    def read(cls, text: str) -> "LogProgress":
        """Parse a note; the beginning of the log if it is empty.

        Without a digest if another release read the log in another way: its names are not to be trusted.
        """
        if not text:
            return cls()
        serial, digest, *reading = text.split(" ")
        return cls(int(serial), digest if reading == [_READING] else "")


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
    """A file whose `tries` downloads failed, the last one because of `why`; a row of `stream` names it.

    `next_at` is the time of the next retry, in seconds; `since_ms` is when the file was found to be missing,
    in milliseconds.
    """

    stream: str
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


class QueueDatabase:
    """The database file at `path`, created with its directory at the first write.

    Apart from times, requests and failures, its contents can be rebuilt from the log and the disk. So a power
    cut may lose the last commits (``synchronous = NORMAL``); a damaged file, or one of an earlier version, is
    renamed to ``.bad``, and replaced. While it is open, no other daemon can open it (`DatabaseFile`).

    When it is opened, all of it is read: SQLite checks how its pages and indexes hang together, and a sum
    over all rows is compared, so that no flipped bit gives a name to another file, or takes it from one,
    which would then be deleted; `check` does it again. Triggers of this connection keep the sum in the
    transaction of each change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = DatabaseFile(path)
        self._database: SQLiteConnection | None = None

    def exists(self) -> bool:
        """Open the database if its file exists. Returns whether it does."""
        with self._map_errors("open the queue"):
            if self._database is None and self._path.exists():
                self._database = self._open()
        return self._database is not None

    def read(self, op: str, query: str, *values: object) -> list[Any]:
        """The rows that this query finds; none if there is no database."""
        if not self.exists():
            return []
        with self._map_errors(op):
            assert self._database is not None
            return self._database.execute(query, values).fetchall()

    def check(self) -> None:
        """Raise `StorageError` if it was damaged since it was opened."""
        if not self.exists():
            return
        assert self._database is not None
        try:
            _compare(self._database, _sum_rows(self._database))
        except sqlite3.DatabaseError as error:
            raise StorageError(
                op="check the queue",
                why=f"{self._path} is damaged: {error}",
                hint="restart the daemon, which makes it anew",
            ) from error

    @contextmanager
    def writing(self, op: str) -> Iterator[sqlite3.Connection]:
        """The database in a transaction, committed at the end of the block, or rolled back on an error."""
        with self._map_errors(op):
            if self._database is None:
                make_directory(self._path.parent)
                self._database = self._open()
            with self._database.transaction():
                yield self._database

    def close(self) -> None:
        """Close the database. Idempotent."""
        database, self._database = self._database, None
        if database is not None:
            database.close()
            self._file.release()

    def _open(self) -> SQLiteConnection:
        self._file.acquire()
        try:
            try:
                return self._connect()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                for ending in ("-wal", "-shm"):
                    self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
                self._path.replace(self._path.with_name(self._path.name + ".bad"))
                # The lock belongs to the renamed file.
                self._file.release()
                self._file.acquire()
                return self._connect()
        except BaseException:
            self._file.release()
            raise

    def _connect(self) -> SQLiteConnection:
        database = connect(self._path, "synchronous = NORMAL")
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise StorageError(
                    op="opening the queue",
                    why=f"{self._path} has version {version}; this release supports {VERSION}",
                    hint="a newer release wrote it; run that release",
                )
            if 0 < version < VERSION or (not version and _statements(database)):
                raise sqlite3.DatabaseError(f"version {version} is rebuilt as version {VERSION}")
            if version < VERSION:
                with database.transaction():
                    for statement in (*TABLES, f"PRAGMA user_version = {VERSION}"):
                        database.execute(statement)
            _verify(database)
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def _map_errors(self, op: str) -> Iterator[None]:
        with map_errors(op), map_sqlite_errors(op, str(self._path), path=self._path, full=DiskFull):
            yield


def _statements(database: SQLiteConnection) -> set[str]:
    """Return the statements that made the tables and indexes of a database."""
    found = database.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
    return {str(sql) for (sql,) in found}


def _sum_rows(database: SQLiteConnection) -> int:
    """Check how the database hangs together, and return the sum over its rows.

    Raises `sqlite3.DatabaseError` if it is damaged.
    """
    if {*TABLES} != _statements(database) - {SUM_TABLE}:
        raise sqlite3.DatabaseError("its tables are others")
    ((told,),) = database.execute("PRAGMA integrity_check(1)").fetchall()
    if told != "ok":
        raise sqlite3.DatabaseError(told)
    total = 0
    try:
        for table in SUMMED:
            for row in database.execute(f"SELECT * FROM {table}"):
                total = _mixed(total, table, *row)
    except (sqlite3.OperationalError, UnicodeError) as error:
        raise sqlite3.DatabaseError(f"its texts cannot be read: {error}") from error
    return total


def _verify(database: SQLiteConnection) -> None:
    """Compare the database with its sum, which it is given if it has none, and let triggers keep it.

    Raises `sqlite3.DatabaseError` if it is damaged.
    """
    total = _sum_rows(database)
    if SUM_TABLE not in _statements(database):
        with database.transaction():
            database.execute(SUM_TABLE)
            database.execute("INSERT INTO sums VALUES (?)", (total,))
    _compare(database, total)
    database.create_function("mixed", -1, _mixed, deterministic=True)
    # Or no trigger would see the row that INSERT OR REPLACE replaces.
    database.execute("PRAGMA recursive_triggers = ON")
    for table in SUMMED:
        columns = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
        old, new = (", ".join(f"{row}.{name}" for name in columns) for row in ("OLD", "NEW"))
        for change, total_after in (
            ("INSERT", f"mixed(sum, '{table}', {new})"),
            ("DELETE", f"mixed(sum, '{table}', {old})"),
            ("UPDATE", f"mixed(mixed(sum, '{table}', {old}), '{table}', {new})"),
        ):
            database.execute(
                f"CREATE TEMP TRIGGER {table}_{change} AFTER {change} ON main.{table}"
                f" BEGIN UPDATE sums SET sum = {total_after}; END"
            )


def _compare(database: SQLiteConnection, total: int) -> None:
    if database.execute("SELECT sum FROM sums").fetchall() != [(total,)]:
        raise sqlite3.DatabaseError("its rows have another sum")


def _mixed(total: int, *row: object) -> int:
    """Add a row to a sum of rows, or take it out of it: their order does not matter."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(row), digest_size=8).digest()
    return total ^ int.from_bytes(digest, "big", signed=True)


class FileQueue:
    """The names of files, the missing files, and the order of their downloads, in the file ``queue.db`` of
    `directory`, which the first write creates. Blocking; one thread at a time.

    `has` tells whether a file is stored, and `seconds` is a clock. `rule` says which missing files are
    queued. A file is in the table ``wanted`` if it has a name and is not stored, and in ``unnamed`` if it is
    stored and has no name: `settle` makes that true. Times are in milliseconds, unless a field says seconds.
    A power cut may lose the last commits.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        has: Callable[[str], bool],
        seconds: Callable[[], float],
        rule: Rule = "eager",
    ) -> None:
        self.rule: Rule = rule
        self._database = QueueDatabase(Path(directory) / "queue.db")
        self._has = has
        self._seconds = seconds

    def now_ms(self) -> int:
        """The time of the clock."""
        return int(self._seconds() * 1000)

    def open(self) -> LogProgress:
        """Open the queue. Returns the position up to which the log was read."""
        return LogProgress.read(self.recall("seen"))

    def close(self) -> None:
        """Close the queue. Idempotent."""
        self._database.close()

    def note(self, rows: Sequence[NamedFile], seen: LogProgress) -> None:
        """Apply rows up to `seen`, in one transaction."""
        if not rows:
            self.remember("seen", seen.text)
            return
        with self._database.writing("store file names") as database:
            # In the order of the rows.
            changed: dict[str, None] = {}
            for row in rows:
                found = database.execute("SELECT sha256 FROM names WHERE name = ?", (row.name,)).fetchone()
                changed |= dict.fromkeys(found or ())
                if row.sha256 is None:
                    database.execute("DELETE FROM names WHERE name = ?", (row.name,))
                else:
                    values = row.name, row.sha256, row.size, row.serial
                    database.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)", values)
                    changed[row.sha256] = None
            for sha256 in changed:
                self._settle(database, sha256, is_queued=self.rule == "eager")
            _store_note(database, "seen", seen.text)

    def settle(self, sha256s: Collection[str], *, is_new: bool = False) -> None:
        """Record whether these files are stored now; one that is missing is fetched again.

        `is_new`: they have just been received, so that whoever uploaded them has time to give them a name.
        """
        if not sha256s or not (self._database.exists() or any(map(self._has, sha256s))):
            return
        with self._database.writing("record stored files") as database:
            for sha256 in sha256s:
                if is_new:
                    database.execute("DELETE FROM unnamed WHERE sha256 = ?", (sha256,))
                self._settle(database, sha256, is_queued=self.rule != "none")

    def _settle(self, database: sqlite3.Connection, sha256: str, *, is_queued: bool) -> None:
        """Move a file to the table where it belongs by its names and the disk."""
        is_stored = self._has(sha256)
        named = database.execute("SELECT 1 FROM names WHERE sha256 = ? LIMIT 1", (sha256,)).fetchone()
        if named and not is_stored:
            database.execute(_INSERT_WANTED, (sha256, is_queued, self.now_ms()))
        else:
            database.execute("DELETE FROM wanted WHERE sha256 = ?", (sha256,))
        if is_stored and not named:
            database.execute("INSERT OR IGNORE INTO unnamed VALUES (?, ?)", (sha256, self.now_ms()))
        else:
            database.execute("DELETE FROM unnamed WHERE sha256 = ?", (sha256,))

    def reset(self) -> None:
        """Delete all names: the log was replaced."""
        if self._database.exists():
            with self._database.writing("delete file names") as database:
                for table in ("names", "wanted"):
                    database.execute(f"DELETE FROM {table}")
                _store_note(database, "seen", "")

    def follow(self, rule: Rule) -> None:
        """Queue all missing files (``eager``), the demanded ones (``lazy``), or none from now on."""
        self.rule = rule
        if self._database.exists():
            queued = {"eager": "1", "lazy": "is_demanded", "none": "0"}[rule]
            with self._database.writing("queue missing files") as database:
                database.execute(f"UPDATE wanted SET is_queued = {queued}")

    def due(self, limit: int, running: Collection[str] = ()) -> tuple[list[WantedFile], int | None]:
        """Up to `limit` queued files that are due, and when the next one is due (None: no other is queued).

        Neither are among those whose downloads are `running`.
        """
        now_ms = self.now_ms()
        rows = self._database.read(
            "take a file",
            "SELECT sha256, size, name, serial, is_demanded, tries FROM wanted"
            " WHERE is_queued = 1 AND next_at_ms <= ? ORDER BY is_demanded DESC, serial LIMIT ?",
            now_ms,
            limit + len(running),
        )
        files = [
            WantedFile(sha256, size, shown(name), serial, bool(is_demanded), tries)
            for sha256, size, name, serial, is_demanded, tries in rows
            if sha256 not in running
        ][:limit]
        taken = {*running, *(file.sha256 for file in files)}
        times = self._database.read(
            "take a file",
            "SELECT sha256, next_at_ms FROM wanted WHERE is_queued = 1 ORDER BY next_at_ms LIMIT ?",
            1 + len(taken),
        )
        return files, next((at for sha256, at in times if sha256 not in taken), None)

    def mark_failed(self, sha256: str, why: str, *, is_wrong: bool = False) -> None:
        """Record a failed download, and schedule a retry with backoff.

        `is_wrong`: the source sent other bytes. Requests for the file do not hasten the retry then: it would
        take all bytes again.
        """
        with self._database.writing("schedule a retry") as database:
            # The shift is bounded so that it cannot overflow; 20 doublings exceed the longest delay.
            database.execute(
                "UPDATE wanted SET tries = tries + 1, why = ?, is_wrong = ?,"
                f" next_at_ms = ? + min({LONGEST_DELAY_MS}, {FIRST_DELAY_MS} << min(tries, 20))"
                " WHERE sha256 = ?",
                (why[:1_000], is_wrong, self.now_ms(), sha256),
            )

    def demand(self, sha256: str) -> bool:
        """Queue this file before others, if it has a name and is missing. Returns whether it is so."""
        if not self._database.exists():
            return False
        with self._database.writing("request a file") as database:
            self._settle(database, sha256, is_queued=True)
            # However many demand it, a failed file is retried no sooner than after the first delay.
            demanded = database.execute(
                "UPDATE wanted SET is_demanded = 1, next_at_ms ="
                f" CASE WHEN is_wrong THEN next_at_ms ELSE min(next_at_ms, ? + {FIRST_DELAY_MS}) END"
                " WHERE sha256 = ?",
                (self.now_ms(), sha256),
            )
            return demanded.rowcount > 0

    def name_of(self, sha256: str) -> str | None:
        """The oldest name of the file; None if it has none."""
        query = "SELECT name FROM names WHERE sha256 = ? ORDER BY serial LIMIT 1"
        found = self._database.read("look up a file", query, sha256)
        return shown(found[0][0]) if found else None

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
            "list names", query + order, name, prefix, REFERENCE, _AFTER_REFERENCES, limit
        )
        return [NamedFile(*row) for row in rows if row[0].startswith(prefix)]

    def references_after(self, name: str, limit: int) -> list[NamedFile]:
        """Up to `limit` names after this one, those of rows of declared streams too."""
        query = f"{_SELECT_NAMED} WHERE name > ? ORDER BY name LIMIT ?"
        return [NamedFile(*row) for row in self._database.read("list names", query, name, limit)]

    def find(self, name: str) -> NamedFile | None:
        """The file to which this name refers; None if the name is not used, or one of a declared stream."""
        if name.startswith(REFERENCE):
            return None
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

    def check(self) -> None:
        """Raise `StorageError` if the queue was damaged since it was opened: a name may be missing in it."""
        self._database.check()

    def garbage(self, grace_ms: int, limit: int) -> list[str]:
        """Up to `limit` stored files that have had no name for this long."""
        query = "SELECT sha256 FROM unnamed WHERE since_ms <= ? ORDER BY since_ms LIMIT ?"
        rows = self._database.read("list unnamed files", query, self.now_ms() - grace_ms, limit)
        return [sha256 for (sha256,) in rows]

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
            failing=[FailingFile(_stream_of(name), shown(name), *rest) for name, *rest in rows],
            first_missing=shown(first or ""),
        )


def _store_note(database: sqlite3.Connection, key: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO notes (key, value) VALUES (?, ?)", (key, value))


class NameIndex:
    """Reads the names of the log into the queue. Calls `on_batch` after each batch that has any.

    `find_stream` returns a stream of the daemon's table; None without one.
    """

    def __init__(
        self,
        log: Log,
        queue: FileQueue,
        disk: DiskThread,
        clock: IClock,
        on_batch: Callable[[], None],
        find_stream: Callable[[str], Stream[Any] | None] = lambda name: None,
    ) -> None:
        self._find_stream = find_stream
        self._streams = {FILES.name}
        self.progress = LogProgress()
        self._log = log
        self._queue = queue
        self._disk = disk
        self._on_batch = on_batch
        self._wakeup = Wakeup(clock)
        self._saved = 0
        self._is_idle = False
        """Whether all facts are read, and `step` waits for more."""
        self._is_stale = False
        self._is_watching = False
        self._waiters: list[tuple[int, Deferred[None]]] = []

    async def open(self) -> None:
        """Load the saved progress. If it belongs to another log, all names are read again."""
        # It is saved again by a stop: until the names are read again, it shows that they must be.
        progress = self.progress = await self._disk.run(self._queue.open)
        self._is_stale = (
            bool(progress.serial) and await self._log.reads.digest(progress.serial) != progress.digest
        )
        self._saved = progress.serial
        if not self._is_watching:
            self._is_watching = True
            self._log.subscribe(self._on_committed)

    @property
    def is_complete(self) -> bool:
        """Whether all names up to the end of the log are known."""
        return self._knows(self._log.head.serial)

    def _knows(self, serial: int) -> bool:
        return not self._is_stale and self.progress.serial >= serial

    def stream_added(self, stream: Stream[Any]) -> None:
        """Read a declared stream too, if its rows refer to files.

        If the log has facts of it, and was opened before, all names are read again.
        """
        if stream.files:
            self._streams.add(stream.name)
            if self._is_watching and self._log.positions(stream.name):
                self.rebuild()

    def rebuild(self) -> None:
        """Read all names again: the log was replaced."""
        self._is_stale, self._is_idle = True, False
        self._wakeup.open()

    async def wait_for(self, serial: int) -> None:
        """Return when all names up to this serial, or to the end of the log if lower, are known."""
        serial = min(serial, self._log.head.serial)
        if not self._knows(serial):
            waiter: Deferred[None] = Deferred()
            self._waiters.append((serial, waiter))
            self._wakeup.open()
            await waiter

    async def step(self) -> None:
        """Read the next facts, or wait for some."""
        if self._is_stale:
            await self._disk.run(self._queue.reset)
            self._is_stale = False
            self._saved = 0
            self._advance(LogProgress())
        elif self.progress.serial < self._log.head.serial:
            facts, upto = await self._read()
            await self._store(facts, LogProgress(upto, await self._log.reads.digest(upto) or ""))
        elif self.progress.serial - self._saved > UNSAVED_SERIALS:
            # Saved, so that less is read again after a restart.
            await self._store([], self.progress)
        else:
            # There was no await since the check, so that no fact was committed in between.
            self._is_idle = True
            try:
                await self._wakeup.wait()
            finally:
                self._is_idle = False

    async def _read(self) -> tuple[Sequence[Fact], int]:
        """Read the next facts with names; return them, and the last serial that was looked at."""
        if not any(map(self._log.positions, self._streams)):
            # A long log without names need not be looked through.
            return [], self._log.head.serial
        return await self._log.reads.facts(
            after=self.progress.serial,
            upto=self._log.head.serial,
            limit=PAGE_ROWS,
            filter=Filter.of(streams=self._streams),
        )

    async def _store(self, facts: Sequence[Fact], progress: LogProgress) -> None:
        rows = [row for fact in facts for row in self._rows(fact)]
        await self._disk.run(self._queue.note, rows, progress)
        self._saved = progress.serial
        self._advance(progress)
        if facts:
            self._on_batch()

    def _rows(self, fact: Fact) -> list[NamedFile]:
        """The names that a fact gives to files, or takes from them."""
        if not (texts := jsontext.split(fact.rows)):
            return []
        serial = fact.serial
        if fact.stream == FILES.name:
            # Logs of releases up to 26.11.2 may have names that begin as references do: they are none.
            named = [one for one in FILES.decode_many(texts, NEWEST) if not one.name.startswith(REFERENCE)]
            return [NamedFile(row.name, row.sha256, row.size, serial) for row in named]
        stream = self._find_stream(fact.stream)
        if stream is None:
            return []
        found = []
        for number, row in enumerate(stream.decode_many(texts, NEWEST)):
            key = (serial, number) if stream.key is None else stream.key(row)
            for column in stream.files:
                name = reference(fact.stream, key, column)
                file = getattr(row, column)
                sha256, size = (None, None) if file is None else (file["sha256"], file["size"])
                found.append(NamedFile(name, sha256, size, serial))
        return found

    def _advance(self, progress: LogProgress) -> None:
        self.progress = progress
        done = [waiter for serial, waiter in self._waiters if serial <= progress.serial]
        self._waiters = [(serial, waiter) for serial, waiter in self._waiters if serial > progress.serial]
        for waiter in done:
            if not waiter.called:
                waiter.callback(None)

    def _on_committed(self, facts: Sequence[Fact]) -> None:
        if not facts or not facts[-1].serial:
            return
        if self._is_idle and not any(fact.stream in self._streams for fact in facts):
            self._advance(LogProgress(facts[-1].serial, facts[-1].digest))
            if self.progress.serial - self._saved <= UNSAVED_SERIALS:
                return
        self._wakeup.open()
