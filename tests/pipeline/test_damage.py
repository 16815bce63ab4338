"""One byte of a file changed, anywhere: the audit names the file; no exception of a reader ends it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.archive_comparison import Comparison
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.audit.audit_findings import AuditFinding, AuditFindings
from synrepl.pipeline.audit.file_scan import FileScan, ListedFile, _scan_batch, rank_files, scan_files
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.source.rows import COLUMNS
from synrepl.pipeline.store import Store
from synrepl.streams.facts import Fact
from tests.pipeline.archives import Given, archive, chained, correct_checksums, paths_of
from tests.pipeline.test_audit import changed as differing
from tests.pipeline.test_audit import daemon, rewritten

MASKS = (0xFF, 0x01, 0x80)


def facts_of(batches: int) -> list[Fact]:
    """Two facts of two writers for each batch."""
    given: list[Given] = []
    for number in range(batches):
        given += [
            ("push_rules", "w1", [[f"@a{number}:h"], [f"@b{number}:h"]]),
            ("push_rules", "w2", [[f"@c{number}:h"]]),
        ]
    return chained(given)


def written(place: Path, batches: int) -> list[str]:
    """An archive of so many batches, each with one small file. Gives their paths."""
    archive(str(place), facts_of(batches), batch_facts=2)
    return paths_of(place)


def compared(
    table: ArchiveTable, files: pa.Table | None = None
) -> tuple[ListedFile, FileScan, Comparison, list[AuditFinding]]:
    """The only file of an archive, scanned and compared. Its list of `files` takes time: it may be given."""
    found = AuditFindings()
    files = table.files if files is None else files
    told = Comparison(table, files, found)
    (scans,) = scan_files(table.store, rank_files(files).to_batches())
    seen = msgspec.json.decode(scans["seen"][0].as_py(), type=FileScan)
    told.run([seen])
    return seen.file, seen, told, found.listed()


def changed(data: bytes, at: int, mask: int) -> bytes:
    """These bytes with another one at that offset."""
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def test_every_offset_of_a_file_is_named(tmp_path: Path) -> None:
    """Checksums come first, so nothing hangs on what a reader makes of the bytes; and no reader gives up."""
    (path,) = written(tmp_path, 1)
    data = (tmp_path / path).read_bytes()
    ways: set[bool] = set()
    table = ArchiveTable(Store(str(tmp_path)))
    files = table.files

    for at in range(len(data)):
        (tmp_path / path).write_bytes(changed(data, at, MASKS[at % 3]))

        _, seen, _, found = compared(table, files)

        assert {"changed-file"} <= {one.what for one in found}, at
        assert {path} == {one.file for one in found if one.what == "changed-file"}, at
        assert "\n" not in seen.unreadable, at
        ways.add(bool(seen.unreadable))
    # Some bytes matter to nobody who reads rows.
    assert {True, False} == ways


def test_a_doubled_serial_does_not_hide_a_missing_one(tmp_path: Path) -> None:
    """There are as many facts as there should be; only their serials do not come out."""
    archive(str(tmp_path), facts_of(3), batch_facts=6)

    def change(table: Any) -> Any:
        serials = [{3: 2}.get(serial, serial) for serial in table["serial"].to_pylist()]
        return table.set_column(table.schema.get_field_index("serial"), "serial", [serials])

    rewritten(tmp_path, paths_of(tmp_path)[0], change)

    file, seen, told, _ = compared(ArchiveTable(Store(str(tmp_path))))

    assert (6, file.first_serial, file.last_serial) == (seen.facts, seen.first, seen.last)
    assert [(1, 6, True)] == [(one.first, one.last, one.is_uneven) for one in told.spans]


def test_a_log_with_another_digest_than_its_last_fact_is_named(tmp_path: Path) -> None:
    """The digest at the end is what the next batch, and a daemon, are held against."""
    archive(str(tmp_path), facts_of(3), batch_facts=6)
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    commit.write_text(commit.read_text().replace(facts_of(3)[-1].digest, "0" * 64))
    correct_checksums(tmp_path)

    _, _, told, found = compared(ArchiveTable(Store(str(tmp_path))))

    assert [(1, 6, True)] == [(one.first, one.last, one.is_uneven) for one in told.spans]
    assert ["table"] == [one.what for one in found]


def places(data: Path) -> Iterator[int]:
    """Where each column begins, and its middle; the footer, and the end."""
    group = pq.read_metadata(data).row_group(0)
    size = data.stat().st_size
    for name in range(len(COLUMNS)):
        column = group.column(name)
        first = column.dictionary_page_offset or column.data_page_offset
        yield first
        yield column.data_page_offset + 2
        yield first + column.total_compressed_size // 2
    yield from (0, size - 5, size - 60, size - size // 3)


@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_audit_names_damage_of_every_kind(runner: Runner, tmp_path: Path, deep: bool) -> None:
    """Spark's own reader ends the job at some of these; it is not asked to read what was changed."""
    made = written(tmp_path, 37)
    for name, place in zip(made, list(places(tmp_path / made[0])), strict=True):
        path = tmp_path / name
        path.write_bytes(changed(path.read_bytes(), place, 0xFF))

    told = audit(runner, Store(str(tmp_path)), deep=deep)

    named = {one.file for one in told.findings if one.what == "changed-file"}
    assert set(made) == named
    assert not told.is_clean


