"""A Spark stream of several daemons, which tells each fact, and when it must begin anew.

Run with the HTTP addresses of the daemons, with commas, and a folder for checkpoints.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from synrepl.pipeline.session import session
from synrepl.pipeline.source.data_source import register
from tests.pipeline.clusters import QUICK

LOST = re.compile(r"\b(ahead_of_log|fork|other_epoch|other_history|its log ends at serial \d+)\b")
"""What the source says when the daemons lack facts that it gave to the query."""


class Printer:
    """Prints each batch once, in one write."""

    def __init__(self) -> None:
        self._batches: set[int] = set()

    def __call__(self, frame: Any, batch: int) -> None:
        """Print the facts of a batch, if it is no repetition."""
        if batch in self._batches:
            return
        self._batches.add(batch)
        os.write(1, "".join(_lines(frame.orderBy("serial", "seq").collect())).encode())


def _lines(rows: list[Any]) -> Iterator[str]:
    for _, group in groupby(rows, attrgetter("serial")):
        found = list(group)
        fact = found[0]
        line = {"type": "rdata", "stream": fact.stream, "writer": fact.writer, "token": fact.token}
        yield json.dumps({**line, "rows": [json.loads(row.row) for row in found]}) + "\n"


def main(urls: str, folder: str) -> None:
    """Follow until killed. A query that ends for another reason than lost facts goes on where it was."""
    spark = session(app="upstreams", master="local[2]", memory="1g", conf=QUICK)
    register(spark)
    columns = "serial,seq,stream,writer,token,row"
    begun, show = 0, Printer()
    while True:
        source = spark.readStream.format("synrepl").options(url=urls, columns=columns)
        writer = source.options(startingOffsets="earliest").load().writeStream.foreachBatch(show)
        checkpoint = Path(folder) / f"checkpoint-{begun}"
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            found = LOST.search(str(error))
            if found is not None:
                begun, show = begun + 1, Printer()
                told = json.dumps({"type": "begun anew", "message": found[0]})
                os.write(1, f"{told}\n".encode())
            else:
                print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
