"""Puts faults into a copy of synrepl, one at a time, and says which of them no test notices.

tests/mutants.toml lists the faults, each with the tests that must notice it. With --draw they are drawn at
random instead, and the tests that are nearest to their modules are run: for each that survives, write a test,
or say in the list why it changes nothing. The checkout is not touched: the copy lies in a temporary folder
and is removed at the end. Exit code 1: a fault was not noticed; 2: wrong arguments, a stale list, or tests
that fail without any fault.
"""

import argparse
import compileall
import fnmatch
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lib.drawn_mutants import DrawnMutant, draw, entry  # noqa: E402  # after the path
from scripts.lib.mutants import TRIAL, BadList, Mutant, complaints, load, mutated  # noqa: E402  # after the path

NO_TESTS: Final = 5
"""The exit code of pytest when no test matches."""

T = TypeVar("T")
Verdict = Literal["killed", "killed (time)", "SURVIVED", "equivalent"]


class Run(msgspec.Struct, frozen=True):
    """The result of tests. `failed` is the first that failed; `is_late`: they were killed at the timeout."""

    passed: bool
    seconds: float
    failed: str = ""
    is_late: bool = False
    output: str = ""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a mutant, as `--json` shows it."""

    id: str
    file: str
    verdict: Verdict
    seconds: float = 0.0
    failed: str = ""
    reason: str = ""


class Stopped(Exception):
    """The user interrupted the run."""


class Copy:
    """A copy of the working tree, to put faults into and to run tests in."""

    def __init__(self, folder: Path, stop: threading.Event) -> None:
        self._root = folder / "copy"
        self._temporary = folder / "tmp"
        self._stop = stop
        self._temporary.mkdir(parents=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
            if (ROOT / name).is_file():
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._root / name)
        # Faults are never compiled to disk, where the next run could take one for the sound module.
        compileall.compile_dir(self._root / "synrepl", quiet=2)

    def run_mutant(self, mutant: Mutant, timeout: float) -> Run:
        """Run the tests of a mutant, with the fault in its file. Raises `Stopped` and `BadList`."""
        path = self._root / mutant.file
        sound = path.stat()
        text = mutated(self._root, mutant)
        before = path.read_bytes()
        try:
            path.write_text(text, encoding="utf-8")
            # Another time than that of the sound file, so that Python does not use its compiled module.
            os.utime(path, (sound.st_atime, sound.st_mtime + 2))
            return self.run(mutant.tests, timeout)
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(sound.st_atime_ns, sound.st_mtime_ns))

    def run(self, tests: str, timeout: float) -> Run:
        """Run these tests, up to the first that fails. Raises `Stopped`, and `BadList` if no test matches."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self._temporary, ignore_cleanup_errors=True) as folder:
            log = Path(folder) / "log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    _command(tests, Path(folder)),
                    cwd=self._root,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(self._root),
                        "PYTHONDONTWRITEBYTECODE": "1",
                        "TMPDIR": folder,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # A session of its own: processes that the tests start are killed with them.
                    start_new_session=True,
                )
            try:
                code = self._wait(process, began + timeout)
            finally:
                _end(process)
            text = log.read_text(encoding="utf-8", errors="replace")
        seconds = time.monotonic() - began
        if code == NO_TESTS:
            raise BadList(f"no test matches: {tests}")
        if code is None:
            return Run(
                passed=False, seconds=seconds, failed=f"more than {timeout:.0f} s", is_late=True, output=text
            )
        return Run(passed=code == 0, seconds=seconds, failed=_first_failed(text), output=text)

    def _wait(self, process: "subprocess.Popen[bytes]", until: float) -> int | None:
        """Return the exit code of the process; None if it has not ended by `until`. Raises `Stopped`."""
        while time.monotonic() < until:
            if self._stop.is_set():
                raise Stopped
            try:
                return process.wait(0.2)
            except subprocess.TimeoutExpired:
                pass
        return None


