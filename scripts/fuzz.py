"""Feeds mutated inputs to the code that reads the data of peers and users, up to the first failure."""

import argparse
import gc
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from twisted.logger import globalLogBeginner, globalLogPublisher

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.fuzz_parts.mutating import mutated  # noqa: E402  # after the path
from scripts.fuzz_parts.targets import TARGETS, BadAnswer, Target  # noqa: E402

CORPUS: Final = ROOT / "tests" / "corpus"
SECONDS: Final = 5.0
"""The CPU time that one input may take; an input that takes longer is a find."""
MEMORY_KIB: Final = 256 * 1024
"""The memory by which one input may enlarge the process; more is a find."""
POOL: Final = 5_000
"""The number of inputs that are kept in memory, as sources of mutated ones."""


class Find(Exception):
    """An input that made a target fail. `why` is the traceback, or what else was wrong."""

    def __init__(self, target: str, data: bytes, why: str) -> None:
        super().__init__(why)
        self.target = target
        self.data = data
        self.why = why


class Fuzzer:
    """One target, and the inputs to which it answered something new."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.target: Target = TARGETS[name]()
        self.inputs = 0
        self._chance = random.Random(f"{name} {seed}")
        self._pool = [*corpus(name).values(), *self.target.seeds()]
        self._seen: set[object] = set()

    @property
    def kinds(self) -> int:
        """The number of different results of the target."""
        return len(self._seen)

    def again(self) -> None:
        """Feed the corpus and the target's own seeds, unchanged. Raises `Find`."""
        for data in list(self._pool):
            self.feed(data)

    def step(self) -> None:
        """Feed one mutated input. Raises `Find`."""
        self.feed(mutated(self._chance, self._pool))

    def feed(self, data: bytes) -> None:
        """Feed this input. Raises `Find` if the target fails, or is too slow or too large."""
        self.inputs += 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tracebacks: list[str] = []
        try:
            with _observed(tracebacks), _limited():
                did = repr(self.target.run(data))
        except BadAnswer as error:
            raise Find(self.name, data, str(error)) from error
        except Exception as error:
            raise Find(self.name, data, traceback.format_exc()) from error
        if tracebacks:
            raise Find(self.name, data, "logged: " + tracebacks[0])
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > MEMORY_KIB:
            why = f"{grown} KiB of memory for {len(data)} bytes; the limit is {MEMORY_KIB} KiB"
            raise Find(self.name, data, why)
        if did not in self._seen:
            self._seen.add(did)
            if len(self._pool) < POOL:
                self._pool.append(data)


class TooSlow(Exception):
    """An input took more than `SECONDS` of CPU time."""


@contextmanager
def _limited() -> Iterator[None]:
    def too_slow(number: int, frame: Any) -> None:
        raise TooSlow(f"more than {SECONDS:g} seconds of CPU time")

    before = signal.signal(signal.SIGVTALRM, too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    gc.disable()  # a collection takes long in a process with much else, and swallows the exception
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()


@contextmanager
def _observed(tracebacks: list[str]) -> Iterator[None]:
    """Add the failures that are logged in the block to `tracebacks`."""

    def observe(event: Any) -> None:
        if (failure := event.get("log_failure")) is not None:
            tracebacks.append(f"{event.get('log_format')}\n{failure.getTraceback()}")

    observer: Any = observe
    globalLogPublisher.addObserver(observer)
    try:
        yield
    finally:
        globalLogPublisher.removeObserver(observer)


def corpus(name: str) -> dict[Path, bytes]:
    """Return the inputs in the corpus of this target, by path; former finds are among them."""
    return {path: path.read_bytes() for path in sorted((CORPUS / name).glob("*")) if path.is_file()}


def keep(find: Find) -> Path:
    """Write a find into the corpus, and return its path."""
    folder = CORPUS / find.target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"found-{hashlib.sha256(find.data).hexdigest()[:12]}"
    path.write_bytes(find.data)
    return path


def fuzz(name: str, *, seconds: float, seed: int) -> int:
    """Feed one target for so many seconds. Return the exit code: 1 for a find."""
    fuzzer = Fuzzer(name, seed)
    until = time.monotonic() + seconds
    try:
        fuzzer.again()
        while time.monotonic() < until:
            fuzzer.step()
    except Find as find:
        path = keep(find)
        print(f"{name}: failed at input {fuzzer.inputs} (seed {seed})\n{find.why}")
        print(f"to repeat: scripts/fuzz {name} --input {path.relative_to(ROOT)}", flush=True)
        return 1
    print(
        f"{name}: {fuzzer.inputs:,} inputs, {fuzzer.kinds:,} different results, no failure (seed {seed})",
        flush=True,
    )
    return 0


def main() -> int:
    """Feed the targets, one after the other, each from one or more processes."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (60)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same inputs (1)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes for each target, with seeds of their own (1)"
    )
    parser.add_argument("--input", type=Path, help="feed only this file, to one target")
    options = parser.parse_args()
    # `Fuzzer.feed` reads what is logged; nothing else may print it.
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    names = options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]}; there are {', '.join(TARGETS)}")
    if options.input is not None:
        if len(names) != 1:
            parser.error("--input needs exactly one target")
        try:
            Fuzzer(names[0], 0).feed(options.input.read_bytes())
        except Find as find:
            print(find.why)
            return 1
        print("no failure")
        return 0
    if options.jobs == 1:
        # A list, not a generator: each target is fed, even after a find in another.
        return max([fuzz(name, seconds=options.seconds, seed=options.seed) for name in names])
    codes = []
    for name in names:
        command = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), name, "--seconds", str(options.seconds)]
        seeds = range(options.seed, options.seed + options.jobs)
        running = [subprocess.Popen([*command, "--seed", str(seed)], env=os.environ) for seed in seeds]
        codes += [process.wait() for process in running]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
