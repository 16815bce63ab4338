"""Archives of real daemons: every fact once, in the daemon's order, whatever is killed."""

import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from synrepl.http_api.routes import APPEND, CHANGELOG, EXTENT
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive import archive as archiving
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.optimize import MergedMeanwhile, optimize
from synrepl.pipeline.archive.row_files import sha256_of
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.jobs import ignore_progress
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.store import BadArchive, Store
from synrepl.replicas.routes import LEASES
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact, decode_facts
from synrepl.wire import jsontext
from tests.pipeline.archives import LOG, chained, counted_by_the_manual, paths_of
from tests.pipeline.archives import archive as write_archive
from tests.pipeline.kills import ArchiveProcess, Engine
from tests.processes.loading import changelog, report, size
from tests.processes.replicas import Load, Member, fill
from tests.service.processes import Daemon

STREAMS = ("events", "caches", "receipts", "push_rules")


class Killed(Exception):
    """In place of a kill, where a process of its own would cost too much."""


def archived(position: Path) -> list[Fact]:
    """All facts of an archive, read by DuckDB from the files of its table."""
    files = [str(position / path) for path in paths_of(position)]
    query = (
        "select serial, epoch, stream, writer, prev_token, token, epoch_ms(committed_at), digest,"
        " '[' || coalesce(string_agg(row, ',' order by seq), '') || ']', count(*), max(seq)"
        f" from read_parquet({files}) group by all order by serial"
    ).replace("epoch_ms(committed_at)", "epoch_ms(committed_at) as at")
    found = duckdb.connect().execute(query).fetchall()
    facts = []
    for *fields, at_ms, digest, rows, count, last in found:
        assert count == last + 1, f"serial {fields[0]} has {count} rows, the last of them is {last}"
        names = ("serial", "epoch", "stream", "writer", "prev_token", "token")
        named = dict(zip(names, fields, strict=True))
        facts.append(Fact(**named, rows=rows.encode(), committed_at_ms=at_ms, digest=digest))
    return facts


def check(position: Path, facts: list[Fact]) -> list[Batch]:
    """The archive holds these, once each; batches, files and digests agree. Gives the batches."""
    store = Store(str(position))
    table = ArchiveTable(store)
    found = table.batches()
    assert facts == archived(position)
    assert verify(facts, EMPTY) is None
    lines = Counter(fact.stream for fact in facts for _ in jsontext.split(fact.rows) or [b""])
    assert sorted(lines.items()) == counted_by_the_manual(position)
    assert len(facts) == sum(one.facts for one in found)
    for one in found:
        assert one.digest == facts[one.last_serial - 1].digest
    assert sum(one.rows for one in found) == sum(table.files["rows"].to_pylist())
    for file in table.files.to_pylist():
        assert sha256_of(file["path"]) == store.sha256(file["path"])
        assert file["bytes"] == store.size(file["path"])
    return found


