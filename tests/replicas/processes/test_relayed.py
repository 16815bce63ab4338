"""Facts posted to a replica whose feed stands still: answers in bounded time, and others do not feel it."""

import hashlib
import random
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.processes.loading import Asker, Refused, made_rows, report
from tests.processes.replicas import Cluster, Member, code, numbers_of, told

WAITS: Final = 100
LONG_SECONDS: Final = 120
"""Longer than the feed stands still, however busy the machine is."""


def body_of(*numbers: int, key: str) -> bytes:
    """What is posted."""
    return msgspec.json.encode(
        {"facts": [made_rows("events", one) for one in numbers], "idempotency_key": key}
    )


def post(member: Member, number: int, wait: float) -> tuple[int, dict[str, Any], float]:
    """The status, the answer and how long it took."""
    at = time.monotonic()
    try:
        with Asker(member.url) as asker:
            path = f"/v1/streams/events/facts?timeout={wait:g}"
            said = msgspec.json.decode(asker.ask("POST", path, body_of(number, key=f"key-{number}")))
            return 200, said, time.monotonic() - at
    except Refused as refused:
        return refused.status, told(refused), time.monotonic() - at


def test_a_write_whose_feed_stands_still_is_answered_in_time(tmp_path: Path) -> None:
    """It is kept at the primary, and says so; asked again with its key it is written once."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary", "--timeout-seconds", "60")
        replica = cluster.add("replica", "--timeout-seconds", "60", upstream=primary.front)
        primary.post("events", 1)
        cluster.wait_until_same()
        with primary.native.stalled():
            status, said, seconds = post(replica, 2, 1)
            assert (status, said["error"], said["serial"]) == (504, "not_here_yet", 2), said
            status, again, _ = post(replica, 2, 1)
            assert (status, again["serial"], again["tokens"]) == (504, 2, said["tokens"])
            assert primary.status()["serial"] == 2, "it was written once"
        status, done, _ = post(replica, 2, 10)
        assert (status, done["first_serial"], done["tokens"]) == (200, 2, said["tokens"])
        cluster.wait_until_same()
        assert numbers_of(replica.facts()) == [1, 2]
    report(f"relayed, stalled: answered after {seconds:.2f} s; {time.monotonic() - begun:.1f} s")


def test_a_hundred_writes_that_wait_hold_up_nobody(tmp_path: Path) -> None:
    """None has a thread, or a turn that others need."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary", "--timeout-seconds", "60")
        replica = cluster.add("replica", "--timeout-seconds", "60", upstream=primary.front)
        primary.post("events", 1)
        position = cluster.wait_until_same()
        answers: dict[int, tuple[int, dict[str, Any], float]] = {}

        def one(number: int) -> None:
            answers[number] = post(replica, number, LONG_SECONDS)

        threads = [threading.Thread(target=one, args=(2 + n,), daemon=True) for n in range(WAITS)]
        slowest = 0.0
        with primary.native.stalled():
            for thread in threads:
                thread.start()
            # All of them are kept at the primary: from here on they wait for the feed alone.
            primary.wait_for(lambda said: said["serial"] == 1 + WAITS, "all at the primary")
            with Asker(replica.url) as asker:
                for _ in range(20):
                    for path in (
                        "/v1/changelog?since=0",
                        "/v1/status",
                        "/v1/streams/events/rows?from=0&upto=1",
                    ):
                        at = time.monotonic()
                        asker.ask("GET", path)
                        slowest = max(slowest, time.monotonic() - at)
            assert replica.place() == position
            status, said, _ = post(replica, 2 + WAITS, 1)
            assert (status, said["error"]) == (504, "not_here_yet")
            assert not answers, "who asked for less time is answered first"
        for thread in threads:
            thread.join(60)
        assert {status for status, _, _ in answers.values()} == {200}, answers
        assert len(answers) == WAITS
        cluster.wait_until_same()
        assert sorted(numbers_of(replica.facts())) == list(range(1, 3 + WAITS))
    report(
        f"relayed: {WAITS} wait, the slowest GET took {slowest * 1000:.0f} ms;"
        f" {time.monotonic() - begun:.1f} s"
    )


def test_without_the_primary_nothing_is_kept_and_that_is_said(tmp_path: Path) -> None:
    """Who gets such an answer may ask elsewhere."""
    begun = time.monotonic()
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        replica = cluster.add("replica", upstream=primary.front)
        primary.post("events", 1)
        cluster.wait_until_same()
        with primary.http.broken():
            status, said, _ = post(replica, 2, 2)
            assert status in (502, 503, 504), said
        primary.stop()
        status, said, _ = post(replica, 3, 2)
        assert status in (502, 503, 504), said
        primary.start()
        assert [post(replica, number, 10)[0] for number in (2, 3)] == [200, 200]
        cluster.wait_until_same()
        assert sorted(numbers_of(primary.facts())) == [1, 2, 3]
        with pytest.raises(Refused) as caught:
            replica.post("no_such_stream", 1)
        assert code(caught.value) == "unknown_stream"
    report(f"relayed, primary away: {time.monotonic() - begun:.1f} s")


def test_a_file_that_is_brought_to_a_replica_is_at_the_primary(tmp_path: Path) -> None:
    """Through the replica between them, before it is answered; without the primary that is said."""
    data = random.Random(7).randbytes(3_000_000)
    position = f"/v1/files/sha256/{hashlib.sha256(data).hexdigest()}"
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("primary")
        middle = cluster.add("middle", upstream=primary.front)
        last = cluster.add("last", upstream=middle.front)
        primary.post("events", 1)
        cluster.wait_until_same()
        with Asker(last.url) as asker:
            asker.ask("PUT", position, data)
            name = position.rpartition("/")[2]
            asker.post("files", [[["create", "picture", name, len(data)]]])
        with Asker(primary.url) as asker:
            assert asker.ask("GET", position) == data
        primary.kill()
        with Asker(last.url) as asker, pytest.raises(Refused) as refused:
            asker.ask("PUT", position, data)
        assert (refused.value.status, code(refused.value)) == (503, "upstream_unreachable")
