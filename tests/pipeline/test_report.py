"""A report: what it counts is what others count in other ways."""

import csv
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from synrepl.base.history import EpochStart
from synrepl.errors import ConfigError
from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.report.measurement import STEPS, DaemonStatus, Measurements, measure
from synrepl.pipeline.report.report import ReportResult, report
from synrepl.pipeline.report.verdict import findings
from synrepl.pipeline.runner import Runner, driver_of
from synrepl.pipeline.store import Store
from synrepl.streams.digest import chain
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition
from tests.caches.fakes import NEWEST
from tests.pipeline.archives import BEGAN_MS, LOG, archive, chained, paths_of, write_facts
from tests.pipeline.days import Day, archive_day

HOSTILE = "w<script>1</script>$x^2$"


class Made:
    """A day, its archive, and the report on it."""

    def __init__(self, runner: Runner, folder: Path) -> None:
        self.day = Day(1500, hours=5, turn_at=700)
        self.store = Store(str(folder / "archive"))
        archive_day(self.store.location, self.day, every_ms=3600 * 1000)
        self.batches = ArchiveTable(self.store).batches()
        # As a run does that follows: what is told of batches does not go with them.
        assert optimize(runner, self.store, fewest=3).merged >= 3
        self.told: list[tuple[str, int, int]] = []
        self.report: ReportResult = report(
            runner, self.store, folder / "out", top=7, progress=lambda *step: self.told.append(step)
        )
        files = [self.store.uri(path) for path in paths_of(self.store.location)]
        self._files = files

    def table(self, name: str) -> list[dict[str, str]]:
        """One of its tables."""
        with (self.report.page.parent / f"{name}.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def ask(self, sql: str) -> list[Any]:
        """What DuckDB says of the same files."""
        return duckdb.connect().execute(sql.replace("ARCHIVE", f"read_parquet({self._files})")).fetchall()


@pytest.fixture(scope="module")
def made(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One report for all tests of it: it is looked at, and not changed."""
    return Made(runner, tmp_path_factory.mktemp("report"))


def percentiles(values: list[int]) -> list[int]:
    """The least value that 50, 90, 99 and 100 % of the values do not exceed."""
    return [sorted(values)[-(-len(values) * percent // 100) - 1] for percent in (50, 90, 99, 100)]


def test_a_report_has_totals_by_writer(made: Made) -> None:
    """What was there: facts, rows and bytes of each writer of each stream."""
    expected = made.ask(
        "select stream, writer, count(distinct serial), count(row), coalesce(sum(strlen(row)), 0)::bigint"
        " from ARCHIVE group by all order by 1, 2"
    )

    found = [
        (row["stream"], row["writer"], int(row["facts"]), int(row["rows"]), int(row["bytes"]))
        for row in made.table("writers")
    ]

    assert expected == sorted(found)
    assert sum(row[3] for row in expected) == made.report.rows
    assert sum(int(row["rows"]) for row in made.table("throughput")) == made.report.rows
    assert len(made.day.facts) == made.report.facts == sum(int(row["facts"]) for row in made.table("hours"))


def test_a_report_has_the_busiest_seconds(made: Made) -> None:
    """The most facts and rows of one second."""
    seconds: dict[str, Counter[int]] = defaultdict(Counter)
    for fact in made.day.facts:
        seconds[fact.stream][fact.committed_at_ms // 1000] += len(msgspec.json.decode(fact.rows))

    found = {row["stream"]: int(row["peak_rows"]) for row in made.table("streams")}

    assert {stream: max(counts.values()) for stream, counts in seconds.items()} == found


def test_a_report_has_the_delay_of_archiving(made: Made) -> None:
    """How long facts waited to be archived."""
    archived: dict[int, int] = {}
    for one in made.batches:
        archived |= dict.fromkeys(range(one.first_serial, one.last_serial + 1), one.archived_at_ms)
    waited: dict[tuple[str, str], list[int]] = defaultdict(list)
    for fact in made.day.facts:
        waited[fact.stream, fact.writer].append(archived[fact.serial] - fact.committed_at_ms)

    found = {
        (row["stream"], row["writer"]): [
            round(1000 * float(row[f"{name}_seconds"])) for name in ("median", "p90", "p99", "most")
        ]
        for row in made.table("lag")
    }

    assert {pair: percentiles(values) for pair, values in waited.items()} == found
    assert [(one.version, one.facts) for one in made.batches] == [
        (int(row["batch"]), int(row["facts"])) for row in made.table("batches")
    ]


def test_a_report_has_fact_sizes(made: Made) -> None:
    """The largest facts, and their percentiles."""
    expected = made.ask(
        "select stream, serial, sum(strlen(row))::bigint from ARCHIVE where row is not null group by all"
        " order by 3 desc, 2"
    )
    of_stream: dict[str, list[int]] = defaultdict(list)
    for stream, _, size in expected:
        of_stream[stream].append(size)

    largest = [(row["stream"], int(row["serial"]), int(row["bytes"])) for row in made.table("largest")]
    sizes = {
        row["stream"]: [int(row[f"bytes_{name}"]) for name in ("median", "p90", "p99", "most")]
        for row in made.table("sizes")
    }

    assert expected[:7] == largest
    assert {stream: percentiles(found) for stream, found in of_stream.items()} == sizes
    assert len(expected) == sum(int(row["facts"]) for row in made.table("spread"))


def test_invalidations_are_those_of_workers(made: Made) -> None:
    """Expanded in tasks, and counted in SQL, they are what `synrepl.caches` says of each row."""
    drops: Counter[tuple[str, tuple[str, ...] | None]] = Counter()
    rows: Counter[str] = Counter()
    for fact in made.day.facts:
        for name, keys, _ in msgspec.json.decode(fact.rows) if fact.stream == "caches" else ():
            rows[name] += 1
            drops.update((one.cache, one.key) for one in NEWEST.expand(name, keys))
    caches: Counter[str] = Counter()
    subjects: Counter[str] = Counter()
    for (cache, key), count in drops.items():
        caches[cache] += count
        if key is not None:
            subjects[msgspec.json.encode(key).decode()] += count

    assert caches == {row["cache"]: int(row["invalidations"]) for row in made.table("caches")}
    assert rows == {row["name"]: int(row["rows"]) for row in made.table("names")}
    assert drops.total() == made.report.invalidations
    found = {row["key"]: int(row["invalidations"]) for row in made.table("subjects")}
    assert 7 == len(found)
    assert {key: subjects[key] for key in found} == found
    assert sorted(subjects.values(), reverse=True)[:7] == sorted(found.values(), reverse=True)
    assert rows.total() == sum(int(row["rows"]) for row in made.table("invalidations"))


def test_a_whole_history_is_called_whole(made: Made) -> None:
    """Numbers that are skipped, and facts that come late, are no gaps: `prev_token` certifies it."""
    skipping = sum(fact.token > fact.prev_token + 1 for fact in made.day.facts)
    late = sum(fact.token == fact.prev_token for fact in made.day.facts)

    assert 0 == made.report.missing
    assert late > 0
    assert (skipping, late) == tuple(
        sum(int(row[name]) for row in made.table("chains")) for name in ("skipping", "late")
    )
    assert any(one.text.startswith("Nothing is missing from serial 1") for one in made.report.found)
    assert [("2", "promoted")] == [(row["epoch"], row["why"]) for row in made.table("epoch_starts")]


def test_silence_is_since_the_last_fact(made: Made) -> None:
    """At the end of the day, from each writer's last fact to the last of all."""
    last: dict[tuple[str, str], int] = {}
    for fact in made.day.facts:
        last[fact.stream, fact.writer] = fact.committed_at_ms
    end = made.day.facts[-1].committed_at_ms

    found = {(row["stream"], row["writer"]): float(row["silent_seconds"]) for row in made.table("silence")}

    assert found
    assert {pair: (end - last[pair]) / 1000 for pair in found} == pytest.approx(found)


def test_a_report_has_its_pictures_and_tables(made: Made) -> None:
    """The page, its pictures and its tables; and somebody who waits is told how far it is."""
    page = made.report.page.read_text(encoding="utf-8")

    assert all(path.exists() and f'href="{path.name}"' in page for path in made.report.files)
    assert 9 == sum(path.suffix == ".png" for path in made.report.files)
    assert [(0, STEPS), (STEPS, STEPS)] == [made.told[0][1:], made.told[-1][1:]]
    at = datetime.fromtimestamp(made.day.facts[0].committed_at_ms / 1000, UTC)
    assert f"{at:%Y-%m-%d %H:%M:%S} UTC" in page


def test_a_report_finds_gaps_and_unreadable_rows(runner: Runner, tmp_path: Path) -> None:
    """A fact that is missing, one that goes back, files named twice, and rows that nobody can read."""
    rows: list[Any] = [["cs_cache_fake", ["!r:h"], 5]]
    facts = chained(
        [("caches", HOSTILE, rows), ("caches", "w2", rows), ("push_rules", "w2", [["@a:b"]])] * 8
        + [("caches", "w2", [["nonsense"]]), ("caches", "w2", [["ph_cache_fake", [], 5]])],
    )
    after = facts[9].prev_token
    facts[9] = msgspec.structs.replace(facts[9], prev_token=after + 1)  # caches of HOSTILE
    facts[14] = msgspec.structs.replace(facts[14], prev_token=facts[14].prev_token - 1)  # push_rules
    position = str(tmp_path / "archive")
    archive(position, facts)
    table = ArchiveTable(Store(position))
    (written,) = (one for one in write_facts(Store(position), facts) if one.stream == "push_rules")
    copy = msgspec.structs.replace(written, path=written.path.replace(".parquet", "x.parquet"))
    (tmp_path / "archive" / copy.path).write_bytes((tmp_path / "archive" / written.path).read_bytes())
    table.replace(table.files.slice(0, 0), [copy], now_ms=1)

    daemon = DaemonStatus(url="http://127.0.0.1:1", trouble="cannot connect: no")
    found = measure(driver_of(runner), Store(position), top=5, daemon=daemon, progress=lambda *step: None)

    assert [
        ("caches", HOSTILE, "missing", 10, after, after + 1),
        ("push_rules", "w2", "again", 15, facts[11].token, facts[11].token - 1),
    ] == [
        (one.stream, one.writer, one.kind, one.serial, one.expected, one.prev_token) for one in found.broken
    ]
    assert {"push_rules": 8} == {row["stream"]: row["copied"] for row in found.totals if row["copied"]}
    assert 8 == sum(row["rows"] for row in found.totals if row["stream"] == "push_rules"), "counted once"
    told = found.invalidations
    assert told is not None
    assert (18, 1, 1) == tuple(told.total(name) for name in ("rows", "misshapen", "unreadable"))


def in_epoch_two(facts: list[Fact], given: list[tuple[str, int, int]]) -> list[Fact]:
    """These facts, and in epoch 2 further push rules: writer, prev_token, token."""
    found = list(facts)
    for writer, prev_token, token in given:
        serial = len(found) + 1
        made: dict[str, Any] = {"serial": serial, "epoch": 2, "stream": "push_rules", "writer": writer}
        made |= {"prev_token": prev_token, "token": token, "rows": b'[["@a:b"]]'}
        made |= {"committed_at_ms": BEGAN_MS + serial * 60_000}
        found.append(Fact(**made, digest=chain(found[-1].digest, **made)))
    return found


def measured(runner: Runner, store: Store) -> Measurements:
    """The measurements of an archive."""
    return measure(driver_of(runner), store, top=5, daemon=None, progress=lambda *step: None)


def test_a_hole_at_the_start_of_an_epoch_is_a_hole(runner: Runner, tmp_path: Path) -> None:
    """A promotion loses facts, and skips none: the audit says so as well."""
    before = chained([("push_rules", "w", [["@a:b"]])] * 5)
    facts = in_epoch_two(before, [("w", 7, 8), ("w", 8, 9)])
    start = EpochStart(2, 5, before[-1].digest, BEGAN_MS, "promoted")
    archive(str(tmp_path), facts, epoch_starts=[start])

    found = measured(runner, Store(str(tmp_path)))

    assert [("missing", 5, 7)] == [(one.kind, one.expected, one.prev_token) for one in found.broken]
    assert "bad" == findings(found)[0].kind


def test_an_epoch_that_sets_tokens_back_leaves_nobody_behind(runner: Runner, tmp_path: Path) -> None:
    """Tokens of facts that were discarded are no measure of those that follow."""
    before = chained([("push_rules", f"w{number % 2}", [["@a:b"]]) for number in range(10)])
    facts = in_epoch_two(before, [("w0", 2, 3), ("w1", 2, 4)])
    start = EpochStart(2, 10, before[-1].digest, BEGAN_MS, "lost", "push_rules", 2)
    archive(str(tmp_path), facts, epoch_starts=[start])

    found = measured(runner, Store(str(tmp_path)))

    assert [("w0", 1), ("w1", 0)] == [(one.writer, one.behind[-1]) for one in found.lags]
    assert [("w0", 3), ("w1", 4)] == [(row["writer"], row["token"]) for row in found.totals]


def test_nothing_is_said_of_serials_that_were_trimmed(runner: Runner, tmp_path: Path) -> None:
    """Half of them are not there."""
    store, facts = Store(str(tmp_path)), chained([("push_rules", "w", [["@a:b"]])] * 20)
    job, upto = BatchCommitter(store, LOG), LogPosition(1, 10, facts[9].digest)
    job.commit(write_facts(store, facts[1:10:2]), now_ms=0, compacted_upto=upto)
    assert not [one for one in findings(measured(runner, store)) if one.kind == "good"]
    job.commit(write_facts(store, facts[10:]), now_ms=0)

    (good,) = (one for one in findings(measured(runner, store)) if one.kind == "good")

    assert "Nothing is missing from serial 11 to 20" == good.text


def test_a_damaged_archive_has_a_page(runner: Runner, tmp_path: Path) -> None:
    """The files that are left are measured, and what the audit finds in the others comes first."""
    store = Store(str(tmp_path / "archive"))
    facts = chained([("push_rules", "w1", [["@a:b"]]), ("receipts", "w1", [["!r:h"]])] * 20)
    archive(store.location, facts, batch_facts=10)
    gone, cut = (tmp_path / "archive" / paths_of(store.location)[number] for number in (0, 3))
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])

    made = report(runner, store, tmp_path / "out")

    assert [
        ("bad", "The files have 30 facts, but the log of the table counts 40"),
        ("bad", "1 finding of the audit: a file of the table does not exist"),
        ("bad", "1 finding of the audit: a file was changed, or cannot be read"),
    ] == [(one.kind, one.text) for one in made.found[:3]]
    assert ("bad", 30, 0) == (made.state, made.facts, made.missing)


def test_an_empty_archive_has_a_page(runner: Runner, tmp_path: Path) -> None:
    """Nothing is read where there is nothing."""
    made = report(runner, Store(str(tmp_path / "archive")), tmp_path / "out")

    assert ("dim", 0) == (made.state, made.facts)
    assert made.page.exists()


def test_charts_need_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lacks it is told before anything is measured, and how to get it."""
    nobody: Any = None
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(ConfigError, match=r"matplotlib: run pip install 'synrepl\[spark\]'"):
        report(nobody, Store(str(tmp_path / "archive")), tmp_path / "out")
