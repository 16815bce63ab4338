"""Makes the metadata of a large archive, or measures how each job plans its work on it.

python -m scripts.bench_parts.large_archive --make FOLDER --commits 20000 --files 1000000
python -m scripts.bench_parts.large_archive --folder FOLDER --job JOB

The log and its last checkpoint are written as the format says; the files themselves do not exist. JOB is one
of archive-open, archive-commit, audit, report, compact, replay, optimize, or checkpoint. It prints seconds,
and the peak memory of the driver: of its Python, and of its Java, where it has one.
"""

import argparse
import json
import re
import resource
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.archive.archive import BatchCommitter, LogIdentity
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.row_files import WrittenFile
from synrepl.pipeline.archive.table import PARTITIONS, PROPERTIES, SCHEMA, ArchiveTable
from synrepl.pipeline.store import Store

BEGAN_MS = 1_795_219_200_000
DAY_MS = 86_400_000
STREAMS = (
    "events",
    "receipts",
    "caches",
    "push_rules",
    "pushers",
    "device_lists",
    "to_device",
    "typing_like",
)
WRITERS = ("master", "worker1", "worker2")
FACTS = 100
"""The number of facts in a file."""
LOG = LogIdentity("a" * 32, "example.org")


def main() -> None:
    """Make the metadata, or measure a job and print the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--make", type=Path)
    parser.add_argument("--commits", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--job", choices=[*JOBS])
    options = parser.parse_args()
    if options.make is not None:
        make(options.make, options.commits, options.files)
    else:
        print(json.dumps(measure(options.folder, options.job)))


def make(folder: Path, commits: int, files: int) -> None:
    """Write the log of the table: a commit for each batch, and a checkpoint at the fifth from the end."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    each = files // commits
    checkpointed = max(0, commits - 5)
    first = [_protocol(), _metadata()]
    with pq.ParquetWriter(
        log / f"{checkpointed:020}.checkpoint.parquet", CHECKPOINT, compression="snappy"
    ) as out:
        waiting: list[dict[str, Any]] = [*first]
        for version in range(commits):
            batch = _batch(version, each)
            adds = [{"add": _add(one, batch.archived_at_ms)} for one in _files(version, each)]
            info = {
                "timestamp": batch.archived_at_ms,
                "operation": "WRITE",
                "synrepl": msgspec.to_builtins(batch),
            }
            txn = {"txn": {"appId": "synrepl-archive", "version": batch.last_serial}}
            lines = [{"commitInfo": info}, *(first if version == 0 else []), txn, *adds]
            commit = b"\n".join(map(msgspec.json.encode, lines)) + b"\n"
            (log / f"{version:020}.json").write_bytes(commit)
            if version <= checkpointed:
                waiting += adds + ([txn] if version == checkpointed else [])
            if len(waiting) >= 50_000 or version == checkpointed:
                out.write_table(pa.Table.from_pylist(waiting, CHECKPOINT))
                waiting = []
    size = 3 + each * (checkpointed + 1)
    (log / "_last_checkpoint").write_text(json.dumps({"version": checkpointed, "size": size}))


def _files(version: int, count: int) -> Iterator[WrittenFile]:
    """Yield the files of a batch: each task writes one for each stream, and their serials overlap."""
    for number in range(count):
        task, stream = divmod(number, len(STREAMS))
        size = min(len(STREAMS), count - task * len(STREAMS)) * FACTS
        serial = version * count * FACTS + task * len(STREAMS) * FACTS + 1
        name = f"{serial + stream:012d}-{sha256(b'%d %d' % (version, number)).hexdigest()}.parquet"
        at_ms = BEGAN_MS + version * 60_000
        date = str(pa.scalar(at_ms, pa.timestamp("ms")))[:10]
        yield WrittenFile(
            path=f"stream={STREAMS[stream]}/date={date}/{name}",
            bytes=FACTS * 50,
            rows=FACTS,
            facts=FACTS,
            stream=STREAMS[stream],
            date=date,
            first_serial=serial + stream,
            last_serial=serial + size - min(len(STREAMS), size // FACTS) + stream,
            last_seq=0,
            first_at_ms=at_ms,
            last_at_ms=at_ms + 59_000,
            tokens={1: {"master": serial + size}},
            epoch=1,
            digest="d" * 64,
        )


def _batch(version: int, count: int) -> Batch:
    facts = count * FACTS
    serial = (version + 1) * facts
    return Batch(
        first_serial=version * facts + 1,
        last_serial=serial,
        facts=facts,
        rows=facts,
        bytes=facts * 50,
        epoch=1,
        digest="d" * 64,
        end={stream: dict.fromkeys(WRITERS, serial) for stream in STREAMS},
        history=LOG.history,
        server_name=LOG.server_name,
        first_at_ms=BEGAN_MS + version * 60_000,
        last_at_ms=BEGAN_MS + version * 60_000 + 59_000,
        archived_at_ms=BEGAN_MS + version * 60_000 + 61_000,
    )


def _add(one: WrittenFile, at_ms: int) -> dict[str, Any]:
    return {
        "path": one.path,
        "partitionValues": {"stream": one.stream, "date": one.date},
        "size": one.bytes,
        "modificationTime": at_ms,
        "dataChange": True,
        "stats": one.stats,
    }


def _protocol() -> dict[str, Any]:
    return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def _metadata() -> dict[str, Any]:
    metadata = {
        "id": "00000000-0000-4000-8000-000000000000",
        "name": "synrepl archive",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": SCHEMA.to_json(),
        "partitionColumns": PARTITIONS,
        "createdTime": BEGAN_MS,
        "configuration": PROPERTIES,
    }
    return {"metaData": metadata}


TEXTS = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "createdTime": pa.int64(),
                "configuration": TEXTS,
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)


