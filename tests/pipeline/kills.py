"""The archive job as a process of its own, which can be killed at a point, or at any time."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from tests.pipeline.clusters import QUICK
from tests.service.processes import ROOT

__all__ = ["ArchiveProcess"]

PATIENCE_SECONDS: Final = 300.0

PROGRAM: Final = """
import json, os, signal, sys
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.session import session
from synrepl.pipeline.store import Store

url, place, facts, point, count, remote, conf = sys.argv[1:]
seen = 0

def at(now):
    global seen
    print(now, flush=True)
    if now == point:
        seen += 1
        if seen == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

if point in ("request", "answer"):
    # The server kills.
    os.environ["AWS_ACCESS_KEY_ID"] = f"kill-{point}-{count}-{os.getpid()}"
if remote:
    spark = session(app="archive", remote=remote)
else:
    spark = session(app="archive", master="local[2]", conf=json.loads(conf))
print("started", flush=True)
done = archive(spark, url, Store(place), batch_facts=int(facts), at=at)
print("done", done.serial, flush=True)
"""


class ArchiveProcess:
    """One run, with a Spark of its own or on the Connect server `remote`.

    It prints ``started``, ``data`` and ``commit`` for each batch, and ``done``.

    It is killed at the point ``data`` or ``commit`` of the batch `count`, or by the server of
    `object_stores.s3_bucket` at the point ``request`` or ``answer`` of its commit.
    """

    def __init__(
        self,
        url: str,
        position: Path | str,
        *,
        batch_facts: int,
        point: str = "",
        count: int = 1,
        remote: str = "",
    ) -> None:
        settings = [str(batch_facts), point, str(count), remote, json.dumps(QUICK)]
        arguments = [url, str(position), *settings]
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # What it starts goes with it.
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, word: str, *, times: int = 1) -> None:
        """Until it has said so; or has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    sum(line.startswith(word) for line in self.lines) >= times
                    or self._process.poll() is not None
                ),
                PATIENCE_SECONDS,
            )

    def kill_after(self, seconds: float) -> None:
        """Kill it, and all that it started, so long after now; sooner if it ends by itself."""
        with self._changed:
            self._changed.wait_for(lambda: self._process.poll() is not None, seconds)
        self.kill()

    def kill(self) -> None:
        """End it and all that it started, now."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Until it has ended; gives the exit code. Raises `subprocess.TimeoutExpired`."""
        code = self._process.wait(seconds)
        self._thread.join(PATIENCE_SECONDS)
        return code
