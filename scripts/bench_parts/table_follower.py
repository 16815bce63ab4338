"""Follows a table-backed stream over TCP, while a second process writes to the table.

python -m scripts.bench_parts.table_follower --url URL --follow PORT --http PORT [--seconds S] [--rate ROWS]
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Final

from twisted.enterprise.adbapi import ConnectionPool
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.task import deferLater

from scripts.bench_parts.children import print_and_stop, reactor
from synrepl import Follower, Updates, connect
from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import transact
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.streams.table import StreamTable

__all__ = ["CONFIG", "STREAM"]

STREAM: Final = IdStream(
    name="receipts",
    sequence="receipts_sequence",
    tables=(IdTable(name="receipts_linearized"),),
    writers=("bench",),
)
CONFIG: Final = {
    "stream": "receipts",
    "table": "receipts_linearized",
    "row": ["room_id", {"value": "m.read"}, "user_id", "event_id", None, {"json": "data"}],
    "sequence": STREAM.sequence,
    "writers": ["bench"],
    "start": "earliest",
}
INSERT: Final = (
    "INSERT INTO receipts_linearized VALUES (%s, 'bench', '!room:here', '@user:here', %s, '{\"ts\": 1}')"
)
CONNECTIONS: Final = 4
ROWS_AT_ONCE: Final = 20
PATIENCE_SECONDS: Final = 60


def main() -> None:
    """Follow; with `--write`, write to the table in the second process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--follow", type=int, default=0)
    parser.add_argument("--http", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rate", type=int, default=0, help="rows a second; 0: as many as possible")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    work = _write if options.write else _follow
    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(work(options)).addBoth(print_and_stop))
    reactor.run()


async def _follow(options: argparse.Namespace) -> dict[str, float]:
    ages: list[int] = []
    last = time.monotonic()
    follower = Follower(instance="bench-follower", start="earliest")

    @follower.on(StreamTable.default()["receipts"])
    def apply(updates: Updates[Any]) -> None:
        nonlocal last
        now = time.monotonic_ns()
        last = now / 1e9
        ages.extend(now - int(row.event_id[1:]) for row in updates.rows)

    service = connect(
        reactor, f"tcp:127.0.0.1:{options.follow}", follower, http=f"http://127.0.0.1:{options.http}"
    )
    service.startService()
    command = [sys.executable, "-m", "scripts.bench_parts.table_follower", "--write", "--url", options.url]
    command += ["--seconds", str(options.seconds), "--rate", str(options.rate)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while writer.poll() is None:
        await deferLater(reactor, 0.05)
    written: dict[str, float] = json.loads(writer.communicate()[0].splitlines()[-1])
    until = time.monotonic() + PATIENCE_SECONDS
    while len(ages) < written["rows"]:
        assert time.monotonic() < until, f"{len(ages)} rows of {written['rows']:.0f} arrived"
        await deferLater(reactor, 0.05)
    await maybeDeferred(service.stopService)
    assert len(ages) == written["rows"], "rows came twice"
    ages.sort()
    return {
        "written_per_second": written["rows"] / (written["ended"] - written["begun"]),
        "applied_per_second": len(ages) / (last - written["begun"]),
        "p50_ms": ages[len(ages) // 2] / 1e6,
        "p99_ms": ages[len(ages) * 99 // 100] / 1e6,
    }


async def _write(options: argparse.Namespace) -> dict[str, float]:
    """Write one row a transaction at `rate`; with rate 0, 20 rows a transaction on 4 connections."""
    pool = ConnectionPool("psycopg", options.url, cp_reactor=reactor, cp_min=CONNECTIONS, cp_max=CONNECTIONS)
    ids = MultiWriterIdGenerator(pool, STREAM, instance="bench", flavor="postgresql", clock=reactor)
    await ids.start()
    rows = 0

    async def write(count: int) -> None:
        nonlocal rows

        def work(transaction: Any) -> None:
            with ids.within(transaction, count) as tokens:
                for token in tokens:
                    transaction.execute(INSERT, (token, f"${time.monotonic_ns()}"))

        await transact(pool, work)
        rows += count

    begun = time.monotonic()
    until = begun + options.seconds

    async def write_on() -> None:
        while time.monotonic() < until:
            await write(ROWS_AT_ONCE)

    if options.rate:
        under_way: list[Deferred[None]] = []
        while time.monotonic() < until:
            due = int((time.monotonic() - begun) * options.rate)
            under_way += [Deferred.fromCoroutine(write(1)) for _ in range(len(under_way), due)]
            await deferLater(reactor, 0.001)
        await gatherResults(under_way)
    else:
        await gatherResults([Deferred.fromCoroutine(write_on()) for _ in range(CONNECTIONS)])
    ended = time.monotonic()
    # The last position is being stored.
    while ids.unfinished() or ids._is_saving:
        await deferLater(reactor, 0.01)
    pool.close()
    return {"rows": rows, "begun": begun, "ended": ended}


if __name__ == "__main__":
    main()
