"""Times slices of trimming at the beginning of a log, whose daemon is not running.

python -m scripts.bench_parts.trim_slices FOLDER --slices N
"""

import argparse
import json
import statistics
import time

from synrepl.replication.retention import SLICE_FACTS, keys_of
from synrepl.storage.engine import SQLEngine
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.streams.table import StreamTable


def main() -> None:
    """Trim, and print the median time as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--slices", type=int, required=True)
    options = parser.parse_args()
    engine = SQLEngine(SQLiteDatabase(f"{options.folder}/synrepl.db"))
    upto, keys = engine.open().serial, keys_of(StreamTable.default())
    times = []
    for _ in range(options.slices):
        started = time.monotonic()
        engine.trim(upto, keys, SLICE_FACTS)
        times.append(time.monotonic() - started)
    engine.close()
    print(json.dumps({"facts": SLICE_FACTS, "p50_ms": statistics.median(times) * 1000}))


if __name__ == "__main__":
    main()
