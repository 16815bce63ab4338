"""What `pipeline history` says of archives and of other tables."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from synrepl.cli import main
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.archive.table_commits import read_history
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.store import BadArchive, Store
from tests.pipeline.archives import ARCHIVED_MS, archive, chained, clean_up, correct_checksums

FACTS = chained([("push_rules", "w", [["@a:hs"], ["@b:hs"]])] * 7)


def listed(place: Path, *options: str) -> Any:
    """What the command says as JSON."""
    done = CliRunner().invoke(main, ["pipeline", "history", "--archive", str(place), "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_each_version_has_its_time_and_what_it_added(tmp_path: Path) -> None:
    """The newest first; a merge has no facts of its own."""
    archive(str(tmp_path), FACTS, batch_facts=3)
    with LocalDriver(threads=1) as driver:
        optimize(driver, Store(str(tmp_path)))

    merge, *batches = listed(tmp_path)["versions"]

    at_ms = [FACTS[last - 1].committed_at_ms + ARCHIVED_MS for last in (7, 6, 3)]
    assert [
        (2, at_ms[0], 7, 7, 1, 2, 1, 0, 3),
        (1, at_ms[1], 4, 6, 3, 6, 1, 0, 2),
        (0, at_ms[2], 1, 3, 3, 6, 1, 0, 1),
    ] == [
        tuple(one[name] for name in ("version", "committed_at_ms", "first_serial", "last_serial", "facts"))
        + tuple(one[name] for name in ("rows", "files_added", "files_removed", "files"))
        for one in batches
    ]
    assert (3, None, None, 14, 1, 3, 1) == tuple(
        merge[name]
        for name in ("version", "facts", "first_serial", "rows", "files_added", "files_removed", "files")
    )


def test_the_times_of_the_table_are_taken_by_as_of(tmp_path: Path) -> None:
    """Each is that of its version, to the millisecond."""
    archive(str(tmp_path), FACTS, batch_facts=1)

    done = CliRunner().invoke(main, ["pipeline", "history", "--archive", str(tmp_path), "--limit", "5"])

    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [6, 5, 4, 3, 2] == [int(row[0]) for row in rows]
    assert [6, 5, 4, 3, 2] == [ArchiveTable(Store(str(tmp_path)), row[1]).version for row in rows]


def test_a_cleaned_log_says_that_it_is_one(tmp_path: Path) -> None:
    """What is left of it is listed."""
    archive(str(tmp_path), FACTS, batch_facts=3)
    clean_up(tmp_path)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})

    assert ([3, 2], [3, 3]) == (
        [one["version"] for one in listed(tmp_path)["versions"]],
        [one["files"] for one in listed(tmp_path)["versions"]],
    )
    assert listed(tmp_path)["is_cut"]
    assert not listed(tmp_path, "--limit", "1")["is_cut"]
    clean_up(tmp_path, all_commits=True)
    assert {"versions": [], "is_cut": True} == listed(tmp_path)


def test_another_table_has_versions_too(tmp_path: Path) -> None:
    """Without serials. What a commit does not say, or says in another form, is unknown."""
    write_deltalake(tmp_path, pa.table({"a": [1, 2]}))
    write_deltalake(tmp_path, pa.table({"a": [3]}), mode="append")
    write_deltalake(tmp_path, pa.table({"a": [4]}), mode="overwrite")
    commit = tmp_path / "_delta_log" / f"{1:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"] |= {"timestamp": 10**18, "operation": "\x1b[2J", "synrepl": {"facts": "7"}}
        if "add" in line:
            line["add"]["stats"] = None
    commit.write_text("\n".join(map(json.dumps, lines)))

    over, odd, first = read_history(Store(str(tmp_path)), 9).versions

    assert (1, 2, 1, 1) == (over.files_added, over.files_removed, over.rows, over.files)
    assert (None, None, None, None) == (odd.committed_at_ms, odd.rows, odd.facts, odd.first_serial)
    assert "\x1b" not in odd.operation
    assert (1, 2) == (first.files, first.rows)


def test_a_commit_has_its_in_commit_timestamp(tmp_path: Path) -> None:
    """Where the table has them, they are its times for all readers."""
    archive(str(tmp_path), FACTS)
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    commit.write_text(
        commit.read_text().replace('{"commitInfo":{', '{"commitInfo":{"inCommitTimestamp":1234,')
    )
    correct_checksums(tmp_path)

    (one,) = read_history(Store(str(tmp_path)), 9).versions

    assert 1234 == one.committed_at_ms
    assert 0 == ArchiveTable(Store(str(tmp_path)), "1970-01-01T00:00:01.234Z").version
    with pytest.raises(BadArchive, match="begins at 1970"):
        ArchiveTable(Store(str(tmp_path)), "1970-01-01T00:00:01.233Z")


@pytest.mark.parametrize("text", ["[]", "{", '{"add": 7}', '{"add": {"stats": "["}}'])
def test_a_damaged_commit_is_refused(tmp_path: Path, text: str) -> None:
    """In one line."""
    archive(str(tmp_path), FACTS, batch_facts=3)
    clean_up(tmp_path)
    (tmp_path / "_delta_log" / f"{2:020}.json").write_text(text)

    with pytest.raises(BadArchive, match="the log of the table cannot be read"):
        read_history(Store(str(tmp_path)), 9)


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    """And nothing is made there."""
    with pytest.raises(BadArchive, match="there is no Delta table"):
        read_history(Store(str(tmp_path)), 9)