def batches(store: Store) -> list[Batch]:
    """The batches so far."""
    table = ArchiveTable.if_any(store)
    return [] if table is None else table.batches()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with 5,000 facts of some streams, some of them of several rows."""
    folder = tmp_path / "daemon"
    folder.mkdir()
    fill(folder / "synrepl.db", 5_000, streams=STREAMS)
    with Daemon(folder) as daemon:
        BlockingClient(daemon.url).json(
            APPEND.request("push_rules"),
            json.dumps({"facts": [[["@a:b"], ["@c:d"], ["@e],[f:g"]]] * 100}).encode(),
        )
        yield daemon


def test_each_fact_is_archived_once_through_crashes(daemon: Daemon, runner: Runner, tmp_path: Path) -> None:
    """A run that ends between the data and their commit, or right after it, loses and doubles nothing; the
    next one goes on from the table."""
    position = tmp_path / "archive"
    store = Store(str(position))
    told: list[tuple[str, int, int]] = []

    for point, count in (("data", 0), ("commit", 1), ("data", 1), ("commit", 2)):

        def at(now: str, point: str = point) -> None:
            if now == point:
                raise Killed

        with pytest.raises(Killed):
            archive(runner, daemon.url, store, batch_facts=1_000, at=at)
        assert count == len(batches(store))
    done = archive(runner, daemon.url, store, batch_facts=1_000, progress=lambda *now: told.append(now))
    again = archive(runner, daemon.url, store, batch_facts=1_000)

    facts = list(changelog(daemon.url))
    found = check(position, facts)
    assert (5_100, 6) == (len(facts), len(found))
    assert (4, 3_100, 5_100, facts[-1].digest) == (done.batches, done.facts, done.serial, done.digest)
    assert (0, 0, 5_100) == (again.batches, again.facts, again.serial)
    assert ("archiving", 3_100, 0) in told
    assert ("archiving", 0, 3_100) == told[0]
    # The same files were written again, under the same names.
    assert set(paths_of(position)) == {
        str(path.relative_to(position)) for path in position.rglob("stream=*/**/*.parquet")
    }
    folders = sorted(f"stream={name}" for name in STREAMS)
    assert ["_delta_log", "_synrepl", *folders] == store.names("")
    assert {"push_rules": {"master": 1_350}} == {
        stream: of for stream, of in found[-1].end.items() if stream == "push_rules"
    }


def test_small_files_are_merged(daemon: Daemon, runner: Runner, tmp_path: Path) -> None:
    """An archive that is followed live would otherwise end as thousands of files of a few rows."""
    position = tmp_path / "archive"
    store = Store(str(position))
    archive(runner, daemon.url, store, batch_facts=1_000)
    before = paths_of(position)

    done = optimize(runner, store)

    check(position, list(changelog(daemon.url)))
    assert len(before) == done.merged
    assert len(STREAMS) == done.made == len(paths_of(position))
    assert all((position / path).exists() for path in before)
    assert before == ArchiveTable(store, "5").files["path"].to_pylist()
    ArchiveTable(store).vacuum(retention_hours=0, dry_run=False)
    assert not any((position / path).exists() for path in before)
    assert 0 == archive(runner, daemon.url, store).facts
    assert 0 == optimize(runner, store).merged


def test_small_files_are_merged_while_it_follows(
    daemon: Daemon, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may go on for weeks; readers never see more than some small files."""
    monkeypatch.setattr(archiving, "MERGE_BATCHES", 6)
    monkeypatch.setattr(archiving, "FEWEST", 3)
    position = tmp_path / "archive"
    store = Store(str(position))
    seen: list[int] = []
    done = archive(
        runner,
        daemon.url,
        store,
        follow=True,
        every_seconds=0.1,
        batch_facts=280,
        at=lambda point: seen.append(len(paths_of(position)) if batches(store) else 0),
        stopped=lambda: bool(seen) and sum(one.facts for one in batches(store)) == 5_100,
    )

    found = check(position, list(changelog(daemon.url)))
    assert (19, 5_100) == (done.batches, done.facts)
    assert [*[280] * 18, 60] == [one.facts for one in found]
    assert done.merged >= 12
    assert max(seen) < 16
    assert 0 == archive(runner, daemon.url, store).facts


def test_a_trimmed_log_begins_with_what_is_left(runner: Runner, tmp_path: Path) -> None:
    """The last fact of each key is still there; without it a snapshot of the archive would lack most keys."""
    folder = tmp_path / "daemon"
    folder.mkdir()
    with Daemon(folder, options=("--retain-seconds", "1", "--instance-name", "w")) as daemon:
        asking = BlockingClient(daemon.url)
        gone = {"facts": [[["@user0:h"]]], "writer": "gone"}
        asking.json(APPEND.request("push_rules"), json.dumps(gone).encode())
        for number in range(40):
            rows = [[[f"@user{number % 7}:h"]]]
            asking.json(APPEND.request("push_rules"), json.dumps({"facts": rows * 5}).encode())
        trimmed_upto = 0
        while trimmed_upto < 201:
            trimmed_upto = asking.json(EXTENT.request(compacted=True, limit=1))["trimmed_upto"]
        daemon.terminate()
    # Facts are kept for longer: on a slow machine the job would find that they were trimmed before its lease.
    with Daemon(folder, options=("--instance-name", "w")) as daemon:
        asking = BlockingClient(daemon.url)
        asking.json(APPEND.request("push_rules"), json.dumps({"facts": [[["@new:h"]]]}).encode())

        leases: list[int] = []

        def at(point: str) -> None:
            leases.extend(lease["serial"] for lease in asking.json(LEASES.request())["leases"])

        archive(runner, daemon.url, Store(str(tmp_path / "archive")), at=at)

        found = batches(Store(str(tmp_path / "archive")))
        facts = archived(tmp_path / "archive")
        left = decode_facts(b"\n".join(asking.lines(CHANGELOG.request(compacted=True))[1]))
    assert found[0].is_compacted
    # Before the first batch is committed, so that no more is trimmed meanwhile.
    assert found[0].last_serial == leases[0]
    assert found[0].end == found[-1].origin
    assert (1, 201) == (found[0].first_serial, found[0].last_serial)
    assert {fact.serial for fact in left} <= {fact.serial for fact in facts}
    assert 202 == facts[-1].serial
    assert {"push_rules": {"gone": 1, "w": 202}} == found[-1].end


