"""The log in an SQL database: what is the same in all of them.

Statements are written once, as SQLite takes them. What a database does in a way of its own (connections,
transactions, batches, its errors) is the part of the subclass.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.interfaces import Appended, Head, Receipt
from synrepl.storage.digest import EMPTY, verify
from synrepl.storage.following import advance, check_follow
from synrepl.storage.paging import take_rows, take_tokens
from synrepl.storage.voids import Void, Voids
from synrepl.streams.facts import Fact

__all__ = ["COLUMNS", "DAMAGED", "SQLEngine"]

CHECKED_AT_OPEN = 1000
"""Facts at the head that are checked when the log is opened; all of a big log would take too long."""

LOOKED_AT_ONCE = 50_000
"""Serials one read looks through for facts of the streams wanted, so that no read takes very long."""

COLUMNS = "serial, epoch, stream, writer, prev_token, token, rows, committed_at_ms, digest"
RECEIPT_COLUMNS = "key, request, epoch, first_serial, tokens, at_ms"

DAMAGED = "the {database} is damaged; restore it, or join again as a replica"

Row = tuple[Any, ...]


class SQLEngine(ABC):
    """An `IEngine` over two connections: one for the thread that writes, one for the thread that reads.

    `name` says, without secrets, which database it is.
    """

    KIND = "database"
    """What a person calls it."""

    UNINDEXED_STREAM = "stream"
    """The column `stream`, written so that its index is not used: each page would sort all that follows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_open = False
        # What this process knows, for when a connection is lost: which start it is, what is surely kept.
        self._boots: int | None = None
        self._kept = (0, EMPTY)
        self._voids = Voids()

    # What a database does in its own way

    @abstractmethod
    def _take(self) -> None:
        """Take the lock and connect; `StorageError` that says who has it, if another process does."""

    @abstractmethod
    def _let_go(self) -> None:
        """End the connections and give the lock back. Harmless when repeated."""

    @abstractmethod
    def _migrate(self, database: Any) -> None:
        """Make or migrate the tables, within a transaction."""

    @abstractmethod
    def _writing(self, op: str) -> Any:
        """The connection that writes, which holds the lock."""

    @abstractmethod
    def _reading(self, op: str) -> Any:
        """The connection that reads."""

    @abstractmethod
    def _telling(self, op: str, stream: str = "") -> AbstractContextManager[None]:
        """Say `StorageError`, with a hint, where the database says something of its own."""

    @abstractmethod
    def _transaction(self, database: Any) -> AbstractContextManager[None]:
        """All of what is done inside, or nothing; synced at its end."""

    @abstractmethod
    def _execute(self, database: Any, statement: str, values: Sequence[object] = ()) -> Any:
        """A cursor over what it gives."""

    @abstractmethod
    def _insert(self, database: Any, table: str, columns: str, rows: Iterable[Row]) -> None:
        """Add these rows, all of them new."""

    @abstractmethod
    def _execute_many(self, database: Any, statement: str, rows: Iterable[Row]) -> None:
        """The same for each of these."""

    @abstractmethod
    def _streamed(
        self, database: Any, statement: str, values: Sequence[object]
    ) -> AbstractContextManager[Iterable[Row]]:
        """The rows of a long answer as they come; whoever leaves early leaves the rest in the database."""

    # The contract

    def open(self) -> Head:
        """Make or migrate the tables, check the head, count this boot, and say where the log stands."""
        if self._is_open:
            raise StorageError(op="open", why=f"{self.name} is open already")
        with self._telling("open"):
            self._take()
        self._is_open = True
        try:
            with self._telling("open"):
                database = self._writing("open")
                with self._transaction(database):
                    self._migrate(database)
                    self._voids = Voids(self._execute(database, "SELECT stream, epoch, token FROM voids"))
                    self._check_head(database)
                    self._execute(database, "UPDATE meta SET value = value + 1 WHERE key = 'boots'")
            head = self.head()
            self._boots, self._kept = head.boots, (head.serial, head.digest)
            return head
        except BaseException:
            self.close()
            raise

    def head(self) -> Head:
        """Where the log stands now."""
        with self._telling("head"):
            database = self._writer("head")
            meta = dict(self._execute(database, "SELECT key, value FROM meta"))
            serial, digest, epoch = self._last(database)
            positions = self._positions(database)
            allocated: dict[str, int] = {}
            for (stream, _), token in positions.items():
                allocated[stream] = max(token, allocated.get(stream, token))
            for stream, token in allocated.items():
                unless_void, values = self._voids.condition(stream)
                found = self._execute(
                    database,
                    f"SELECT max(token) FROM facts WHERE stream = ?{unless_void}",
                    (stream, *values),
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
        with self._telling("commit"):
            database = self._writer("commit")
            with self._transaction(database):
                serial, digest, _ = self._last(database)
                check_follow(facts, serial, digest)
                self._insert(database, "facts", COLUMNS, map(msgspec.structs.astuple, facts))
                positions: dict[tuple[str, str], int] = {}
                advance(positions, facts)
                self._execute_many(
                    database,
                    "INSERT INTO positions (stream, writer, token) VALUES (?, ?, ?)"
                    " ON CONFLICT (stream, writer) DO UPDATE SET token = excluded.token"
                    " WHERE positions.token < excluded.token",
                    [(*pair, token) for pair, token in positions.items()],
                )
                if receipts:
                    self._insert(database, "receipts", RECEIPT_COLUMNS, map(_receipt_row, receipts))
        if facts:
            self._kept = (facts[-1].serial, facts[-1].digest)

    def read(
        self, *, after: int, upto: int, streams: Collection[str] | None, limit: int
    ) -> tuple[list[Fact], int]:
        """Facts in order of serial, and how far it has looked."""
        with self._telling("read"):
            database = self._reader("read")
            last = self._execute(database, "SELECT max(serial) FROM facts").fetchone()[0] or 0
            upto = min(upto, last)
            wanted, values = "", list[object]()
            if streams is not None:
                upto = min(upto, after + LOOKED_AT_ONCE)
                if not streams:
                    return [], max(after, upto)
                wanted = f" AND {self.UNINDEXED_STREAM} IN ({', '.join('?' * len(streams))})"
                values = [*streams]
            with self._streamed(
                database,
                f"SELECT {COLUMNS} FROM facts WHERE serial > ? AND serial <= ?{wanted} ORDER BY serial",
                (after, upto, *values),
            ) as found:
                taken, is_full = take_rows(_facts(found), limit)
        return taken, taken[-1].serial if is_full else max(after, upto)

    def read_tokens(
        self, *, stream: str, writer: str | None, after: int, upto: int, serial: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Facts of one stream in order of token, and whether there are more."""
        unless_void, values = self._voids.condition(stream)
        with (
            self._telling("read", stream),
            self._streamed(
                self._reader("read"),
                f"SELECT {COLUMNS} FROM facts WHERE stream = ? AND token > ? AND token <= ? AND serial <= ?"
                + unless_void
                + ("" if writer is None else " AND writer = ?")
                + " ORDER BY token, serial",
                (stream, after, upto, serial, *values, *(() if writer is None else (writer,))),
            ) as found,
        ):
            return take_tokens(_facts(found), limit)

    def held(self, stream: str, token: int) -> list[tuple[str, bytes]]:
        """The writer and the rows of every fact of this stream under this token."""
        unless_void, values = self._voids.condition(stream)
        with self._telling("held", stream):
            return [
                (writer, rows)
                for writer, rows in self._execute(
                    self._writer("held"),
                    f"SELECT writer, rows FROM facts WHERE stream = ? AND token = ?{unless_void}"
                    " ORDER BY serial",
                    (stream, token, *values),
                )
            ]

    def lose(self, stream: str, upto: int) -> Head:
        """Begin a new epoch: of this stream, what is beyond `upto` was lost where it came from."""
        with self._telling("lose"):
            database = self._writer("lose")
            epoch = self.head().epoch + 1
            with self._transaction(database):
                self._execute(database, "UPDATE meta SET value = ? WHERE key = 'epoch'", (epoch,))
                self._execute(database, "INSERT INTO voids VALUES (?, ?, ?)", (stream, epoch, upto))
                self._execute(
                    database,
                    "UPDATE positions SET token = ? WHERE stream = ? AND token > ?",
                    (upto, stream, upto),
                )
        self._voids.add(stream, Void(epoch, upto))
        return self.head()

    def receipt(self, key: str) -> Receipt | None:
        """What an append with this key was answered."""
        with self._telling("receipt"):
            found = self._execute(
                self._writer("receipt"),
                "SELECT request, epoch, first_serial, tokens, at_ms FROM receipts WHERE key = ?",
                (key,),
            ).fetchone()
        if found is None:
            return None
        request, epoch, first_serial, tokens, at_ms = found
        return Receipt(
            key, request, Appended(epoch, first_serial, msgspec.json.decode(tokens, type=list[int])), at_ms
        )

    def forget_receipts(self, before_ms: int) -> None:
        """Forget the answers given before then."""
        with self._telling("forget_receipts"):
            database = self._writer("forget_receipts")
            with self._transaction(database):
                self._execute(database, "DELETE FROM receipts WHERE at_ms < ?", (before_ms,))

    def close(self) -> None:
        """Let go of the database. Harmless when repeated."""
        self._is_open = False
        self._boots = None
        self._let_go()

    # What they are made of

    def _writer(self, op: str) -> Any:
        self._check_open(op)
        return self._writing(op)

    def _reader(self, op: str = "read") -> Any:
        self._check_open(op)
        return self._reading(op)

    def _check_open(self, op: str) -> None:
        if not self._is_open:
            raise StorageError(op=op, why="the log is not open")

    def _last(self, database: Any) -> tuple[int, str, int]:
        """Serial, digest and epoch of the last fact."""
        found = self._execute(
            database, "SELECT serial, digest, epoch FROM facts ORDER BY serial DESC LIMIT 1"
        ).fetchone()
        return found or (0, EMPTY, 0)

    def _positions(self, database: Any) -> dict[tuple[str, str], int]:
        return {
            (stream, writer): token
            for stream, writer, token in self._execute(
                database, "SELECT stream, writer, token FROM positions"
            )
        }

    def _check_head(self, database: Any) -> None:
        """Refuse a log whose end contradicts itself: going on from there would make it worse."""
        with self._streamed(
            database, f"SELECT {COLUMNS} FROM facts ORDER BY serial DESC LIMIT ?", (CHECKED_AT_OPEN + 1,)
        ) as rows:
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
            positions = self._positions(database)
            counting = [fact for fact in tail if not self._voids.hold(fact)]
            moving = {(fact.stream, fact.writer) for fact in counting if fact.prev_token < fact.token}
            told: dict[tuple[str, str], int] = {}
            advance(told, counting)
            for place, token in told.items():
                stream, writer = place
                kept = positions.get(place)
                # Where history was lost, a position stands where that ended, not at a fact; where all facts
                # came late, it stands at one before them.
                is_exact = place in moving and not self._voids.of(stream)
                if kept is None or kept < token or (is_exact and kept > token):
                    why = f"the last token of {writer} in {stream} is {token}, its position says {kept}"
        if why:
            raise StorageError(op="open", why=why, hint=DAMAGED.format(database=self.KIND))


def _facts(rows: Iterable[Row]) -> Iterator[Fact]:
    return (Fact(*row) for row in rows)


def _receipt_row(receipt: Receipt) -> Row:
    appended = receipt.appended
    tokens = msgspec.json.encode(appended.tokens).decode()
    return (receipt.key, receipt.request, appended.epoch, appended.first_serial, tokens, receipt.at_ms)
