"""What a fold keeps: what tasks find in files, and the tombstones that are kept."""

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.exchange import unpack
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.snapshot import fold, part_writer
from synrepl.pipeline.snapshot.fold import (
    SERIAL_AT,
    FoldInput,
    _are_tombstones,
    _tasks_of,
    find_last_rows,
    find_tombstones,
)
from synrepl.pipeline.snapshot.part_writer import FILE, PARTS, write_parts
from synrepl.pipeline.snapshot.snapshot import PartFile
from synrepl.pipeline.store import Store
from synrepl.streams.facts import Fact
from synrepl.streams.table import StreamTable
from tests.pipeline.archives import archive, chained, write_facts


def pusher(name: str, *, deleted: bool = False) -> list[Any]:
    """A row of pushers."""
    return ["@a:b", name, "key", deleted]


ROWS = [pusher("a"), pusher("b")], [["@a:b"]]


def key(name: str) -> str:
    """The key of such a row."""
    return f'["@a:b","{name}","key"]'


def write_file(store: Store, facts: list[Fact]) -> dict[str, Any]:
    """One file of these facts, as `FoldInput` is told of it."""
    (one,) = write_facts(store, facts)
    of_part = {"is_part": False, "after": 0}
    return {"path": one.path, "stream": one.stream, "first_serial": one.first_serial, **of_part}


def fold_input(folder: Path, *lost: EpochStart) -> FoldInput:
    """The input from the files in this folder."""
    return FoldInput(Store(str(folder)), Store(str(folder)), list(lost), [], {})


def folded(inputs: FoldInput, files: list[Any]) -> list[Any]:
    """Keys with positions, as one of two tasks merges them, and the other."""
    return [
        rows
        for batch in inputs.fold(2, files)
        for keys in batch["keys"]
        for rows in unpack(keys.as_buffer()).to_batches()
    ]


def positions(batches: Iterable[Any]) -> list[tuple[str, int, int, int]]:
    """Key, serial, seq, and whether the row is a tombstone."""
    return sorted(
        (key, at >> 21, at >> 1 & 0xFFFFF, at & 1)
        for batch in batches
        for key, at in zip(batch["key"].to_pylist(), batch["at"].to_pylist(), strict=True)
    )


def test_the_last_row_of_each_key_is_found(tmp_path: Path) -> None:
    """And whether it is a tombstone, by what its stream declares; what this release cannot read is none."""
    facts = chained(
        [
            ("pushers", "w", [pusher("x"), pusher("y"), pusher("x", deleted=True)]),
            ("pushers", "w", [pusher("y", deleted=True)]),
            ("pushers", "w", [pusher("y"), pusher("z")]),
        ]
    )
    inputs = fold_input(tmp_path)
    files = pa.Table.from_pylist([write_file(inputs.archive, facts)]).to_batches()

    assert [(key("x"), 1, 2, 1), (key("y"), 3, 0, 0), (key("z"), 3, 1, 0)] == positions(folded(inputs, files))
    assert [False, True, False] == _are_tombstones(
        StreamTable.default()["pushers"],
        [json.dumps(row).encode() for row in (pusher("x"), pusher("x", deleted=True), ["no", "pusher"])],
    )
    assert [] == _are_tombstones(StreamTable.default()["pushers"], [])


def test_all_rows_of_a_key_go_to_one_task() -> None:
    """Whatever stands before and after the key, even if it is shorter than what is read of it at once."""
    texts = ["[]", "[1]", *(json.dumps(["x" * size, size]) for size in range(40)), '["@a:b","é",null]']
    keys = pa.array(["[", *texts, "]", "[[[[", *texts[::-1]])

    found = _tasks_of(keys.slice(1), 5).tolist()

    assert dict(zip(texts, found, strict=False)) == dict(zip(texts[::-1], found[-len(texts) :], strict=True))
    assert set(range(5)) == set(found)


