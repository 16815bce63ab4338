"""Archives of real daemons: every fact once, in the daemon's order, whatever is killed."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import msgspec
import pytest

from synrepl.errors import ConfigError
from synrepl.http_api.routes import APPEND, CHANGELOG, EXTENT
from synrepl.http_client import BlockingClient
from synrepl.pipeline.archive import merge
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.archive.manifest import BadArchive, Manifest, manifests, write_manifest
from synrepl.pipeline.archive.merge import GRACE_MS, tidy
from synrepl.pipeline.store import Store, lock_archive
from synrepl.streams import jsontext
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact, decode_facts
from tests.pipeline.archives import archive as write_archive
from tests.pipeline.archives import chained, counted_by_the_manual
from tests.pipeline.kills import ArchiveProcess
from tests.processes.loading import changelog, report, size
from tests.processes.replicas import Load, Member, fill
from tests.service.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = ("events", "caches", "receipts", "push_rules")


class Killed(Exception):
    """In place of a kill, where a process of its own would cost too much."""


def archived(position: Path) -> list[Fact]:
    """All facts of an archive, read by DuckDB by the manifests alone."""
    files = [str(position / file.path) for one in manifests(Store(str(position))) for file in one.files]
    if not files:
        return []
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


def check(position: Path, facts: list[Fact]) -> list[Manifest]:
    """The archive holds these, once each; manifests, files and digests agree. Gives the manifests."""
    store = Store(str(position))
    found = manifests(store)
    assert facts == archived(position)
    assert verify(facts, EMPTY) is None
    lines = Counter(fact.stream for fact in facts for _ in jsontext.split(fact.rows) or [b""])
    assert sorted(lines.items()) == counted_by_the_manual(position)
    assert len(facts) == sum(one.facts for one in found)
    for one in found:
        assert one.digest == facts[one.last_serial - 1].digest
        assert one.rows == sum(file.rows for file in one.files)
        for file in one.files:
            assert file.sha256 == store.sha256(file.path)
            assert file.bytes == store.size(file.path)
    return found


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


def test_each_fact_is_archived_once_through_crashes(
    daemon: Daemon, spark: "SparkSession", tmp_path: Path
) -> None:
    """A run that ends between the data and its manifest, or right after the manifest, loses and doubles
    nothing; the next one goes on from the manifests, and removes what is left."""
    position = tmp_path / "archive"
    store = Store(str(position))
    told: list[tuple[str, int, int]] = []

    for point, batches in (("data", 0), ("manifest", 1), ("data", 1), ("manifest", 2)):

        def at(now: str, point: str = point) -> None:
            if now == point:
                raise Killed

        with pytest.raises(Exception, match="Killed"):
            archive(spark, daemon.url, store, batch_facts=1_000, at=at)
        assert batches == len(manifests(store))
    done = archive(spark, daemon.url, store, batch_facts=1_000, progress=lambda *now: told.append(now))
    again = archive(spark, daemon.url, store, batch_facts=1_000)

    facts = list(changelog(daemon.url))
    found = check(position, facts)
    assert (5_100, 6) == (len(facts), len(found))
    assert (4, 3_100, 5_100, facts[-1].digest) == (done.batches, done.facts, done.serial, done.digest)
    assert (0, 0, 5_100) == (again.batches, again.facts, again.serial)
    assert ("archiving", 3_100, 0) in told
    assert ("archiving", 0, 3_100) == told[0]
    named = {file.path for one in found for file in one.files}
    there = {str(path.relative_to(position)) for path in position.rglob("*.parquet")}
    assert named == there
    assert ["_lock", "_manifests", *sorted(f"stream={name}" for name in STREAMS)] == store.names("")
    assert {"push_rules": {"master": 1_350}} == {
        stream: of for stream, of in found[-1].end.items() if stream == "push_rules"
    }


def test_small_batches_are_merged(daemon: Daemon, spark: "SparkSession", tmp_path: Path) -> None:
    """An archive that is followed live would otherwise end as thousands of files of a few rows."""
    position = tmp_path / "archive"
    store = Store(str(position))
    archive(spark, daemon.url, store, batch_facts=1_000)
    before = {file.path for one in manifests(store) for file in one.files}

    gone = merge.merge(spark, store, now_ms=1, fewest=3)

    (merged,) = check(position, list(changelog(daemon.url)))
    assert (6, [0, 1, 2, 3, 4, 5], 6) == (gone, merged.replaces, merged.batch)
    assert len(merged.files) == len(STREAMS)
    assert all((position / path).exists() for path in before)
    tidy(store, [merged], now_ms=GRACE_MS + 1)
    assert {file.path for file in merged.files} == {
        str(path.relative_to(position)) for path in position.rglob("*.parquet")
    }
    assert 0 == archive(spark, daemon.url, store).facts


def test_small_batches_are_merged_while_it_follows(
    daemon: Daemon, spark: "SparkSession", tmp_path: Path
) -> None:
    """A run may go on for weeks; readers never see more than some small batches."""
    position = tmp_path / "archive"
    store = Store(str(position))
    seen: list[int] = []
    done = archive(
        spark,
        daemon.url,
        store,
        follow=True,
        every_seconds=0.1,
        batch_facts=280,
        at=lambda point: seen.append(len(manifests(store))),
        stopped=lambda: bool(seen) and sum(one.facts for one in manifests(store)) == 5_100,
    )

    found = check(position, list(changelog(daemon.url)))
    assert (19, 5_100, 17) == (done.batches, done.facts, done.merged)
    assert max(seen) == 9
    assert [4_480, 280, 280, 60] == [one.facts for one in found]
    assert [*range(8), *range(9, 17)] == [one.batch for one in found[0].all_arrivals]
    assert {280} == {one.facts for one in found[0].all_arrivals}
    assert 0 == archive(spark, daemon.url, store).facts


def test_what_is_told_of_merged_batches_is_not_much(tmp_path: Path) -> None:
    """Of very many, each arrival stands for neighbors, and waited as long as the one that did so longest."""
    facts = chained([("push_rules", "w", [["@a:b"]])] * 130)
    made = write_archive(str(tmp_path), facts, batch_facts=1)
    late = msgspec.structs.replace(made[2], archived_at_ms=made[2].archived_at_ms + 5_000)

    found = merge.thin([one.all_arrivals[0] for one in (*made[:2], late, *made[3:])])

    assert 33 == len(found)
    assert 130 == sum(one.facts for one in found)
    assert [(1, 4), (5, 8)] == [(one.first_serial, one.last_serial) for one in found[:2]]
    assert (5 + 2, 2) == (found[0].seconds, found[1].seconds)
    assert made[3].archived_at_ms == found[0].archived_at_ms


def test_manifests_are_read_while_batches_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has listed them finds some gone, and begins again; one that is gone for good is told."""
    facts = chained([("push_rules", "w", [["@a:b"]])] * 6)
    made = write_archive(str(tmp_path), facts, batch_facts=2)
    store = Store(str(tmp_path))
    whole = msgspec.structs.replace(
        made[-1],
        batch=3,
        first_serial=1,
        start=made[0].start,
        start_digest=made[0].start_digest,
        replaces=[0, 1, 2],
    )
    read = Store.read

    def merged_meanwhile(self: Store, name: str) -> bytes:
        if not store.exists(whole.name):
            write_manifest(store, whole)
            for one in made:
                store.remove(one.name)
        return read(self, name)

    monkeypatch.setattr(Store, "read", merged_meanwhile)

    assert [whole] == manifests(store)


