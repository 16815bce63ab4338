"""Acknowledged means durable, and history stays whole, through SIGKILL at any moment."""

import os
import random
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from synrepl.storage.engine import SQLEngine
from synrepl.storage.lock import DatabaseFile
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.digest import EMPTY, verify
from tests.processes.loading import drawn_seed
from tests.storage.builders import LogCase, facts_after

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("SYNREPL_KILLS", "5"))
"""How often the process is killed; more for a longer look."""


class KillTests(LogCase):
    """A real process over a real file."""

    def acknowledged(self, path: Path, count: int, program: str = "writer") -> list[list[bytes]]:
        """Run the process, kill it after `count` answers, and give all the answers it gave."""
        child = subprocess.Popen(
            [sys.executable, "-m", f"tests.storage.{program}_process", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        with child:
            assert child.stdout is not None
            assert child.stderr is not None
            try:
                lines = [child.stdout.readline() for _ in range(count)]
            finally:
                child.kill()
            lines += child.stdout.readlines()
            self.assertEqual(b"", child.stderr.read())
        return [line.split() for line in lines if line.endswith(b"\n")]

    @pytest.mark.story
    def test_every_acknowledged_fact_outlives_a_kill(self) -> None:
        """This is the promise a homeserver builds on when it answers its own clients."""
        path = self.directory() / "synrepl.db"
        told: list[list[bytes]] = []
        chance = random.Random(drawn_seed())

        for kill in range(1, KILLS + 1):
            told += self.acknowledged(path, chance.randint(1, 1500))
            engine = SQLEngine(SQLiteDatabase(path))
            head = engine.open()
            facts, _ = engine.pages.facts(after=0, upto=head.serial, limit=10**9)
            engine.close()

            self.assertEqual(list(range(1, head.serial + 1)), [fact.serial for fact in facts])
            self.assertIsNone(verify(facts, EMPTY))
            self.assertEqual(2 * kill, head.boots)
            self.assertEqual(0, len(facts) % 2)
            for writer, serial, token, count in told:
                for half, fact in zip((b"first", b"second"), facts[int(serial) - 1 :][:2], strict=True):
                    self.assertEqual(b'[["%s",%s]]' % (half, count), fact.rows)
                    self.assertEqual(writer.decode(), fact.writer)
                self.assertEqual(int(token), facts[int(serial) - 1].token)
        self.assertGreater(len(told), KILLS)

    def test_the_next_start_works_wherever_a_life_is_cut_off(self) -> None:
        """What is noted beside the log must fit it while it is opened, closed, and replaced by a copy."""
        path = self.directory() / "synrepl.db"
        last = 0
        chance = random.Random(drawn_seed())

        for kill in range(4 * KILLS):
            told = self.acknowledged(path, chance.randint(0, 12) if kill else 1, "life")
            # The kill falls anywhere in what the process does next.
            last = max([last, *(int(line[0]) for line in told)])
            engine = SQLEngine(SQLiteDatabase(path))
            head = engine.open()
            facts, _ = engine.pages.facts(after=0, upto=head.serial, limit=10**9)
            engine.close()

            self.assertGreaterEqual(head.serial, last)
            self.assertEqual(list(range(1, head.serial + 1)), [fact.serial for fact in facts])
            self.assertIsNone(verify(facts, EMPTY))

    def test_each_moment_of_a_life_leaves_a_log_that_opens(self) -> None:
        """All states of the directory in between are opened as the next process would open them."""
        # The copies below stand for the file itself.
        self.patch(DatabaseFile, "inode", "7")
        folder = self.directory() / "log"
        folder.mkdir()
        path = folder / "synrepl.db"
        facts = facts_after(None, *(("events", "w1", n - 1, n) for n in range(1, 7)))
        states: list[tuple[Path, int]] = []
        seen: set[object] = set()
        durable = 0

        def look() -> None:
            files = frozenset((one.name, *_signature(one)) for one in folder.iterdir())
            if files not in seen:
                seen.add(files)
                states.append((self.directory() / "state", durable))
                # In another process: who closes a file here loses SQLite's locks on it.
                subprocess.run(["cp", "-a", folder, states[-1][0]], check=True)

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if "synrepl/storage" not in frame.f_code.co_filename:
                return None
            look()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for life in range(2):
                engine = SQLEngine(SQLiteDatabase(path))
                engine.open()
                for fact in facts[3 * life : 3 * life + 3]:
                    engine.commit([fact], [])
                    durable = fact.serial
                engine.check()
                copy = engine.staging()
                copy.open()
                copy.commit(facts[:durable], [])
                copy.close()
                engine.adopt_staged()
                engine.check()
                engine.close()
        finally:
            sys.settrace(before)
        look()

        for state, serial in states:
            for _ in range(2):
                engine = SQLEngine(SQLiteDatabase(state / "synrepl.db"))
                head = engine.open()
                found, _ = engine.pages.facts(after=0, upto=head.serial, limit=10**9)
                engine.close()
                self.assertGreaterEqual(head.serial, serial)
                self.assertEqual(facts[: head.serial], found)
        self.assertGreater(len(states), 50)


def _signature(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns
