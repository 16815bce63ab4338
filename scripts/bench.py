"""Measures the speed of each part of synrepl on this machine, and its ratio to other code in the same run.

Compare the ratios of one run: times of different runs, machines or loads cannot be compared. If
SYNREPL_PEER_PYTHON names the Python of a real Synapse (scripts/bench --peer sets it), Synapse's own classes
do the same work.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

from scripts.bench_parts.allocating import ids  # noqa: E402  # after the path
from scripts.bench_parts.appending import append, http_append  # noqa: E402
from scripts.bench_parts.caching import cached, invalidation  # noqa: E402
from scripts.bench_parts.catching_up import catch_up  # noqa: E402
from scripts.bench_parts.following import follower  # noqa: E402
from scripts.bench_parts.following_commands import follower_streams  # noqa: E402
from scripts.bench_parts.from_tables import tables  # noqa: E402
from scripts.bench_parts.idling import idle  # noqa: E402
from scripts.bench_parts.measuring import Options, Result  # noqa: E402
from scripts.bench_parts.over_redis import redis  # noqa: E402
from scripts.bench_parts.over_resp import resp  # noqa: E402
from scripts.bench_parts.pipeline import pipeline  # noqa: E402
from scripts.bench_parts.publishing import live, publisher  # noqa: E402
from scripts.bench_parts.replicas import replicas  # noqa: E402
from scripts.bench_parts.watching import watch  # noqa: E402

PARTS: Final[dict[str, Callable[[Options], Iterator[Result]]]] = {
    "follower": follower,
    "follower-streams": follower_streams,
    "publisher": publisher,
    "live": live,
    "append": append,
    "http-append": http_append,
    "redis": redis,
    "resp": resp,
    "catch-up": catch_up,
    "replicas": replicas,
    "cached": cached,
    "invalidation": invalidation,
    "ids": ids,
    "tables": tables,
    "pipeline": pipeline,
    "idle": idle,
    "watch": watch,
}


def main() -> None:
    """Run the chosen benchmarks, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="store_true", help="let Synapse's own classes do the same work too")
    parser.add_argument("--quick", action="store_true", help="smaller inputs: under half a minute")
    parser.add_argument("--rows", type=int, metavar="N", help="rows to send, follow and catch up with")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(PARTS),
        help="run only this benchmark; may be repeated. The pipeline takes minutes, and runs only if named",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    python = os.environ.get("SYNREPL_PEER_PYTHON", "")
    if given.peer and not python:
        parser.error("--peer needs SYNREPL_PEER_PYTHON; scripts/bench --peer sets it")
    options = Options(quick=given.quick, rows=given.rows, peer=python)

    console = Console(stderr=given.json)
    if not console.is_terminal:
        console.width = 110
    found: dict[str, list[Result]] = {}
    for name in given.only or [name for name in PARTS if name != "pipeline"]:
        with console.status(f"measuring: {name}"):
            found[name] = list(PARTS[name](options))
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        console.print(_table(found))


def _table(found: dict[str, list[Result]]) -> Table:
    table = Table("work", "", "measured", "unit", "aim", "")
    table.columns[2].justify = table.columns[4].justify = "right"
    for name, results in found.items():
        for position, one in enumerate(results):
            verdict = {None: "", True: "[green]ok[/]", False: "[red]short[/]"}[one.is_met]
            table.add_row(
                name if position == 0 else "",
                one.what,
                _number(one.value),
                one.unit,
                one.aim,
                verdict,
                end_section=position == len(results) - 1,
            )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
