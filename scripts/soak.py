"""Runs a piece of the soak, and keeps a table of all pieces.

A primary, its replica and a replica of that, the RESP port, and followers by lines that come and go, while
daemons are killed, disks are full, clocks jump, logs are trimmed, and a primary loses facts (`tests/soak`).
The folder stays, so that pieces add up: the table has the hours so far. Exit code 1 if an acknowledged fact
is lost or doubled, or a restarted replica was ready with another history than its upstream's.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scripts import again
from tests.soak.piece import Outcome, Piece

TABLE: Final = "build/soak.jsonl"
FOLDER: Final = "build/soak"
STATE: Final = "state.json"

Row = dict[str, Any]


def main(words: Sequence[str], root: Path = again.ROOT) -> int:
    """Return 0 if all is well, 1 if something is not."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long [default: 60]")
    parser.add_argument("--followers", type=int, default=5_000, help="followers by lines [default: 5000]")
    parser.add_argument("--rate", type=float, default=10.0, help="facts a second [default: 10]")
    parser.add_argument("--seed", type=int, help="what trouble is drawn from [default: another each time]")
    parser.add_argument("--table", action="store_true", help="show the table so far, and run nothing")
    given = parser.parse_args(words)
    rows = again.load(root, TABLE)
    if given.table:
        print_table(rows)
        return 0
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    seed = random.randrange(10**6) if given.seed is None else given.seed
    state_path = folder / STATE
    state = json.loads(state_path.read_text()) if state_path.exists() else {}
    began = time.time()
    piece = Piece(
        folder,
        given.minutes * 60,
        followers=given.followers,
        rate=given.rate,
        seed=seed,
        state=state,
        say=lambda text: print(f"{time.time() - began:7.1f} s {text}", flush=True),
    )
    try:
        piece.run()
    except Exception as error:
        piece.outcome.trouble.append(f"{type(error).__name__}: {error}"[:2_000])
    row = row_of(piece.outcome, root, began=began, seed=seed, rows=rows)
    again.append(root, TABLE, [row])
    state_path.write_text(json.dumps(state))
    print_table([row])
    return 1 if row["trouble"] else 0


def row_of(outcome: Outcome, root: Path, *, began: float, seed: int, rows: Sequence[Row]) -> Row:
    """Return the row of a piece that began at this Unix time and has just ended, behind these rows."""
    minutes = (time.time() - began) / 60
    return {
        "commit": again.git(root, "rev-parse", "--short=12", "HEAD"),
        "start": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "minutes": round(minutes, 1),
        "hours": round((sum(one["minutes"] for one in rows) + minutes) / 60, 2),
        **asdict(outcome),
    }


def print_table(rows: Sequence[Row]) -> None:
    """Show some lines for each piece."""
    for row in rows:
        usage = "; ".join(
            f"{name} {'-'.join(map(str, used['mib']))} MiB, {'-'.join(map(str, used['descriptors']))} fds"
            for name, used in row["usage"].items()
        )
        followers = row["followers"]
        print(
            f"{row['start']}  {row['commit']}  seed {row['seed']}  {row['minutes']} min of {row['hours']} h:"
            f" {row['facts']} facts, {row['restarts']} restarts, {row['restores']} put back"
            f" ({row['given_up']} facts given up), {row['full_disks']} full disks,"
            f" {row['clock_jumps']} clock jumps, trimmed up to {row['trimmed_upto']};"
            f" lost {row['lost']}, doubled {row['doubled']}\n"
            f"    ready: {row['became_ready']} times, not yet: {row['not_ready_answers']} answers\n"
            f"    followers: {followers.get('connected')} connected, {followers.get('rows')} rows,"
            f" lost {followers.get('lost')}, doubled {followers.get('doubled')};"
            f" RESP: {row['resp_messages']} messages\n"
            f"    at begin, calm and end: {usage}",
            flush=True,
        )
        for trouble in row["trouble"]:
            print(f"    TROUBLE: {trouble}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