def measure(folder: Path, job: str) -> dict[str, Any]:
    """Return the seconds of this job without Spark's start, and the peak memory of its driver in MB."""
    spark = None if JOBS[job] in ALONE else _session()
    began = time.monotonic()
    found = JOBS[job](Store(str(folder)), spark)
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    java = 0 if spark is None else _java_peak(spark)
    return {"job": job, "found": found, "seconds": round(seconds, 2), "python_mb": peak, "java_mb": java}


def _session() -> Any:
    from synrepl.pipeline.session import session

    spark = session(app="bench", master="local[2]")
    spark.range(1).count()
    return spark


def _java_peak(spark: Any) -> int:
    status = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) // 1024 if found is not None else 0


def _open(store: Store, spark: Any) -> int:
    """Open the archive as the job `archive` does."""
    return BatchCommitter(store, LOG).serial


def _commit(store: Store, spark: Any) -> float:
    """Return the seconds of one commit, without opening the archive."""
    committer = BatchCommitter(store, LOG)
    written = _next_file(committer.serial)
    began = time.monotonic()
    committer.commit([written], now_ms=BEGAN_MS)
    return round(time.monotonic() - began, 3)


def _next_file(serial: int) -> WrittenFile:
    (one,) = _files(0, 1)
    name = f"{serial + 1:012d}-{'e' * 64}.parquet"
    bounds = {"first_serial": serial + 1, "last_serial": serial + one.facts}
    return msgspec.structs.replace(one, path=f"stream={one.stream}/date={one.date}/{name}", **bounds)


def _checkpoint(store: Store, spark: Any) -> int:
    """Write a checkpoint, as delta-rs does after each hundred commits."""
    table = ArchiveTable(store)
    table._delta.create_checkpoint()
    return table.version


COUNTED = pa.schema([("files", pa.int64())])


def _count(batches: Iterator[Any]) -> Iterator[Any]:
    """Count the files, in place of the work of tasks."""
    for batch in batches:
        yield pa.record_batch([pa.array([len(batch)])], COUNTED)


def _distributed(spark: Any, files: Any) -> int:
    from synrepl.pipeline.archive.row_files import map_files
    from synrepl.pipeline.runner import driver_of

    counted = map_files(driver_of(spark), files, _count, COUNTED).collect()
    return sum(counted["files"].to_pylist())


def _audit(store: Store, spark: Any) -> int:
    files = ArchiveTable(store).files
    ranked = files.append_column("rank", pa.array(np.arange(len(files))))
    return _distributed(spark, ranked)


def _report(store: Store, spark: Any) -> int:
    from synrepl.pipeline.report.measurement import Coverage

    table = ArchiveTable(store)
    files, batches = table.files, table.batches()
    assert Coverage(files, batches).facts
    return _distributed(spark, files)


def _compact(store: Store, spark: Any) -> int:
    from synrepl.pipeline.snapshot.compact import _plan_input

    table = ArchiveTable(store)
    files, _ = _plan_input(table, Store(f"{store.location}-snapshot"), None, b"[]")
    return _distributed(spark, files)


def _replay(store: Store, spark: Any) -> int:
    """Plan the first range of a replay."""
    from synrepl.pipeline.archive.row_files import within
    from synrepl.pipeline.replay import RUN_FACTS

    return _distributed(spark, within(ArchiveTable(store).files, 1, RUN_FACTS))


def _optimize(store: Store, spark: Any) -> int:
    from synrepl.pipeline.archive.optimize import TARGET_BYTES, plan_merges

    return sum(1 for _ in plan_merges(ArchiveTable(store).files, target_bytes=TARGET_BYTES, fewest=2))


JOBS = {
    "archive-open": _open,
    "archive-commit": _commit,
    "checkpoint": _checkpoint,
    "audit": _audit,
    "report": _report,
    "compact": _compact,
    "replay": _replay,
    "optimize": _optimize,
}
ALONE = (_open, _commit, _checkpoint, _optimize)

if __name__ == "__main__":
    main()
