"""Runs seeds of the simulations, and prints the CPU seconds of each world.

The worlds are those of `tests/simulation`, such as `workers` (a daemon and its followers) and `broker`
(daemons among Synapse's processes on a Redis), and those of `simulation` below the tests of each room. Exit
code 1 if a seed broke a guarantee.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import track

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tests.simulation  # noqa: E402  # after the path
from scripts.lib.declared import of_rooms  # noqa: E402

WORLDS: Final[Mapping[str, str]] = tests.simulation.WORLDS | of_rooms("simulation", "WORLDS")
"""The module and class of each world, by its name."""

SEEDS_EACH: Final = 16
"""The number of seeds that one process runs."""

REPORT_EVERY: Final = 1_000
"""Without a terminal for a progress bar, a line reports the progress after each of so many seeds."""


class Outcome(NamedTuple):
    """The result of one seed: its CPU seconds, and the exception that ended it; empty if there was none."""

    world: str
    seed: int
    seconds: float
    broken: str


def simulation(world: str) -> Any:
    """The class of a world."""
    module, _, name = WORLDS[world].partition(":")
    return getattr(import_module(module), name)


def run(task: tuple[str, int]) -> Outcome:
    """Run one seed of one world."""
    world, seed = task
    began = time.process_time()
    broken = ""
    try:
        simulation(world)(seed).run()
    except Exception as error:
        broken = f"{type(error).__name__}: {error}"
    return Outcome(world, seed, time.process_time() - began, broken)


def outcomes(tasks: list[tuple[str, int]], jobs: int) -> Iterator[Outcome]:
    """Yield the outcome of each seed as it ends, from `jobs` processes.

    A process ends after a few seeds: that costs less than to collect the garbage of earlier seeds.
    """
    for world in {world for world, _ in tasks}:
        simulation(world)(0).run()  # imports modules before the processes are forked
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run, tasks, chunksize=SEEDS_EACH)


def main() -> int:
    """Run the seeds that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=f"any of {', '.join(WORLDS)} [all]")
    parser.add_argument("--seeds", type=int, default=1_000, help="the number of seeds of each world [1000]")
    parser.add_argument("--first", type=int, default=1, help="the first seed [1]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes [one for each core]")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse_args()
    worlds = options.worlds or list(WORLDS)
    if unknown := sorted(set(worlds) - set(WORLDS)):
        parser.error(f"no such world: {', '.join(unknown)}; there are {', '.join(WORLDS)}")
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are 1 or more")
    tasks = [(world, options.first + number) for number in range(options.seeds) for world in worlds]
    seconds: defaultdict[str, float] = defaultdict(float)
    broken: list[Outcome] = []
    console = Console(stderr=True)
    ended = outcomes(tasks, options.jobs)
    progress = track(ended, "seeds", len(tasks), console=console, disable=not console.is_terminal)
    for number, outcome in enumerate(progress, 1):
        seconds[outcome.world] += outcome.seconds
        if number % REPORT_EVERY == 0 and not console.is_terminal:
            average = sum(seconds.values()) / number
            console.print(f"{number:,} of {len(tasks):,} seeds, {average:.3f} CPU seconds each")
        if outcome.broken:
            broken.append(outcome)
            console.print(f"{outcome.world} {outcome.seed}: {outcome.broken}", markup=False)
    last = options.first + options.seeds - 1
    each = {world: round(seconds[world] / options.seeds, 3) for world in worlds}
    average = round(sum(seconds.values()) / len(tasks), 3)
    if options.json:
        found = [{"world": one.world, "seed": one.seed, "broken": one.broken} for one in broken]
        result = {
            "first": options.first,
            "last": last,
            "cpu_seconds": each,
            "average": average,
            "broken": found,
        }
        print(json.dumps(result))
    else:
        for world in worlds:
            print(f"{world}: seeds {options.first} to {last}, {each[world]} CPU seconds each")
        print(f"{len(tasks):,} seeds, {average} CPU seconds each, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
