"""What is drawn while a command works."""

import re
import sys
from pathlib import Path

import pytest

from synrepl.cli import progress
from synrepl.pipeline.commands.pipeline_job import UNITS, show_progress
from tests.service.processes import ROOT


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a terminal shows."""
    lines: list[str] = []
    monkeypatch.setattr(progress, "_draw", lines.append)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    return lines


@pytest.mark.parametrize(
    ("step", "done", "total", "expected"),
    [
        ("archiving", 500, 1_000, "archiving  500 facts, "),
        ("files", 2, 8, "files  2 files, "),
        ("updating tables", 1, 4, "updating tables  1 tables, "),
        ("counting facts", 2, 4, "counting facts  step 3 of 4"),
        ("done", 4, 4, "done  step 4 of 4"),
    ],
)
def test_a_step_is_counted_in_its_own_units(
    drawn: list[str], step: str, done: int, total: int, expected: str
) -> None:
    """Steps of a report are no facts, of which so many are done a second."""
    with show_progress() as show:
        show(step, done, total)

    assert drawn[0].startswith(expected)
    assert "" == drawn[-1]


def test_every_step_of_a_job_has_its_unit() -> None:
    """Or counts facts."""
    named = {
        name
        for path in Path(ROOT, "synrepl", "pipeline").rglob("*.py")
        for name in re.findall(r'progress\("([^"]+)"', path.read_text("utf-8"))
    }

    assert {"archiving", "replaying"} == named - {*UNITS}
    assert {*UNITS} <= named
