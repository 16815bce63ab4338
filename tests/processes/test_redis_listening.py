"""What a daemon that only listens tells its operator of the deployment."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes.channel import (
    SERVER,
    Listener,
    Speaker,
    ask,
    described,
    eventually,
    kept,
    metric,
    on_redis,
    redis_of,
    status,
)
from tests.processes.deployment import rows_of
from tests.processes.loading import PATIENCE_SECONDS, Asker, Refused
from tests.processes.recordings import SERVER as RECORDED
from tests.processes.recordings import RecordedState, recording
from tests.servers.redis import RedisServer
from tests.service.processes import Daemon, Process

STUCK_SECONDS: Final = 15.0


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def daemon(tmp_path: Path, redis: RedisServer) -> Iterator[Daemon]:
    """A daemon without anybody to ask."""
    with on_redis(tmp_path, redis, "observer") as daemon:
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        yield daemon


def writers_of(daemon: Daemon, stream: str) -> dict[str, Any]:
    """Where the writers of a stream stand, as the status has it."""
    found: dict[str, Any] = status(daemon.url)["streams"][stream]["writers"]
    return found


def receipt(token: int, *, writer: str = "w1") -> str:
    """A fact."""
    row = '["!r:a","m.read","@~%d~:a","$e:a",null,{}]' % token  # noqa: UP031  # braces
    return f"RDATA receipts {writer} {token} {row}"


def test_metrics_tell_what_a_deployment_writes(tmp_path: Path, redis: RedisServer) -> None:
    """Positions, rows and bytes by stream, invalidations by cache: of what was taken in, once."""
    messages = recording("cold_start", "traffic_seed1_special_federation")
    told = RecordedState(messages)
    with (
        on_redis(tmp_path, redis, "observer", server=RECORDED) as daemon,
        Speaker(redis) as speaker,
    ):
        eventually(lambda: redis_of(daemon.url)["subscribed"], "a daemon that hears")
        speaker.publish((message.channel, message.payload) for message in messages)
        eventually(lambda: len(kept(daemon.url)) >= len(told.kept()), "all facts")

        # A position without rows is told to the log within a second.
        def places() -> dict[tuple[str, str], int]:
            streams = status(daemon.url)["streams"]
            return {
                (stream, writer): streams[stream]["writers"].get(writer) for stream, writer in told.positions
            }

        wanted = {key: token for key, token in told.positions.items() if token}
        eventually(lambda: {key: places()[key] for key in wanted} == wanted, lambda: f"{places()} {wanted}")
        for (stream, writer), token in wanted.items():
            assert metric(daemon.url, "synrepl_stream_position", stream=stream, writer=writer) == token
        rows: dict[str, int] = {}
        caches: dict[str, int] = {}
        for fact in told.kept():
            had = json.loads(fact.rows)
            rows[fact.stream] = rows.get(fact.stream, 0) + len(had)
            for row in had if fact.stream == "caches" else ():
                caches[row[0]] = caches.get(row[0], 0) + 1
        for stream, count in rows.items():
            assert metric(daemon.url, "synrepl_rows_total", stream=stream) == count, stream
            assert metric(daemon.url, "synrepl_stream_bytes_total", stream=stream) > count, stream
        seen = {name: metric(daemon.url, "synrepl_invalidations_seen_total", cache=name) for name in caches}
        assert seen == caches
        assert metric(daemon.url, "synrepl_replication_lag_rows") == 0


def test_a_gap_that_nobody_can_fill_is_told_and_passed(daemon: Daemon, redis: RedisServer) -> None:
    """Without `instance_map` what was missed is lost: the operator is told, and the stream goes on."""
    with Speaker(redis) as speaker:
        speaker.say("POSITION receipts w1 1 1", receipt(2), "POSITION receipts w1 9 9", receipt(10))
        eventually(lambda: writers_of(daemon, "receipts") == {"w1": 10}, lambda: described(daemon.url))

        eventually(lambda: redis_of(daemon.url)["lost"], "what is lost")
        told = redis_of(daemon.url)
        (lost,) = told["lost"]
        assert {key: lost[key] for key in ("stream", "writer", "have", "want")} == {
            "stream": "receipts",
            "writer": "w1",
            "have": 2,
            "want": 9,
        }
        assert "instance_map" in lost["why"]
        assert told["gaps"] == []
        assert [fact.token for fact in kept(daemon.url)] == [2, 10]
        assert metric(daemon.url, "synrepl_gaps_detected_total") == 1
        assert metric(daemon.url, "synrepl_gaps_repaired_total") == 0
        assert metric(daemon.url, "synrepl_gaps_lost_total") == 1
        had = status(daemon.url)
        assert any("w1" in error["what"] and "receipts" in error["what"] for error in had["errors"]), had[
            "errors"
        ]


def test_a_writer_that_stands_still_is_named(daemon: Daemon, redis: RedisServer) -> None:
    """It holds back all who read the stream as one line, as Synapse's `/sync` does."""
    with Speaker(redis) as speaker:
        speaker.say("POSITION receipts w1 1 1", "POSITION receipts w2 1 1", "POSITION receipts w3 1 1")
        token = 1

        def go_on() -> list[Any]:
            nonlocal token
            token += 1
            speaker.say(receipt(token), f"POSITION receipts w3 {token - 1} {token}")
            stuck: list[Any] = status(daemon.url)["stuck"]
            return stuck

        eventually(lambda: not go_on() and token > 10, "some facts")
        (one,) = eventually(go_on, "a stuck writer", seconds=STUCK_SECONDS + PATIENCE_SECONDS)
        assert (one["stream"], one["writer"], one["token"]) == ("receipts", "w2", 1)
        assert one["behind"] >= 10
        assert one["seconds"] >= STUCK_SECONDS
        assert any("w2" in error["what"] for error in status(daemon.url)["errors"])
        speaker.say(f"POSITION receipts w2 1 {token}")
        eventually(lambda: not status(daemon.url)["stuck"], "a writer that moves again")