def _command(tests: str, folder: Path) -> list[str]:
    if tests.startswith(TRIAL):
        module = tests.removeprefix(TRIAL)
        return [
            sys.executable,
            "-m",
            "twisted.trial",
            "-x",
            "--temp-directory",
            str(folder / "trial"),
            module,
        ]
    return [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _first_failed(output: str) -> str:
    """Return the name of the first failed test in the output of pytest or trial; empty if there is none."""
    if found := re.search(r"^(?:FAILED|ERROR) (tests/\S+)", output, re.MULTILINE):
        return found[1]
    if found := re.search(r"^\[(?:FAIL|ERROR)\]$.*?^(tests\.\S+)$", output, re.MULTILINE | re.DOTALL):
        return found[1]
    return ""


class DrawnRun:
    """Runs the tests of drawn mutants, nearest first. Outcomes are kept in a file, to go on after a stop.

    `say` is called with a line for each outcome.
    """

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self._timeout: float = options.timeout
        self._results: Path | None = options.results
        self._say = say
        self._stop = threading.Event()
        self._sound: dict[str, bool] = {}

    def run(self, drawn: Sequence[DrawnMutant], folder: Path) -> list[Outcome]:
        """Run the tests of these mutants, in a copy inside `folder`, but for those whose outcome is known."""
        known = self._known()
        copy = Copy(folder, self._stop)
        outcomes: list[Outcome] = []
        for number, one in enumerate(drawn, 1):
            if (outcome := known.get(one.mutant.id)) is None:
                outcome = self._outcome(copy, one)
                if self._results is not None:
                    with self._results.open("ab") as file:
                        file.write(msgspec.json.encode(outcome) + b"\n")
            outcomes.append(outcome)
            place, by = f"{number}/{len(drawn)}", f" by {outcome.failed}" if outcome.failed else ""
            self._say(f"{outcome.verdict:<13} {outcome.seconds:5.1f} s  {place}  {outcome.id}{by}")
        return outcomes

    def _known(self) -> dict[str, Outcome]:
        if self._results is None or not self._results.exists():
            return {}
        lines = self._results.read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=Outcome) for line in lines if line]
        return {outcome.id: outcome for outcome in found}

    def _outcome(self, copy: Copy, drawn: DrawnMutant) -> Outcome:
        mutant, seconds = drawn.mutant, 0.0
        for tests in drawn.stages:
            try:
                run = copy.run_mutant(msgspec.structs.replace(mutant, tests=tests), self._timeout)
            except BadList:
                continue  # these tests are left out here, as those of a server that is not installed
            seconds += run.seconds
            if not run.passed and self._passes_without(copy, tests if run.is_late else run.failed or tests):
                return Outcome(mutant.id, mutant.file, _verdict(run), round(seconds, 1), run.failed)
        return Outcome(mutant.id, mutant.file, "SURVIVED", round(seconds, 1))

    def _passes_without(self, copy: Copy, tests: str) -> bool:
        """Whether these tests pass without the fault: else it is not the fault that they notice."""
        # Parameters are left out: they may have spaces.
        named = f"{TRIAL}{tests}" if tests.startswith("tests.") else tests.partition("[")[0]
        if not self._sound.get(named):  # a busy machine may have failed them once
            self._sound[named] = copy.run(named, self._timeout).passed
        return self._sound[named]


