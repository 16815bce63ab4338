"""Measures the speed of each part of synrepl on this machine, and its ratio to other code in the same run.

Compare the ratios of one run: times of different runs, machines or loads cannot be compared. If
SYNREPL_PEER_PYTHON names the Python of a real Synapse (scripts/bench --peer sets it), Synapse's own classes
do the same work.

--compare measures the working tree and another commit in turn, and says which figures differ. Exit code 1:
a benchmark failed in the working tree, or nothing could be compared; 2: wrong arguments, or no such commit.
A slower figure is no failure.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scripts.bench_parts.comparison import (
    FEWEST_PAIRS,
    WORKING_TREE,
    BadCommit,
    Comparison,
    compare,
    measure_in,
    packages_of,
)
from scripts.bench_parts.measuring import Options, Result, number

PARTS: Final = {
    "follower": "following.follower",
    "follower-streams": "following_commands.follower_streams",
    "publisher": "publishing.publisher",
    "live": "publishing.live",
    "append": "appending.append",
    "http-append": "appending.http_append",
    "redis": "over_redis.redis",
    "resp": "over_resp.resp",
    "catch-up": "catching_up.catch_up",
    "replicas": "replicas.replicas",
    "cached": "caching.cached",
    "invalidation": "caching.invalidation",
    "ids": "allocating.ids",
    "tables": "from_tables.tables",
    "pipeline": "pipeline.pipeline",
    "idle": "idling.idle",
    "watch": "watching.watch",
    "growth": "growth.growth",
}
"""Each benchmark: its module in `bench_parts`, and its function."""

LONG: Final = ("pipeline", "growth")
"""Benchmarks that take minutes, and run only if named."""


def benchmark(name: str) -> Callable[[Options], Iterator[Result]]:
    """Import and return a benchmark. An older commit may lack what another one imports."""
    module, _, function = PARTS[name].partition(".")
    found: Callable[[Options], Iterator[Result]] = getattr(
        import_module(f"scripts.bench_parts.{module}"), function
    )
    return found


def main() -> int:
    """Run the chosen benchmarks, and print a table or one JSON object; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="store_true", help="let Synapse's own classes do the same work too")
    parser.add_argument("--quick", action="store_true", help="smaller inputs: some two minutes")
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="rows to send, follow and catch up with; of growth, the longest log",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(PARTS),
        help="run only this benchmark; may be repeated. Some take minutes, and run only if named:"
        f" {', '.join(LONG)}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    parser.add_argument(
        "--compare",
        metavar="REF",
        help="compare the working tree with this commit, in alternating pairs of runs",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        help=f"pairs of --compare, {FEWEST_PAIRS} or more [{FEWEST_PAIRS}, or as many as verdicts need]",
    )
    given = parser.parse_args()
    python = os.environ.get("SYNREPL_PEER_PYTHON", "")
    if given.peer and not python:
        parser.error("--peer needs SYNREPL_PEER_PYTHON; scripts/bench --peer sets it")
    if given.pairs is not None and given.compare is None:
        parser.error("--pairs goes with --compare")
    if given.pairs is not None and given.pairs < FEWEST_PAIRS:
        parser.error(f"--pairs must be {FEWEST_PAIRS} or more: fewer show only large differences")
    # SIGTERM ends the program as Ctrl-C does, so that servers are stopped and folders removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = list(dict.fromkeys(given.only or [name for name in PARTS if name not in LONG]))
    try:
        if given.compare is not None:
            return _compare(given, names)
        return _measure(given, names, Options(quick=given.quick, rows=given.rows, peer=python))
    except BadCommit as error:
        parser.error(f"--compare: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _console(*, stderr: bool = False, width: int = 110) -> Console:
    """Return a console; if it is no terminal, of this width."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = width
    return console


def _measure(given: argparse.Namespace, names: list[str], options: Options) -> int:
    console = _console(stderr=given.json)
    found: dict[str, list[Result]] = {}
    for name in names:
        with console.status(f"measuring: {name}"):
            found[name] = list(benchmark(name)(options))
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        console.print(_table(found))
    return 0


def _compare(given: argparse.Namespace, names: list[str]) -> int:
    arguments = ["--quick"] * given.quick + ["--peer"] * given.peer
    if given.rows is not None:
        arguments += ["--rows", str(given.rows)]

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with packages_of(given.compare) as sides:
        found = compare(measure_in(sides, arguments), names, given.pairs, say)
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print_comparison(found, given.compare)
    is_whole = all(one.failed_at != WORKING_TREE for one in found.uncompared)
    return 0 if found.figures and is_whole else 1


def _print_comparison(found: Comparison, ref: str) -> None:
    console = _console(width=150)
    table = Table("work", "", "unit", escape(ref), "working tree", "difference (interval)", "verdict")
    for column in table.columns[3:6]:
        column.justify = "right"
    colors = {"faster": "green", "less": "green", "slower": "red", "more": "red", None: "yellow"}
    above = ""
    for one in found.figures:
        if one.work != above:
            table.add_section()
        verdict = one.verdict or f"needs {found.pairs_needed} pairs"
        table.add_row(
            one.work if one.work != above else "",
            escape(one.what),
            one.unit,
            number(one.commit),
            number(one.working_tree),
            f"{one.percent:+z.1f} % ({one.low:+z.1f} to {one.high:+z.1f})",
            f"[{colors.get(one.verdict, 'default')}]{verdict}[/]",
        )
        above = one.work
    if found.figures:
        console.print(table)
        console.print(
            f"{found.pairs} pairs. Each interval holds at 95 %; the verdicts on {len(found.figures)} figures"
            " hold at 95 % together.",
            highlight=False,
        )
    for left_out in found.uncompared:
        where = {None: "not compared", WORKING_TREE: "not measured in the working tree"}.get(
            left_out.failed_at, f"not measured at {ref}"
        )
        line = f"{left_out.what}: {where}: {left_out.reason}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(found: dict[str, list[Result]]) -> Table:
    table = Table("work", "", "measured", "unit", "aim", "")
    table.columns[2].justify = table.columns[4].justify = "right"
    for name, results in found.items():
        for position, one in enumerate(results):
            verdict = {None: escape(one.note), True: "[green]ok[/]", False: "[red]short[/]"}[one.is_met]
            table.add_row(
                name if position == 0 else "",
                one.what,
                "" if one.value is None else number(one.value),
                one.unit,
                one.aim,
                verdict,
                end_section=position == len(results) - 1,
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
