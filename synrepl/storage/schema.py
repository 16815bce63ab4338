"""The tables of the log in SQLite and PostgreSQL: their migrations, their rows, and where the log ends."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from synrepl.errors import StorageError
from synrepl.ports.history import (
    BEGINNING,
    Appended,
    AppendKey,
    AppendReceipt,
    EpochStart,
    Lease,
    LogPosition,
)
from synrepl.storage.sql import Flavor, Row, SQLConnection
from synrepl.streams.digest import EMPTY

COLUMNS: Final = "serial, epoch, stream, writer, prev_token, token, rows, committed_at_ms, digest"

RECEIPT_COLUMNS: Final = "stream, key, owner, part, request, epoch, first_serial, tokens, at_ms"

EPOCH_START_COLUMNS: Final = ", ".join(EpochStart.__struct_fields__)

LEASE_COLUMNS: Final = tuple(Lease.__struct_fields__)

TABLES: Final = (
    "meta",
    "facts",
    "positions",
    "receipts",
    "voids",
    "notes",
    "turns",
    "leases",
    "places",
    "keyed",
)
"""All tables of a log."""

VOIDS_TO_TURNS: Final = f"""
    INSERT INTO turns (epoch, serial, digest, at_ms, why, stream, token)
    SELECT void.epoch, coalesce(fact.serial, 0), coalesce(fact.digest, '{EMPTY}'),
        coalesce(fact.committed_at_ms, 0), 'lost', void.stream, void.token
    FROM voids AS void LEFT JOIN facts AS fact
        ON fact.serial = (SELECT max(serial) FROM facts WHERE facts.epoch < void.epoch)
    WHERE true
    ON CONFLICT (epoch) DO NOTHING
