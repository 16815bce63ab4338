"""Rows of a file become facts, wherever they are cut into batches."""

from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from synrepl.pipeline.report.fact_scan import _facts

NOW = datetime(2026, 11, 26, tzinfo=UTC)
SERIALS = [1, 1, 2, 3, 3, 3]


def batch(serials: list[int], seqs: list[int]) -> pa.RecordBatch:
    """Rows of these facts."""
    return pa.RecordBatch.from_pydict(
        {
            "serial": pa.array(serials, pa.int64()),
            "epoch": pa.array([1] * len(serials), pa.int64()),
            "prev_token": pa.array([one - 1 for one in serials], pa.int64()),
            "token": pa.array(serials, pa.int64()),
            "seq": pa.array(seqs, pa.int32()),
            "row": pa.array([b"[]"] * len(serials), pa.binary()),
            "stream": ["receipts"] * len(serials),
            "writer": ["w1"] * len(serials),
            "committed_at": pa.array([NOW] * len(serials), pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [4], [1, 4], [0, 1, 2, 3, 4, 5]])
def test_each_fact_comes_once_and_whole(cuts: list[int]) -> None:
    """Also the last one, and one whose rows are in two batches."""
    seqs = [0, 1, 0, 0, 1, 2]
    edges = [0, *cuts, len(SERIALS)]
    batches = [batch(SERIALS[first:last], seqs[first:last]) for first, last in pairwise(edges)]
    found = pa.concat_tables(_facts(batches, np.array([3]), np.array([0])))

    assert [1, 2, 3] == found["serial"].to_pylist()
    assert [2, 1, 3] == found["rows"].to_pylist()
