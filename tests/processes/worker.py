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

from synrepl import Follower, StreamTable, Updates, connect
from synrepl.ports.interfaces import SaveablePosition

STREAMS = ("events", "receipts", "to_device")


class Effects:
    """An `IPositionStore` whose positions move with the effects, never by themselves."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        # A kill takes nothing back that the system was given; only a power cut would.
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS effects (stream TEXT, writer TEXT, token INTEGER, rows TEXT)"
        )
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS positions"
            " (stream TEXT, writer TEXT, token INTEGER, PRIMARY KEY (stream, writer))"
        )

    def load(self) -> SaveablePosition:
        """What was committed with the effects."""
        found: SaveablePosition = {}
        for stream, writer, token in self._database.execute("SELECT stream, writer, token FROM positions"):
            found.setdefault(stream, {})[writer] = token
        return found

    def save(self, positions: SaveablePosition) -> None:
        """Done already, with each effect."""

    def apply(self, updates: Updates[Any]) -> None:
        """The effect, and that it happened."""
        rows = repr(updates.rows)
        self._database.execute("BEGIN IMMEDIATE")
        self._database.execute(
            "INSERT INTO effects VALUES (?, ?, ?, ?)", (updates.stream, updates.writer, updates.token, rows)
        )
        self._database.execute(
            "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)",
            (updates.stream, updates.writer, updates.token),
        )
        self._database.execute("COMMIT")
        self._say(type="rdata", stream=updates.stream, writer=updates.writer, token=updates.token, rows=rows)

    @staticmethod
    def _say(**line: Any) -> None:
        os.write(1, json.dumps(line).encode() + b"\n")


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