class Mutation:
    """Runs the tests of mutants in copies. `say` is called with a line for each outcome."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._stop = threading.Event()

    def run(self, mutants: Sequence[Mutant], folder: Path) -> list[Outcome]:
        """Run the tests of these mutants, in copies inside `folder`.

        Raises `BadList` if they fail without a fault.
        """
        copies = [Copy(folder / str(number), self._stop) for number in range(self._options.jobs)]
        timeout = self._options.timeout
        outcomes: list[Outcome] = []

        def tell_passed(tests: str, run: Run, left: str) -> None:
            if not run.passed:
                raise BadList(f"without any fault these tests fail: {tests}\n{run.output}")
            self._say(f"passed        {run.seconds:5.1f} s  {left}  {tests}")

        def tell_outcome(mutant: Mutant, run: Run, left: str) -> None:
            outcomes.append(Outcome(mutant.id, mutant.file, _verdict(run), round(run.seconds, 1), run.failed))
            by = f" by {run.failed}" if run.failed and not run.is_late else ""
            self._say(f"{outcomes[-1].verdict:<13} {run.seconds:5.1f} s  {left}  {mutant.id}{by}")

        if not self._options.no_baseline:
            distinct = list(dict.fromkeys(mutant.tests for mutant in mutants if mutant.tests))
            self._each(copies, distinct, lambda copy, tests: copy.run(tests, timeout), tell_passed)
        for mutant in mutants:
            if mutant.equivalent:
                outcomes.append(Outcome(mutant.id, mutant.file, "equivalent", reason=mutant.equivalent))
                self._say(f"equivalent    {mutant.id}: {mutant.equivalent}")
        work = [mutant for mutant in mutants if not mutant.equivalent]
        self._each(copies, work, lambda copy, mutant: copy.run_mutant(mutant, timeout), tell_outcome)
        return outcomes

    def _each(
        self,
        copies: Sequence[Copy],
        work: Sequence[T],
        run: Callable[[Copy, T], Run],
        tell: Callable[[T, Run, str], None],
    ) -> None:
        """Call `run` for each piece of work, as many at a time as there are copies.

        `tell` is called with the piece, its result, and the progress with the estimated time left.
        """
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            free.put(copy)

        def run_one(piece: T) -> Run:
            copy = free.get()
            try:
                return run(copy, piece)
            finally:
                free.put(copy)

        began = time.monotonic()
        with ThreadPoolExecutor(len(copies)) as pool:
            try:
                futures = {pool.submit(run_one, piece): piece for piece in work}
                for done, future in enumerate(as_completed(futures), 1):
                    left = (time.monotonic() - began) / done * (len(work) - done)
                    minutes, seconds = divmod(round(left), 60)
                    tell(futures[future], future.result(), f"{done}/{len(work)}, {minutes}:{seconds:02} left")
            except BaseException:
                # Running tests are killed at once.
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _verdict(run: Run) -> Verdict:
    if run.is_late:
        return "killed (time)"
    return "SURVIVED" if run.passed else "killed"


def _summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.verdict for outcome in outcomes)
    parts = [f"{counts[verdict]} {verdict}" for verdict in typing.get_args(Verdict) if counts[verdict]]
    return f"{len(outcomes)} mutants: {', '.join(parts)}"


def main() -> int:
    """Run the chosen mutants, and print their outcomes; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="copies in which tests run at the same time (1)",
    )
    parser.add_argument("--only", metavar="GLOB", help="only mutants whose id matches")
    parser.add_argument("--package", help="only those below this folder of synrepl, as in ids")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for each run of tests (120)"
    )
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not run the tests without a fault first"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    parser.add_argument(
        "--draw", nargs=2, type=int, metavar=("SEED", "COUNT"), help="draw mutants, and print who survives"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="with --draw: keep outcomes here, and skip those it has"
    )
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("-j must be 1 or more")
    if options.results is not None and options.draw is None:
        parser.error("--results goes with --draw")
    if options.draw is not None and (options.jobs > 1 or options.only or options.package):
        parser.error("--draw goes without -j, --only and --package: it draws from the whole package")
    # SIGTERM ends the program as Ctrl-C does, so that the copies are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def say(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        if options.draw is not None:
            return _run_drawn(options, say)
        mutants = load(ROOT)
        if wrong := complaints(ROOT, mutants):
            raise BadList("\n".join(wrong))
        chosen = [
            mutant
            for mutant in mutants
            if (options.only is None or fnmatch.fnmatch(mutant.id, options.only))
            and (options.package is None or f"{mutant.package}/".startswith(f"{options.package}/"))
        ]
        if not chosen:
            parser.error("no mutant matches --only and --package")
        with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
            outcomes = Mutation(options, say).run(chosen, Path(folder))
    except BadList as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return _report(outcomes, options, say)


def _run_drawn(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    drawn = draw(ROOT, *options.draw)
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        outcomes = DrawnRun(options, say).run(drawn, Path(folder))
    for one, outcome in zip(drawn, outcomes, strict=True):
        if outcome.verdict == "SURVIVED":
            say(entry(one))
    return _report(outcomes, options, say)


def _report(outcomes: list[Outcome], options: argparse.Namespace, say: Callable[[str], None]) -> int:
    say(_summary(outcomes))
    if options.json:
        print(msgspec.json.encode({"mutants": outcomes}).decode())
    return int(any(outcome.verdict == "SURVIVED" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
