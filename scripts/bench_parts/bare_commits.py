"""Commits of facts to the tables of a log, synced, by SQLite alone: what the disk and the tables allow.

python -m scripts.bench_parts.bare_commits [--facts N] [--seconds S]
"""

import argparse
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from scripts.bench_parts.measuring import EVENT
from synrepl.storage.checked_rows import FACT_COLUMNS
from synrepl.storage.engine import HIGHER
from synrepl.storage.schema import POSITIONS, migrations


def main() -> None:
    """Commit groups of facts one after the other, and print how many facts a second that is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as folder:
        print(json.dumps({"facts_per_second": _commit(Path(folder), options.facts, options.seconds)}))


def _commit(folder: Path, facts: int, seconds: float) -> float:
    insert = f"INSERT INTO facts ({FACT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    rows, at_ms, digest, done = b"[%s]" % EVENT, 1_700_000_000_000, "0" * 64, 0
    with closing(sqlite3.connect(folder / "bare.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        for statement in (one for step in migrations("sqlite") for one in step):
            database.execute(statement)
        started = time.monotonic()
        while time.monotonic() < started + seconds:
            group = [
                (serial, 1, "events", "master", serial - 1, serial, rows, at_ms, digest)
                for serial in range(done + 1, done + facts + 1)
            ]
            done += facts
            database.execute("BEGIN IMMEDIATE")
            database.executemany(insert, group)
            POSITIONS.put(database, [("events", "master", done)], where=HIGHER)
            database.execute("COMMIT")
        return done / (time.monotonic() - started)


if __name__ == "__main__":
    main()
