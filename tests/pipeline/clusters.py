"""Sparks of one's own for tests: a standalone cluster, a Spark Connect server, and programs that use them.

A process that has a local session cannot have another one, so what talks to these runs in a process of its
own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from synrepl.pipeline.java import make_java_home
from tests.processes.loading import size
from tests.servers.owned_process import OwnedProcess

__all__ = ["QUICK", "QUICK_JAVA", "connect_server", "run_python", "standalone_cluster"]

ROOT: Final = Path(__file__).resolve().parents[2]
START_SECONDS: Final = 180.0
STOP_SECONDS: Final = 30.0
RUN_SECONDS: Final = float(size(300, 3_600))
STEP_SECONDS: Final = 0.1

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds: it compiles less, with one thread for garbage, and so starts sooner."""

QUICK: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For a Spark that has a few rows to look at: most of what it does is to get ready for many."""

OUR_OWN: Final = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_REMOTE",
)
"""What a process says of its own Spark."""

Found = TypeVar("Found")


@contextmanager
def standalone_cluster(*, workers: int = 2) -> Iterator[str]:
    """The ``spark://`` URL of a master, all of whose workers have registered; each has 1 core and 1 GB."""
    with _Programs() as programs:
        names = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = programs.start("spark-class", "org.apache.spark.deploy.master.Master", *names)
        url = programs.wait(log, lambda: _in(log, r"Starting Spark master at (spark://\S+)"))
        page = programs.wait(log, lambda: _in(log, r"'MasterUI' on port (\d+)"))
        for number in range(workers):
            room = ["--cores", "1", "--memory", "1g", "--work-dir", str(programs.folder / f"work{number}")]
            programs.start("spark-class", "org.apache.spark.deploy.worker.Worker", *names, *room, url)
        programs.wait(log, lambda: _alive(int(page)) == workers or None)
        yield url


@contextmanager
def connect_server(*, env: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """The ``sc://`` URL of a Spark Connect server with a local Spark, and with this in its environment."""
    told = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        **QUICK,
    }
    with _Programs(env) as programs:
        log = programs.start(
            "spark-submit",
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", "local[2]"),
            *[word for name, value in told.items() for word in ("--conf", f"{name}={value}")],
            "spark-internal",
        )
        address = programs.wait(log, lambda: _in(log, r"Connect server started at: (\S+)"))
        yield f"sc://{address}"


def run_python(code_or_path: str | Path, *args: str, env: Mapping[str, str] = MappingProxyType({})) -> str:
    """What a Python program prints, run from its code or its file. It must end well."""
    program = [str(code_or_path)] if isinstance(code_or_path, Path) else ["-c", code_or_path]
    with tempfile.TemporaryDirectory(prefix="synrepl-run-") as folder:
        result = subprocess.run(
            [sys.executable, *program, *args],
            cwd=folder,
            env={**_environment(), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


class _Programs:
    """Spark's programs, ended together, with the folder they wrote to."""

    def __init__(self, env: Mapping[str, str] = MappingProxyType({})) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="synrepl-cluster-"))
        self._environment = {**_environment(), **env} | {
            "JAVA_HOME": str(make_java_home(self.folder / "java")),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.master.rest.enabled=false",
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._started: list[tuple[OwnedProcess, Path]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            # The last first: a worker ends its executors, which a killed one could not.
            for watched, _ in self._started:
                stack.callback(_end, watched)

    def start(self, program: str, *words: str) -> Path:
        """Start one of Spark's scripts, which becomes the program itself; gives the file of what it says."""
        import pyspark

        log = self.folder / f"log{len(self._started)}"
        command = [str(Path(pyspark.__file__).parent / "bin" / program), *words]
        watched = OwnedProcess(
            command, log=log, removes=self.folder, signal="TERM", cwd=self.folder, env=self._environment
        )
        self._started.append((watched, log))
        return log

    def wait(self, log: Path, look: Callable[[], Found | None]) -> Found:
        """What `look` finds, once it does."""
        until = time.monotonic() + START_SECONDS
        while (found := look()) is None:
            dead = [one for watched, one in self._started if watched.process.poll() is not None]
            if dead or time.monotonic() > until:
                said = (dead[0] if dead else log).read_text("utf-8", errors="replace")
                raise AssertionError(f"it {'ended' if dead else 'is not ready'}:\n{said[-4000:]}")
            time.sleep(STEP_SECONDS)
        return found


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in OUR_OWN}
    path: Sequence[str] = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return inherited | {"PYTHONPATH": os.pathsep.join(path)}


def _end(watched: OwnedProcess) -> None:
    watched.process.terminate()
    try:
        watched.process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        watched.process.kill()
        watched.process.wait()
    watched.ended()


def _in(log: Path, pattern: str) -> str | None:
    found = re.search(pattern, log.read_text("utf-8", errors="replace"))
    return found[1] if found is not None else None


def _alive(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=START_SECONDS) as page:
            told: dict[str, Any] = json.load(page)
    except (OSError, ValueError):  # The page is served before its JSON is.
        return 0
    return sum(worker["state"] == "ALIVE" for worker in told["workers"])
