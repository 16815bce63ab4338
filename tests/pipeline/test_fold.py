"""What a fold keeps, without Spark: the parts that tasks and the driver do by themselves."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from synrepl.pipeline.snapshot.fold import _mark_gone, _reachable
from synrepl.pipeline.snapshot.parts import write_parts
from synrepl.pipeline.snapshot.snapshot import PartFile
from synrepl.pipeline.source.rows import explode
from synrepl.pipeline.store import Store
from tests.pipeline.archives import batch_of_facts, chained


def pusher(name: str, *, deleted: bool = False) -> str:
    """A row of pushers."""
    return json.dumps(["@a:b", name, "key", deleted])


def leads(*found: tuple[int, int, bool | None]) -> Any:
    """Of facts: where an older row of a key is, where that key ends, and whether the first is kept."""
    return pa.table(
        {
            name: [one[position] for one in found]
            for position, name in enumerate(("serial", "gone_at", "kept"))
        }
    )


def test_ends_of_keys_are_kept_along_a_chain() -> None:
    """Fact 1 is kept and has an older row of a key that 3 ends; 3 is kept then, and has one that 7 ends. What
    hangs on nothing that is kept goes, with its end."""
    assert [3, 7] == _reachable(leads((3, 7, None), (1, 3, True), (2, 5, None), (5, 6, None)))
    assert [] == _reachable(leads((2, 5, None)))


def test_rows_say_that_their_key_is_gone() -> None:
    """By what their stream declares; what this release cannot read says nothing."""
    rows = [pusher("x"), pusher("x", deleted=True), None, '["no", "pusher"]']
    batch = pa.record_batch(
        {
            "stream": ["pushers"] * 4,
            "key": ["k1", "k2", "k3", "k4"],
            "serial": pa.array([1, 2, 3, 4], pa.int64()),
            "seq": pa.array([0] * 4, pa.int32()),
            "row": rows,
        }
    )

    (told,) = _mark_gone([batch])

    assert [False, True, False, False] == told["gone"].to_pylist()


@pytest.mark.parametrize("file_rows", [1, 2, 4, 5, 100])
def test_files_of_a_snapshot_part_no_fact(tmp_path: Path, file_rows: int) -> None:
    """Who reads one file has whole facts; one of more rows than a file is longer than asked for."""
    counts = [1, 3, 2, 4, 1]
    rows = explode(batch_of_facts(chained([("push_rules", "w", [["@a:b"]] * count) for count in counts])))
    last = pa.record_batch([*rows.columns, pa.array([True] * len(rows))], names=[*rows.schema.names, "last"])
    store = Store(str(tmp_path))

    written = list(write_parts(store, "upto=5", file_rows, [last.slice(0, 4), last.slice(4)]))

    parts = [
        msgspec.json.decode(part, type=PartFile) for one in written for part in one["written"].to_pylist()
    ]
    assert sum(counts) == sum(part.rows for part in parts)
    assert sum(value for one in written for value in one["keys"].to_pylist()) == sum(counts)
    assert [5, 1, 5] == [sum(part.facts for part in parts), parts[0].first_serial, parts[-1].last_serial]
    for part in parts:
        assert part.rows == sum(counts[part.first_serial - 1 : part.last_serial])
