"""What a fold keeps, without Spark: the parts that tasks and the driver do by themselves."""

import json
from typing import Any

import pyarrow as pa

from synrepl.pipeline.snapshot.folding import _judged, _reached


def pusher(name: str, *, deleted: bool = False) -> str:
    """A row of pushers."""
    return json.dumps(["@a:b", name, "key", deleted])


def leads(*found: tuple[int, int, bool | None]) -> Any:
    """Of facts: where an older row of a key is, where that key ends, and whether the first is kept."""
    return pa.table(
        {name: [one[place] for one in found] for place, name in enumerate(("serial", "gone_at", "kept"))}
    )


def test_ends_of_keys_are_kept_along_a_chain() -> None:
    """Fact 1 is kept and has an older row of a key that 3 ends; 3 is kept then, and has one that 7 ends. What
    hangs on nothing that is kept goes, with its end."""
    assert [3, 7] == _reached(leads((3, 7, None), (1, 3, True), (2, 5, None), (5, 6, None)))
    assert [] == _reached(leads((2, 5, None)))


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

    (told,) = _judged([batch])

    assert [False, True, False, False] == told["gone"].to_pylist()
