"""Writers that stand still while others go on."""

from collections.abc import Mapping
from typing import cast

import pytest
from twisted.internet.task import Clock

from synrepl.base.interfaces import SaveablePosition
from synrepl.ingest.stalled_writers import STALLED_SECONDS, StalledWriters
from synrepl.storage.log import Log
from synrepl.streams.table import StreamTable


class Standing:
    """A log of which only this is asked."""

    def __init__(self) -> None:
        self.positions: dict[str, dict[str, int]] = {}

    def positions_by_stream(self) -> SaveablePosition:
        return self.positions


class Setup:
    """A look for stalled writers, and positions that can be set."""

    def __init__(self) -> None:
        self.time = Clock()
        self.log = Standing()
        self.stalls = StalledWriters(cast(Log, self.log), StreamTable.default(), self.time)
        self.stalls.start()

    def stand(self, stream: str = "events", **writers: int) -> None:
        self.log.positions[stream] = writers

    def wait(self, seconds: float) -> list[tuple[str, str, int, int]]:
        self.time.pump([0.5] * int(seconds * 2))
        return [(one.stream, one.writer, one.token, one.behind) for one in self.stalls.stalled()]


LONG = STALLED_SECONDS + 6


@pytest.mark.parametrize(
    ("stream", "writers", "found"),
    [
        ("events", {"w1": 5, "w2": 9}, [("events", "w1", 5, 4)]),
        ("backfill", {"w1": 5, "w2": 9}, []),
        ("caches", {"w1": 5, "w2": 9}, []),
        ("presence", {"w1": 5, "w2": 9}, []),
        ("events", {"w1": 9}, []),
        ("events", {"w1": 0, "w2": 9}, []),
        ("events", {"w1": 9, "w2": 9}, []),
    ],
    ids=["behind", "descending", "unordered", "ephemeral", "alone", "never wrote", "level"],
)
def test_stalled_writers_are_found_where_positions_are_acknowledged(
    stream: str, writers: Mapping[str, int], found: list[tuple[str, str, int, int]]
) -> None:
    """Only where writers tell that they have seen each other."""
    setup = Setup()
    setup.stand(stream, **writers)

    assert found == setup.wait(LONG)


def test_a_writer_counts_as_stalled_after_a_while() -> None:
    """Idle ones follow within seconds."""
    setup = Setup()
    setup.stand(w1=5, w2=9)

    assert [] == setup.wait(STALLED_SECONDS - 6)


def test_a_moving_writer_is_not_stalled() -> None:
    """However far it is behind."""
    setup = Setup()
    for token in range(1, 10):
        setup.stand(w1=token, w2=1000)
        assert [] == setup.wait(10)


def test_a_writer_that_caught_up_is_timed_anew() -> None:
    """What it was long ago does not count."""
    setup = Setup()
    setup.stand(w1=5, w2=9)
    setup.wait(LONG)
    setup.stand(w1=9, w2=9)
    assert [] == setup.wait(6)
    setup.stand(w1=9, w2=10)

    assert [] == setup.wait(STALLED_SECONDS - 6)


def test_the_longest_comes_first() -> None:
    """That is the one to look at."""
    setup = Setup()
    setup.stand(w1=5, w2=9)
    setup.wait(20)
    setup.stand("receipts", w3=1, w4=2)

    assert ["w1", "w3"] == [writer for _, writer, _, _ in setup.wait(LONG)]


def test_stop_leaves_no_timer() -> None:
    """Or the daemon would never end."""
    setup = Setup()
    setup.stalls.stop()

    assert [] == setup.time.getDelayedCalls()
