"""The tables of the log in SQLite and PostgreSQL: their migrations, their rows, and where the log ends."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from synrepl.base.history import BEGINNING, Appended, AppendKey, AppendReceipt, EpochStart, Lease
from synrepl.errors import StorageError
from synrepl.storage.checked_rows import CHECKED_FACT, STORED_FACT, CheckedRows, LogDamage, fact_of, fits
from synrepl.storage.sql import Flavor, Row, SQLConnection
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition

HEADER: Final = CheckedRows("log_header", ("schema_version", "epoch", "boots"), 0)
POSITIONS: Final = CheckedRows("positions", ("stream", "writer", "token"), 2)
RECEIPTS: Final = CheckedRows(
    "receipts",
    ("stream", "key", "owner", "part", "request", "epoch", "first_serial", "tokens", "at_ms"),
    4,
)
EPOCH_STARTS: Final = CheckedRows("epoch_starts", EpochStart.__struct_fields__, 1)
DISCARDED_RANGES: Final = CheckedRows("discarded_ranges", ("stream", "epoch", "token"), 2)
LOG_BOUNDS: Final = CheckedRows("log_bounds", ("name", "epoch", "serial", "digest"), 1)
NOTES: Final = CheckedRows("notes", ("name", "value"), 1)
LEASES: Final = CheckedRows("leases", Lease.__struct_fields__, 1)

BESIDE_FACTS: Final = (
    HEADER,
    POSITIONS,
    RECEIPTS,
    EPOCH_STARTS,
    DISCARDED_RANGES,
    LOG_BOUNDS,
    NOTES,
    LEASES,
)
"""The tables whose rows have checksums, but for the facts."""

TABLES: Final = (
    "log_header",
    "facts",
    "positions",
    "receipts",
    "epoch_starts",
    "discarded_ranges",
    "log_bounds",
    "newest_by_key",
    "notes",
    "leases",
)
"""All tables of a log."""

_MIGRATIONS: Final = (
    (
        # One row. Logs of releases before 26.11.0 lack this table, which is how they are recognized.
        """CREATE TABLE log_header (
            schema_version {int} NOT NULL,
            epoch {int} NOT NULL,
            boots {int} NOT NULL
        )""",
        "INSERT INTO log_header (schema_version, epoch, boots) VALUES (0, 1, 0)",
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
        "CREATE INDEX receipts_by_time ON receipts (at_ms)",
        "CREATE INDEX receipts_by_serial ON receipts (first_serial)",
        """CREATE TABLE epoch_starts (
            epoch {int} PRIMARY KEY,
            serial {int} NOT NULL,
            digest TEXT NOT NULL,
            at_ms {int} NOT NULL,
            why TEXT NOT NULL,
            stream TEXT NOT NULL,
            token {int} NOT NULL
        )""",
        """CREATE TABLE discarded_ranges (
            stream TEXT NOT NULL,
            epoch {int} NOT NULL,
            token {int} NOT NULL,
            PRIMARY KEY (stream, epoch)
        ){by_key}""",
        """CREATE TABLE log_bounds (
            name TEXT PRIMARY KEY,
            epoch {int} NOT NULL,
            serial {int} NOT NULL,
            digest TEXT NOT NULL
        ){by_key}""",
        "CREATE TABLE newest_by_key (key {bytes} PRIMARY KEY, serial {int} NOT NULL){by_key}",
        "CREATE INDEX newest_by_serial ON newest_by_key (serial)",
        "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL){by_key}",
        """CREATE TABLE leases (
            uuid TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            registered INTEGER NOT NULL,
            serial {int} NOT NULL,
            made_ms {int} NOT NULL,
            seen_ms {int},
            address TEXT NOT NULL,
            ended_ms {int},
            reason TEXT NOT NULL,
            key TEXT
        ){by_key}""",
    ),
    (
        # Nothing is written anew: the facts that are there have no checksum.
        "ALTER TABLE facts ADD COLUMN crc {int}",
        """INSERT INTO log_bounds (name, epoch, serial, digest)
            SELECT 'unchecked_upto', 0, coalesce(max(serial), 0), '' FROM facts""",
        *(f"ALTER TABLE {table.name} ADD COLUMN crc {{int}}" for table in BESIDE_FACTS),
    ),
)
"""The statements from each schema version to the next, from 0 on. Append-only."""

OLDER_LOG: Final = {"meta", "facts", "positions"}
"""Tables that every log of a release before 26.11.0 had."""

OLDER_LOG_HINT: Final = (
    "keep it for the release that wrote it, and start with a new database, which --upstream fills from"
    " another daemon, and --snapshot from an archive"
)

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

CHECKSUMS_SINCE: Final = 2
"""The first schema version with checksums of rows."""


def migrations(flavor: Flavor) -> list[list[str]]:
    """The statements from each schema version to the next, from 0 on."""
    return [[one.format(**_WORDS[flavor]) for one in statements] for statements in _MIGRATIONS]


def migrate(
    execute: Callable[[str], Any], tables: Collection[str], migrations: Sequence[Sequence[str]], where: str
) -> None:
    """Migrate the tables to the newest version, in a transaction of the caller. `tables` are those there now.

    Raises `StorageError` if the tables are newer than this release, which could damage them, or those of a
    release before 26.11.0, and `LogDamage` if their version is damaged. `where` names the database.
    """
    version = 0
    if "log_header" in tables:
        version = version_of(execute("SELECT * FROM log_header").fetchone())
    elif is_older_log(tables):
        raise StorageError(
            op="open",
            why=f"{where} has the log of a release before 26.11.0, which this release cannot read",
            hint=OLDER_LOG_HINT,
        )
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
        execute(f"UPDATE log_header SET schema_version = {len(migrations)}")
        for table in BESIDE_FACTS:
            table.seal(execute)


def version_of(header: Row) -> int:
    """The schema version in the row of `HEADER`, with all columns that it has. Raises `LogDamage`.

    Its checksum tells a damaged version from that of another release, whose row may have other columns.
    """
    if len(header) == len(HEADER.columns) + 1 and not HEADER.fits(header):
        raise LogDamage(f"a row of {HEADER.name} is damaged")
    version: int = header[0]
    return version


def is_older_log(tables: Collection[str]) -> bool:
    """Whether these are the tables of a log of a release before 26.11.0."""
    return "log_header" not in tables and OLDER_LOG <= set(tables)


class LogBounds(msgspec.Struct, frozen=True):
    """The bounds of a log: stored positions that cannot be derived from its facts.

    `trimmed_upto` is the end of the trimmed part; up to `sparse_upto` a copy lacks facts that it did not
    receive. Facts up to serial `indexed_upto` are in the index of keys or deleted; trimming continues there.
    `indexed_upto` is lower than `trimmed_upto` while a base copied from another log is being indexed. Facts
    beyond `unchecked_upto` have checksums; those up to it may be of a release that knew none.
    """

    trimmed_upto: LogPosition = BEGINNING
    sparse_upto: LogPosition = BEGINNING
    indexed_upto: int = 0
    unchecked_upto: int = 0

    @property
    def floor(self) -> LogPosition:
        """The later one of `trimmed_upto` and `sparse_upto`: beyond it no fact is missing."""
        return max(self.sparse_upto, self.trimmed_upto, key=lambda position: position.serial)

    def rows(self) -> list[tuple[str, int, int, str]]:
        """The rows of the table `log_bounds`: name, epoch, serial and digest of each."""
        trimmed, sparse = map(msgspec.structs.astuple, (self.trimmed_upto, self.sparse_upto))
        return [
            ("trimmed_upto", *trimmed),
            ("sparse_upto", *sparse),
            ("indexed_upto", 0, self.indexed_upto, ""),
            ("unchecked_upto", 0, self.unchecked_upto, ""),
        ]


def load_bounds(rows: Iterable[Row]) -> LogBounds:
    """Read the rows that `LogBounds.rows` gave."""
    by_name = {name: LogPosition(epoch, serial, digest) for name, epoch, serial, digest in rows}
    return LogBounds(
        trimmed_upto=by_name.get("trimmed_upto", BEGINNING),
        sparse_upto=by_name.get("sparse_upto", BEGINNING),
        indexed_upto=by_name.get("indexed_upto", BEGINNING).serial,
        unchecked_upto=by_name.get("unchecked_upto", BEGINNING).serial,
    )


def row_of_key(key: AppendKey) -> Row:
    """Convert an idempotency key to a row of its columns: the first ones of `RECEIPTS`."""
    return (key.stream, key.text, key.owner, key.part)


def row_of_receipt(receipt: AppendReceipt) -> Row:
    """Convert a receipt to a row of `RECEIPTS`."""
    appended = receipt.appended
    tokens = msgspec.json.encode(appended.tokens).decode()
    result = (receipt.request, appended.epoch, appended.first_serial, tokens, receipt.at_ms)
    return (*row_of_key(receipt.key), *result)


def receipt_of(row: Row) -> AppendReceipt:
    """Convert a row of `RECEIPTS` to a receipt."""
    *key, request, epoch, first_serial, tokens, at_ms = row
    appended = Appended(epoch, first_serial, msgspec.json.decode(tokens, type=list[int]))
    return AppendReceipt(AppendKey(*key), request, appended, at_ms)


class LogHeader(msgspec.Struct, frozen=True):
    """The row of `HEADER`: the epoch that began last, and how often the log was opened."""

    schema_version: int
    epoch: int
    boots: int


def read_header(connection: SQLConnection) -> LogHeader | None:
    """Read the header; None if it is missing. Raises `LogDamage`."""
    for row in HEADER.rows(connection.execute):
        return LogHeader(*row)
    return None


def change_header(connection: SQLConnection, **changed: int) -> None:
    """Change members of the header, in a transaction. Raises `LogDamage`."""
    header = msgspec.structs.replace(current_header(connection), **changed)
    (row,) = HEADER.checked([msgspec.structs.astuple(header)])
    connection.execute(f"UPDATE log_header SET ({HEADER.stored}) = (?, ?, ?, ?)", row)


def current_header(connection: SQLConnection) -> LogHeader:
    """Read the header, which must be there. Raises `LogDamage`."""
    header = read_header(connection)
    if header is None:
        raise LogDamage("the header of the log is missing")
    return header


def end_of_log(connection: SQLConnection, bounds: LogBounds) -> LogPosition:
    """The end of the log. Raises `LogDamage`."""
    last = _fact(connection, "ORDER BY serial DESC LIMIT 1")
    return last.position if last is not None and last.serial >= bounds.floor.serial else bounds.floor


def stored_end(connection: SQLConnection, bounds: LogBounds) -> LogPosition:
    """The end of the log, not verified: for who compares it with what is known."""
    last = connection.execute(
        "SELECT epoch, serial, digest FROM facts ORDER BY serial DESC LIMIT 1"
    ).fetchone()
    return LogPosition(*last) if last is not None and last[1] >= bounds.floor.serial else bounds.floor


def check_last_fact(connection: SQLConnection) -> None:
    """Raise `LogDamage` if the last fact does not fit its checksum.

    One without a checksum is none of this release: another program wrote it.
    """
    last = connection.execute(f"SELECT {STORED_FACT} FROM facts ORDER BY serial DESC LIMIT 1").fetchone()
    if last is not None and last[-1] is not None and not fits(last[:-1], last[-1]):
        raise LogDamage(f"serial {last[0]} is damaged")


def digest_of(connection: SQLConnection, serial: int) -> str | None:
    """The digest at this serial; None if it is unknown. Raises `LogDamage`."""
    # Facts before bounds: a fact trimmed between the two queries is then covered by the bounds.
    found = _fact(connection, "WHERE serial = ?", serial)
    if found is not None:
        return found.digest
    bounds = read_bounds(connection)
    for position in (bounds.trimmed_upto, bounds.floor):
        if position.serial == serial:
            return position.digest or None
    return None


def _fact(connection: SQLConnection, which: str, *values: object) -> Fact | None:
    found = connection.execute(f"SELECT {CHECKED_FACT} FROM facts {which}", values).fetchone()
    return None if found is None else fact_of(found)


def read_bounds(connection: SQLConnection) -> LogBounds:
    """Read the bounds of the log. Raises `LogDamage`."""
    return _checked_bounds(
        tuple(connection.execute(f"SELECT {LOG_BOUNDS.stored} FROM log_bounds").fetchall())
    )


@lru_cache(maxsize=8)
def _checked_bounds(rows: tuple[Row, ...]) -> LogBounds:
    # Cached: each read of facts reads them, and they seldom change.
    return load_bounds(LOG_BOUNDS.verified(rows))
