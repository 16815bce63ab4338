"""Passes of a command, one after another, and the table of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.again import RUNNING, TABLE, load, main

PASS = [sys.executable, "-c", "print('fine')"]
FAIL = [sys.executable, "-c", "print('FAILED tests/test_a.py::test_b - x'); raise SystemExit(3)"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a commit."""
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("build/\n")
    commit(tmp_path, "code.py", "1")
    return tmp_path


def commit(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, "commit", "--quiet", "--message", "One"], cwd=root, check=True)


def test_it_goes_on_until_so_many_went_well(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the next session as well, and after a change of prose; any other starts the count again."""
    assert 0 == main(["2", "--", *PASS], root)
    assert 2 == len(load(root))
    commit(root, "page.md", "words")
    assert 0 == main(["3", "--", *PASS], root)
    assert 3 == len(load(root))
    commit(root, "code.py", "2")
    assert 0 == main(["2", "--", *PASS], root)
    assert 5 == len(load(root))
    assert "pass 2 of 2" in capsys.readouterr().out


def test_a_failure_ends_it_and_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the tests that failed, and what was printed."""
    assert 1 == main(["2", "--", *FAIL], root)
    (found,) = load(root)
    assert (3, ["tests/test_a.py::test_b"]) == (found["result"], found["failed"])
    assert "FAILED tests/test_a.py::test_b - x" in capsys.readouterr().out


def test_passes_of_other_commands_and_loads_do_not_count(root: Path) -> None:
    main(["1", "--", *PASS], root)
    main(["1", "--load", "1", "--", *PASS], root)
    main(["1", "--", *PASS, "other"], root)

    assert [0, 1, 0] == [one["load"] for one in load(root)]


def test_a_pass_that_was_cut_off_stays_and_ends_the_row(root: Path) -> None:
    """As when a session ends."""
    main(["1", "--", *PASS], root)
    cut = {**load(root)[0], "table": TABLE}
    (root / RUNNING).write_text(json.dumps(cut))
    assert 0 == main(["2", "--", *PASS], root)

    assert [0, None, 0, 0] == [one["result"] for one in load(root)]
    main(["--table"], root)


def test_what_is_not_committed_is_not_tried(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody could run it again."""
    (root / "code.py").write_text("3")

    assert 2 == main(["1", "--", *PASS], root)
    assert "commit what was changed first" in capsys.readouterr().err
    assert [] == load(root)


@pytest.mark.parametrize(
    "words", [[], ["x"], ["2"], ["2", "--"], ["2", "--load", "--", "x"], ["2", "--load", "x", "--", "y"]]
)
def test_wrong_words_are_answered_with_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(words)
    assert "usage: scripts/again" in capsys.readouterr().err
