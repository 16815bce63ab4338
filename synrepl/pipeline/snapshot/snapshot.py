"""Snapshot format: `_snapshot.json` and the files that it names. Other files are not part of the snapshot.

It has the SHA-256 of each file, and one of its own.

A snapshot keeps a whole fact if one of its rows is the last of a key that is not deleted. It has no discarded
facts. A fold of the snapshot gives the same result as a fold of the archive up to its position: a tombstone
is kept if a kept fact has an older row of its key.
"""

import uuid
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.base import checked_json
from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.row_files import RowFile
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from synrepl.wire.position import LogPosition

SNAPSHOT: Final = "_snapshot.json"
VERSION: Final = 1

DAMAGED: Final = "make the snapshot again: synrepl pipeline compact --full"
"""What to do about a damaged file of a snapshot."""

LAST: Final = ROWS.append(pa.field("last", pa.bool_(), nullable=False))
"""The schema of the files: that of the archive, and whether a row is the last of an undeleted key."""


class PartFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file: the rows of all kept facts from `first_serial` to `last_serial`, in order.

    `keys` counts the rows that are the last of a key.
    """

    path: str
    rows: int
    facts: int
    sha256: str
    bytes: int
    first_serial: int
    last_serial: int
    keys: int = 0


def write_part(store: Store, folder: str, batches: Iterable[Any]) -> PartFile | None:
    """Write record batches (`LAST`, by serial and seq) as a file, atomically; None if there are no rows."""
    file = RowFile(LAST)
    count = facts = keys = first = last = 0
    for rows in batches:
        file.add(rows)
        first, last = first or rows["serial"][0].as_py(), rows["serial"][-1].as_py()
        count += len(rows)
        facts += pc.sum(pc.equal(rows["seq"], 0)).as_py()
        keys += pc.sum(rows["last"]).as_py()
    data = file.finish()
    if not count:
        return None
    name = f"{folder}/part-{first:012d}-{uuid.uuid4().hex[:12]}.parquet"
    store.write(name, data)
    return PartFile(
        path=name,
        rows=count,
        facts=facts,
        sha256=sha256(data).hexdigest(),
        bytes=data.size,
        first_serial=first,
        last_serial=last,
        keys=keys,
    )


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot at `serial`; `epoch`, `digest`, `clock` and `epoch_starts` are those of the archive there.

    `files` are in order of serial and do not overlap. `keys` counts the rows that are the last of a key.
    `archive_version` is the version of the archive that was read.
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
    archive_version: int = 0

    @property
    def position(self) -> LogPosition:
        """The position of the snapshot in the log."""
        return LogPosition(self.epoch, self.serial, self.digest)


def read_snapshot(store: Store) -> SnapshotManifest | None:
    """Return the snapshot of a store; None if there is none.

    Raises `BadArchive` if it cannot be read, is damaged, or names a file outside of the store.
    """
    if not store.exists(SNAPSHOT):
        return None
    try:
        found = store.decode(SNAPSHOT, partial(checked_json.decode, type=SnapshotManifest))
    except ValueError as error:
        raise BadArchive(
            f"{store}: {SNAPSHOT} is not a valid snapshot: {error}; remove it, and make the snapshot again:"
            " synrepl pipeline compact"
        ) from error
    if found.version != VERSION:
        raise BadArchive(f"{store}: {SNAPSHOT} has version {found.version}; this release supports {VERSION}")
    for part in found.files:
        store.check_name(part.path)
    return found


def write_snapshot(store: Store, snapshot: SnapshotManifest) -> None:
    """Make this the current snapshot, atomically."""
    store.write(SNAPSHOT, checked_json.encode(snapshot, indent=1))
