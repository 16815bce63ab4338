"""Reader of one range of the log, as record batches of rows (runs in a task)."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.source.completeness import CompletenessCheck
from synrepl.pipeline.source.daemon_client import SourceClient, SourceError
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.ranges import SerialRange
from synrepl.pipeline.source.rows import explode
from synrepl.pipeline.source.schema import row_schema

__all__ = ["read_range"]


def read_range(planned: SerialRange, options: SourceOptions, daemon: SourceClient) -> Iterator[Any]:
    """Yield the rows of a range, ordered by serial and seq. Raises `DataLoss` if facts are missing."""
    is_all = options.streams is None and options.writers is None
    completeness = CompletenessCheck(planned, is_all=is_all)
    add_keys = _keys() if "key" in options.columns else None
    schema = row_schema(options.columns)
    for facts in daemon.facts(
        since=planned.after,
        upto=planned.upto,
        history=planned.history,
        digest=None if planned.compacted else planned.digest,
        compacted="true" if planned.compacted else None,
    ):
        completeness.check(facts)
        selected = _within(facts, planned)
        if not len(selected):
            continue
        rows = explode(selected)
        if add_keys is not None:
            rows = add_keys(rows)
        yield pa.record_batch([rows[name] for name in options.columns], schema=schema)
    completeness.finish()


def _within(facts: Any, planned: SerialRange) -> Any:
    """Drop the facts of writers that were read before, and those beyond the end of their writer."""
    for limits, is_out in ((planned.skip, pc.less_equal), (planned.until, pc.greater)):
        for stream, writers in limits.items():
            for writer, serial in writers.items():
                of_writer = pc.and_(pc.equal(facts["stream"], stream), pc.equal(facts["writer"], writer))
                facts = facts.filter(pc.invert(pc.and_(of_writer, is_out(facts["serial"], serial))))
    return facts


def _keys() -> Any:
    try:
        from synrepl.pipeline.keys import KeyExtractor
    except ImportError as error:
        raise SourceError(
            f"the column key needs synrepl on the executors ({error}): install it there, or leave key out of"
            " the option columns"
        ) from error
    return KeyExtractor().with_keys
