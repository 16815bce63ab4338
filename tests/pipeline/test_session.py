"""The session: what Spark is told, and that it does it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from synrepl.errors import ConfigError
from synrepl.pipeline.session import check_master, process_settings, session, session_settings
from tests.pipeline.clusters import ROOT, run_python

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SHUFFLE = "spark.sql.shuffle.partitions"

WHOLE_LIFE = """
import os
from synrepl.pipeline.session import session
ours = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")
before = [os.environ.get(name) for name in ours]
spark = session(app="life", master="local[1]")
assert [os.environ.get(name) for name in ours] == before
spark.range(3).write.saveAsTable("left")
try:
    spark.range(3).selectExpr("raise_error('no')").collect()
except Exception as error:
    print("raised", flush=True)
spark.readStream.format("rate").load().writeStream.format("noop").start()
"""


def told(master: str, **changes: str) -> dict[str, str]:
    """The settings of a Spark that starts."""
    return process_settings(master=master, ui=False, memory="2g", scratch=Path("/scratch"), conf=changes)


def test_a_local_spark_listens_to_this_machine_alone() -> None:
    """Neither its interface nor its blocks are for others."""
    settings = told("local[4]")

    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert "spark.executor.memory" not in settings


def test_a_cluster_elsewhere_can_call_back() -> None:
    """Its executors connect to the driver; and each has its share of memory."""
    settings = told("spark://master.example:7077")

    assert not {"spark.driver.host", "spark.driver.bindAddress", SHUFFLE} & set(settings)
    assert settings["spark.driver.memory"] == settings["spark.executor.memory"] == "2g"


def test_a_cluster_on_this_machine_stays_on_it() -> None:
    """Also if it is named."""
    for master in ("spark://127.0.0.1:7077", "spark://localhost:7077", "spark://127.0.0.1:1,127.0.0.1:2"):
        assert told(master)["spark.driver.host"] == "127.0.0.1", master


def test_a_local_spark_shuffles_into_few() -> None:
    """The default is for clusters; a laptop spends seconds on empty tasks."""
    counts = {master: session_settings(master)[SHUFFLE] for master in ("local", "local[3]", "local[2,4]")}

    assert counts == {"local": "2", "local[3]": "6", "local[2,4]": "4"}
    with patch("os.cpu_count", return_value=6):
        assert session_settings("local[*]")[SHUFFLE] == "12"
    # Unknown, as on some platforms: as few as for one core.
    with patch("os.cpu_count", return_value=None):
        assert session_settings("local[*]")[SHUFFLE] == counts["local"]


def test_given_java_options_override_ours() -> None:
    """Options of Java are added to ours, and as the later ones they win."""
    options = "spark.driver.extraJavaOptions"
    settings = told("local[2]", **{SHUFFLE: "7", options: "-Xss4m", "spark.ui.enabled": "true"})

    assert (settings[SHUFFLE], settings["spark.ui.enabled"]) == ("7", "true")
    assert settings[options].endswith(" -Xss4m")
    assert "log4j2" in settings[options]


def test_all_that_is_left_is_in_one_folder() -> None:
    """The folder one stands in stays as it is."""
    settings = told("local[2]")

    for name in ("spark.local.dir", "spark.sql.warehouse.dir", "spark.driver.extraJavaOptions"):
        assert "/scratch" in settings[name], name


def test_one_session_is_of_one_spark() -> None:
    """Neither of two wins in silence."""
    with pytest.raises(ConfigError, match="exclude each other"):
        session(app="x", master="local[2]", remote="sc://127.0.0.1:15002")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens at, and that nobody else gets."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_server_that_is_not_there_is_an_error_at_once(closed_port: int) -> None:
    """Spark would try for ten minutes."""
    with pytest.raises(
        ConfigError, match=f"cannot connect to sc://127.0.0.1:{closed_port}: Connection refused"
    ):
        session(app="x", remote=f"sc://127.0.0.1:{closed_port}")


@pytest.mark.parametrize("url", ["sc://", "sc://host:port", "sc://:15002"])
def test_an_address_that_is_none_is_an_error(url: str) -> None:
    """With an example of one that is."""
    with pytest.raises(ConfigError, match="examples are"):
        session(app="x", remote=url)


def test_without_pyspark_the_error_says_what_to_do() -> None:
    """It is an extra."""
    with patch.dict(sys.modules, {"pyspark": None}):
        with pytest.raises(ConfigError, match=r"pip install 'synrepl\[spark\]'"):
            session(app="x")


def test_the_session_is_in_utc(spark: "SparkSession") -> None:
    """Dates of an archive must not depend on where it is read."""
    row = spark.sql("select current_timezone() as zone, date(timestamp_seconds(86399)) as day").collect()[0]

    assert (row.zone, str(row.day)) == ("UTC", "1970-01-01")


def test_python_runs_in_every_partition(spark: "SparkSession") -> None:
    """With the Python that runs this, where the packages are."""

    def places(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows], "python": [sys.executable]})

    rows = spark.range(0, 10, 1, 2).mapInArrow(places, "n long, python string").collect()

    assert [(5, sys.executable)] * 2 == [tuple(row) for row in rows]


def test_there_is_one_session(spark: "SparkSession") -> None:
    """Code that asks for its own gets the one there is."""
    assert session(app="other", master="local[2]") is spark


def test_a_whole_life_leaves_no_word_and_no_file(tmp_path: Path) -> None:
    """Not even one with an error, a table, and a stream that still runs at the end."""
    here, temporary, cache = (tmp_path / name for name in ("here", "temporary", "cache"))
    here.mkdir()
    temporary.mkdir()

    result = subprocess.run(
        [sys.executable, "-c", WHOLE_LIFE],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ("raised\n", "", 0) == (result.stdout, result.stderr, result.returncode)
    assert [] == [*here.iterdir(), *temporary.iterdir()]


def test_a_spark_that_cannot_start_is_one_line() -> None:
    """The rest of what Java says is for nobody."""
    code = """
import os
from synrepl.errors import ConfigError
from synrepl.pipeline.session import session
os.dup2(1, 2)
try:
    session(app="x", master="local[1]", memory="100m")
except ConfigError as error:
    print(error)
"""
    lines = run_python(code).splitlines()

    assert len(lines) == 1
    assert "cannot start Spark" in lines[0]
    assert "memory" in lines[0]


@pytest.mark.parametrize("master", ["nope", "http://spark:7077", "spark://", "local[", "LOCAL"])
def test_a_master_that_spark_does_not_know_is_refused_before_java_starts(master: str) -> None:
    """Java would print a stack trace on the terminal, past every handler of errors."""
    with pytest.raises(ConfigError, match=r"is not the URL of a Spark master, such as spark://host:7077"):
        check_master(master)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2]",
        "local[2,3]",
        "local-cluster[2,1,1024]",
        "spark://a:7077,b:7077",
        "yarn",
        "k8s://https://a:6443",
    ],
)
def test_the_masters_of_spark_are_taken(master: str) -> None:
    check_master(master)