def test_a_daemon_is_compared_with_what_is_left(runner: Runner, tmp_path: Path) -> None:
    """A changed file is read in the same way there: its facts count if they can be read."""
    made = written(tmp_path, 4)
    paths = [tmp_path / path for path in made]
    # Neither the first bytes nor the name of the program that wrote it are looked at by who reads rows.
    for path, at in ((paths[1], 0), (paths[3], paths[3].read_bytes().index(b"parquet-cpp"))):
        path.write_bytes(changed(path.read_bytes(), at, 0x20))
    paths[2].write_bytes(paths[2].read_bytes()[:-1])

    with daemon(differing(facts_of(4), 3)[:7]) as (url, _):
        told = audit(runner, Store(str(tmp_path)), url=url)

    found = {(one.first_serial, one.last_serial, one.what, one.file) for one in told.findings}
    assert [
        (3, 4, "changed-file", made[1]),
        (3, 7, "differs-from-daemon", made[1]),
        (5, 6, "changed-file", made[2]),
        (7, 8, "changed-file", made[3]),
        (8, 8, "missing-in-daemon", ""),
    ] == sorted(found)
    assert ("push_rules", "w2") in {
        (one.stream, one.writer) for one in told.findings if one.what == "missing-in-daemon"
    }


def test_what_is_wrong_between_two_record_batches_is_named(tmp_path: Path) -> None:
    """A row that comes twice or too early is wrong wherever the batches of its file end."""
    archive(str(tmp_path), chained([("push_rules", "w", [[f"@{n}:h"]]) for n in range(6)]))
    (path,) = paths_of(tmp_path)
    whole = pq.read_table(tmp_path / path, partitioning=None)
    listed = ListedFile(
        path=path, stream="push_rules", bytes=0, rows=6, first_serial=1, last_serial=6, ends_span=True
    )
    for order in ([0, 1, 1, 2, 3, 4], [0, 2, 1, 3, 4, 5], [3, 4, 5, 0, 1, 2]):
        rows = whole.take(order)
        seen = [FileScan(file=listed) for _ in range(3)]
        for scan, size in zip(seen, (1, 2, 6), strict=True):
            last = (-1, -1)
            for batch in rows.to_batches(size):
                last = _scan_batch(scan, batch, last)

        assert seen[0].odd
        assert seen[0] == seen[1] == seen[2]


def test_the_last_files_of_overlapping_ones_end_their_span() -> None:
    bounds = [(1, 5), (2, 9), (3, 9), (10, 12), (11, 11), (20, 30)]
    files = pa.table(
        {"first_serial": [first for first, _ in bounds], "last_serial": [last for _, last in bounds]}
    )

    assert [False, True, True, True, False, True] == rank_files(files)["ends_span"].to_pylist()
    assert [] == rank_files(files.slice(0, 0))["ends_span"].to_pylist()
