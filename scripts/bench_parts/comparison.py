"""Compares the package in the working tree with that of another commit, in alternating pairs of measurements.

The benchmarks of the working tree measure both, with the same Python: only the packages in `PACKAGES` differ.
Each benchmark of each side is a process of its own. The commit is measured first in one pair, and second in
the next, so that neither side always has the warmer machine.
"""

import compileall
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from scripts.bench_parts.differences import difference, pairs_needed
from scripts.bench_parts.measuring import ROOT, Result

__all__ = [
    "FEWEST_PAIRS",
    "BadCommit",
    "Comparison",
    "Figure",
    "Measure",
    "NotMeasured",
    "Side",
    "Uncompared",
    "compare",
    "measure_in",
    "packages_of",
]

PACKAGES: Final = ("synrepl", "pyspark_synrepl", "twisted")
"""What a side consists of. The folder of twisted has the plugin that makes ``twistd synrepl``."""

FEWEST_PAIRS: Final = 10
PATIENCE_SECONDS: Final = 1_800.0
"""The longest time that a benchmark may take."""
STOP_SECONDS: Final = 15.0

Side = Literal["commit", "working tree"]
Verdict = Literal["faster", "slower", "less", "more", "no difference"]
COMMIT: Final = "commit"
WORKING_TREE: Final = "working tree"

Measure = Callable[[Side, str], list[Result]]
"""Runs the benchmark of this name with the packages of a side. Raises `NotMeasured`."""


class BadCommit(Exception):
    """The commit cannot be compared with."""


class NotMeasured(Exception):
    """A benchmark failed; the text is the reason, in one line."""


class Figure(msgspec.Struct, frozen=True):
    """A compared result. Of both sides it has the medians, in `unit`.

    `percent` is the median difference of the pairs, in per cent of the commit; its 95 % interval is from
    `low` to `high`. `verdict` is about the working tree, and None if there were too few pairs for one.
    """

    work: str
    what: str
    unit: str
    commit: float
    working_tree: float
    percent: float
    low: float
    high: float
    verdict: Verdict | None


class Uncompared(msgspec.Struct, frozen=True):
    """What was not compared, a benchmark or one of its figures. `failed_at` is the side that it failed at."""

    what: str
    reason: str
    failed_at: Side | None = None


class Comparison(msgspec.Struct, frozen=True):
    """The result of all pairs. `pairs_needed` is the fewest pairs that allow a verdict on so many figures."""

    pairs: int
    pairs_needed: int
    figures: list[Figure]
    uncompared: list[Uncompared]


class _Series(msgspec.Struct):
    """The values of one figure, in the order of the pairs."""

    unit: str
    commit: list[float] = []
    working_tree: list[float] = []


def compare(
    measure: Measure, benchmarks: Sequence[str], pairs: int | None, say: Callable[[str], None]
) -> Comparison:
    """Measure both sides in so many pairs; for None in 10, or as many as verdicts on all figures need.

    `say` is called with the progress before each measurement. A benchmark that fails is not run again.
    """
    run = _Run(measure, benchmarks, say)
    run.pair(pairs or FEWEST_PAIRS)
    needed = pairs_needed(max(len(run.series), 1))
    wanted = pairs or max(FEWEST_PAIRS, needed)
    if wanted < needed:
        say(f"{len(run.series)} figures need {needed} pairs for a verdict: {wanted} give intervals only")
    while run.pairs < wanted and run.benchmarks:
        run.pair(wanted)
    return run.result()


class _Run:
    """The pairs that were measured so far."""

    def __init__(self, measure: Measure, benchmarks: Sequence[str], say: Callable[[str], None]) -> None:
        self.benchmarks = list(benchmarks)
        self.series: dict[tuple[str, str], _Series] = {}
        self.pairs = 0
        self._measure = measure
        self._say = say
        self._uncompared: list[Uncompared] = []
        self._began = time.monotonic()

    def pair(self, of: int) -> None:
        """Measure each benchmark once at each side."""
        sides: list[Side] = [COMMIT, WORKING_TREE] if self.pairs % 2 == 0 else [WORKING_TREE, COMMIT]
        for place, name in enumerate(list(self.benchmarks)):
            done = self.pairs + place / len(self.benchmarks)
            left = f", {self._left(done, of)} left" if done else ""
            self._say(f"pair {self.pairs + 1}/{of}{left}: {name}")
            try:
                for side in sides:
                    self._keep(name, side, self._measure(side, name))
            except NotMeasured as error:
                self.benchmarks.remove(name)
                self.series = {key: one for key, one in self.series.items() if key[0] != name}
                self._uncompared.append(Uncompared(name, str(error), side))
        self.pairs += 1

    def _left(self, done: float, of: int) -> str:
        minutes, seconds = divmod(round((time.monotonic() - self._began) / done * (of - done)), 60)
        return f"{minutes}:{seconds:02}"

    def _keep(self, name: str, side: Side, results: list[Result]) -> None:
        for one in results:
            if one.value is not None and _verdicts(one.unit) is not None:
                series = self.series.setdefault((name, one.what), _Series(one.unit))
                (series.commit if side == COMMIT else series.working_tree).append(one.value)

    def result(self) -> Comparison:
        """Return the differences of the figures that every run has."""
        uncompared = list(self._uncompared)
        sound: dict[tuple[str, str], _Series] = {}
        for (name, what), series in self.series.items():
            if {len(series.commit), len(series.working_tree)} != {self.pairs}:
                uncompared.append(Uncompared(f"{name}: {what}", "not every run has it"))
            elif min(series.commit + series.working_tree) <= 0:
                uncompared.append(
                    Uncompared(f"{name}: {what}", "some values are 0 or less, and have no ratio")
                )
            else:
                sound[name, what] = series
        figures = [_figure(*key, series, len(sound)) for key, series in sound.items()]
        return Comparison(self.pairs, pairs_needed(max(len(sound), 1)), figures, uncompared)