def test_older_rows_are_those_of_facts_with_several(tmp_path: Path) -> None:
    """And the last of a file, which costs less than to know."""
    facts = chained([("pushers", "w", [pusher(name) for name in names]) for names in ("a", "bc", "d", "e")])
    inputs = fold_input(tmp_path)
    files = pa.Table.from_pylist([write_file(inputs.archive, facts)]).to_batches()

    found = positions(inputs.older_rows(2, files))

    assert [(key("b"), 2, 0, 0), (key("c"), 2, 1, 0), (key("e"), 4, 0, 0)] == found


def test_lost_facts_are_not_read(tmp_path: Path) -> None:
    """By stream, epoch and token; nor are those that a former snapshot has."""
    facts = chained([("pushers", "w", [pusher(name)]) for name in "abcd"])
    lost = EpochStart(2, 4, facts[-1].digest, 1, "lost", "pushers", 2)
    inputs = fold_input(tmp_path, lost)
    file = write_file(inputs.archive, facts)

    assert [(key("a"), 1, 0, 0), (key("b"), 2, 0, 0)] == positions(
        folded(inputs, pa.Table.from_pylist([file]).to_batches())
    )
    file["after"] = 1
    assert [(key("b"), 2, 0, 0)] == positions(folded(inputs, pa.Table.from_pylist([file]).to_batches()))


def test_tombstones_are_kept_along_a_chain(runner: Runner, tmp_path: Path) -> None:
    """Fact 1 is kept and has an older row of a key that 3 ends; 3 is kept then, and has one that 7 ends. What
    hangs on nothing that is kept goes, with its end."""
    facts = chained(
        [
            ("pushers", "w", [pusher("live"), pusher("a")]),
            ("pushers", "w", [pusher("b"), pusher("c", deleted=True)]),
            ("pushers", "w", [pusher("a", deleted=True), pusher("d")]),
            ("pushers", "w", [pusher("c", deleted=True)]),
            ("pushers", "w", [pusher("b", deleted=True), pusher("e")]),
            ("pushers", "w", [pusher("e", deleted=True)]),
            ("pushers", "w", [pusher("d", deleted=True)]),
        ]
    )
    archive(str(tmp_path), facts, batch_facts=3)
    files = ArchiveTable(Store(str(tmp_path))).files
    for name, value in (("is_part", False), ("after", 0)):
        files = files.append_column(name, pa.array([value] * len(files)))
    inputs = fold_input(tmp_path)
    driver = driver_of(runner)

    found = find_tombstones(driver, inputs, files, find_last_rows(driver, inputs, files, 7))

    assert [3, 7] == (found >> SERIAL_AT).tolist()


def test_a_range_is_written_as_a_file_of_whole_facts(tmp_path: Path) -> None:
    """With the facts at these positions only, from all files that have some, in order of serial."""
    facts = chained([(("pushers", "push_rules")[number % 2], "w", ROWS[number % 2]) for number in range(6)])
    inputs = fold_input(tmp_path)
    files = [
        {"path": one.path, "is_part": False, "after": 0, "first_serial": one.first_serial}
        for one in write_facts(inputs.archive, facts)
    ]
    at = np.array([1 << 21, 4 << 21, (5 << 21) + 2, (6 << 21) + 1], np.int64)
    given = [
        {"positions": at[:1].tobytes(), "file": None},
        *({"positions": None, "file": file} for file in files),
        {"positions": at[1:].tobytes(), "file": None},
    ]

    (written,) = write_parts(inputs, "upto=6", 10, pa.Table.from_pylist(given).to_batches())

    part = msgspec.json.decode(written["written"][0].as_py(), type=PartFile)
    rows = pq.read_table(tmp_path / part.path).select(["serial", "seq", "last"])
    assert [(1, 0, True), (1, 1, False), (4, 0, True), (5, 0, False), (5, 1, True), (6, 0, False)] == [
        tuple(row.values()) for row in rows.to_pylist()
    ]
    assert (6, 4, 3, 1, 6) == (part.rows, part.facts, part.keys, part.first_serial, part.last_serial)


