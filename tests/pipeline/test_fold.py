"""What a fold keeps: what tasks find in files, and the tombstones that are kept."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.packing import unpack
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.snapshot.fold import (
    SERIAL_AT,
    FoldInput,
    _are_tombstones,
    find_last_rows,
    find_tombstones,
)
from synrepl.pipeline.snapshot.snapshot import PartFile
from synrepl.pipeline.store import Store
from synrepl.ports.history import EpochStart
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
    return {"path": one.path, "stream": one.stream, "is_part": False, "after": 0}


def fold_input(folder: Path, *lost: EpochStart) -> FoldInput:
    """The input from the files in this folder."""
    return FoldInput(Store(str(folder)), Store(str(folder)), list(lost), [])


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
    files = [{"path": one.path, "is_part": False, "after": 0} for one in write_facts(inputs.archive, facts)]
    at = np.array([1 << 21, 4 << 21, (5 << 21) + 2, (6 << 21) + 1], np.int64)
    given = [
        {"positions": at[:1].tobytes(), "file": None},
        *({"positions": None, "file": file} for file in files),
        {"positions": at[1:].tobytes(), "file": None},
    ]

    (written,) = inputs.write("upto=6", pa.Table.from_pylist(given).to_batches())

    part = msgspec.json.decode(written["written"][0].as_py(), type=PartFile)
    rows = pq.read_table(tmp_path / part.path).select(["serial", "seq", "last"])
    assert [(1, 0, True), (1, 1, False), (4, 0, True), (5, 0, False), (5, 1, True), (6, 0, False)] == [
        tuple(row.values()) for row in rows.to_pylist()
    ]
    assert (6, 4, 3, 1, 6) == (part.rows, part.facts, part.keys, part.first_serial, part.last_serial)


def test_each_fact_is_written_from_the_row_group_that_has_it(tmp_path: Path) -> None:
    """Row groups are skipped by their statistics: the first and the last serial of a group count too."""
    store = Store(str(tmp_path))
    file = write_file(store, chained([("pushers", "w", [pusher(str(number))]) for number in range(6)]))
    whole = pq.read_table(store.path(file["path"]), partitioning=None)
    for statistics in (True, False):
        pq.write_table(whole, store.path(file["path"]), row_group_size=2, write_statistics=statistics)
        for serial in range(1, 7):
            batch = pa.record_batch(
                {
                    "positions": pa.array([np.array([serial << 21]).tobytes(), None]),
                    "file": pa.array([None, {name: file[name] for name in ("path", "is_part", "after")}]),
                }
            )
            (written,) = fold_input(tmp_path).write("upto=6", [batch])
            part = msgspec.json.decode(written["written"][0].as_py(), type=PartFile)
            assert (part.first_serial, part.last_serial, part.keys) == (serial, serial, 1)
