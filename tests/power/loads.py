"""Loads on the log: what is asked of it until the power is cut, and what must be there after it."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from synrepl.base.history import Lease
from synrepl.replication.retention import keys_of
from synrepl.storage.engine import SQLEngine
from synrepl.storage.lock import DatabaseFile
from synrepl.storage.log import Log
from synrepl.storage.sqlite import SQLiteDatabase
from tests.crash.scenarios import TABLE, Acknowledge, Acknowledged, LogScenario, Scenario, done
from tests.power.facts import check_log
from tests.processes.loading import drawn_seed

__all__ = ["LogLoad"]

STREAMS: Final = ("to_device", "push_rules", "receipts")
WRITERS: Final = ("w1", "w2", "w3")


class LogLoad(Scenario):
    """A log on SQLite in one process: appends of all kinds, leases, epochs, trimming, restarts and copies.

    Each is drawn by the seed of `drawn_seed`.
    """

    STEPS = 500
    WEIGHTS: ClassVar[Mapping[str, int]] = {
        "append": 60,
        "append again": 8,
        "atomic append": 12,
        "lease": 6,
        "epoch": 2,
        "trim": 4,
        "check": 8,
        "restart": 3,
        "copy": 1,
    }
    """How often each kind of step is made, compared with the others."""

    AFTER: Final = 10**6
    """The first number of facts that are sent after the cut."""

    def engine(self) -> SQLEngine:
        """The engine, not open."""
        self.position.mkdir(parents=True, exist_ok=True)
        return SQLEngine(_ImagedDatabase(self.position / "synrepl.db"))

    def run(self, acknowledge: Acknowledge) -> None:
        LogRun(self, acknowledge, drawn_seed()).run(self.STEPS)

    def check(self, acknowledged: Sequence[Acknowledged]) -> None:
        engine = self.engine()
        engine.open()
        check_log(engine, acknowledged)
        engine.close()
        # And goes on.
        said = list(acknowledged)
        LogRun(self, said.append, 1, first=self.AFTER).run(5)
        engine = self.engine()
        engine.open()
        check_log(engine, said)
        engine.close()


class _ImagedFile(DatabaseFile):
    inode = "1"


class _ImagedDatabase(SQLiteDatabase):
    """A log of which the disk's image is opened elsewhere: in the image a file keeps its inode."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = _ImagedFile(path, note=True)


class LogRun:
    """One process' use of the log."""

    def __init__(self, load: LogLoad, acknowledge: Acknowledge, seed: int, *, first: int = 1) -> None:
        self._load = load
        self._acknowledge = acknowledge
        self._chance = random.Random(seed)
        self._number = first
        self._keyed: list[tuple[str, str, list[bytes], str, Any]] = []
        self._log: Log
        self._engine: SQLEngine

    def run(self, steps: int) -> None:
        """Make so many steps."""
        self._start()
        kinds = {
            "append": self._append,
            "append again": self._append_again,
            "atomic append": self._append_atomic,
            "lease": self._keep_lease,
            "epoch": self._begin_epoch,
            "trim": self._trim,
            "check": self._check,
            "restart": self._restart,
            "copy": self._replace_by_a_copy,
        }
        weights = self._load.WEIGHTS
        for kind in self._chance.choices(list(weights), list(weights.values()), k=steps):
            kinds[kind]()
        done(self._log.stop())

    def _start(self) -> None:
        self._engine = self._load.engine()
        self._log = LogScenario._log(self._engine)
        done(self._log.start())

    def _made(self, stream: str) -> list[bytes]:
        """The facts of a request; those of receipts replace each other."""
        found = []
        for _ in range(self._chance.choice((1, 1, 1, 2, 5, 12))):
            mark = f"~{self._number}~" + "x" * self._chance.choice((0, 0, 100, 3_000))
            row: list[Any] = [f"@{mark}:a"]
            if stream == "receipts":
                row = ["!r:a", "m.read", f"@{self._number % 5}:a", f"${mark}:a", None, {}]
            found.append(TABLE[stream].canonical_fact([row] * self._chance.choice((1, 1, 3))))
            self._number += 1
        return found

    def _sending(self, first: int) -> None:
        self._acknowledge(("sending", list(range(first, self._number))))

    def _append(self) -> None:
        stream, writer, first = self._chance.choice(STREAMS), self._chance.choice(WRITERS), self._number
        facts = self._made(stream)
        key = f"key {first}" if self._chance.random() < 0.5 else None
        self._sending(first)
        appended = done(self._log.append(stream, writer, facts, key=key))
        self._acknowledge(("append", [first, [appended.first_serial + at for at in range(len(facts))]]))
        if key is not None:
            self._keyed.append((stream, writer, facts, key, appended))

    def _append_again(self) -> None:
        if self._keyed:
            stream, writer, facts, key, appended = self._chance.choice(self._keyed)
            assert appended == done(self._log.append(stream, writer, facts, key=key))

    def _append_atomic(self) -> None:
        first = self._number
        given = [(stream, self._chance.choice(WRITERS), self._made(stream)) for stream in STREAMS[:2]]
        self._sending(first)
        parts = done(self._log.append_atomic(given, key=f"atomic {first}"))
        serials = [part.first_serial + at for part in parts for at in range(len(part.tokens))]
        self._acknowledge(("append", [first, serials]))

    def _keep_lease(self) -> None:
        uuid = f"lease {self._number}"
        done(self._log.keep_leases([Lease(uuid=uuid, name=uuid, registered=True, serial=1, made_ms=1)]))
        self._acknowledge(("lease", uuid))

    def _begin_epoch(self) -> None:
        done(self._log.epochs.begin_next("promoted"))
        self._acknowledge(("epoch", self._log.head.epoch))

    def _trim(self) -> None:
        upto = self._log.head.serial * 2 // 3
        if upto > self._log.head.trimmed_upto.serial:
            done(self._log.trim(upto, keys_of(TABLE), 50))
            self._acknowledge(("trimmed_upto", self._log.head.trimmed_upto.serial))

    def _check(self) -> None:
        """As the daemon does every five seconds; the state file then says how far the log has come."""
        self._engine.check()

    def _restart(self) -> None:
        done(self._log.stop())
        self._start()

    def _replace_by_a_copy(self) -> None:
        LogScenario._replace_by_a_copy(self._engine)
        self._restart()
