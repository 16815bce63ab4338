"""Folders with odd names: each job reads where it writes, or says why not before it writes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synrepl.errors import ConfigError
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.audit.audit import audit
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.runner import Runner
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.store import Store
from synrepl.pipeline.tables.tables import update_tables
from tests.pipeline.archives import archive, chained, rows_of_snapshot

FACTS = chained([("push_rules", "w", [["@ada:h"]]), ("push_rules", "w", [["@bob:h"]])] * 5)
PLAIN = ["a b", "é日本", "+&#?q=1", "{x}*\"'~`<y>", "50%", "%zz:;c"]
"""Names that every job takes."""
MISTAKEN = ["a%20b", "per%cent", "a%2Fb", "a\\b", "\x1b[2J\n", "\udce9"]
"""Names that delta-rs reads as others, or not at all."""
UNWRITABLE = ["[br]", "a|b^"]
"""Names that delta-rs takes for an archive, but not for a table of which it writes the rows."""


def names_in(folder: Path) -> list[str]:
    """The names in a folder, in order."""
    return sorted(path.name for path in folder.iterdir())


def other_folders(parent: Path, name: str) -> list[str]:
    """What is beside the folder of this name."""
    return [other for other in names_in(parent) if other != name]


@pytest.fixture(scope="module")
def local() -> Iterator[Runner]:
    """One for all names."""
    with LocalDriver(threads=2) as driver:
        yield driver


@pytest.mark.parametrize("name", [*PLAIN, *UNWRITABLE])
def test_an_archive_is_read_where_it_is_written(local: Runner, tmp_path: Path, name: str) -> None:
    """By all jobs that read one."""
    _check_archive(local, tmp_path, name)


def test_an_archive_is_read_where_it_is_written_on_both_engines(runner: Runner, tmp_path: Path) -> None:
    """All odd characters at once, as Spark takes its time."""
    _check_archive(runner, tmp_path, "".join([*PLAIN, *UNWRITABLE]))


def _check_archive(runner: Runner, tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    archive(str(place), FACTS, batch_facts=1)
    store = Store(str(place))

    assert 10 == optimize(runner, store).merged
    assert 10 == audit(runner, store).facts
    assert 0 < len(ArchiveTable(store).vacuum(retention_hours=0, dry_run=False))
    assert audit(runner, store).is_clean
    assert 2 == compact(runner, store, Store(str(tmp_path / "snapshot"))).snapshot.keys
    assert ["snapshot"] == other_folders(tmp_path, name)


@pytest.mark.parametrize("name", [*PLAIN, *MISTAKEN[:-1], *UNWRITABLE])
def test_a_snapshot_may_have_any_name(local: Runner, tmp_path: Path, name: str) -> None:
    """It is no Delta table."""
    archive(str(tmp_path / "archive"), FACTS)
    source, place = Store(str(tmp_path / "archive")), tmp_path / name

    compact(local, source, Store(str(place)))

    assert 2 == len(rows_of_snapshot(place))
    assert ["archive"] == other_folders(tmp_path, name)


@pytest.mark.parametrize("name", PLAIN)
def test_tables_are_read_where_they_are_written(local: Runner, tmp_path: Path, name: str) -> None:
    """A second run finds those of the first."""
    archive(str(tmp_path / "archive"), FACTS)
    source, out = Store(str(tmp_path / "archive")), str(tmp_path / name)

    runs = [update_tables(local, source, out, only=["push_rules"]).tables[0] for _ in range(2)]

    assert [(2, True), (2, False)] == [(run.rows, run.is_new) for run in runs]
    assert ["archive"] == other_folders(tmp_path, name)


def _archive(runner: Runner, source: Store, place: str) -> Any:
    return archive(place, FACTS)


def _tables(runner: Runner, source: Store, place: str) -> Any:
    return update_tables(runner, source, place)


def _audit(runner: Runner, source: Store, place: str) -> Any:
    return audit(runner, Store(place))


def _compact(runner: Runner, source: Store, place: str) -> Any:
    return compact(runner, Store(place), source)


@pytest.mark.parametrize(
    ("job", "name"),
    [
        *((job, name) for job in (_archive, _tables, _audit, _compact) for name in MISTAKEN),
        *((_tables, name) for name in UNWRITABLE),
    ],
)
def test_a_name_that_would_be_mistaken_is_refused(
    local: Runner, tmp_path: Path, job: Callable[[Runner, Store, str], Any], name: str
) -> None:
    """Before anything is written, whatever is beside it."""
    archive(str(tmp_path / "archive"), FACTS)
    archive(str(tmp_path / "a b"), FACTS)

    with pytest.raises(
        ConfigError, match=r"cannot be the folder of a Delta table|not a path or URI"
    ) as caught:
        job(local, Store(str(tmp_path / "archive")), str(tmp_path / name))

    assert ["a b", "archive"] == names_in(tmp_path)
    assert str(caught.value).isprintable()


def test_dots_behind_a_link_are_those_of_the_system(tmp_path: Path) -> None:
    """Not those of the text, by which delta-rs goes."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")

    archive(str(tmp_path / "link" / ".." / "archive"), FACTS)

    assert ["archive", "away"] == names_in(tmp_path / "far")
    assert ["far", "link"] == names_in(tmp_path)
