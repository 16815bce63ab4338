"""How much memory local jobs take of an archive that does not fit into it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.pipeline.archives import large_archive
from tests.processes.loading import MIB, report, size
from tests.service.processes import ROOT

FACTS: Final = size(50_000, 10_000_000)

PROGRAM: Final = """
import sys
from pathlib import Path
from synrepl.cli import main

try:
    main(prog_name="synrepl")
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    print(peak, file=sys.stderr)
"""
"""The command, which says at its end how many KiB of memory it had at most."""


def run(folder: Path, *words: str) -> tuple[Any, int]:
    """``synrepl pipeline`` with a memory of 1g. Gives its result, and its most bytes in memory."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "pipeline", *words, "--engine", "local", "--memory", "1g", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), int(done.stderr.splitlines()[-1]) * 1024


@pytest.mark.parametrize("are_different", [False, True], ids=["few keys", "different keys"])
def test_ten_million_rows_within_the_memory_of_a_job(tmp_path: Path, *, are_different: bool) -> None:
    """Jobs take less than they are given: what does not fit goes through files."""
    if are_different:
        large_archive(tmp_path / "archive", FACTS, streams=("events", "push_rules"), users=2 * FACTS)
    else:
        large_archive(tmp_path / "archive", FACTS)

    peaks: dict[str, int] = {}
    folded, peaks["compact"] = run(tmp_path, "compact", "--archive", "archive", "--snapshot", "snapshot")
    audited, peaks["audit"] = run(tmp_path, "audit", "--archive", "archive")
    examined, peaks["audit --deep"] = run(tmp_path, "audit", "--archive", "archive", "--deep")
    _, peaks["tables"] = run(tmp_path, "tables", "--archive", "archive", "--out", "tables")
    _, peaks["report"] = run(tmp_path, "report", "--archive", "archive", "--out", "report")

    for name, peak in peaks.items():
        report(f"{name} of {FACTS:,} rows: {peak / MIB:.0f} MiB at most")
    assert FACTS == folded["snapshot"]["serial"]
    assert 0 < folded["snapshot"]["keys"] <= FACTS
    assert are_different == (folded["snapshot"]["keys"] == FACTS)
    assert [(True, FACTS)] * 2 == [(one["is_clean"], one["rows"]) for one in (audited, examined)]
    assert {} == {name: peak for name, peak in peaks.items() if peak >= 1024 * MIB}
