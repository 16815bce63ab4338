"""Cuts the power of every store, and keeps a table of what became of it.

The loads are those of `tests/power`, and of `power_loads` below the tests of each room. Exit code 1 if
something that was acknowledged is lost, something is there twice, or a store does not open. Also if a disk
that does not sync is not noticed.

With --bits it flips bits at rest, so many in each kind of file, and checks what is then served.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

import tests.power
from scripts import again
from scripts.lib.declared import of_rooms
from tests.power.bits import BitTally, draw_flips, flip_bits, last_state
from tests.power.cuts import Tally, cut_power, draw, memory, unsynced
from tests.power.recording import record

LOADS: Final[Mapping[str, str]] = tests.power.LOADS | of_rooms("power_loads", "LOADS")
"""The module and class of the load on each store."""

SERVED: Final[Mapping[str, str]] = tests.power.SERVED | of_rooms("power_loads", "SERVED")
"""The module and class of each store whose bits are flipped."""

TABLE: Final = "build/power.jsonl"
BITS: Final = "build/bits.jsonl"
CONTROL: Final = "log without syncs"
"""The same journal of the log, as if the disk had ignored the syncs of files."""

Row = dict[str, Any]


def main(words: Sequence[str], root: Path = again.ROOT) -> int:
    """Return 0 if all is kept, 1 if something is not."""
    parser = argparse.ArgumentParser(prog="scripts/power", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(LOADS)} [default: all]")
    parser.add_argument("--cuts", type=int, default=1000, help="cuts of each store [default: 1000]")
    parser.add_argument("--seed", type=int, default=1, help="what loads and cuts are drawn from [default: 1]")
    parser.add_argument("--bits", type=int, help="flip so many bits of each kind of file instead")
    parser.add_argument("--table", action="store_true", help="show the table so far, and run nothing")
    given = parser.parse_args(words)
    stores = LOADS if given.bits is None else SERVED
    if unknown := [name for name in given.stores if name not in stores]:
        parser.error(f"unknown: {' '.join(unknown)}")
    if given.table:
        print_table(again.load(root, TABLE))
        print_bits(again.load(root, BITS))
        return 0
    rows: list[Row] = []
    if given.bits is not None:
        for store in given.stores or stores:
            rows += flip_store(store, given.bits, given.seed, root)
        print_bits(rows)
        return 1 if any(row["wrong"] or row["crashed"] for row in rows) else 0
    for store in given.stores or stores:
        rows += cut_store(store, given.cuts, given.seed, root)
    print_table(rows)
    return 0 if all(is_fine(row) for row in rows) else 1


def cut_store(store: str, cuts: int, seed: int, root: Path) -> list[Row]:
    """Record a load on this store, cut its power so often, and append the rows to the table."""
    home = memory()
    load = LOADS[store]
    head = {"commit": again.git(root, "rev-parse", "--short=12", "HEAD"), "seed": seed}
    print(f"{store}: {load}", flush=True)
    os.environ["SYNREPL_FIRST_SEED"] = str(seed)
    try:
        began = time.time()
        records = record(load, home / "load", home / "journal")
        found = cut_power(load, records, draw(records, cuts, seed), home / "cuts")
        rows = [_row(store, found, began, {**head, "records": len(records)})]
        if store == "log":
            began = time.time()
            records = unsynced(records)
            found = cut_power(load, records, draw(records, max(1, cuts // 10), seed), home / "control")
            rows.append(_row(CONTROL, found, began, {**head, "records": len(records)}))
    finally:
        shutil.rmtree(home)
    again.append(root, TABLE, rows)
    return rows


def flip_store(store: str, bits: int, seed: int, root: Path) -> list[Row]:
    """Record a load on this store, flip so many bits of each kind of its files, and append the rows."""
    home = memory()
    load = SERVED[store]
    module, _, name = load.partition(":")
    served = getattr(import_module(module), name)
    head = {"commit": again.git(root, "rev-parse", "--short=12", "HEAD"), "seed": seed}
    print(f"{store}: {load}", flush=True)
    os.environ["SYNREPL_FIRST_SEED"] = str(seed)
    rows = []
    try:
        state = last_state(record(load, home / "load", home / "journal"))
        for kind, patterns in served.KINDS.items():
            began = time.time()
            flips = draw_flips(state, patterns, bits, seed)
            while_open = kind in served.WHILE_OPEN
            tally = flip_bits(served, state, flips, home / kind, while_open=while_open)
            shutil.rmtree(home / kind)
            rows.append(_row(kind, tally, began, head))
    finally:
        shutil.rmtree(home)
    again.append(root, BITS, rows)
    return rows


def _row(store: str, tally: Tally | BitTally, began: float, head: Row) -> Row:
    counts = msgspec.to_builtins(tally)
    # The crashed ones first: each is a fault by itself.
    counts["failed"].sort(key=lambda one: one["outcome"] != "crashed")
    return {
        **head,
        "start": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "minutes": round((time.time() - began) / 60, 1),
        "store": store,
        **counts,
        "failed": counts["failed"][:5],
    }


def is_fine(row: Row) -> bool:
    """Whether this row is as it must be."""
    is_kept = row["kept"] == row["cuts"]
    return not is_kept if row["store"] == CONTROL else is_kept


def print_table(rows: Sequence[Row]) -> None:
    """Show a line for each store, and what was wrong."""
    columns = ("records", "cuts", "kept", "lost", "doubled", "refused", "wrong", "seed", "minutes")
    _print_columns(columns, rows)
    for row in rows:
        if not is_fine(row):
            for one in row["failed"]:
                print(f"{row['store']}: {json.dumps(one['cut'])} {one['outcome']}: {one['why']}", flush=True)


def print_bits(rows: Sequence[Row]) -> None:
    """Show a line for each kind of file."""
    columns = (
        "bytes",
        "bits",
        "refused",
        "meaningless",
        "doubted",
        "cut",
        "wrong",
        "unfound",
        "crashed",
        "seed",
        "minutes",
    )
    _print_columns(columns, rows)


def _print_columns(columns: Sequence[str], rows: Sequence[Row]) -> None:
    print(f"{'store':18}" + "".join(f"{name:>12}" for name in columns) + "  commit")
    for row in rows:
        print(
            f"{row['store']:18}"
            + "".join(f"{row.get(name, 0):>12}" for name in columns)
            + f"  {row['commit']}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