def _figure(work: str, what: str, series: _Series, figures: int) -> Figure:
    ratios = [new / old for old, new in zip(series.commit, series.working_tree, strict=True)]
    found = difference(ratios, figures)
    return Figure(
        work,
        what,
        series.unit,
        statistics.median(series.commit),
        statistics.median(series.working_tree),
        found.percent,
        found.low,
        found.high,
        (_verdicts(series.unit) or {}).get(found.verdict),
    )


def _verdicts(unit: str) -> dict[str | None, Verdict] | None:
    """Return what a lower and a higher value in this unit mean; None for ratios, which are not compared."""
    lower: Verdict
    higher: Verdict
    if unit.partition(" ")[0] in {"x", "%"} and unit != "% of a core":
        return None
    if unit.partition(" ")[0].endswith("/s"):
        lower, higher = "slower", "faster"
    elif re.match(r"(us|ms|s)\b", unit):
        lower, higher = "faster", "slower"
    else:  # memory, and shares of a core
        lower, higher = "less", "more"
    return {"lower": lower, "higher": higher, "same": "no difference"}


@contextmanager
def packages_of(ref: str) -> Iterator[dict[Side, Path]]:
    """Make folders with the packages of a commit and of the working tree, for the length of the block.

    Raises `BadCommit`.
    """
    _git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", wrong=f"no commit {ref!r}")
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        sides: dict[Side, Path] = {COMMIT: folder / "a", WORKING_TREE: folder / "b"}
        checkout = folder / "checkout"
        try:
            _git("worktree", "add", "--detach", str(checkout), ref, wrong=f"cannot check out {ref!r}")
            _copy(checkout, sides[COMMIT])
        finally:
            # Twice forced: also one that git was interrupted in making. There is none if git has failed.
            command = ["git", "worktree", "remove", "--force", "--force", str(checkout)]
            subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if not (sides[COMMIT] / PACKAGES[0]).is_dir():
            raise BadCommit(f"{ref!r} has no folder {PACKAGES[0]}")
        _copy(ROOT, sides[WORKING_TREE])
        yield sides


def _git(*arguments: str, wrong: str) -> None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BadCommit(f"{wrong}: cannot run git: {error}") from error
    if done.returncode != 0:
        raise BadCommit(": ".join(filter(None, [wrong, done.stderr.strip()])))


def _copy(source: Path, side: Path) -> None:
    """Copy the packages, and compile them, so that no measurement does."""
    side.mkdir()
    for name in PACKAGES:
        if (source / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "dropin.cache")
            shutil.copytree(source / name, side / name, ignore=ignored)
    compileall.compile_dir(side, quiet=2)


def measure_in(sides: dict[Side, Path], arguments: Sequence[str]) -> Measure:
    """Return what runs a benchmark, with these further arguments, in a process with a side's packages."""

    def measure(side: Side, name: str) -> list[Result]:
        # What a killed benchmark leaves goes with this folder.
        with tempfile.TemporaryDirectory(dir=sides[side].parent, ignore_cleanup_errors=True) as temporary:
            path = [str(sides[side]), str(ROOT), os.environ.get("PYTHONPATH")]
            environment = {
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "PYTHONSAFEPATH": "1",  # else the current folder comes first, which has the working tree's
                "TMPDIR": temporary,
            }
            command = [sys.executable, "-m", "scripts.bench", "--json", "--only", name, *arguments]
            return msgspec.json.decode(_output(command, environment), type=dict[str, list[Result]])[name]

    return measure


def _output(command: list[str], environment: dict[str, str]) -> str:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A session of its own: the processes that a benchmark starts are stopped with it.
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"it took more than {PATIENCE_SECONDS:.0f} s") from error
    finally:
        _stop(process)
    if process.returncode != 0:
        raise NotMeasured(_reason(errors) or f"exit code {process.returncode}")
    return output


def _stop(process: "subprocess.Popen[str]") -> None:
    """Stop a benchmark that has not ended, in order, and after 15 seconds kill what is left."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _reason(errors: str) -> str:
    """Return the exception that came first, or else the last line."""
    lines = [line for line in errors.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith("Traceback ("):
            for following in lines[number + 1 :]:
                if not following.startswith((" ", "---")):
                    return following
    return lines[-1] if lines else ""
