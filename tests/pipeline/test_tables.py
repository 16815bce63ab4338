"""Tables of an archive: equal to a model in Python, advanced exactly once, refused for another archive."""

import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import polars as pl
import pytest
from deltalake import CommitProperties, DeltaTable

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.archive import LogIdentity
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.store import BadArchive, Store
from synrepl.pipeline.tables import tables
from synrepl.pipeline.tables.declarations import TABLES, TableColumn
from synrepl.pipeline.tables.tables import TableResult, update_tables
from synrepl.streams.facts import Fact
from tests.pipeline.archives import Given, archive, chained, restored
from tests.pipeline.clusters import QUICK
from tests.pipeline.object_stores import CREDENTIALS, s3_bucket
from tests.service.processes import ROOT
from tests.test_howtos import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def given(seed: int, count: int) -> list[Given]:
    """Facts of all streams of tables, of some users, rooms and keys, and rows that fit no stream."""
    chance = random.Random(seed)
    user, room = (lambda: f"@u{chance.randrange(5)}:h"), (lambda: f"!r{chance.randrange(3)}:h")

    def row(stream: str) -> list[Any]:
        if chance.random() < 0.05:
            return [None, {"no": "such row"}]
        match stream:
            case "device_lists":
                return [chance.choice([user(), "server.org"]), chance.random() < 0.3, False]
            case "receipts":
                kind, thread = chance.choice(["m.read", "m.read.private"]), chance.choice([None, "main"])
                data = chance.choice(
                    [{"ts": 1_795_000_000_000 + chance.randrange(10**6)}, {"ts": 10**18}, {}]
                )
                return [room(), kind, user(), f"$e{chance.randrange(99)}", thread, data]
            case "push_rules":
                return [user()]
            case "events" if chance.random() < 0.3:
                return ["state", [room(), "m.room.name", "", "$e"]]
            case "events":
                kind = chance.choice(["m.room.message", "m.room.member", "m.reaction"])
                return ["ev", ["$e", room(), kind, None, None, None, None, False, False]]
            case _:
                keys = chance.choice([None, [], [user()], ['a"b', "'"]])
                return [chance.choice(["get_user", "get_room"]), keys, None]

    streams = ["device_lists", "receipts", "push_rules", "events", "caches", "typing"]
    found: list[Given] = []
    for _ in range(count):
        stream = chance.choice(streams)
        rows = [row(stream) for _ in range(chance.choice([0, 1, 1, 1, 3]))] if stream != "typing" else []
        found.append((stream, "w", rows))
    return found


def model(name: str, facts: Sequence[Fact]) -> list[Row]:
    """The rows of a table, from the facts."""
    found: dict[tuple[Any, ...], Row] = {}
    for fact in facts:
        if fact.stream != TABLES[name].stream:
            continue
        at = datetime.fromtimestamp(fact.committed_at_ms / 1000, UTC)
        for row in msgspec.json.decode(fact.rows):
            if row[0] is None:
                continue
            _count(name, found, row, at)
    return list(found.values())


