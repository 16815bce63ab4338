"""Acknowledged means durable, and history stays whole, through SIGKILL at any moment."""

import os
import random
import subprocess
import sys
from pathlib import Path

from synrepl.storage import SQLiteEngine
from synrepl.streams.digest import EMPTY, verify
from tests.storage.builders import LogCase

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("SYNREPL_KILLS", "5"))
"""How often the process is killed; more for a longer look."""


class KillTests(LogCase):
    """A real process over a real file."""

    def acknowledged(self, path: Path, count: int) -> list[list[bytes]]:
        """Run the process, kill it after `count` answers, and give all the answers it gave."""
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.storage.writer_process", str(path)],
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

    def test_every_acknowledged_fact_outlives_a_kill(self) -> None:
        """This is the promise a homeserver builds on when it answers its own clients."""
        path = self.directory() / "synrepl.db"
        told: list[list[bytes]] = []

        for kill in range(1, KILLS + 1):
            told += self.acknowledged(path, random.randint(1, 1500))
            engine = SQLiteEngine(path)
            head = engine.open()
            facts, _ = engine.read(after=0, upto=head.serial, limit=10**9)
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
