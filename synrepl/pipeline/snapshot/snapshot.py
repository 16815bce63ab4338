"""What a snapshot is: `_snapshot.json` and the files that it names. What it does not name does not count.

It holds all rows of each fact that has the last row of some key, as far as what the key stands for is not
gone, and of no void fact. Who folds it gets what a fold of the archive up to its place gives: where a fact
that is kept has an older row of a key that is gone, the fact that says so is kept as well.
"""

from typing import Final

import msgspec
import pyarrow as pa

from synrepl.pipeline.archive.manifest import BadArchive
from synrepl.pipeline.source.schema import COLUMNS, ROWS, spark_schema
from synrepl.pipeline.store import Store
from synrepl.ports.history import EpochStart, LogPosition

__all__ = [
    "LAST",
    "SNAPSHOT",
    "SnapshotBasis",
    "PartFile",
    "SnapshotManifest",
    "folder_of",
    "read_snapshot",
    "write_snapshot",
]

SNAPSHOT: Final = "_snapshot.json"
VERSION: Final = 1

LAST: Final = ROWS.append(pa.field("last", pa.bool_(), nullable=False))
"""The columns of its files: those of the archive, and whether a row is the last of its key and not gone."""

LAST_DDL: Final = f"{spark_schema(COLUMNS)}, `last` boolean NOT NULL"


class PartFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file: the rows of all facts that are kept from `first_serial` to `last_serial`, in order."""

    path: str
    rows: int
    facts: int
    sha256: str
    bytes: int
    first_serial: int
    last_serial: int


class SnapshotBasis(msgspec.Struct, frozen=True, kw_only=True):
    """Of which archive it is: one that begins at `first_serial`, up to and with `batch`."""

    first_serial: int
    batch: int


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is true at `serial`; `epoch`, `digest`, `clock` and `turns` are those of the archive there.

    `files` are in order of serial, none overlaps another. `keys` counts the rows that are the last of a key.
    """

    version: int = VERSION
    epoch: int
    serial: int
    digest: str
    history: str
    server_name: str
    clock: dict[str, dict[str, int]]
    epoch_starts: list[EpochStart]
    files: list[PartFile]
    facts: int
    rows: int
    keys: int
    made_at_ms: int
    archive: SnapshotBasis

    @property
    def position(self) -> LogPosition:
        """Where in the history it stands."""
        return LogPosition(self.epoch, self.serial, self.digest)


def folder_of(serial: int) -> str:
    """Where the files of a snapshot of this serial are.

    Not `serial=`: DuckDB and others would take the name for that column of all its rows.
    """
    return f"upto={serial}"


def read_snapshot(store: Store) -> SnapshotManifest | None:
    """The snapshot that is here, if there is one. Raises `BadArchive` for one that cannot be read."""
    if not store.exists(SNAPSHOT):
        return None
    try:
        found = msgspec.json.decode(store.read(SNAPSHOT), type=SnapshotManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadArchive(f"{store}: {SNAPSHOT} is no snapshot: {error}") from error
    if found.version != VERSION:
        raise BadArchive(f"{store}: {SNAPSHOT} is of version {found.version}; this release knows {VERSION}")
    return found


def write_snapshot(store: Store, snapshot: SnapshotManifest) -> None:
    """From here on this is the snapshot; the one before it was until now."""
    store.write(SNAPSHOT, msgspec.json.format(msgspec.json.encode(snapshot), indent=1))
