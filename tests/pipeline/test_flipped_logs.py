"""A flipped bit in the log of an archive: it is refused, and never read as if it were right."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from synrepl.pipeline.archive import table as table_module
from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.archive.table_commits import END, read_end, read_history
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.store import BadArchive, Store
from tests.pipeline.archives import LOG, archive, chained, forget_checksums, write_facts

FACTS = chained([("push_rules", "w", [["@a:hs"]])] * 8)
BATCHES = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of some commits, with a checkpoint between them."""
    made = tmp_path_factory.mktemp("archive")
    with patch.object(table_module, "CHECKPOINT_EVERY", 2):
        archive(str(made), FACTS, batch_facts=len(FACTS) // BATCHES)
    assert (made / "_delta_log" / f"{3:020}.checkpoint.parquet").exists()
    return made


def flipped(path: Path, step: int) -> Iterator[int]:
    """Flip a bit of each `step` bytes, one after the other; yield where it is while it is."""
    whole = path.read_bytes()
    try:
        for at in range(0, len(whole), step):
            data = bytearray(whole)
            data[at] ^= 1 << at // step % 8
            path.write_bytes(data)
            yield at
    finally:
        path.write_bytes(whole)


def read(place: Path, as_of: str | None = None) -> Any:
    """What is read of an archive: the files and the batches."""
    table = ArchiveTable(Store(str(place)), as_of)
    return table.files, table.batches()


@pytest.mark.parametrize(
    ("name", "as_of", "step"),
    [
        *((f"_delta_log/{version:020}.json", None, 97) for version in range(BATCHES)),
        *((f"_delta_log/{version:020}.json", str(version), 97) for version in range(BATCHES)),
        (f"_delta_log/{1:020}.checkpoint.parquet", "2", 331),
        (f"_delta_log/{3:020}.checkpoint.parquet", None, 331),
        (END, None, 7),
    ],
)
def test_a_flipped_bit_is_refused(place: Path, name: str, as_of: str | None, step: int) -> None:
    """The commit after it has the checksum of a commit, `END` that of the last one and its own."""
    for _ in flipped(place / name, step):
        with pytest.raises(BadArchive, match=r"is damaged: .*; (put a copy of it back|remove it)"):
            read(place, as_of)


def test_a_flipped_bit_moves_no_time(place: Path) -> None:
    """A version is looked for by the times in commits: one that lies would lead to another version."""
    path = place / "_delta_log" / f"{1:020}.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"archived_at_ms":17', b'"archived_at_ms":07'))
    try:
        with pytest.raises(BadArchive, match=r"cannot be read as of .*1\.json is damaged"):
            ArchiveTable(Store(str(place)), "2026-11-21T00:05:00Z")
    finally:
        path.write_bytes(whole)


def test_a_flipped_bit_tells_no_other_history(place: Path) -> None:
    """The newest versions are read from their commits alone."""
    whole = read_history(Store(str(place)), 9)
    for _ in flipped(place / "_delta_log" / f"{2:020}.json", 97):
        with pytest.raises(BadArchive, match=r"2\.json is damaged"):
            read_history(Store(str(place)), 9)
    assert whole == read_history(Store(str(place)), 9)


def test_a_flipped_bit_goes_into_no_checkpoint(tmp_path: Path) -> None:
    """Of a job that runs for weeks: it has verified the log when it began."""
    store = Store(str(tmp_path))
    archive(str(tmp_path), FACTS[:4], batch_facts=2)
    job = BatchCommitter(store, LOG)

    for at in flipped(tmp_path / "_delta_log" / f"{0:020}.json", 10**6):
        assert 0 == at
        with (
            patch.object(table_module, "CHECKPOINT_EVERY", 2),
            pytest.raises(BadArchive, match=r"0\.json is damaged"),
        ):
            job.commit(write_facts(store, FACTS[4:]), now_ms=1)

    assert not list(tmp_path.glob("_delta_log/*checkpoint*"))
    assert len(FACTS) == ArchiveTable(store).end.last_serial


def test_the_hint_at_the_checkpoint_means_nothing(place: Path) -> None:
    """delta-rs finds the newest checkpoint by its name."""
    expected = read(place)
    for _ in flipped(place / "_delta_log" / "_last_checkpoint", 3):
        try:
            assert expected == read(place)
        except BadArchive:
            continue


def test_a_log_of_an_earlier_release_is_read_and_told(tmp_path: Path) -> None:
    """Its commits have no checksums; the next one has those of all that load the table."""
    store = Store(str(tmp_path))
    archive(str(tmp_path), FACTS[:4], batch_facts=2)
    forget_checksums(tmp_path)

    assert [f"{version:020}.json" for version in range(2)] == ArchiveTable(store).unverified()
    with LocalDriver(threads=1) as driver:
        (told,) = audit(driver, store).findings
        assert ("unverified-log", "info") == (told.what, told.severity)
    BatchCommitter(store, LOG).commit(write_facts(store, FACTS[4:]), now_ms=1)
    assert [] == ArchiveTable(store).unverified()
    for _ in flipped(tmp_path / "_delta_log" / f"{0:020}.json", 97):
        with pytest.raises(BadArchive, match=r"0\.json is damaged"):
            read(tmp_path)


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(place: Path) -> None:
    """Of an object store one answer was of the former content, and the next of the new one."""
    store = Store(str(place))
    whole = store.read(END)
    answers = [whole[:20] + b"0" + whole[21:], whole[:-30], whole]

    with patch.object(store, "read", side_effect=answers):
        assert read_end(store) is not None

    with patch.object(store, "read", return_value=whole[:-30]), pytest.raises(BadArchive, match="damaged"):
        read_end(store)
