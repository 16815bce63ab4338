"""Runs seeds of the simulations, and prints the CPU seconds of each world.

The worlds are those of `tests/simulation`, such as `workers` (a daemon and its followers) and `broker`
(daemons among Synapse's processes on a Redis), and those of `simulation` below the tests of each room. Exit
code 1 if a seed broke a guarantee.

With --continue each world goes on behind its last seed in the table `tests/simulation/tried.jsonl`. Each
piece that was run to its end is a line there, with the commit and the CPU seconds.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
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

TRIED: Final = ROOT / "tests" / "simulation" / "tried.jsonl"
"""The table of seeds that were tried: a line for each piece, in the order in which they were."""

PIECE_SEEDS: Final = 250
"""The number of seeds of one world in a piece: a run that is cut loses no more."""

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


class Piece(NamedTuple):
    """Consecutive seeds of one world that were run to the end, on one commit; `broken` are those of them that
    broke a guarantee."""

    commit: str
    world: str
    first: int
    seeds: int
    cpu_seconds: float
    broken: list[int]


def tried(table: Path = TRIED) -> list[Piece]:
    """Return the table of seeds that were tried."""
    lines = table.read_text("utf-8").splitlines() if table.exists() else []
    return [Piece(**json.loads(line)) for line in lines]


def pieces_to_try(table: list[Piece], worlds: list[str], seeds: int) -> list[tuple[str, int, int]]:
    """Return world, first seed and number of seeds of the next pieces; the worlds take turns."""
    behind = {
        world: max((one.first + one.seeds for one in table if one.world == world), default=1)
        for world in worlds
    }
    return [
        (world, behind[world] + done, min(PIECE_SEEDS, seeds - done))
        for done in range(0, seeds, PIECE_SEEDS)
        for world in worlds
    ]


def commit_here() -> str:
    """Return the commit of the checkout, with ``+`` if it is not all of what is run."""
    git = ("git", "-C", str(ROOT))
    commit = subprocess.run(
        (*git, "rev-parse", "--short=8", "HEAD"), capture_output=True, text=True, check=True
    )
    changes = (*git, "status", "--porcelain", "--", "synrepl", "tests", f":!{TRIED.relative_to(ROOT)}")
    changed = subprocess.run(changes, capture_output=True, text=True, check=True)
    return commit.stdout.strip() + ("+" if changed.stdout else "")


def go_on(worlds: list[str], seeds: int, jobs: int, table: Path = TRIED) -> int:
    """Run the next seeds of each world, and add them to the table; return the exit code."""
    commit, found = commit_here(), False
    for world, first, count in pieces_to_try(tried(table), worlds, seeds):
        ended = list(outcomes([(world, first + number) for number in range(count)], jobs))
        for outcome in (broken := [one for one in ended if one.broken]):
            print(f"{outcome.world} {outcome.seed}: {outcome.broken}", file=sys.stderr)
        numbers = sorted(one.seed for one in broken)
        spent = round(sum(one.seconds for one in ended), 1)
        piece = Piece(commit, world, first, count, spent, numbers)
        with table.open("a", encoding="utf-8") as file:
            file.write(json.dumps(piece._asdict()) + "\n")
        print(
            f"{world}: seeds {first} to {first + count - 1}, {spent} CPU seconds, {len(broken)} broken",
            flush=True,
        )
        found = found or bool(broken)
    print_tried(tried(table))
    return 1 if found else 0


def print_tried(table: list[Piece]) -> None:
    """Print how many seeds of each world were tried, on how many commits, and how many broke a guarantee."""
    for world in dict.fromkeys(one.world for one in table):
        of_world = [one for one in table if one.world == world]
        seconds = sum(one.cpu_seconds for one in of_world)
        broken = sum(len(one.broken) for one in of_world)
        count, commits = sum(one.seeds for one in of_world), len({one.commit for one in of_world})
        spent = f"{seconds:,.0f} CPU seconds"
        print(f"{world}: {count:,} seeds on {commits} commits, {spent}, {broken} broken")
    print(f"{sum(one.seeds for one in table):,} seeds in all")


def main() -> int:
    """Run the seeds that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=f"any of {', '.join(WORLDS)} [all]")
    parser.add_argument("--seeds", type=int, default=1_000, help="the number of seeds of each world [1000]")
    parser.add_argument("--first", type=int, default=1, help="the first seed [1]")
    parser.add_argument(
        "--continue", action="store_true", dest="goes_on", help="go on behind the last seeds of the table"
    )
    parser.add_argument("--tried", action="store_true", help="print what the table has, and run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes [one for each core]")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse_args()
    worlds = options.worlds or list(WORLDS)
    if unknown := sorted(set(worlds) - set(WORLDS)):
        parser.error(f"no such world: {', '.join(unknown)}; there are {', '.join(WORLDS)}")
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are 1 or more")
    if options.tried:
        print_tried(tried())
        return 0
    if options.goes_on:
        return go_on(worlds, options.seeds, options.jobs)
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
