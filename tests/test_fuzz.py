"""The fuzzer: a few inputs of each kind, the corpus, and that a find is one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import fuzz
from scripts.fuzz import Find, Fuzzer, corpus, keep
from scripts.fuzz_parts.targets import TARGETS, Target

INPUTS = 60


@pytest.mark.parametrize("name", TARGETS)
def test_no_target_fails_on_the_corpus(name: str) -> None:
    """The corpus, what targets begin with, and a few inputs made from these. `scripts/fuzz` feeds more."""
    fuzzer = Fuzzer(name, seed=1)

    fuzzer.again()
    for _ in range(INPUTS):
        fuzzer.step()

    assert fuzzer.kinds > 1


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_has_a_corpus(name: str) -> None:
    """What gave way once is fed to it for ever."""
    assert corpus(name)


class Fragile(Target):
    """Gives way to three things."""

    def run(self, data: bytes) -> object:
        if data == b"raise":
            raise KeyError(data)
        if data == b"hang":
            while True:
                pass
        if data == b"log":
            from twisted.logger import Logger

            try:
                raise KeyError(data)
            except KeyError:
                Logger().failure("it failed")
        return len(data)


@pytest.mark.parametrize(
    ("data", "why"), [(b"raise", "KeyError"), (b"hang", "TooSlow"), (b"log", "logged: it failed")]
)
def test_unexpected_errors_slow_inputs_and_tracebacks_are_finds(
    data: bytes, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error that nobody announced, an input that takes too long, a traceback in the log."""
    monkeypatch.setitem(TARGETS, "fragile", Fragile)
    monkeypatch.setattr(fuzz, "CORPUS", tmp_path)
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    fuzzer = Fuzzer("fragile", seed=1)
    fuzzer.feed(b"well")

    with pytest.raises(Find, match=why) as found:
        fuzzer.feed(data)

    path = keep(found.value)
    assert {path: data} == corpus("fragile")


def test_one_seed_makes_the_same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A find can be found again."""
    monkeypatch.setitem(TARGETS, "fragile", Fragile)

    def fed(seed: int) -> list[bytes]:
        fuzzer = Fuzzer("fragile", seed)
        inputs: list[bytes] = []
        run = fuzzer.target.run

        def noted(data: bytes) -> Any:
            inputs.append(data)
            return run(data)

        monkeypatch.setattr(fuzzer.target, "run", noted)
        for _ in range(50):
            fuzzer.step()
        return inputs

    assert fed(1) == fed(1) != fed(2)


def test_the_command_feeds_one_file() -> None:
    """As the line says that is printed with a find."""
    path, _ = next(iter(corpus("config").items()))

    done = subprocess.run(
        [sys.executable, str(fuzz.ROOT / "scripts" / "fuzz.py"), "config", "--input", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (0, "no failure\n") == (done.returncode, done.stdout)
