"""The log in an SQLite file: the embedded default.

WAL, so that reading and writing do not wait for each other. ``synchronous=FULL``, because in WAL mode
``NORMAL`` syncs only at checkpoints: a power cut could then take back commits that were acknowledged, and
acknowledged means durable here. Group commit makes one sync serve many appends.

Two connections: one for the thread that writes, one, read-only, for the thread that reads.
"""

import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.interfaces import Appended, Head, Receipt
from synrepl.storage.digest import EMPTY, verify
from synrepl.storage.lock import FileLock
from synrepl.storage.paging import take_rows, take_tokens
from synrepl.storage.schema import migrate
from synrepl.streams.facts import Fact

__all__ = ["SQLiteEngine"]

CHECKED_AT_OPEN = 1000
"""Facts at the head that are checked when the log is opened; all of a big log would take too long."""

LOOKED_AT_ONCE = 50_000
"""Serials one read looks through for facts of the streams wanted, so that no read takes very long."""

COLUMNS = "serial, epoch, stream, writer, prev_token, token, rows, committed_at_ms, digest"

HINTS = {
    "SQLITE_BUSY": "another program holds the database; end it",
    "SQLITE_CANTOPEN": "check that the file and its directory can be written by this user",
    "SQLITE_CORRUPT": "the file is damaged; restore it, or join again as a replica",
    "SQLITE_FULL": "the disk is full; free some space",
    "SQLITE_IOERR": "the disk failed; look at the system's log",
    "SQLITE_NOTADB": "this file is something else; name another one",
    "SQLITE_READONLY": "check that the file and its directory can be written by this user",
}
"""What a person can do, by the name of SQLite's error."""

RETRYABLE = {"SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR"}