def test_a_task_writes_several_files_of_whole_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fact is in two files, and none is lost, wherever the batches that are read and copied end."""
    monkeypatch.setattr(fold, "BATCH_ROWS", 5)
    monkeypatch.setattr(part_writer, "COPY_ROWS", 4)
    inputs, kept = fold_input(tmp_path), [serial for serial in range(1, 61) if serial % 5]
    facts = chained(
        [(("pushers", "push_rules")[number % 3 % 2], "w", ROWS[number % 3 % 2]) for number in range(60)]
    )
    files = [
        {"path": one.path, "is_part": False, "after": 0, "first_serial": one.first_serial}
        for some in (facts[:20], facts[20:])
        for one in write_facts(inputs.archive, some)
    ]
    at = [
        serial << SERIAL_AT | seq << 1
        for serial in kept
        for seq in range(len(json.loads(facts[serial - 1].rows)))
    ]
    given = [{"positions": np.array(at).tobytes()}, *({"file": file} for file in files)]

    written = write_parts(inputs, "upto=60", 9, pa.Table.from_pylist(given, PARTS).to_batches())

    parts = [msgspec.json.decode(one["written"][0].as_py(), type=PartFile) for one in written]
    rows = [
        pq.read_table(tmp_path / part.path).select(["serial", "seq", "last"]).to_pylist() for part in parts
    ]
    assert at == [
        row["serial"] << SERIAL_AT | row["seq"] << 1 for some in rows for row in some if row["last"]
    ]
    assert -(-len(at) // 9) == len(parts)
    assert all(before.last_serial < after.first_serial for before, after in pairwise(parts))


def test_files_that_another_program_has_merged_are_read_in_order(tmp_path: Path) -> None:
    """It may have left the rows in another order, within row groups and over several."""
    store = Store(str(tmp_path))
    file = write_file(store, chained([("pushers", "w", [pusher(str(number))]) for number in range(12)]))
    whole = pq.read_table(store.path(file["path"]), partitioning=None)
    file["path"] = f"{file['path'].rpartition('/')[0]}/part-0.parquet"
    given = [
        {"positions": np.array([serial << SERIAL_AT for serial in range(1, 13)]).tobytes()},
        {"file": {name: file[name] for name in FILE.names}},
    ]
    for order in (
        [*range(6), *range(11, 5, -1)],
        [*range(0, 12, 2), *range(1, 12, 2)],
        [*range(6, 12), *range(6)],
    ):
        pq.write_table(whole.take(order), store.path(file["path"]), row_group_size=3)

        written = write_parts(
            fold_input(tmp_path), "upto=12", 4, pa.Table.from_pylist(given, PARTS).to_batches()
        )

        parts = [msgspec.json.decode(one["written"][0].as_py(), type=PartFile) for one in written]
        assert [(1, 4, 4), (5, 8, 4), (9, 12, 4)] == [
            (part.first_serial, part.last_serial, part.keys) for part in parts
        ]
        assert [*range(1, 13)] == [
            serial for part in parts for serial in pq.read_table(tmp_path / part.path)["serial"].to_pylist()
        ]


def test_each_fact_is_written_from_the_row_group_that_has_it(tmp_path: Path) -> None:
    """Row groups are skipped by their statistics: the first and the last serial of a group count too."""
    store = Store(str(tmp_path))
    file = write_file(store, chained([("pushers", "w", [pusher(str(number))]) for number in range(6)]))
    whole = pq.read_table(store.path(file["path"]), partitioning=None)
    file["path"] = f"{file['path'].rpartition('/')[0]}/part-0.parquet"
    for statistics in (True, False):
        pq.write_table(whole, store.path(file["path"]), row_group_size=2, write_statistics=statistics)
        for serial in range(1, 7):
            batch = pa.record_batch(
                {
                    "positions": pa.array([np.array([serial << 21]).tobytes(), None]),
                    "file": pa.array([None, {name: file[name] for name in FILE.names}], FILE),
                }
            )
            (written,) = write_parts(fold_input(tmp_path), "upto=6", 1, [batch])
            part = msgspec.json.decode(written["written"][0].as_py(), type=PartFile)
            assert (part.first_serial, part.last_serial, part.keys) == (serial, serial, 1)
