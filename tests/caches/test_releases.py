"""What workers of real releases dropped for every kind of row, and what the vintages of these releases drop.

The recordings are made by tests/interop/test_caches.py (tests/golden/caches/README.md).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from synrepl.caches.vintage import Vintage
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, LEGACY, NEWEST, Dialect
from tests.caches.fakes import new_registry
from tests.caches.rows_by_release import rows_sent

TABLE = StreamTable.default()
RELEASES = {"legacy": LEGACY, "current": CURRENT, "newest": NEWEST}
GOLDEN = Path(__file__).parents[1] / "golden" / "caches"


def recording(name: str) -> tuple[set[str], list[dict[str, Any]]]:
    """The caches of the release, and its rows with their drops."""
    head, *rows = map(json.loads, (GOLDEN / f"{name}.jsonl").read_text("utf-8").splitlines())
    return set(head["caches"]), rows


@pytest.mark.parametrize("is_given", [False, True], ids=["by connection", "given"])
@pytest.mark.parametrize(("name", "dialect"), RELEASES.items(), ids=RELEASES)
def test_a_release_drops_what_its_workers_do(name: str, dialect: Dialect, is_given: bool) -> None:
    """Of the caches that it has, the same entries for the same rows."""
    registry = new_registry(Vintage.of(dialect) if is_given else None)
    found = set()
    registry.on_invalidation.append(lambda one: found.add((one.cache, one.key)))
    registry.connected(dialect)
    caches, rows = recording(name)

    for row in rows:
        found.clear()
        text = json.dumps(row["row"]).encode()
        registry.apply(row["stream"], [TABLE[row["stream"]].decode(text, dialect)])
        expected = {(cache, None if key is None else tuple(key)) for cache, key in row["drops"]}
        assert expected == {one for one in found if one[0] in caches}, row


@pytest.mark.parametrize(("name", "dialect"), RELEASES.items(), ids=RELEASES)
def test_the_recordings_have_every_kind_of_row(name: str, dialect: Dialect) -> None:
    """A kind that is added is recorded."""
    _, rows = recording(name)

    assert [(row["stream"], row["row"]) for row in rows] == list(rows_sent(dialect))