def test_an_epoch_that_has_just_begun_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status of release 26.11.0 may be a second old: one from before the epoch is asked for again."""
    begun = {"epoch": 2, "serial": 5, "digest": EMPTY, "at_ms": 1, "why": "promoted"}
    answers = iter([{"epoch_starts": []}, {"epoch_starts": [begun]}])
    monkeypatch.setattr(SourceClient, "get", lambda self, route: next(answers))
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0)
    with LocalDriver(threads=1) as driver:
        options = {"url": "http://127.0.0.1:1"}
        job = archiving._Job(driver, Store(str(tmp_path)), options, 1, ignore_progress, lambda point: None)
        job.committer = archiving.BatchCommitter(Store(str(tmp_path)), archiving.LogIdentity("h", "s"))

        assert [2] == [start.epoch for start in job._epoch_starts(2)]


def test_a_damaged_file_that_is_to_be_merged_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the end of a run, when all is archived. That another job has merged the files is no news."""
    facts = chained([("push_rules", "w", [["@a:h"]])] * 20)
    write_archive(str(tmp_path), facts, batch_facts=1)
    path = tmp_path / paths_of(tmp_path)[3]
    path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2"))
    with LocalDriver(threads=1) as driver:
        options = {"url": "http://127.0.0.1:1"}
        job = archiving._Job(driver, Store(str(tmp_path)), options, 1, ignore_progress, lambda point: None)
        job.committer = archiving.BatchCommitter(Store(str(tmp_path)), LOG)

        with pytest.raises(BadArchive, match="is damaged: its SHA-256 is"):
            job.merge()

        def meanwhile(*_: Any, **__: Any) -> None:
            raise MergedMeanwhile

        monkeypatch.setattr(archiving, "optimize", meanwhile)
        job.merge()


def test_an_archive_is_of_one_log(daemon: Daemon, runner: Runner, tmp_path: Path) -> None:
    """Two histories in one archive could never be told apart again."""
    store = Store(str(tmp_path / "archive"))
    archive(runner, daemon.url, store)
    other = tmp_path / "other"
    other.mkdir()

    with Daemon(other) as stranger, pytest.raises(BadArchive, match="the archive of another log"):
        archive(runner, stranger.url, store)


def test_two_jobs_at_once(daemon: Daemon, runner: Runner, tmp_path: Path) -> None:
    """At each commit of the one, the other has committed before it; so it begins again after the other's."""
    position = tmp_path / "archive"
    store, steps = Store(str(position)), iter(range(3))

    def stop(now: str) -> None:
        if now == "commit":
            raise Killed

    def at(now: str) -> None:
        if now == "data" and next(steps, None) is not None:
            with suppress(Exception):
                archive(runner, daemon.url, store, batch_facts=700, at=stop)

    done = archive(runner, daemon.url, store, batch_facts=1_000, at=at)

    found = check(position, list(changelog(daemon.url)))
    assert [700, 700, 700] == [one.facts for one in found[:3]]
    assert (3, 3_000) == (done.batches, done.facts)


def test_kills_while_writers_append(runner: Runner, tmp_path: Path) -> None:
    """With -9, between data and commit and right after a commit, and at any time, while facts come in; in
    short runs on Spark right after a commit only, in long ones while a million facts come in."""
    position, chance = tmp_path / "archive", random.Random(7)
    engine: Engine = "local" if isinstance(runner, LocalDriver) else "spark"
    if engine == "local":
        points, kills, batch_facts = size(3, 20), size(3, 20), size(50, 10_000)
    else:
        points, kills, batch_facts = size(1, 2), size(0, 20), size(300, 10_000)
    enough = size(2_000, 1_000_000)
    member = Member(tmp_path, "primary")
    try:
        with Load([member], pause=size(50, 2) / 1000, most=size(20, 800)) as load:
            load.wait_for(size(1_000, 20_000), seconds=600)
            for number in range(points):
                point = ("commit", "data")[number % 2]
                load.wait_for(2 * batch_facts, seconds=600)
                run = ArchiveProcess(
                    member.url, position, batch_facts=batch_facts, point=point, count=2, engine=engine
                )
                assert run.wait() == -signal.SIGKILL, run.lines
            killed = 0
            while killed < kills:
                run = ArchiveProcess(member.url, position, batch_facts=batch_facts, engine=engine)
                run.wait_for("started")
                killed += run.kill_after(chance.uniform(0, size(2, 5) if engine == "local" else 15))
            partly = batches(Store(str(position)))[-1].last_serial
            load.wait_for(max(0, enough - len(load.acknowledged)), seconds=3_600)
        archive(runner, member.url, Store(str(position)), batch_facts=size(5_000, 100_000))
        facts = member.facts()
        found = check(position, facts)
    finally:
        member.close()
    report(
        f"{points} kills at a point, {killed} at any time, up to serial {partly:,};"
        f" {len(facts):,} facts in {len(found)} batches"
    )
    assert len(facts) >= enough
