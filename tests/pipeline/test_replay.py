"""What an archive holds, played back into a daemon."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from synrepl.errors import ConfigError
from synrepl.http_api.routes import DECLARE
from synrepl.http_client import BlockingClient
from synrepl.missing_rooms import missing_rooms
from synrepl.pipeline import replay as replaying
from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.replay import replay
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.source import staging
from synrepl.pipeline.source.daemon_client import SourceError
from synrepl.pipeline.store import Store
from synrepl.streams.facts import Fact
from synrepl.wire import jsontext
from tests.pipeline.archives import LOG, archive, chained, write_facts
from tests.processes.loading import changelog
from tests.service.processes import Daemon


def made(count: int, *, step_ms: int = 1000) -> list[Fact]:
    """Facts of two streams and writers, some with several rows, some with none."""
    given: list[Any] = []
    for number in range(count):
        rows = [[f"@user{number}-{row}:h"] for row in range(number % 4)]
        given.append(("push_rules", f"w{number % 2}", rows))
        given.append(("user_signature", "w0", [[f"@signed{number}:h"]]))
    return chained(given, step_ms=step_ms)


def held(daemon: Daemon) -> list[Fact]:
    """All facts of the daemon."""
    return list(changelog(daemon.url))


def rows_per_stream(facts: list[Fact]) -> Counter[str]:
    """How many rows each stream has."""
    return Counter(fact.stream for fact in facts for _ in jsontext.split(fact.rows))


staged = pytest.mark.skipif("files" in missing_rooms(), reason="a daemon without files takes no staged facts")


def told(facts: list[Fact]) -> list[tuple[str, str, bytes]]:
    """What facts say, in their order, whenever and wherever they are."""
    return [(fact.stream, fact.writer, fact.rows) for fact in facts if fact.rows != b"[]"]


@staged
def test_an_archive_played_back_is_the_same_facts_in_the_same_order(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into an empty daemon, by several tasks; and done again under the same name, nothing is stored twice."""
    monkeypatch.setattr(replaying, "TASK_FACTS", 70)
    facts = made(400)
    archive(str(tmp_path / "archive"), facts, batch_facts=300)
    seen: list[tuple[str, int, int]] = []
    with Daemon(tmp_path) as daemon:
        done = replay(
            runner,
            Store(str(tmp_path / "archive")),
            daemon.url,
            name="once",
            progress=lambda *now: seen.append(now),
        )
        again = replay(runner, Store(str(tmp_path / "archive")), daemon.url, name="once")
        found = held(daemon)

    assert told(facts) == told(found)
    assert rows_per_stream(facts) == rows_per_stream(found)
    assert (dict(rows_per_stream(facts)), len(told(facts))) == (done.streams, done.facts)
    assert (done.facts, done.rows) == (again.facts, again.rows)
    assert ("replaying", 0, 800) == seen[0]
    assert ("replaying", 800, 800) == seen[-1]


@pytest.mark.parametrize("name", [None, "once"])
def test_replay_after_the_last_serial_is_an_error(runner: Runner, tmp_path: Path, name: str | None) -> None:
    """A replay of no facts would look like a success."""
    archive(str(tmp_path / "archive"), made(2))

    with pytest.raises(ConfigError, match="nothing to replay after serial 4: the last one would be 4"):
        replay(runner, Store(str(tmp_path / "archive")), "http://127.0.0.1:1", after=4, name=name)


class Interrupted(Exception):
    """In place of Ctrl-C."""