class SQLiteEngine:
    """An `IEngine` over the file at `path`, made when it is missing, its directory not.

    One process at a time: `<path>.lock` is held while it is open.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = FileLock(Path(f"{os.fspath(path)}.lock"))
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None

    def open(self) -> Head:
        """Make or migrate the file, check its head, count this boot, and say where the log stands."""
        if self._writing is not None:
            raise StorageError(op="open", why=f"{self._path} is open already")
        if not self._path.parent.is_dir():
            raise StorageError(
                op="open",
                why=f"there is no directory {self._path.parent}",
                hint="make it, or name another place for the database",
            )
        self._lock.acquire()
        try:
            with _telling("open", self._path):
                self._writing = _connect(self._path)
                migrate(self._writing, self._path)
                self._check_head(self._writing)
                with _transaction(self._writing):
                    self._writing.execute(
                        "INSERT INTO meta (key, value) VALUES ('boots', 1)"
                        " ON CONFLICT (key) DO UPDATE SET value = value + 1"
                    )
            return self.head()
        except BaseException:
            self.close()
            raise

    def head(self) -> Head:
        """Where the log stands now."""
        with _telling("head", self._path):
            database = self._writer("head")
            meta = dict(database.execute("SELECT key, value FROM meta"))
            last = database.execute(
                "SELECT serial, digest, epoch FROM facts ORDER BY serial DESC LIMIT 1"
            ).fetchone()
            serial, digest, epoch = last or (0, EMPTY, 0)
            positions = {
                (stream, writer): token
                for stream, writer, token in database.execute("SELECT stream, writer, token FROM positions")
            }
            allocated: dict[str, int] = {}
            for (stream, _), token in positions.items():
                allocated[stream] = max(token, allocated.get(stream, token))
            for stream, token in allocated.items():
                found = database.execute(
                    "SELECT max(token) FROM facts WHERE stream = ?", (stream,)
                ).fetchone()[0]
                allocated[stream] = token if found is None else max(token, found)
        return Head(
            epoch=max(meta["epoch"], epoch),
            serial=serial,
            digest=digest,
            boots=meta["boots"],
            positions=positions,
            allocated=allocated,
        )

    def commit(self, facts: Sequence[Fact], receipts: Sequence[Receipt]) -> None:
        """Keep all of these or none, in one synced transaction."""
        database = self._writer("commit")
        with _telling("commit", self._path), _transaction(database):
            last = database.execute("SELECT max(serial) FROM facts").fetchone()[0] or 0
            for serial, fact in enumerate(facts, last + 1):
                if fact.serial != serial:
                    raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {serial - 1}")
            database.executemany(
                f"INSERT INTO facts ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                map(msgspec.structs.astuple, facts),
            )
            positions = {(fact.stream, fact.writer): fact.token for fact in facts}
            database.executemany(
                "INSERT INTO positions (stream, writer, token) VALUES (?, ?, ?)"
                " ON CONFLICT (stream, writer) DO UPDATE SET token = excluded.token",
                [(*pair, token) for pair, token in positions.items()],
            )
            if receipts:
                database.executemany(
                    "INSERT INTO receipts (key, request, epoch, first_serial, tokens, at_ms)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    map(_receipt_row, receipts),
                )

    def read(
        self, *, after: int, upto: int, streams: Collection[str] | None, limit: int
    ) -> tuple[list[Fact], int]:
        """Facts in order of serial, and how far it has looked."""
        with _telling("read", self._path):
            database = self._reader()
            last = database.execute("SELECT max(serial) FROM facts").fetchone()[0] or 0
            upto = min(upto, last)
            wanted, values = "", list[object]()
            if streams is not None:
                upto = min(upto, after + LOOKED_AT_ONCE)
                # The plus keeps SQLite from the index by stream: each page would sort all that follows.
                wanted = f" AND +stream IN ({', '.join('?' * len(streams))})"
                values = [*streams]
            found = database.execute(
                f"SELECT {COLUMNS} FROM facts WHERE serial > ? AND serial <= ?{wanted} ORDER BY serial",
                (after, upto, *values),
            )
            # Closed early, or the rest of the rows would hold a snapshot, and the WAL could not shrink.
            with closing(found):
                taken, is_full = take_rows(_facts(found), limit)
        return taken, taken[-1].serial if is_full else max(after, upto)

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream in order of token, and whether there are more."""
        with _telling("read", self._path, stream):
            found = self._reader().execute(
                f"SELECT {COLUMNS} FROM facts WHERE stream = ? AND token > ? AND token <= ? AND serial <= ?"
                + ("" if writer is None else " AND writer = ?")
                + " ORDER BY token, serial",
                (stream, after, upto, serial, *(() if writer is None else (writer,))),
            )
            with closing(found):
                return take_tokens(_facts(found), limit)

    def receipt(self, key: str) -> Receipt | None:
        """What an append with this key was answered."""
        with _telling("receipt", self._path):
            found = (
                self._writer("receipt")
                .execute(
                    "SELECT request, epoch, first_serial, tokens, at_ms FROM receipts WHERE key = ?", (key,)
                )
                .fetchone()
            )
        if found is None:
            return None
        request, epoch, first_serial, tokens, at_ms = found
        return Receipt(
            key, request, Appended(epoch, first_serial, msgspec.json.decode(tokens, type=list[int])), at_ms
        )

    def forget_receipts(self, before_ms: int) -> None:
        """Forget the answers given before then."""
        database = self._writer("forget_receipts")
        with _telling("forget_receipts", self._path), _transaction(database):
            database.execute("DELETE FROM receipts WHERE at_ms < ?", (before_ms,))

    def close(self) -> None:
        """Let go of the file. Harmless when repeated."""
        # The writer goes last: the last connection to leave takes the WAL back into the file.
        for database in (self._reading, self._writing):
            if database is not None:
                database.close()
        self._reading = self._writing = None
        self._lock.release()

    def _writer(self, op: str) -> sqlite3.Connection:
        if self._writing is None:
            raise StorageError(op=op, why="the log is not open")
        return self._writing

    def _reader(self) -> sqlite3.Connection:
        self._writer("read")
        if self._reading is None:
            self._reading = sqlite3.connect(
                f"file:{quote(os.fspath(self._path.absolute()))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
        return self._reading

    def _check_head(self, database: sqlite3.Connection) -> None:
        """Refuse a log whose end contradicts itself: going on from there would make it worse."""
        rows = database.execute(
            f"SELECT {COLUMNS} FROM facts ORDER BY serial DESC LIMIT ?", (CHECKED_AT_OPEN + 1,)
        )
        tail = list(_facts(rows))[::-1]
        if not tail:
            return
        why = ""
        serials = range(tail[0].serial, tail[0].serial + len(tail))
        holes = [serial for serial, fact in zip(serials, tail, strict=True) if fact.serial != serial]
        if len(tail) <= CHECKED_AT_OPEN and tail[0].serial != 1:
            holes = [1]
        whole = tail[0].serial == 1
        wrong = verify(tail if whole else tail[1:], EMPTY if whole else tail[0].digest)
        if holes:
            why = f"serial {holes[0]} is missing"
        elif wrong is not None:
            why = f"the digest of serial {wrong} does not follow from the facts before it"
        else:
            positions = {
                (stream, writer): token
                for stream, writer, token in database.execute("SELECT stream, writer, token FROM positions")
            }
            for (stream, writer), token in {(fact.stream, fact.writer): fact.token for fact in tail}.items():
                if positions.get((stream, writer)) != token:
                    kept = positions.get((stream, writer))
                    why = f"the last token of {writer} in {stream} is {token}, its position says {kept}"
        if why:
            raise StorageError(op="open", why=why, hint=HINTS["SQLITE_CORRUPT"])


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    # Without a limit the WAL keeps on disk the size it once had.
    database.execute("PRAGMA journal_size_limit = 67108864")
    return database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of what is done inside, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def _telling(op: str, path: Path, stream: str = "") -> Iterator[None]:
    """Say `StorageError`, with a hint, where SQLite says something of its own."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        base = "_".join(name.split("_")[:2])
        raise StorageError(
            op=op,
            why=f"{path}: {error}",
            hint=HINTS.get(base, ""),
            stream=stream,
            retryable=base in RETRYABLE,
        ) from error


def _facts(rows: Iterable[tuple[object, ...]]) -> Iterator[Fact]:
    return (Fact(*row) for row in rows)  # type: ignore[arg-type]  # the columns are the fields, in order


def _receipt_row(receipt: Receipt) -> tuple[object, ...]:
    appended = receipt.appended
    tokens = msgspec.json.encode(appended.tokens).decode()
    return (receipt.key, receipt.request, appended.epoch, appended.first_serial, tokens, receipt.at_ms)
