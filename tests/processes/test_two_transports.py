"""A writer heard over Redis and over TCP at once: the first wins, the second costs nothing but bytes."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.processes.channel import (
    Fact,
    Listener,
    Tail,
    ascends,
    eventually,
    kept,
    knows,
    metric,
    on_redis,
    redis_of,
    status,
    wait_until_writing,
)
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon

FACTS = 200


class World:
    """A writer on Redis that also listens, and a reader of both; the reader has a follower of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.redis = stack.enter_context(RedisServer())
        # Unless it is said, a server takes who asks as Redis peers do for release 1.66, with fewer fields.
        newest = ("--dialect", "1.163")
        self.writer = stack.enter_context(
            on_redis(folder, self.redis, "alpha", *newest, writes="receipts,caches")
        )
        wait_until_writing(self.writer)
        config = folder / "beta.yaml"
        config.write_text(json.dumps({"instance_map": {"alpha": self.writer.url}}))
        self.reader: Daemon = stack.enter_context(
            on_redis(
                folder,
                self.redis,
                "beta",
                *(*newest, "--follow", f"tcp:{self.writer.follow}", "--config", str(config)),
            )
        )
        eventually(self.is_live, "a reader that hears both")
        self.tail = stack.enter_context(Tail(self.reader, "1.163", cwd=folder))
        self.tail.wait_until_live()
        self.count = 0

    def is_live(self) -> bool:
        """Whether both ways are open, and the reader knows where the writer stands."""
        found = status(self.reader.url)
        is_open = bool(found["redis"]["subscribed"]) and all(one["connected"] for one in found["following"])
        return is_open and all(knows(self.reader.url, one, "alpha") for one in ("receipts", "caches"))

    def post(self, count: int) -> None:
        """Facts of two streams, several a request."""
        for first in range(self.count, self.count + count, 10):
            posted: list[tuple[str, list[Any]]] = [
                ("receipts", [["!r", "m.read", f"@u{n}", "$e", None, {}] for n in range(first, first + 10)]),
                ("caches", [["get_x", [f"{n}"], 1] for n in range(first, first + 10)]),
            ]
            for stream, rows in posted:
                request = urllib.request.Request(
                    f"{self.writer.url}/v1/streams/{stream}/facts",
                    json.dumps({"facts": [[row] for row in rows]}).encode(),
                )
                with urllib.request.urlopen(request, timeout=60) as answer:
                    assert answer.status == 200
        self.count += count

    def settle(self) -> list[Fact]:
        """The reader's log, once it has all that the writer's has."""
        wanted = sorted(kept(self.writer.url))
        eventually(lambda: sorted(kept(self.reader.url)) == wanted, "equal logs")
        return kept(self.reader.url)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Both ways open, a follower behind."""
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_the_first_wins(world: World) -> None:
    """Every fact is kept, told and counted once, though it came twice."""
    with Listener(world.redis) as listener:
        world.post(FACTS)
        facts = world.settle()

        assert 2 * FACTS == len(facts) == len(set(facts))
        assert [] == ascends(facts)
        world.tail.wait_for_facts(2 * FACTS)
        assert sorted(facts) == sorted(world.tail.told)
        assert FACTS == metric(world.reader.url, "synrepl_rows_total", stream="receipts")
        # It came over both, and the reader told nothing of it on Redis.
        assert 2 * FACTS == len(listener.payloads("RDATA"))
        heard = metric(world.reader.url, "synrepl_commands_received_total", command="RDATA")
        assert heard >= 4 * FACTS
        assert 0 == metric(world.reader.url, "synrepl_gaps_detected_total")


def gaps(world: World, what: str) -> float:
    """How many gaps the reader has detected, or repaired."""
    return metric(world.reader.url, f"synrepl_gaps_{what}_total")


def test_either_is_enough(world: World) -> None:
    """Redis goes and comes back: nothing waits for it, and nothing is fetched that came the other way."""
    world.post(FACTS)
    world.settle()
    world.redis.kill()
    world.post(FACTS)
    world.settle()
    fetched = metric(world.reader.url, "synrepl_catch_up_requests_total", direction="out")
    assert not redis_of(world.reader.url)["subscribed"]

    world.redis.start()
    eventually(world.is_live, "a reader that hears both")
    wait_until_writing(world.writer)
    world.post(FACTS)
    facts = world.settle()

    assert 6 * FACTS == len(facts) == len(set(facts))
    assert [] == ascends(facts)
    world.tail.wait_for_facts(6 * FACTS)
    assert sorted(facts) == sorted(world.tail.told)
    # The facts of a gap may have come the other way, while the request for them is still under way.
    eventually(lambda: gaps(world, "detected") == gaps(world, "repaired"), "each gap repaired")
    # Of `caches`, whose facts may come late, the last ones are asked for again: one page each time that it
    # is back, which is twice where the first connection does not last.
    assert metric(world.reader.url, "synrepl_catch_up_requests_total", direction="out") <= fetched + 2