def test_what_is_posted_is_refused_and_nothing_is_reported(daemon: Daemon, redis: RedisServer) -> None:
    """A daemon without `redis_writes` is no writer, whatever somebody sends it."""
    with Listener(redis) as listener, Asker(daemon.url) as asker:
        with pytest.raises(Refused, match="409"):
            asker.post("receipts", [rows_of("receipts", 1)])
        assert kept(daemon.url) == []
        with Speaker(redis) as speaker:
            # It hears this, and would have answered.
            speaker.say("REPLICATE ", "POSITION receipts w1 1 1", receipt(2))
        eventually(lambda: kept(daemon.url), "the fact that came over Redis")
        assert [one for one in listener.heard if one.channel == SERVER and "observer" in one.payload] == []


def test_a_quiet_channel_is_no_lag(daemon: Daemon, redis: RedisServer) -> None:
    """Nobody writes, nothing is missing: an alarm on the lag must not ring."""
    with Speaker(redis) as speaker:
        until = status(daemon.url)["uptime_seconds"] + 4
        eventually(lambda: status(daemon.url)["uptime_seconds"] > until, "some seconds alone")
        eventually(lambda: redis_of(daemon.url)["lag_seconds"] < 2, "no lag, alone on the channel")
        speaker.say("POSITION receipts w1 1 1")
        eventually(lambda: writers_of(daemon, "receipts"), "a position")
        until = status(daemon.url)["uptime_seconds"] + 4
        eventually(lambda: status(daemon.url)["uptime_seconds"] > until, "some seconds of silence")
        eventually(lambda: redis_of(daemon.url)["lag_seconds"] < 2, "no lag, after the silence")
        redis.kill()
        eventually(lambda: redis_of(daemon.url)["lag_seconds"] > 2, "a lag, as nothing is heard")
        (error,) = eventually(lambda: status(daemon.url)["errors"], "a word of it")
        assert "cannot receive from" in error["what"]
        assert status(daemon.url)["state"] == "behind"
        redis.start()
        eventually(lambda: status(daemon.url)["state"] == "serving", lambda: described(daemon.url))


def test_people_are_told_too(tmp_path: Path, daemon: Daemon, redis: RedisServer) -> None:
    """By ``synrepl status``, and on the page: what is heard from where, and what it lacks."""
    with Speaker(redis) as speaker:
        speaker.say("POSITION receipts w1 5 5", "POSITION receipts w1 9 9")
    eventually(lambda: redis_of(daemon.url)["lost"], "a loss")

    with Process("-m", "synrepl", "status", "--url", daemon.url, cwd=tmp_path) as told:
        assert told.wait() == 0
    said = " ".join(" ".join(told.lines).split())
    page = ask(daemon.url, "/status").decode()

    assert (
        "error: unrecoverable gap: no source has the missing facts: gap in receipts of w1: facts after 5"
        in said
    )
    assert "source" in said
    assert f"redis://127.0.0.1:{redis.port}" in page
    assert all("live" in text for text in (said, page))
