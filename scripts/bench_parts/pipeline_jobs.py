"""Times the jobs of the pipeline in one process.

python -m scripts.bench_parts.pipeline_jobs --url URL --folder FOLDER [--cores N] [--engine local] [--tables]
"""

import argparse
import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def main() -> None:
    """Time the jobs, and print the seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--engine", default="spark")
    parser.add_argument("--tables", action="store_true", help="the job tables too, twice")
    options = parser.parse_args()
    print(json.dumps(run(options)))


def run(options: argparse.Namespace) -> dict[str, float]:
    """Return seconds: of each job's first run and best later run; of Spark also of its start and first query.

    Of the local engine there is the most memory of the process too, in MiB (`memory`).
    """
    from synrepl.pipeline.archive.archive import archive
    from synrepl.pipeline.audit.audit import audit
    from synrepl.pipeline.local import LocalDriver, prepare_process
    from synrepl.pipeline.snapshot.compact import compact
    from synrepl.pipeline.store import Store
    from synrepl.pipeline.tables.tables import update_tables

    url, folder, cores, engine = options.url, options.folder, options.cores, options.engine
    # The threads, or the Python of Spark's tasks and Java, share these cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = work()
        found[name] = min(time.monotonic() - began, found.get(name, float("inf")))
        return result

    with ExitStack() as stack:
        if engine == "local":
            prepare_process()
            runner: Any = stack.enter_context(LocalDriver(threads=cores))
        else:
            runner = _start_spark(url, cores, timed)
        position, into = Store(str(folder / "archive")), Store(str(folder / "snapshot"))
        for kind in (" cold", "", ""):
            for name in ("archive", "snapshot"):
                shutil.rmtree(folder / name, ignore_errors=True)
            timed(f"archive{kind}", lambda: archive(runner, url, position))
            timed(f"compact{kind}", lambda: compact(runner, position, into, full=True))
            timed(f"audit{kind}", lambda: audit(runner, position))
        for kind in (" cold", "") if options.tables else ():
            shutil.rmtree(folder / "tables", ignore_errors=True)
            timed(f"tables{kind}", lambda: update_tables(runner, position, str(folder / "tables")))
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def _start_spark(url: str, cores: int, timed: Callable[[str, Callable[[], Any]], Any]) -> Any:
    from synrepl.pipeline.session import session
    from synrepl.pipeline.source.data_source import register

    spark = timed("start", lambda: session(app="bench", master=f"local[{cores}]"))
    register(spark)
    timed("first query", lambda: spark.range(1).count())
    rows = spark.read.format("synrepl").options(url=url, columns="serial,row", minPartitions=str(cores))
    timed("read cold", lambda: rows.load().write.format("noop").mode("overwrite").save())
    timed("read", lambda: rows.load().write.format("noop").mode("overwrite").save())
    return spark


if __name__ == "__main__":
    main()
