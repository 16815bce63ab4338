"""Sends a scenario to its death at each of its effects."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec
import pytest

from tests.crash.effects import SIDES, Side, changes
from tests.crash.scenarios import POSTGRES
from tests.crash.server import Order, Outcome
from tests.postgres import new_database

__all__ = ["check_every_death"]

ROOT = Path(__file__).resolve().parent.parent.parent


class Sweep:
    """All deaths of one scenario, in folders under `home`. A long one also has those that should be alike.

    With `step`, only each `step`-th effect, from the effect `first` on.
    """

    def __init__(
        self, scenario: str, home: Path, *, is_long: bool = False, step: int = 1, first: int = 0
    ) -> None:
        self._is_long = is_long
        self._step = step
        self._first = first % step
        self.points = 0
        self.names: list[str] = []
        self._scenario = scenario
        self._home = home
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()

    def run(self) -> list[str]:
        """What was wrong, for each death after which something was."""
        whole = self._order(0, "before")
        assert not whole.why, whole.why
        self.names = whole.effects
        wrong = []
        for at in range(1 + self._first, len(self.names) + 1, self._step):
            for side in self._sides(at):
                self.points += 1
                found = self._order(at, side)
                why = found.why
                if not why and not found.died:
                    why = "it did not die"
                elif not why and found.state != whole.state:
                    why = f"it ended otherwise:\n{found.state}\nand not as\n{whole.state}"
                if why:
                    wrong.append(f"dead {side} effect {at} ({self.names[at - 1]}): {why}")
        return wrong

    def _sides(self, at: int) -> list[Side]:
        """Right after an effect is right before the next one: nothing between them touches the disk."""
        name = self.names[at - 1]
        if not self._is_long and not changes(name):
            return []
        sides = [side for side in SIDES if side != "half" or _has_half(name)]
        return sides if self._is_long or at == len(self.names) else sides[:-1]

    def report(self) -> str:
        """How many points there were, and of what kinds."""
        kinds = Counter(name.split(" ")[0].split("(")[0] for name in self.names)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(12))
        return f"{self._scenario}: {self.points} deaths at {len(self.names)} effects ({shown})"

    def _order(self, at: int, side: Side) -> Outcome:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        position = self._home / f"{at}-{side}"
        order = Order(self._scenario, str(position), at, side)
        self._server.stdin.write(msgspec.json.encode(order) + b"\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        assert line, "the server of deaths has ended"
        outcome: Outcome = msgspec.json.decode(line, type=Outcome)
        return outcome


def check_every_death(scenario: str, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that every death of a scenario, ``module:class``, is survived, and that there are so many.

    Right before each statement, commit, write, rename and removal that changes something (which is right
    after the one before), and in the middle of each write; SYNREPL_LONG=1 adds both sides of every effect.
    In PostgreSQL, where each takes a second, a third of them, which SYNREPL_FIRST_SEED chooses.
    After it the log opens, what was acknowledged is there, and the scenario ends as one that was not cut off.
    """
    name = scenario.partition(":")[2]
    with ExitStack() as stack:
        if name.startswith("Postgres"):
            monkeypatch.setenv(POSTGRES, new_database())
        # In memory where that can be had: a process that dies takes nothing back that it wrote.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="synrepl-crash-", dir=memory))
        is_long = bool(os.environ.get("SYNREPL_LONG"))
        is_slow = name == "PostgresLog" and not is_long
        first = int(os.environ.get("SYNREPL_FIRST_SEED", "0")) // 1000
        sweep = Sweep(scenario, Path(home), is_long=is_long, step=3 if is_slow else 1, first=first)
        wrong = stack.enter_context(sweep).run()
        print(sweep.report())

    assert not wrong, f"{len(wrong)} of {sweep.points}\n" + "\n".join(wrong[:3])
    assert sweep.points >= fewest


def _has_half(name: str) -> bool:
    return name in ("write", "pwrite", "file write") or name.startswith("INSERT")
