"""The ways in which Spark gets the source, as docs/howto/spark.md shows them."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from synrepl.pipeline.java import make_java_home
from tests.pipeline.clusters import OUR_OWN, QUICK, ROOT, RUN_SECONDS, run_python
from tests.processes.replicas import fill
from tests.service.processes import Daemon

PAGE = (ROOT / "docs/howto/spark.md").read_text("utf-8")

BARE = """
import sys
from pathlib import Path

sys.path[:] = [entry for entry in sys.path if not (Path(entry) / "synrepl" / "pipeline").is_dir()]

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("msgspec", "twisted"):
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Nothing())
"""
"""A Python that has Spark's own packages and pyarrow only."""

WHERE = """
import synrepl
print(synrepl.__file__)
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with 300 facts."""
    folder = tmp_path_factory.mktemp("daemon")
    fill(folder / "synrepl.db", 300, streams=("push_rules",))
    with Daemon(folder) as daemon:
        yield daemon


def program(name: str, daemon: Daemon) -> str:
    """A program of the page, for this daemon."""
    found = re.search(rf"^`{re.escape(name)}`:\n\n```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1].replace("http://127.0.0.1:9093", daemon.url)


def test_a_server_with_synrepl_knows_the_source(daemon: Daemon, remote: str) -> None:
    """A client of Spark Connect registers nothing."""
    said = run_python(program("job.py", daemon), env={"SPARK_REMOTE": remote})

    assert "|serial|user_id" in said
    assert said.splitlines()[3].startswith("|1     |@")


def test_a_zip_is_all_that_spark_submit_needs(daemon: Daemon, tmp_path: Path) -> None:
    """Also on machines without synrepl and its packages: the zip is that of the page's command."""
    assert "    python -m pyspark_synrepl synrepl.zip\n" in PAGE
    assert "    spark-submit --py-files synrepl.zip submitted.py\n" in PAGE
    run_python(
        "import runpy; runpy.run_module('pyspark_synrepl', run_name='__main__')", str(tmp_path / "z.zip")
    )
    names = zipfile.ZipFile(tmp_path / "z.zip").namelist()
    assert {name.partition("/")[0] for name in names} == {"synrepl", "pyspark_synrepl"}
    (tmp_path / "submitted.py").write_text(program("submitted.py", daemon) + WHERE)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(BARE)
    inherited = {name: value for name, value in os.environ.items() if name not in OUR_OWN}

    result = subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", "local[1]", "--conf", "spark.ui.enabled=false"),
            *[word for name, value in QUICK.items() for word in ("--conf", f"{name}={value}")],
            *("--py-files", "z.zip", "submitted.py"),
        ],
        cwd=tmp_path,
        env={
            **inherited,
            "JAVA_HOME": str(make_java_home(tmp_path / "java")),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(tmp_path / "bare"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    count, file = result.stdout.splitlines()[-2:]
    assert count == "300"
    assert "/z.zip/synrepl/" in file