def test_which_batches_are_merged() -> None:
    """Neighbors that are small, enough of them, not too many facts together, and none outweighs the others: a
    fact is written again only into a batch twice as large at least."""

    def batches(*facts: int) -> list[Manifest]:
        return [
            msgspec.convert(
                {
                    **dict.fromkeys(("epoch", "first_serial", "last_serial", "rows"), 1),
                    "batch": number,
                    "facts": count,
                    "start": {},
                    "end": {},
                    "files": [],
                },
                Manifest,
            )
            for number, count in enumerate(facts)
        ]

    def chosen(*facts: int) -> list[list[int]]:
        found = merge.runs(batches(*facts), small=10, target=20, fewest=2)
        return [[one.batch for one in run] for run in found]

    assert [] == chosen()
    assert [] == chosen(1, 10, 1)
    assert [[0, 1, 2]] == chosen(1, 2, 3)
    assert [[0, 1, 2, 3]] == chosen(1, 2, 3, 6)
    assert [[1, 2], [4, 5]] == chosen(50, 3, 3, 99, 1, 1)
    assert [[0, 1], [2, 3]] == chosen(9, 9, 9, 9)
    assert [] == chosen(7, 1)
    assert [[1, 2]] == chosen(7, 1, 1)
    assert [[0, 1, 2]] == chosen(2, 1, 1)
    assert [[0, 1], [3, 4]] == chosen(1, 1, 9, 1, 1)


