"""Appends to one log on disk by writers that wait for each answer.

python -m scripts.bench_parts.log_writers [--writers N] [--seconds S] [--row-bytes N] [--folder FOLDER]
"""

import argparse
import sqlite3
import tempfile
import time
from pathlib import Path

from twisted.internet.defer import Deferred, gatherResults

from scripts.bench_parts.children import open_log, print_and_stop, reactor
from scripts.bench_parts.measuring import EVENT, event
from synrepl.storage.log import Log


def main() -> None:
    """Measure appends to an empty log, or to the one in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--row-bytes", type=int, default=0)
    parser.add_argument("--folder", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synrepl-bench-") as empty:
        Deferred.fromCoroutine(_run(options.folder or empty, options)).addBoth(print_and_stop)
        reactor.run()


async def _run(folder: str, options: argparse.Namespace) -> dict[str, float]:
    log = await open_log(folder)
    facts = [b"[%s]" % event(options.row_bytes)]
    before, started = log.head.serial, time.monotonic()
    until = started + options.seconds
    await gatherResults([Deferred.fromCoroutine(_write(log, facts, until)) for _ in range(options.writers)])
    found = {"facts_per_second": (log.head.serial - before) / (time.monotonic() - started)}
    await log.stop()
    if options.writers == 1:
        found["bare_per_second"] = _bare(Path(folder, "bare.db"), options.seconds / 2)
    return found


async def _write(log: Log, facts: list[bytes], until: float) -> None:
    while time.monotonic() < until:
        await log.append("events", "master", facts)


def _bare(path: Path, seconds: float) -> float:
    """Return the synced commits per second of bare SQLite, with one insert each: the limit of the disk."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE facts (serial INTEGER PRIMARY KEY, rows BLOB)")
    commits, started = 0, time.monotonic()
    while time.monotonic() < started + seconds:
        database.execute("INSERT INTO facts (rows) VALUES (?)", (EVENT,))
        commits += 1
    found = commits / (time.monotonic() - started)
    database.close()
    return found


if __name__ == "__main__":
    main()
