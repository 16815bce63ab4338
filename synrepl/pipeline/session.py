"""Spark session of the jobs: in UTC, without log noise or leftover files."""

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from synrepl.errors import ConfigError
from synrepl.extras import install
from synrepl.pipeline.java import make_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
CONNECT_PORT: Final = 15002
REACH_SECONDS: Final = 10.0
STOP_SECONDS: Final = 20.0

MASTER: Final = re.compile(r"local(-cluster)?(\[[^\]]+\])?|yarn|(spark|k8s)://.+")
"""The URLs of masters that Spark accepts."""

LOGGING: Final = Path(__file__).with_name("log4j2.properties")

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def session(
    *,
    app: str,
    master: str | None = None,
    remote: str | None = None,
    ui: bool = False,
    memory: str = "1g",
    conf: Mapping[str, str] = NOTHING,
) -> "SparkSession":
    """Return the session of this process; start one if there is none.

    The session is local with all cores, or on the cluster `master` (``spark://host:port``), or on the Spark
    Connect server `remote` (``sc://host:port``), which needs no local Java. `memory` is that of the driver
    and of each executor of a cluster. `conf` overrides all settings. Under spark-submit, its cluster and
    memory apply. Raises `ConfigError` if Spark is not installed, cannot start, or cannot be reached.
    """
    if master is not None and remote is not None:
        raise ConfigError(f"master {master} and remote {remote} exclude each other: set one of them")
    if master is not None:
        check_master(master)
    try:  # an extra
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"Spark is not installed ({error}): run {install('spark')}") from error
    builder = SparkSession.builder.appName(app)
    environment = {}
    settings = {**session_settings(master), **conf}
    if remote is not None:
        _check_reachable(remote)
        builder = builder.remote(remote)
    elif SparkContext._active_spark_context is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = master or "local[*]"
        _check_reachable(master)
        environment = _environment(master, conf)
        settings = process_settings(master=master, ui=ui, memory=memory, scratch=_scratch(), conf=conf)
    builder = builder.config(map={**settings})
    try:
        with _set_environment(environment):
            return builder.getOrCreate()
    except ImportError as error:
        raise ConfigError(f"Spark lacks a package ({error}): run {install('spark')}") from error
    except (PySparkException, Py4JError, ValueError) as error:
        raise ConfigError(f"cannot start Spark: {_why(error)}") from error


def check_master(master: str) -> None:
    """Raise `ConfigError` for an invalid URL of a master: Spark would fail with a stack trace."""
    if not MASTER.fullmatch(master):
        raise ConfigError(f"{master} is not the URL of a Spark master, such as spark://host:7077 or local[2]")


def session_settings(master: str | None) -> dict[str, str]:
    """Return the settings that a running Spark accepts. `master` is None if unknown."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    cores = None if master is None else _local_cores(master)
    if cores is not None:
        # Spark's default of 200 is for clusters: each costs a task.
        settings["spark.sql.shuffle.partitions"] = str(max(2, 2 * cores))
    # Whoever reads a result gets it by partitions, each of which must fit in memory. Small ones are joined.
    settings["spark.sql.adaptive.coalescePartitions.initialPartitionNum"] = "200"
    settings["spark.sql.adaptive.coalescePartitions.parallelismFirst"] = "false"
    settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = "8m"
    return settings


def process_settings(
    *, master: str, ui: bool, memory: str, scratch: Path, conf: Mapping[str, str] = NOTHING
) -> dict[str, str]:
    """Return all settings of a Spark that starts now, including `session_settings` and `conf`."""
    options = f'"-Dlog4j2.configurationFile={LOGGING.as_uri()}" "-Djava.io.tmpdir={scratch}"'
    option = "spark.driver.extraJavaOptions"
    settings = {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch),
        # Results of tasks come at once, not through the block manager, which has lost large ones.
        "spark.task.maxDirectResultSize": "64m",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if _local_cores(master) is None:
        settings["spark.executor.memory"] = memory
    if _is_loopback(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    # Of duplicate options Java uses the last.
    return {
        **settings,
        **session_settings(master),
        **conf,
        option: f"{options} {conf.get(option, '')}".strip(),
    }


def _environment(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    environment = {
        name: os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    }
    if "spark.pyspark.python" in conf:
        environment["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    if _is_loopback(master):
        # Otherwise Spark looks for a public address, and warns.
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", LOOPBACK)
    return environment | {"JAVA_HOME": str(_java_home())}


@contextmanager
def _set_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for Spark, and restore them: later processes must not inherit them."""
    before = {name: os.environ[name] for name in environment if name in os.environ}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            del os.environ[name]
        os.environ.update(before)


def _local_cores(master: str) -> int | None:
    """Return the number of cores of a local master; None for a cluster."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)


def _is_loopback(master: str) -> bool:
    hosts = [host for host, _ in _addresses(master)]
    return master.startswith("local") or all(
        host in ("localhost", "::1") or host.startswith("127.") for host in hosts
    )


def _addresses(url: str) -> list[tuple[str, int]]:
    """Return the addresses in the URL of a cluster or of a Spark Connect server; none for other URLs."""
    parts = urlsplit(url)
    if parts.scheme not in ("spark", "sc"):
        return []
    with suppress(ValueError):
        named = [urlsplit(f"//{address}") for address in parts.netloc.split(",")]
        found = [(one.hostname or "", one.port or CONNECT_PORT) for one in named]
        if all(host for host, _ in found):
            return found
    raise ConfigError(f"{url!r} is not a valid address; examples are spark://host:7077 and sc://host:15002")


def _check_reachable(url: str) -> None:
    """Raise `ConfigError` if no address accepts a connection; Spark itself would retry for minutes."""
    why = ""
    for address in _addresses(url):
        try:
            socket.create_connection(address, REACH_SECONDS).close()
        except OSError as error:
            why = error.strerror or "timeout"
        else:
            return
    if why:
        raise ConfigError(f"cannot connect to {url}: {why}")


@cache
def _scratch() -> Path:
    """Return the folder for files of Spark, which is removed with this process."""
    scratch = Path(tempfile.mkdtemp(prefix="synrepl-spark-"))
    atexit.register(_clear, scratch, os.getpid())
    return scratch


@cache
def _java_home() -> Path:
    return make_java_home(_scratch() / "java")


def _clear(scratch: Path, pid: int) -> None:
    if os.getpid() != pid:
        # A fork of the owning process.
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # Errors at exit are ignored.
    with suppress(Exception):
        if (running := SparkSession.getActiveSession()) is not None:
            for query in running.streams.active:
                query.stop()
            running.stop()
    gateway = SparkContext._gateway
    if gateway is not None and gateway.proc is not None:
        # Spark exits when its input closes. It must exit first, or it would write to a removed folder.
        gateway.proc.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(STOP_SECONDS)
    shutil.rmtree(scratch, ignore_errors=True)


def _why(error: Exception) -> str:
    """Return the message of a Java error without its stack trace."""
    java = getattr(error, "java_exception", None)
    message = str(java.getMessage() or java.toString() if java is not None else error).strip()
    return message.splitlines()[0] if message else type(error).__name__
