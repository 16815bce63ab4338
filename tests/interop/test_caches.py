"""A worker of a real release and `Caches()`, given the same rows: they drop the same entries."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from synrepl.replication.follower.caches import Caches
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, LEGACY, NEWEST
from tests.caches.rows_by_release import rows_sent
from tests.interop.harness import PEERS, Program, peer_python

DIALECTS = {"legacy": LEGACY, "current": CURRENT, "newest": NEWEST}
TABLE = StreamTable.default()

Entry = tuple[str, tuple[Any, ...] | None]


def theirs(peer: Program, stream: str, row: Any) -> set[Entry] | None:
    """What the release drops; None if it refuses the row."""
    mark = peer.mark()
    peer.say(json.dumps([stream, row]))
    drops = peer.expect("answered", after=mark)["drops"]
    if drops is None:
        return None
    return {(name, None if key is None else tuple(key)) for name, key in drops}


@pytest.mark.story
@pytest.mark.parametrize("peer_release", DIALECTS)
def test_the_same_entries_are_dropped(peer_release: str) -> None:
    """For every kind of invalidation that the release sends."""
    if not peer_python(peer_release).exists():
        pytest.skip(f"no Synapse of release {peer_release!r}; run scripts/interop {peer_release}")
    dialect, caches, ours = DIALECTS[peer_release], Caches(), set[Entry]()
    caches.on_invalidation.append(lambda found: ours.add((found.cache, found.key)))
    caches.connected(dialect)
    refused, recorded = [], []
    with Program([peer_python(peer_release), PEERS / "cache_drops.py"]) as peer:
        names: dict[str, int] = peer.expect("ready", seconds=60)["names"]
        known = {*names, "get_event"}
        sent = [*rows_sent(dialect)]
        plain = set(names) - {row[0] for stream, row in sent if stream == "caches"}
        for name in sorted(plain):
            sent += [("caches", [name, keys, 1]) for keys in ([f"k{n}" for n in range(names[name])], None)]
        for stream, row in sent:
            ours.clear()
            caches.apply(stream, [TABLE[stream].decode(json.dumps(row).encode(), dialect)])
            expected = theirs(peer, stream, row)
            if expected is None:
                refused.append((stream, row))
                continue
            assert expected == {entry for entry in ours if entry[0] in known}, (stream, row)
            if stream != "caches" or row[0] not in plain:
                drops = sorted(expected, key=repr)
                recorded.append(json.dumps({"stream": stream, "row": row, "drops": drops}))

    # 1.0 knows no null keys; nothing else is refused.
    assert [] == [(stream, row) for stream, row in refused if peer_release != "legacy" or row[1] is not None]
    lines = [json.dumps({"caches": sorted(known)}), *recorded]
    if "SYNREPL_RECORD_CACHES" in os.environ:
        golden(peer_release).write_text("\n".join(lines) + "\n")
    # tests/caches compares with these where no release is at hand.
    assert golden(peer_release).read_text().splitlines() == lines


def golden(peer_release: str) -> Path:
    """The recording of a release."""
    return Path(__file__).parents[1] / "golden" / "caches" / f"{peer_release}.jsonl"