def _count(name: str, found: dict[tuple[Any, ...], Row], row: list[Any], at: datetime) -> None:
    match name:
        case "devices":
            if row[0].startswith("@"):
                of = found.setdefault(row[:1][0], {"user_id": row[0], "changes": 0, "signature_changes": 0})
                of["changes"] += 1
                of["signature_changes"] += row[1]
                of |= {"first_at": of.get("first_at", at), "last_at": at}
        case "push_rules":
            of = found.setdefault(row[0], {"user_id": row[0], "changes": 0})
            of["changes"] += 1
            of |= {"first_at": of.get("first_at", at), "last_at": at}
        case "receipts" | "read_positions":
            room, kind, user, event, thread, data = row
            ts = data.get("ts", 10**18)
            read_at = None if ts > 10**15 else datetime.fromtimestamp(ts / 1000, UTC)
            last = {"event_id": event, "thread_id": thread, "read_at": read_at, "last_at": at}
            if name == "receipts":
                key: Row = {"room_id": room, "user_id": user, "receipt_type": kind}
                of = found.setdefault((room, user, kind, thread), key)
            else:
                of = found.setdefault((room, user), {"room_id": room, "user_id": user, "receipts": 0})
                of["receipts"] += 1
                of["first_at"] = of.get("first_at", at)
            of |= last
        case "room_activity":
            tag, fields = row
            room = fields[0] if tag == "state" else fields[1]
            hour = at.replace(minute=0, second=0, microsecond=0)
            zeros = dict.fromkeys(("events", "messages", "memberships", "state_changes"), 0)
            of = found.setdefault((hour, room), {"hour": hour, "room_id": room, **zeros})
            of["state_changes"] += tag == "state"
            of["events"] += tag == "ev"
            of["messages"] += tag == "ev" and fields[2] == "m.room.message"
            of["memberships"] += tag == "ev" and fields[2] == "m.room.member"
            of["last_at"] = at
        case "invalidations":
            keys = None if row[1] is None else msgspec.json.encode(row[1]).decode()
            start: Row = {"day": at.date(), "cache": row[0], "keys": keys, "invalidations": 0}
            of = found.setdefault((at.date(), row[0], keys), start)
            of["invalidations"] += 1
            of |= {"first_at": of.get("first_at", at), "last_at": at}


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(({name: row[name] for name in sorted(row)} for row in rows), key=repr)


def check(out: Path, facts: Sequence[Fact]) -> None:
    """Every table equals the model."""
    for name in TABLES:
        rows = DeltaTable(out / name).to_pyarrow_table().to_pylist()
        assert in_order(model(name, facts)) == in_order(rows), name


def versions(found: Sequence[TableResult]) -> dict[str, int]:
    return {one.name: one.version for one in found}


@pytest.fixture
def facts() -> list[Fact]:
    return chained(given(7, 400), step_ms=600_000)


@pytest.fixture
def source(tmp_path: Path, facts: list[Fact]) -> Store:
    """An archive of the first 150 facts."""
    archive(str(tmp_path / "archive"), facts[:150])
    return Store(str(tmp_path / "archive"))


def test_tables_advance_with_their_archive(
    runner: Runner, source: Store, facts: list[Fact], tmp_path: Path
) -> None:
    """At each end of the archive they equal the model; without new facts there is no new version."""
    out = tmp_path / "out"
    first = update_tables(runner, source, str(out)).tables
    check(out, facts[:150])
    assert all((one.is_new, one.full, one.version, one.serial) == (True, True, 0, 150) for one in first)
    again = update_tables(runner, source, str(out)).tables
    assert versions(first) == versions(again)
    assert not any(one.is_new for one in again)

    for start, end in ((150, 151), (151, 300), (300, 400)):
        archive(source.location, facts[start:end])
        done = update_tables(runner, source, str(out)).tables
        check(out, facts[:end])
        assert not any(one.full for one in done)
    again = update_tables(runner, source, str(out)).tables
    assert versions(done) == versions(again)

    update_tables(runner, source, str(tmp_path / "at-once"))
    check(tmp_path / "at-once", facts)


PROGRAM = """
import json, os, signal, sys
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.session import session
from synrepl.pipeline.store import Store
from synrepl.pipeline.tables import tables

archive, out, point, conf = sys.argv[1:]
rows_of, compact = tables._TableJob._rows, tables._compact

def kill(now, count=iter(range(9))):
    if now == point and next(count) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

def rows(*arguments, **more):
    found = rows_of(*arguments, **more)
    def read():
        yield from found
        kill("data")
    return type(found).from_batches(found.schema, read())

tables._TableJob._rows = rows
tables._compact = lambda delta: (kill("commit"), compact(delta))
runner = session(app="t", master="local[2]", conf=json.loads(conf)) if conf else LocalDriver(threads=2)
tables.update_tables(runner, Store(archive), out)
print("done")
"""
"""Updates tables; ends by a signal in the third one, before or after its commit."""


