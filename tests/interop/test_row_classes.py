"""Rows made by the row classes of real releases, which are loaded alone, go through unchanged.

Each third minor release from 1.0 on, and those between the ones that are installed whole. With
``SYNREPL_RECORD_ROWS=1`` what they made is kept for tests/streams/test_release_rows.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synrepl.wire.dialect import Dialect
from tests.interop.harness import PEERS
from tests.interop.packages import package
from tests.releases import MINORS
from tests.releases.rows import TABLE, fields_of, newest, sent, stored

BETWEEN = ("1.76", "1.85", "1.100", "1.110", "1.140")
RELEASES = [one for one in MINORS if one.release[1] % 3 == 0 or one.name in BETWEEN]
GOLDEN = Path(__file__).parents[1] / "golden" / "rows" / "rows.jsonl"
RECORDED = 6
"""How many rows of a kind are recorded."""


def rows_of(dialect: Dialect, count: int) -> list[dict[str, Any]]:
    """What the classes of the release made."""
    found = subprocess.run(
        [sys.executable, PEERS / "row_classes.py", package(dialect.name), str(count)],
        input=json.dumps(fields_of(dialect)),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.parametrize("dialect", RELEASES, ids=str)
def test_rows_of_real_classes_come_out_as_they_went_in(dialect: Dialect) -> None:
    """To a follower of the release byte for byte, and to readers over HTTP in the newest shape."""
    found = rows_of(dialect, 100)

    assert [] == [one for one in found if "why" in one]
    kinds = [(stream, tag) for stream, kinds in fields_of(dialect).items() for tag in kinds]
    assert set(kinds) == {(one["stream"], one["tag"]) for one in found}
    for one in found:
        stream, tag, line = one["stream"], one["tag"], one["line"]
        fact = stored(line, dialect)
        assert line == sent(fact, dialect)
        (text,) = TABLE[stream].project_newest(fact.rows)
        assert newest(stream, tag, line, dialect) == json.loads(text)


def test_the_rows_are_recorded() -> None:
    """Each line with the releases that wrote it."""
    if "SYNREPL_RECORD_ROWS" not in os.environ:
        pytest.skip("SYNREPL_RECORD_ROWS=1 records them")
    releases: dict[tuple[str, str, str], list[str]] = {}
    for dialect in RELEASES:
        for one in rows_of(dialect, RECORDED):
            releases.setdefault((one["stream"], one["tag"], one["line"]), []).append(dialect.name)
    lines = [
        json.dumps({"stream": stream, "tag": tag, "releases": " ".join(names), "line": line})
        for (stream, tag, line), names in releases.items()
    ]
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("\n".join(lines) + "\n")