class Receipts:
    """A daemon that stores an append once: by its stream, its key and its number in the request."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, str]] = []
        self.left = 10**9
        self._receipts: dict[tuple[str, str, int], Any] = {}
        self._staged: dict[str, Any] = {}

    def __call__(self, options: Any) -> "Receipts":
        return self

    def send(self, request: Any, body: bytes) -> None:
        if request.method == "PUT":
            self._staged[request.target.rpartition("/")[2]] = json.loads(body)
            return
        told = json.loads(body)
        appends = told["appends"] if "appends" in told else self._staged[told["staged"]]["appends"]
        for part, one in enumerate(appends, 1):
            if not one["facts"]:
                continue
            self.left -= 1
            if self.left < 0:
                raise Interrupted
            if self._receipts.setdefault((one["stream"], told["idempotency_key"], part), one) is not one:
                assert one == self._receipts[one["stream"], told["idempotency_key"], part], "reused"
                continue
            self.stored += ((one["stream"], fact[0][0]) for fact in one["facts"])


@pytest.mark.parametrize(("first", "second"), [(60, 0), (0, 60), (60, 6000), (6000, 60), (1, 1)])
def test_a_repeat_at_another_speed_stores_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: float, second: float
) -> None:
    """A replay that is too slow is interrupted, and begun again without --speed."""
    monkeypatch.setattr(replaying, "BATCH_FACTS", 7)
    streams = ("push_rules", "push_rules", "user_signature")
    given = [(streams[n % 3], "w", [[f"@u{n}:h"]]) for n in range(60)]
    facts = chained(given[:30], step_ms=100)
    # The clock of the log has gone back.
    facts += chained(given[30:], after=facts, step_ms=90)
    archive(str(tmp_path), facts, batch_facts=25)
    daemon = Receipts()
    for module in (replaying, staging):
        monkeypatch.setattr(module, "SourceClient", daemon)

    def run(speed: float) -> None:
        with LocalDriver(threads=1) as driver:
            waits = {"pause": lambda seconds: None, "seconds": lambda: 0.0}
            replay(driver, Store(str(tmp_path)), "http://h:1", speed=speed, **waits)  # type: ignore[arg-type]

    daemon.left = 17
    with pytest.raises(Interrupted):
        run(first)
    assert daemon.stored
    daemon.left = 10**9
    run(second)

    assert [(streams[n % 3], f"@u{n}:h") for n in range(60)] == daemon.stored


def test_a_part_at_the_speed_of_then(runner: Runner, tmp_path: Path) -> None:
    """Of some streams, between two serials, with the pauses there were."""
    facts = made(60, step_ms=1000)
    archive(str(tmp_path / "archive"), facts, batch_facts=50)
    now = [100.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    with Daemon(tmp_path) as daemon:
        done = replay(
            runner,
            Store(str(tmp_path / "archive")),
            daemon.url,
            streams=["user_signature"],
            after=10,
            upto=90,
            speed=4.0,
            pause=pause,
            seconds=lambda: now[0],
        )
        found = held(daemon)
        with pytest.raises(ConfigError, match="nothing to replay after serial 500"):
            replay(runner, Store(str(tmp_path / "archive")), daemon.url, after=500)

    wanted = [fact for fact in facts if fact.stream == "user_signature" and 10 < fact.serial <= 90]
    assert told(wanted) == told(found)
    assert len(wanted) == done.facts
    assert json.loads(wanted[-1].rows) == [["@signed44:h"]]
    # Some 78 seconds then.
    assert 19.0 <= now[0] - 100.0 <= 20.0
    assert done.seconds == round(now[0] - 100.0, 3)


NUMS: dict[str, Any] = {"name": "nums", "key": "k", "columns": {"k": "str", "i": "int"}}
WHOLE: list[Any] = [
    ("push_rules", "w", [["@before:h"]]),
    ("declarations", "w", [["nums", ["k"], "kept", {"k": "str", "i": "int"}, []]]),
    ("nums", "w", [["a", 1]]),
    ("promises", "w", [["acks", ["1"], [["u", "paris", "tcp:h:1 http://h:2"]]]]),
    ("atomic_appends", "w", [[1]]),
    ("nums", "w", [["b", 2]]),
    ("push_rules", "w", [["@after:h"]]),
]


@staged
@pytest.mark.parametrize("speed", [0.0, 1000.0])
def test_a_repeat_without_a_name_stores_nothing_twice(runner: Runner, tmp_path: Path, speed: float) -> None:
    """Also after more was archived, and with a stream of one's own, which is declared first."""
    store = Store(str(tmp_path / "archive"))
    facts = chained(WHOLE)
    archive(store.location, facts, batch_facts=3)
    with Daemon(tmp_path) as daemon:
        first = replay(runner, store, daemon.url, speed=speed)
        more = chained([("push_rules", "w", [["@more:h"]])], after=facts)
        BatchCommitter(store, LOG).commit(write_facts(store, more), now_ms=1)
        second = replay(runner, store, daemon.url, speed=speed)
        again = replay(runner, store, daemon.url, name="again", streams=["nums"], speed=speed)
        found = held(daemon)

    of = [fact for fact in [*facts, *more] if fact.stream in ("push_rules", "nums")]
    nums = [fact for fact in of if fact.stream == "nums"]
    assert "declarations" == found[0].stream
    assert [*told(of), *told(nums)] == told(found[1:])
    assert (["nums"], {"atomic_appends": 1, "promises": 1}) == (first.declared, first.skipped)
    assert ([], 5, {}) == (second.declared, second.facts, again.skipped)


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"columns": {"k": "str", "j": "int"}}, "the daemon has another declaration of nums, with columns"),
        ({"writers": ["v"]}, "the daemon has another declaration of nums, with writers"),
        ({"name": "other"}, "unknown_stream"),
    ],
    ids=["other-columns", "other-writers", "no-declaration"],
)
def test_what_a_daemon_would_refuse_is_found_before_anything_is_stored(
    tmp_path: Path, there: dict[str, Any], why: str
) -> None:
    """Not after the facts before it."""
    given = [one for one in WHOLE if one[0] != "declarations" or "name" not in there]
    archive(str(tmp_path / "archive"), chained(given))
    with Daemon(tmp_path) as daemon, LocalDriver(threads=1) as driver:
        BlockingClient(daemon.url).json(DECLARE.request(), json.dumps(NUMS | there).encode())
        with pytest.raises((ConfigError, SourceError), match=why):
            replay(driver, Store(str(tmp_path / "archive")), daemon.url)
        found = held(daemon)

    assert ["declarations"] == [fact.stream for fact in found]


def test_tasks_and_keys_depend_on_the_batches_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small batches are one job of Spark; a large one is several parts."""
    monkeypatch.setattr(replaying, "TASK_FACTS", 40)
    monkeypatch.setattr(replaying, "RUN_FACTS", 100)
    archive(str(tmp_path), made(130), batch_facts=50)
    table = ArchiveTable(Store(str(tmp_path)))

    runs = list(replaying._runs(table, 10, 230))
    part = replaying._Part

    assert [part(11, 50, "50/0", 0), part(51, 90, "100/0", 1), part(91, 100, "100/1", 2)] == runs[0][:3]
    assert [part(101, 140, "150/0", 2)] == runs[0][3:]
    assert 230 == runs[-1][-1].last
