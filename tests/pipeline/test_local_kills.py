"""Local jobs killed at any time: compact, optimize, replay and report, then run again to their ends."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.report.report import PAGE
from synrepl.pipeline.report.report import report as make_report
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.snapshot.snapshot import read_snapshot
from synrepl.pipeline.store import Store
from synrepl.streams.digest import EMPTY, verify
from synrepl.streams.facts import Fact
from tests.pipeline.archives import archive, chained, paths_of, rows_of_archive, rows_of_snapshot
from tests.pipeline.kills import LocalProcess
from tests.processes.loading import changelog, report, size
from tests.service.processes import Daemon

KILLS: Final = size(3, 20)
FACTS: Final = size(3_000, 30_000)
BATCH_FACTS: Final = 100
SECONDS: Final = size(1, 2) / 4
"""Kills come sooner than this after a step, or after the start."""


def made() -> list[Fact]:
    """Facts of some streams, some of them of several rows; keys repeat, and some are deleted."""
    chance = random.Random(11)
    given: list[Any] = []
    for number in range(FACTS):
        name = f"n{chance.randrange(FACTS // 3)}"
        match number % 3:
            case 0:
                rows = [["@a:b", "app", of, chance.random() < 0.3] for of in (name, f"{name}-2")]
                given.append(("pushers", "w0", rows))
            case 1:
                given.append(("push_rules", "w1", [[f"@{name}:h"]] * chance.choice([0, 1, 2])))
            case _:
                given.append(("device_lists", "w0", [[f"@{name}:h", False, False]]))
    return chained(given, step_ms=1_000)


def kill(
    begin: Callable[[], LocalProcess],
    steps: int,
    check: Callable[[], None],
    again: Callable[[], None],
    *,
    seconds: float = SECONDS,
) -> int:
    """Kill `KILLS` runs that `begin` starts, each within some of its steps. Gives the number of runs.

    `check` is called after each. `again` makes new work if a run ends before it is killed.
    """
    chance, runs, killed = random.Random(7), 0, 0
    while killed < KILLS:
        run = begin()
        run.wait_for("started")
        run.wait_for("at", times=chance.randint(0, steps))
        runs += 1
        if run.kill_after(chance.uniform(0, seconds)):
            killed += 1
        else:
            again()
        check()
    return runs


def test_a_killed_compact_leaves_the_former_snapshot_or_the_next(tmp_path: Path) -> None:
    """Never a part of one; run again, it makes what one run makes, and removes what killed ones left."""
    facts, position, snapshot = made(), tmp_path / "archive", tmp_path / "snapshot"
    archive(str(position), facts[: FACTS // 2], batch_facts=BATCH_FACTS)
    with LocalDriver(threads=2) as driver:
        compact(driver, Store(str(position)), Store(str(snapshot)), file_rows=500)
        archive(str(position), facts[FACTS // 2 :], batch_facts=BATCH_FACTS)
        compact(driver, Store(str(position)), Store(str(tmp_path / "at-once")), file_rows=500)
    former, expected = rows_of_snapshot(snapshot), rows_of_snapshot(tmp_path / "at-once")
    shutil.copytree(snapshot, tmp_path / "former")

    def check() -> None:
        assert rows_of_snapshot(snapshot) in (former, expected)

    def again() -> None:
        assert expected == rows_of_snapshot(snapshot)
        shutil.rmtree(snapshot)
        shutil.copytree(tmp_path / "former", snapshot)

    runs = kill(lambda: LocalProcess("compact", position, snapshot), 8, check, again)
    run = LocalProcess("compact", position, snapshot)

    assert 0 == run.wait(), run.lines
    assert expected == rows_of_snapshot(snapshot)
    made_files, former_files = (read_snapshot(Store(str(of))) for of in (snapshot, tmp_path / "former"))
    assert made_files is not None
    assert former_files is not None
    assert {one.path for of in (made_files, former_files) for one in of.files} == {
        str(path.relative_to(snapshot)) for path in snapshot.glob("upto=*/*")
    }
    report(f"{KILLS} kills of compact, in {runs} runs; {made_files.keys:,} keys")


def test_a_killed_optimize_changes_no_fact(tmp_path: Path) -> None:
    """Each is there once, in few files at the end; vacuum removes what killed runs left."""
    facts, position = made(), tmp_path / "archive"
    archive(str(position), facts, batch_facts=BATCH_FACTS)
    shutil.copytree(position, tmp_path / "before")
    expected, before = rows_of_archive(position), len(paths_of(position))

    def check() -> None:
        assert expected == rows_of_archive(position)

    def again() -> None:
        shutil.rmtree(position)
        shutil.copytree(tmp_path / "before", position)

    runs = kill(lambda: LocalProcess("optimize", position), 4, check, again)
    run = LocalProcess("optimize", position)

    assert 0 == run.wait(), run.lines
    check()
    files = paths_of(position)
    assert len(files) < before // 10
    ArchiveTable(Store(str(position))).vacuum(retention_hours=0, dry_run=False)
    assert {*files} == {
        str(path.relative_to(position)) for path in position.glob("stream=*/**/*") if path.is_file()
    }
    check()
    with LocalDriver(threads=2) as driver:
        found = audit(driver, Store(str(position)), deep=True)
    assert found.is_clean, found.findings
    report(f"{KILLS} kills of optimize, in {runs} runs; {before} files became {len(files)}")


def test_a_killed_replay_goes_on_under_its_name(tmp_path: Path) -> None:
    """What is stored is always the beginning of the archive; at the end all of it, each fact once."""
    facts, position = made(), tmp_path / "archive"
    archive(str(position), facts, batch_facts=BATCH_FACTS)
    expected = [(fact.stream, fact.writer, fact.rows) for fact in facts if fact.rows != b"[]"]
    (tmp_path / "daemon").mkdir()
    counts: list[int] = []
    with Daemon(tmp_path / "daemon") as daemon:

        def stored() -> list[tuple[str, str, bytes]]:
            found = list(changelog(daemon.url))
            assert verify(found, EMPTY) is None
            return [(fact.stream, fact.writer, fact.rows) for fact in found]

        def check() -> None:
            found = stored()
            counts.append(len(found))
            assert expected[: len(found)] == found

        def begin() -> LocalProcess:
            return LocalProcess("replay", position, daemon.url)

        # A step is an append, which is over soon.
        runs = kill(begin, FACTS // BATCH_FACTS, check, lambda: None, seconds=0.0)
        run = begin()

        assert 0 == run.wait(), run.lines
        assert expected == stored()
    report(f"{KILLS} kills of replay, in {runs} runs, after {counts} of {len(expected)} facts")


def test_a_killed_report_leaves_whole_files(tmp_path: Path) -> None:
    """Each is of the former report or of the next; the next page is only beside all of its files."""
    facts, position, folder = made(), tmp_path / "archive", tmp_path / "report"
    archive(str(position), facts[: FACTS // 2], batch_facts=BATCH_FACTS)
    with LocalDriver(threads=2) as driver:
        make_report(driver, Store(str(position)), tmp_path / "former")
        shutil.rmtree(position)
        archive(str(position), facts, batch_facts=BATCH_FACTS)
        make_report(driver, Store(str(position)), tmp_path / "at-once")
    former, expected = (files_of(tmp_path / of) for of in ("former", "at-once"))
    shutil.copytree(tmp_path / "former", folder)

    def check() -> None:
        found = files_of(folder)
        assert found[PAGE] in (former[PAGE], expected[PAGE])
        assert all(data in (former.get(name), expected.get(name)) for name, data in found.items())
        assert found[PAGE] == former[PAGE] or expected == found

    def again() -> None:
        assert expected == files_of(folder)
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "former", folder)

    runs = kill(lambda: LocalProcess("report", position, folder), len(expected), check, again)
    run = LocalProcess("report", position, folder)

    assert 0 == run.wait(), run.lines
    assert expected == files_of(folder)
    report(f"{KILLS} kills of report, in {runs} runs; {len(expected)} files")


def files_of(folder: Path) -> dict[str, bytes]:
    """What the files hold, without those that a killed process was writing."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}
