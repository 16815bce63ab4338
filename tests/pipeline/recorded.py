"""A homeserver's day of recorded rows: what real peers sent, played over and over with a day's rhythm."""

import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

from synrepl.cli.recordings import RecordedFacts, read
from synrepl.storage.engine import SQLEngine
from synrepl.storage.group_commit import AppendRequest, build_group
from synrepl.storage.log_head import LogHead
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.table import StreamTable
from synrepl.wire import jsontext
from tests.pipeline.archives import BEGAN_MS, DAY_MS

__all__ = ["fill_day", "recordings"]

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"
GROUP_MS: Final = 20_000

HOURS: Final = (4, 3, 2, 2, 2, 3, 5, 9, 14, 16, 15, 15, 17, 16, 15, 15, 16, 18, 21, 24, 25, 22, 14, 8)
"""How much happens in each hour of a day, beside the others."""


def recordings() -> dict[str, list[RecordedFacts]]:
    """The facts of kept streams in each recorded session, by the writer that plays it here."""
    table = StreamTable.default()
    found: dict[str, list[RecordedFacts]] = {}
    for writer, name in (
        ("master", "legacy/session-all.txt"),
        ("master", "legacy/catchup-from-1.txt"),
        ("master", "legacy/workers-proxy-start.txt"),
        ("worker1", "current/session-all.txt"),
        ("worker1", "current/workers-proxy-start.txt"),
        ("worker2", "redis/rows.txt"),
        ("worker2", "middle/samples.txt"),
    ):
        facts = read((GOLDEN / name).read_bytes(), table).facts
        found.setdefault(writer, []).extend(
            fact for fact in facts if fact.rows and not table[fact.stream].ephemeral
        )
    return found


def fill_day(path: Path, count: int, *, began_ms: int = BEGAN_MS, seed: int = 7) -> None:
    """A log with so many of these facts, over one day."""
    chance = random.Random(seed)
    players = {writer: cycle(facts) for writer, facts in recordings().items()}
    weights = {"master": 5, "worker1": 4, "worker2": 1}
    engine = SQLEngine(SQLiteDatabase(path))
    standing = LogHead()
    standing.load(engine.open())
    for at_ms, some in _groups(count, began_ms, chance):
        requests = []
        for writer in chance.choices(list(weights), list(weights.values()), k=some):
            fact = next(players[writer])
            requests.append(AppendRequest(fact.stream, writer, [jsontext.join(fact.rows)], None, ""))
        group = build_group(standing, requests, at_ms, lambda key: None)
        engine.commit(group.facts, [])
        standing.advance(group.facts)
    engine.close()


def _groups(count: int, began_ms: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    """When something happens, and how much at once."""
    hours = chance.choices(range(24), HOURS, k=count)
    times: dict[int, int] = {}
    for hour in hours:
        at = hour * DAY_MS // 24 + chance.randrange(DAY_MS // 24)
        slot = at // GROUP_MS * GROUP_MS
        times[slot] = times.get(slot, 0) + 1
    for slot, some in sorted(times.items()):
        yield began_ms + slot, some
