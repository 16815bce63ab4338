"""A process may die at any effect; what it acknowledged is there, and what it left half done does no harm."""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.scenarios import POSTGRES
from tests.crash.sweep import Sweep
from tests.postgres import new_database

FEWEST = {
    "log in SQLite": 120,
    "log in PostgreSQL": 25,
    "ids in SQLite": 50,
    "ids in PostgreSQL": 30,
    "files": 50,
    "archive": 50,
}
"""So many deaths at least, or a part of the scenario is not swept any more."""


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=pytest.mark.story if name == "files" else ()) for name in FEWEST]
)
def test_every_death_is_survived(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right before each statement, commit, write, rename and removal that changes something (which is right
    after the one before), and in the middle of each write; SYNREPL_LONG=1 adds both sides of every effect.
    In PostgreSQL, where each takes a second, a third of them, which SYNREPL_FIRST_SEED chooses.
    After it the log opens, what was acknowledged is there, and the scenario ends as one that was not cut off.
    """
    with ExitStack() as stack:
        if "PostgreSQL" in scenario:
            monkeypatch.setenv(POSTGRES, new_database())
        # In memory where that can be had: a process that dies takes nothing back that it wrote.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="synrepl-crash-", dir=memory))
        is_long = bool(os.environ.get("SYNREPL_LONG"))
        is_slow = scenario == "log in PostgreSQL" and not is_long
        first = int(os.environ.get("SYNREPL_FIRST_SEED", "0")) // 1000
        sweep = Sweep(scenario, Path(home), is_long=is_long, step=3 if is_slow else 1, first=first)
        wrong = stack.enter_context(sweep).run()
        print(sweep.report())

    assert not wrong, f"{len(wrong)} of {sweep.points}\n" + "\n".join(wrong[:3])
    assert sweep.points >= FEWEST[scenario]
