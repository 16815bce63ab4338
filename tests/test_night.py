"""What a night tries, and its table."""

import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from scripts import again, night

ROOT = Path(__file__).resolve().parent.parent


def test_each_day_has_seeds_and_faults_of_its_own() -> None:
    today, tomorrow = night.parts(20_000, 5), night.parts(20_001, 5)

    assert {"SYNREPL_FIRST_SEED": "20000000", "SYNREPL_SEEDS": "5"} == today["seeds"][1]
    assert today["seeds"] != tomorrow["seeds"]
    assert today["faults"] != tomorrow["faults"]
    for command, _ in today.values():
        for word in command:
            assert not word.startswith(("tests/", "scripts/")) or (ROOT / word).exists()


def test_a_part_that_fails_is_in_the_table_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = [sys.executable, "-c", "import os; print('FAILED tests/a.py::b - ' + os.environ['S']); exit(1)"]
    known = {"seeds": (failing, {"S": "7"}), "interop": ([sys.executable, "-c", ""], {})}
    with patch.object(night, "parts", lambda day, seeds, minutes: known):
        assert 1 == night.main([], tmp_path)
        assert 0 == night.main(["interop"], tmp_path)
        assert 2 == night.main(["dreams"], tmp_path)

    found = again.load(tmp_path, night.TABLE)
    assert [(1, ["tests/a.py::b"]), (0, []), (0, [])] == [(one["result"], one["failed"]) for one in found]
    assert "S=7" == found[0]["command"][0]
    assert 0 == night.main(["--table"], tmp_path)
    assert "unknown: dreams" in capsys.readouterr().err