"""
"""Adds the epoch starts of schema version 2, where an epoch began only if facts were lost: after the last
fact of earlier epochs. The real time was not recorded; `at_ms` is that fact's time, or 0.
"""

_MIGRATIONS: Final = (
    (
        """CREATE TABLE facts (
            serial {int} PRIMARY KEY,
            epoch {int} NOT NULL,
            stream TEXT NOT NULL,
            writer TEXT NOT NULL,
            prev_token {int} NOT NULL,
            token {int} NOT NULL,
            rows {rows},
            committed_at_ms {int} NOT NULL,
            digest TEXT NOT NULL
        )""",
        # SQLite ends each index entry with the serial, so this is the order (token, serial) in both.
        "CREATE INDEX facts_by_token ON facts (stream, token{then_serial})",
        """CREATE TABLE positions (
            stream TEXT NOT NULL,
            writer TEXT NOT NULL,
            token {int} NOT NULL,
            PRIMARY KEY (stream, writer)
        ){by_key}""",
        """CREATE TABLE receipts (
            key TEXT PRIMARY KEY,
            request TEXT NOT NULL,
            epoch {int} NOT NULL,
            first_serial {int},
            tokens TEXT NOT NULL,
            at_ms {int} NOT NULL
        ){by_key}""",
        "CREATE INDEX receipts_by_time ON receipts (at_ms)",
        "INSERT INTO meta (key, value) VALUES ('epoch', 1), ('boots', 0)",
    ),
    (
        """CREATE TABLE voids (
            stream TEXT NOT NULL,
            epoch {int} NOT NULL,
            token {int} NOT NULL,
            PRIMARY KEY (stream, epoch)
        ){by_key}""",
    ),
    (
        "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL){by_key}",
        """CREATE TABLE turns (
            epoch {int} PRIMARY KEY,
            serial {int} NOT NULL,
            digest TEXT NOT NULL,
            at_ms {int} NOT NULL,
            why TEXT NOT NULL,
            stream TEXT NOT NULL,
            token {int} NOT NULL
        )""",
        """CREATE TABLE leases (
            uuid TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            registered INTEGER NOT NULL,
            serial {int} NOT NULL,
            made_ms {int} NOT NULL,
            seen_ms {int},
            address TEXT NOT NULL,
            ended_ms {int},
            reason TEXT NOT NULL
        ){by_key}""",
        """CREATE TABLE places (
            name TEXT PRIMARY KEY,
            epoch {int} NOT NULL,
            serial {int} NOT NULL,
            digest TEXT NOT NULL
        ){by_key}""",
        "CREATE TABLE keyed (key {bytes} PRIMARY KEY, serial {int} NOT NULL){by_key}",
        "CREATE INDEX keyed_by_serial ON keyed (serial)",
        "CREATE INDEX receipts_by_serial ON receipts (first_serial)",
        VOIDS_TO_TURNS,
    ),
    ("ALTER TABLE leases ADD COLUMN key TEXT",),
    (
        "ALTER TABLE receipts RENAME TO unscoped_receipts",
        """CREATE TABLE receipts (
            stream TEXT NOT NULL,
            key TEXT NOT NULL,
            owner TEXT NOT NULL,
            part {int} NOT NULL,
            request TEXT NOT NULL,
            epoch {int} NOT NULL,
            first_serial {int},
            tokens TEXT NOT NULL,
            at_ms {int} NOT NULL,
            PRIMARY KEY (stream, key, owner, part)
        ){by_key}""",
        # A receipt of trimmed facts is lost: nothing tells its stream.
        """INSERT INTO receipts
            SELECT stream, key, '', 0, request, receipt.epoch, first_serial, tokens, at_ms
            FROM unscoped_receipts AS receipt JOIN facts ON serial = first_serial""",
        "DROP TABLE unscoped_receipts",
        "CREATE INDEX receipts_by_time ON receipts (at_ms)",
        "CREATE INDEX receipts_by_serial ON receipts (first_serial)",
    ),
)
"""The statements from each schema version to the next, from 0 on. Append-only."""

_WORDS: Final[dict[Flavor, dict[str, str]]] = {
    "sqlite": {
        "int": "INTEGER",
        "bytes": "BLOB",
        "rows": "BLOB NOT NULL CHECK (typeof(rows) = 'blob')",
        "then_serial": "",
        "by_key": " WITHOUT ROWID",
    },
    "postgresql": {
        "int": "BIGINT",
        "bytes": "BYTEA",
        "rows": "BYTEA NOT NULL",
        "then_serial": ", serial",
        "by_key": "",
    },
}
"""The words in the statements that differ between the databases."""

VERSION: Final = len(_MIGRATIONS)
"""The schema version of this release."""


def migrations(flavor: Flavor) -> list[list[str]]:
    """The statements from each schema version to the next, from 0 on."""
    return [[one.format(**_WORDS[flavor]) for one in statements] for statements in _MIGRATIONS]


def migrate(execute: Callable[[str], Any], migrations: Sequence[Sequence[str]], where: str) -> None:
    """Migrate the tables to the newest version. `meta` exists, and the caller has a transaction open.

    Raises `StorageError` if the tables are newer than this release, which could damage them.
    """
    found = execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    version = found[0] if found else 0
    if version > len(migrations):
        raise StorageError(
            op="open",
            why=f"{where} has schema version {version}, this release knows those up to {len(migrations)}",
            hint="a newer release wrote it; run that release",
        )
    for statements in migrations[version:]:
        for statement in statements:
            execute(statement)
    if version < len(migrations):
        execute(
            f"INSERT INTO meta (key, value) VALUES ('version', {len(migrations)})"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )


class LogBounds(msgspec.Struct, frozen=True):
    """The bounds of a log: stored positions that cannot be derived from its facts.

    `trimmed_upto` is the end of the trimmed part, `filled` the end of the part with gaps. Facts up to serial
    `indexed` are in the index of keys or deleted; trimming continues there. `indexed` is lower than
    `trimmed_upto` while a base copied from another log is being indexed.
    """

    trimmed_upto: LogPosition = BEGINNING
    filled: LogPosition = BEGINNING
    indexed: int = 0

    @property
    def floor(self) -> LogPosition:
        """The later one of `trimmed_upto` and `filled`: beyond it no fact is missing."""
        return self.trimmed_upto if self.trimmed_upto.serial > self.filled.serial else self.filled

    def rows(self) -> list[tuple[str, int, int, str]]:
        """The rows of the table `places`: name, epoch, serial and digest of each."""
        begin, filled = map(msgspec.structs.astuple, (self.trimmed_upto, self.filled))
        return [("begin", *begin), ("filled", *filled), ("indexed", 0, self.indexed, "")]


def load_bounds(rows: Iterable[tuple[str, int, int, str]]) -> LogBounds:
    """Read the rows that `LogBounds.rows` gave."""
    by_name = {name: LogPosition(epoch, serial, digest) for name, epoch, serial, digest in rows}
    return LogBounds(
        trimmed_upto=by_name.get("begin", BEGINNING),
        filled=by_name.get("filled", BEGINNING),
        indexed=by_name.get("indexed", BEGINNING).serial,
    )


def row_of_key(key: AppendKey) -> Row:
    """Convert an idempotency key to a row of its columns: the first ones of `RECEIPT_COLUMNS`."""
    return (key.stream, key.text, key.owner, key.part)


def row_of_receipt(receipt: AppendReceipt) -> Row:
    """Convert a receipt to a row of `RECEIPT_COLUMNS`."""
    appended = receipt.appended
    tokens = msgspec.json.encode(appended.tokens).decode()
    result = (receipt.request, appended.epoch, appended.first_serial, tokens, receipt.at_ms)
    return (*row_of_key(receipt.key), *result)


def receipt_of(row: Row) -> AppendReceipt:
    """Convert a row of `RECEIPT_COLUMNS` to a receipt."""
    *key, request, epoch, first_serial, tokens, at_ms = row
    appended = Appended(epoch, first_serial, msgspec.json.decode(tokens, type=list[int]))
    return AppendReceipt(AppendKey(*key), request, appended, at_ms)


def end_of_log(connection: SQLConnection, bounds: LogBounds) -> tuple[int, str, int]:
    """The serial, digest and epoch of the end of the log."""
    last: tuple[int, str, int] | None = connection.execute(
        "SELECT serial, digest, epoch FROM facts ORDER BY serial DESC LIMIT 1"
    ).fetchone()
    floor = bounds.floor
    if last is not None and last[0] >= floor.serial:
        return last
    return (floor.serial, floor.digest, floor.epoch)


def digest_of(connection: SQLConnection, serial: int) -> str | None:
    """The digest at this serial; None if it is unknown."""
    # Facts before bounds: a fact trimmed between the two queries is then covered by the bounds.
    found = connection.execute("SELECT digest FROM facts WHERE serial = ?", (serial,)).fetchone()
    if found is not None:
        return str(found[0])
    bounds = read_bounds(connection)
    for position in (bounds.trimmed_upto, bounds.floor):
        if position.serial == serial:
            return position.digest or None
    return None


def read_bounds(connection: SQLConnection) -> LogBounds:
    """Read the bounds of the log."""
    return load_bounds(connection.execute("SELECT name, epoch, serial, digest FROM places").fetchall())
