"""A worker as one writes it with the library: its effects and its positions, in one SQLite transaction.

Run with the address of the daemon, its HTTP address, and the path of the worker's own database. Tells each
fact on standard output after its commit, as `synrepl tail` would; its end is a kill.
"""

import json
import os
import sqlite3
import sys
from typing import Any

from twisted.internet import reactor

from synrepl import Follower, SQLPositions, StreamTable, Updates, connect

STREAMS = ("events", "receipts", "to_device")


class Effects(SQLPositions):
    """The effects, and the positions that are committed with them; then the facts are told."""

    def __init__(self, path: str) -> None:
        database = sqlite3.connect(path)
        database.execute("PRAGMA journal_mode = WAL")
        # A kill takes nothing back that the system was given; only a power cut would.
        database.execute("PRAGMA synchronous = OFF")
        database.execute(
            "CREATE TABLE IF NOT EXISTS effects (stream TEXT, writer TEXT, token INTEGER, rows TEXT)"
        )
        super().__init__(database)
        self._lines: list[bytes] = []

    def save(self, positions: dict[str, dict[str, int]]) -> None:
        """Commit, and tell what was applied until now."""
        super().save(positions)
        for line in self._lines:
            os.write(1, line)
        self._lines.clear()

    def apply(self, updates: Updates[Any]) -> None:
        """The effect."""
        fact = (updates.stream, updates.writer, updates.token, repr(updates.rows))
        with self.atomic() as cursor:
            cursor.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", fact)
        line = dict(zip(("stream", "writer", "token", "rows"), fact, strict=True))
        self._lines.append(json.dumps({"type": "rdata", **line}).encode() + b"\n")


def main(endpoint: str, http: str, path: str) -> None:
    """Follow until killed."""
    effects = Effects(path)
    table = StreamTable.default()
    follower = Follower(instance="worker", positions=effects, start="earliest")
    for name in STREAMS:
        follower.on(table[name])(effects.apply)
    service = connect(reactor, f"tcp:{endpoint}", follower, http=http)
    run: Any = reactor
    run.callWhenRunning(service.startService)
    run.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
