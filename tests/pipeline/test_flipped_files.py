"""A flipped bit in a file of an archive or of a snapshot: each job that reads it refuses it."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.row_files import read_files, sha256_of
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.replay import _read, _runs
from synrepl.pipeline.restore import _read as read_part
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.snapshot.snapshot import SNAPSHOT, read_snapshot
from synrepl.pipeline.source.rows import ROWS
from synrepl.pipeline.store import BadArchive, Store
from synrepl.pipeline.tables.tables import update_tables
from tests.pipeline.archives import LOG, archive, chained, paths_of, write_facts


def read_by(user: str) -> tuple[str, str, list[list[Any]]]:
    """A receipt."""
    return "receipts", "w", [["!r:a", "m.read", user, "$e", {"ts": 1}]]


FACTS: Final = chained([read_by(f"@{number}:a") for number in range(40)])
MORE: Final = chained([read_by("@z:a")], after=FACTS)

Job = Callable[[Runner, Path], object]


def replayed(runner: Runner, place: Path) -> None:
    """What a task of `replay` reads, before anything is sent."""
    table = ArchiveTable(Store(str(place / "archive")))
    (parts,) = _runs(table, 0, table.end.last_serial)
    list(_read(table.store, parts, table.files.to_batches()))


JOBS: Final[Mapping[str, Job]] = {
    "compact": lambda runner, place: compact(
        runner, Store(str(place / "archive")), Store(str(place / "snapshot"))
    ),
    "optimize": lambda runner, place: optimize(runner, Store(str(place / "archive"))),
    "tables": lambda runner, place: update_tables(
        runner, Store(str(place / "archive")), str(place / "tables")
    ),
    "replay": replayed,
}

PLACES: Final[Mapping[str, Callable[[int], int]]] = {
    "values": lambda size: size // 3,
    "footer": lambda size: size - 100,
    "its length": lambda size: size - 7,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an archive of two batches."""
    archive(str(tmp_path / "archive"), FACTS, batch_facts=20)
    return tmp_path


@contextmanager
def flipped(path: Path, at: int) -> Iterator[None]:
    """Have a bit of a file flipped."""
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    try:
        yield
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("job", JOBS)
def test_no_job_reads_a_flipped_bit(runner: Runner, place: Path, job: str, where: str) -> None:
    """The checksum is that of the whole file: it does not matter what a reader of Parquet finds."""
    path = place / "archive" / paths_of(place / "archive")[1]

    with (
        flipped(path, PLACES[where](path.stat().st_size)),
        pytest.raises(BadArchive, match=r"stream=receipts/.* is damaged: .* put a copy of the file back"),
    ):
        JOBS[job](runner, place)


@pytest.mark.parametrize("where", PLACES)
def test_a_flipped_bit_of_a_snapshot_is_refused(runner: Runner, place: Path, where: str) -> None:
    """By what goes on with it, and by what restores it; made again as a whole, it is whole."""
    JOBS["compact"](runner, place)
    snapshot = Store(str(place / "snapshot"))
    made = read_snapshot(snapshot)
    assert made is not None
    (part,) = made.files
    source = Store(str(place / "archive"))
    BatchCommitter(source, LOG).commit(write_facts(source, MORE), now_ms=1)
    path = place / "snapshot" / part.path

    with flipped(path, PLACES[where](path.stat().st_size)):
        for use in (lambda: JOBS["compact"](runner, place), lambda: read_part(snapshot, part)):
            with pytest.raises(BadArchive, match=r"is damaged: its SHA-256 .* compact --full"):
                use()
        assert compact(runner, source, snapshot, full=True).snapshot.keys == 41


def test_a_flipped_bit_of_a_manifest_is_refused(runner: Runner, place: Path) -> None:
    """It says where the log goes on."""
    JOBS["compact"](runner, place)
    manifest = place / "snapshot" / SNAPSHOT

    for at in range(0, manifest.stat().st_size, 13):
        with (
            flipped(manifest, at),
            pytest.raises(BadArchive, match=r"_snapshot\.json .* remove it, and make"),
        ):
            read_snapshot(Store(str(place / "snapshot")))


def test_a_file_of_an_object_store_is_read_once(place: Path) -> None:
    """It is verified while it is copied, and read from the copy."""
    store = Store(str(place / "archive"))
    (path, _) = paths_of(place / "archive")
    opened: list[str] = []
    opens = Store.open

    def noted(self: Store, name: str) -> object:
        opened.append(name)
        return opens(self, name)

    with patch.object(Store, "is_local", False), patch.object(Store, "open", noted):
        rows = pa.Table.from_batches(read_files(store, [path], ROWS))
        assert (20, [path]) == (len(rows), opened)
        with flipped(place / "archive" / path, 50), pytest.raises(BadArchive, match="is damaged"):
            list(read_files(store, [path], ROWS))


def test_a_file_of_another_program_is_read_by_the_checksums_of_its_pages(place: Path) -> None:
    """Its name has none: where a page has no checksum either, it is read as it is."""
    source = place / "archive" / paths_of(place / "archive")[0]
    name = "stream=receipts/date=2026-11-21/part-0.parquet"
    shutil.copyfile(source, place / "archive" / name)
    assert "" == sha256_of(name)
    column = pq.ParquetFile(source).metadata.row_group(0).column(ROWS.get_field_index("digest"))
    end = column.data_page_offset + column.total_compressed_size

    with (
        flipped(place / "archive" / name, end - 9),
        pytest.raises(OSError, match="CRC checksum verification failed"),
    ):
        list(read_files(Store(str(place / "archive")), [name], ROWS))
