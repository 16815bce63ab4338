"""Sends a scenario to its death at each of its effects."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Self

import msgspec

from tests.crash.effects import SIDES, Side, changes
from tests.crash.server import Order, Outcome

__all__ = ["Sweep"]

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
        self._server.wait(30)
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


def _has_half(name: str) -> bool:
    return name in ("write", "pwrite", "file write") or name.startswith("INSERT")