def test_a_trimmed_log_begins_with_what_is_left(spark: "SparkSession", tmp_path: Path) -> None:
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
        while not trimmed_upto:
            trimmed_upto = asking.json(EXTENT.request(compacted=True, limit=1))["trimmed_upto"]
        asking.json(APPEND.request("push_rules"), json.dumps({"facts": [[["@new:h"]]]}).encode())

        archive(spark, daemon.url, Store(str(tmp_path / "archive")))

        found = manifests(Store(str(tmp_path / "archive")))
        facts = archived(tmp_path / "archive")
        left = decode_facts(b"\n".join(asking.lines(CHANGELOG.request(compacted=True))[1]))
    assert found[0].compacted
    # It may have been trimmed further meanwhile.
    assert 1 == found[0].first_serial
    assert trimmed_upto <= found[0].last_serial
    assert {fact.serial for fact in left} <= {fact.serial for fact in facts}
    assert 202 == facts[-1].serial
    assert {"push_rules": {"gone": 1, "w": 202}} == found[-1].end


def test_an_archive_is_of_one_log_and_has_one_writer(
    daemon: Daemon, spark: "SparkSession", tmp_path: Path
) -> None:
    """Two histories in one archive could never be told apart again."""
    store = Store(str(tmp_path / "archive"))
    archive(spark, daemon.url, store)
    other = tmp_path / "other"
    other.mkdir()

    with lock_archive(store), pytest.raises(ConfigError, match="another job is writing this archive"):
        archive(spark, daemon.url, store)
    with Daemon(other) as stranger, pytest.raises(BadArchive, match="the archive of another log"):
        archive(spark, stranger.url, store)


def test_kills_while_writers_append(spark: "SparkSession", tmp_path: Path) -> None:
    """With -9, between the manifest and Spark's own commit; in long runs also between data and manifest, and
    twenty times at any time, while a million facts come in."""
    position, chance = tmp_path / "archive", random.Random(7)
    kills, enough = size(0, 20), size(2_000, 1_000_000)
    member = Member(tmp_path, "primary")
    try:
        with Load([member], pause=size(50, 2) / 1000, most=size(20, 800)) as load:
            load.wait_for(size(1_000, 20_000), seconds=600)
            for point in ("data", "manifest") if kills else ("manifest",):
                run = ArchiveProcess(
                    member.url, position, batch_facts=size(300, 10_000), point=point, count=2
                )
                assert run.wait() < 0, run.lines
            killed = 0
            while killed < kills:
                run = ArchiveProcess(member.url, position, batch_facts=10_000)
                run.wait_for("started")
                run.kill_after(chance.uniform(0, 15))
                killed += not any(line.startswith("done") for line in run.lines)
            load.wait_for(enough - len(load.acknowledged), seconds=3_600)
        archive(spark, member.url, Store(str(position)), batch_facts=size(5_000, 100_000))
        facts = member.facts()
        found = check(position, facts)
    finally:
        member.close()
    report(f"{killed + 1 + bool(kills)} kills, {len(facts):,} facts in {len(found)} batches")
    assert len(facts) >= enough