def test_kills_lose_and_double_nothing(
    runner: Runner, source: Store, facts: list[Fact], tmp_path: Path
) -> None:
    """With -9, between the files and the commit, and right after the commit; of new tables and of merges."""
    out = tmp_path / "out"
    for end, points in ((150, ["data"]), (400, ["data", "commit"])):
        if end > 150:
            archive(source.location, facts[150:end])
        for point in points:
            conf = "" if isinstance(runner, LocalDriver) else json.dumps(QUICK)
            words = (source.location, str(out), point, conf)
            ended = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
            assert (-signal.SIGKILL, "") == (ended.returncode, ended.stdout), ended.stderr
        update_tables(runner, source, str(out))
        check(out, facts[:end])
    assert {one.name: 1 for one in TABLES.values()} == {
        name: DeltaTable(out / name).version() for name in TABLES
    }


@pytest.mark.parametrize("reads", [False, True])
def test_the_slower_of_two_jobs_begins_again(
    runner: Runner,
    source: Store,
    facts: list[Fact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reads: bool,
) -> None:
    """It finds no news then; a table has one version for the facts of both."""
    out, rows_of = tmp_path / "out", tables._TableJob._rows
    only, races = ["receipts"], []

    def race() -> None:
        """The other job commits."""
        monkeypatch.setattr(tables._TableJob, "_rows", rows_of)
        races.extend(update_tables(runner, source, str(out), only=only).tables)

    def raced(*arguments: Any, **more: Any) -> Any:
        found = rows_of(*arguments, **more)
        if not reads:
            race()
            return found

        def read() -> Iterator[Any]:
            yield from found
            # Not in the thread of delta-rs.
            thread = Thread(target=race)
            thread.start()
            thread.join()

        return type(found).from_batches(found.schema, read())

    for version, end in enumerate((150, 400)):
        if end > 150:
            archive(source.location, facts[150:end])
        monkeypatch.setattr(tables._TableJob, "_rows", raced)
        [done] = update_tables(runner, source, str(out), only=only).tables
        assert (version + 1, version, end) == (len(races), done.version, done.serial)
        assert all(one.is_new for one in races)
        rows = DeltaTable(out / "receipts").to_pyarrow_table().to_pylist()
        assert in_order(model("receipts", facts[:end])) == in_order(rows)


def test_facts_that_were_lost_are_counted_no_more(
    runner: Runner, source: Store, facts: list[Fact], tmp_path: Path
) -> None:
    """An epoch that began with a loss makes the table of its stream anew, and no other."""
    out = tmp_path / "out"
    update_tables(runner, source, str(out))
    last = [fact for fact in facts[:150] if fact.stream == "receipts"][-20]
    start = EpochStart(
        epoch=2,
        serial=150,
        digest=facts[149].digest,
        at_ms=1,
        why="lost",
        stream="receipts",
        token=last.token,
    )
    after = [msgspec.structs.replace(fact, epoch=2) for fact in facts[150:200]]
    archive(source.location, after, epoch_starts=[start])

    done = {one.name: one for one in update_tables(runner, source, str(out)).tables}

    assert {"receipts", "read_positions"} == {name for name, one in done.items() if one.full}
    void = {fact.serial for fact in facts[:150] if fact.stream == "receipts" and fact.token > last.token}
    assert 19 == len(void)
    check(out, [fact for fact in facts[:200] if fact.serial not in void])
    assert not any(one.is_new for one in update_tables(runner, source, str(out)).tables)


def test_many_new_rows_and_other_columns_are_a_new_computation(
    runner: Runner,
    source: Store,
    facts: list[Fact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A merge needs memory of the driver for its rows; and old rows have no new columns."""
    out = tmp_path / "out"
    only = ["push_rules"]
    update_tables(runner, source, str(out), only=only)
    archive(source.location, facts[150:])
    monkeypatch.setattr(tables, "MERGED_ROWS", 10)
    assert update_tables(runner, source, str(out), only=only).tables[0].full

    declared = TABLES["push_rules"]
    columns = (*declared.columns[:1], TableColumn("last_row", "row", "last"))
    monkeypatch.setitem(TABLES, "push_rules", msgspec.structs.replace(declared, columns=columns))
    done = update_tables(runner, source, str(out), only=only).tables[0]

    assert (True, 2) == (done.full, done.version)
    assert ["user_id", "last_row"] == [field.name for field in DeltaTable(out / "push_rules").schema().fields]


def test_merged_files_of_the_archive(
    runner: Runner, source: Store, facts: list[Fact], tmp_path: Path
) -> None:
    """They have facts that a table has counted beside new ones; without new ones they are no news."""
    out = tmp_path / "out"
    update_tables(runner, source, str(out))
    optimize(runner, source)
    assert not any(one.is_new for one in update_tables(runner, source, str(out)).tables)
    archive(source.location, facts[150:])
    optimize(runner, source)
    update_tables(runner, source, str(out))
    check(out, facts)


def test_a_job_with_an_older_version_of_the_archive(
    runner: Runner,
    source: Store,
    facts: list[Fact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was started before another one, which has seen more; it leaves the table alone."""
    out, only = str(tmp_path / "out"), ["receipts"]
    former = ArchiveTable(source)
    archive(source.location, facts[150:])
    update_tables(runner, source, out, only=only)

    versions = iter([former, ArchiveTable(source)])
    monkeypatch.setattr(tables, "ArchiveTable", lambda store: next(versions))
    [done] = update_tables(runner, source, out, only=only).tables

    assert (False, 400, 0) == (done.is_new, done.serial, done.version)


def test_small_files_are_merged(
    runner: Runner,
    source: Store,
    facts: list[Fact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table of hours gets a file for each run, which hardly matters until there are many."""
    monkeypatch.setattr(tables, "SMALL_FILES", 3)
    out = tmp_path / "out"
    for first in range(150, 400, 50):
        update_tables(runner, source, str(out), only=["room_activity"])
        archive(source.location, facts[first : first + 50])
    update_tables(runner, source, str(out), only=["room_activity"])

    table = DeltaTable(out / "room_activity")
    assert len(table.file_uris()) < 3
    assert "OPTIMIZE" in [one["operation"] for one in table.history()]
    assert in_order(model("room_activity", facts)) == in_order(table.to_pyarrow_table().to_pylist())
    assert not update_tables(runner, source, str(out), only=["room_activity"]).tables[0].is_new


def test_tables_are_of_one_archive(
    runner: Runner, source: Store, facts: list[Fact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serials of another archive, or of an older copy of this one, are other facts."""
    out, only = str(tmp_path / "out"), ["receipts"]
    older = tmp_path / "older"
    archive(str(older), facts[:100])
    update_tables(runner, source, out, only=only)

    with pytest.raises(BadArchive, match="older ends at serial 100, before serial 150 of the table"):
        update_tables(runner, Store(str(older)), out, only=only)
    monkeypatch.setattr("tests.pipeline.archives.LOG", LogIdentity("other", "localhost"))
    archive(str(tmp_path / "other"), facts)
    with pytest.raises(BadArchive, match=r"receipts is not a table of .*other: use another directory"):
        update_tables(runner, Store(str(tmp_path / "other")), out, only=only)


@pytest.mark.parametrize("is_told", [False, True])
def test_tables_of_a_fork_are_computed_again(
    runner: Runner, facts: list[Fact], tmp_path: Path, is_told: bool
) -> None:
    """Serials of a restored log are other facts; if no epoch tells, the digests do."""
    out, only = str(tmp_path / "out"), ["push_rules"]
    new, start = restored(facts[:50], given(9, 150))
    archive(str(tmp_path / "fork"), facts[:100])
    archive(str(tmp_path / "new"), new, epoch_starts=[start] if is_told else [])
    update_tables(runner, Store(str(tmp_path / "fork")), out, only=only)

    (table,) = update_tables(runner, Store(str(tmp_path / "new")), out, only=only).tables

    assert table.full
    rows = DeltaTable(f"{out}/push_rules").to_pyarrow_table().to_pylist()
    assert in_order(model("push_rules", new)) == in_order(rows)
    assert not update_tables(runner, Store(str(tmp_path / "new")), out, only=only).tables[0].is_new


def test_tables_of_former_releases_are_computed_again_if_epochs_began(
    runner: Runner, facts: list[Fact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They kept no digest, and advanced tables over a fork: nothing else tells whether they did."""
    out, only, fork, new = str(tmp_path / "out"), ["push_rules"], tmp_path / "fork", tmp_path / "new"
    after, start = restored(facts[:50], given(9, 150))
    archive(str(fork), facts[:100])
    archive(str(new), after, epoch_starts=[start])
    properties = tables._TableJob._properties

    def without_digest(job: Any, **how: Any) -> CommitProperties:
        made = properties(job, **how)
        kept = [one for one in made.app_transactions or () if not one.app_id.endswith("-digest")]
        return CommitProperties(max_commit_retries=made.max_commit_retries, app_transactions=kept)

    with monkeypatch.context() as former:
        former.setattr(tables._TableJob, "_properties", without_digest)
        update_tables(runner, Store(str(fork)), out, only=only)
        assert not update_tables(runner, Store(str(fork)), out, only=only).tables[0].is_new
        former.setattr(tables._TableJob, "_is_stale", lambda _: False)
        update_tables(runner, Store(str(new)), out, only=only)

    (table,) = update_tables(runner, Store(str(new)), out, only=only).tables

    assert table.full
    rows = DeltaTable(f"{out}/push_rules").to_pyarrow_table().to_pylist()
    assert in_order(model("push_rules", after)) == in_order(rows)
    assert not update_tables(runner, Store(str(new)), out, only=only).tables[0].is_new


def test_tables_on_an_object_store(
    runner: Runner, source: Store, facts: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Created and merged as in a folder, and read by Polars."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_bucket() as location:
        update_tables(runner, source, location, only=["receipts"])
        archive(source.location, facts[150:])
        [done] = update_tables(runner, source, location, only=["receipts"]).tables
        store = tables.child(location, "receipts")
        rows = pl.scan_delta(store.table_uri, storage_options=store.options).collect().to_dicts()

    assert (1, False, len(rows)) == (done.version, done.full, done.rows)
    assert in_order(model("receipts", facts)) == in_order(rows)


PAGE = "docs/howto/archive-tables.md"


def test_the_page_names_every_column(spark: "SparkSession", source: Store, tmp_path: Path) -> None:
    """With its type, in the order of the table; and the queries of the page run in DuckDB and in Spark."""
    out = tmp_path / "tables"
    update_tables(spark, source, str(out))
    text = (ROOT / PAGE).read_text("utf-8")
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE))
    assert list(TABLES) == list(sections)
    connection = duckdb.connect()
    for name, section in sections.items():
        table = DeltaTable(out / name)
        fields = [(field.name, str(field.type.type)) for field in table.schema().fields]
        assert fields == re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE), name
        assert table.metadata().description in section
        connection.register(name, table.to_pyarrow_dataset())
        spark.read.parquet(*table.file_uris()).createOrReplaceTempView(name)

    queries = [query for query in blocks(PAGE, "sql") if query.startswith("SELECT")]
    assert len(queries) == len(TABLES)
    for query in queries:
        found = connection.sql(query).to_arrow_table().to_pylist()
        assert found
        assert found == spark.sql(query.strip().removesuffix(";")).toArrow().to_pylist(), query
