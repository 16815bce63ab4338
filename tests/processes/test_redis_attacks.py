"""Made-up lines on a real Redis must not stop a daemon, or be stored as its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.channel import (
    Speaker,
    eventually,
    kept,
    metric,
    on_redis,
    status,
    wait_until_writing,
)
from tests.processes.deployment import rows_of
from tests.processes.loading import Asker
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon

WRITERS = 3_000
CONFLICTS = [
    f"another process on the channel writes push_rules as {writer}" for writer in ("synrepl1", "evil")
]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with RedisServer() as server:
        yield server


def post(daemon: Daemon, number: int) -> None:
    with Asker(daemon.url) as asker:
        asker.post("push_rules", [rows_of("push_rules", number)])


def test_made_up_lines_stop_no_append(tmp_path: Path, redis: RedisServer) -> None:
    """Under the daemon's name, under another one in its stream, and with a token that leaves no room."""
    with (
        on_redis(tmp_path, redis, "synrepl1", writes="push_rules") as daemon,
        Speaker(redis) as speaker,
    ):
        wait_until_writing(daemon)
        post(daemon, 1)
        speaker.say(
            'RDATA push_rules synrepl1 999999 ["@evil:hs"]',
            'RDATA push_rules evil 999999 ["@evil:hs"]',
            f'RDATA receipts evil {2**63 - 1} ["!r","m.read","@evil:hs","$e",null,{{}}]',
        )
        eventually(
            lambda: metric(daemon.url, "synrepl_channel_conflicts_total") == 2, lambda: "the conflicts"
        )
        post(daemon, 2)
        eventually(  # an answer is kept for a second
            lambda: all(conflict in str(status(daemon.url)) for conflict in CONFLICTS),
            lambda: f"the conflicts in {status(daemon.url)}",
        )
        stored = kept(daemon.url)

    assert 2 == len(stored)
    assert "@evil:hs" not in str(stored)


def test_invented_writers_cost_little(tmp_path: Path, redis: RedisServer) -> None:
    """20,000 of them made a scrape of 669 kB."""
    with (
        on_redis(tmp_path, redis, "synrepl1", writes="push_rules") as daemon,
        Speaker(redis) as speaker,
    ):
        wait_until_writing(daemon)
        speaker.say(*(f"POSITION events invented{number} 1 1" for number in range(WRITERS)))
        speaker.say('RDATA push_rules synrepl1 999999 ["@evil:hs"]')
        eventually(
            lambda: metric(daemon.url, "synrepl_channel_conflicts_total") == 1, lambda: "the last line"
        )

        assert len(status(daemon.url)["redis"]["writers"]) <= 1_000
        post(daemon, 1)
