"""Jobs as processes of their own, which can be killed at a point, or at any time."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final, Literal

from tests.pipeline.clusters import QUICK
from tests.service.processes import ROOT

__all__ = ["ArchiveProcess", "Engine", "JobProcess", "LocalProcess"]

Engine = Literal["local", "spark"]

PATIENCE_SECONDS: Final = 300.0

PROGRAM: Final = """
import json, os, signal, sys
from synrepl.pipeline.archive.archive import archive
from synrepl.pipeline.store import Store

url, place, facts, point, count, engine, remote, conf = sys.argv[1:]
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
if engine == "local":
    from synrepl.pipeline.local import LocalDriver
    runner = LocalDriver(threads=2)
else:
    from synrepl.pipeline.session import session
    where = {"remote": remote} if remote else {"master": "local[2]", "conf": json.loads(conf)}
    runner = session(app="archive", **where)
print("started", flush=True)
done = archive(runner, url, Store(place), batch_facts=int(facts), at=at)
assert engine == "spark" or "pyspark" not in sys.modules
print("done", done.serial, flush=True)
"""

LOCAL_PROGRAM: Final = """
import sys
from pathlib import Path
from synrepl.http_api.routes import APPEND_BATCH
from synrepl.pipeline.archive.optimize import optimize
from synrepl.pipeline.local import LocalDriver
from synrepl.pipeline.replay import replay
from synrepl.pipeline.report.report import report
from synrepl.pipeline.snapshot.compact import compact
from synrepl.pipeline.source.daemon_client import SourceClient
from synrepl.pipeline.store import Store

job, place, other = sys.argv[1:]
write, send = Store.write, SourceClient.send

def at(*now):
    print("at", *now, flush=True)

def told(store, name, data):
    write(store, name, data)
    at("file", name)

def told_send(client, request, *body, **more):
    answer = send(client, request, *body, **more)
    if request == APPEND_BATCH.request():
        at("appended")
    return answer

Store.write, SourceClient.send = told, told_send
with LocalDriver(threads=2) as driver:
    print("started", flush=True)
    match job:
        case "compact":
            compact(driver, Store(place), Store(other), file_rows=500, progress=at)
        case "optimize":
            optimize(driver, Store(place), progress=at)
        case "replay":
            replay(driver, Store(place), other, name="once", progress=at)
        case "report":
            report(driver, Store(place), Path(other), progress=at)
print("done", flush=True)
"""


class JobProcess:
    """A program that prints ``started`` when it has what it runs on, and ``done`` at its end."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._has_closed = False
        # What a killed one leaves.
        self._folder = tempfile.mkdtemp(prefix="synrepl-kills-")
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": self._folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # What it starts goes with it.
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it has said that all is done."""
        return any(line.startswith("done") for line in self.lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._has_closed = True
            self._changed.notify_all()

    def wait_for(self, word: str, *, times: int = 1) -> None:
        """Until it has said so; or has ended."""
        with self._changed:
            self._changed.wait_for(
                # Its output ends before the system knows that it has ended.
                lambda: sum(line.startswith(word) for line in self.lines) >= times or self._has_closed,
                PATIENCE_SECONDS,
            )

    def kill_after(self, seconds: float) -> bool:
        """Kill it, and all that it started, so long after now. Gives whether it was at work then.

        If it ended before, it has done its work.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_closed, seconds)
        self.kill()
        assert self.is_done or self._process.returncode == -signal.SIGKILL, self.lines
        return not self.is_done

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
        shutil.rmtree(self._folder, ignore_errors=True)
        return code


class ArchiveProcess(JobProcess):
    """One run of `archive`: local, or with a Spark of its own, or on the Connect server `remote`.

    It prints ``data`` and ``commit`` for each batch, too.

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
        engine: Engine = "spark",
        remote: str = "",
    ) -> None:
        settings = [str(batch_facts), point, str(count), engine, remote, json.dumps(QUICK)]
        super().__init__(PROGRAM, url, str(position), *settings)


class LocalProcess(JobProcess):
    """One local run of ``compact ARCHIVE SNAPSHOT``, ``optimize ARCHIVE``, ``replay ARCHIVE URL`` or ``report
    ARCHIVE FOLDER``.

    It prints ``at`` for each step that it has done, for each file that it has written, and for each append.
    """

    def __init__(self, job: str, position: Path | str, other: Path | str = "") -> None:
        super().__init__(LOCAL_PROGRAM, job, str(position), str(other))
