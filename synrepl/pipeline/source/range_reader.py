"""What a task does: one range of the log, as record batches of rows."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.source.completeness import CompletenessCheck
from synrepl.pipeline.source.daemon_client import SourceClient, SourceError
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.ranges import SerialRange
from synrepl.pipeline.source.rows import exploded
from synrepl.pipeline.source.schema import row_schema

__all__ = ["read_range"]


def read_range(planned: SerialRange, options: SourceOptions, daemon: SourceClient) -> Iterator[Any]:
    """The rows of this range, in order of serial and seq. Raises `DataLoss` unless all of it came."""
    is_all = options.streams is None and options.writers is None
    checking = CompletenessCheck(planned, is_all=is_all)
    add_keys = _keys() if "key" in options.columns else None
    schema = row_schema(options.columns)
    for facts in daemon.facts(
        since=planned.after,
        upto=planned.upto,
        history=planned.history,
        digest=None if planned.compacted else planned.digest,
        compacted="true" if planned.compacted else None,
    ):
        checking.saw(facts)
        wanted = _within(facts, planned)
        if not len(wanted):
            continue
        rows = exploded(wanted)
        if add_keys is not None:
            rows = add_keys(rows)
        yield pa.record_batch([rows[name] for name in options.columns], schema=schema)
    checking.ended()


def _within(facts: Any, planned: SerialRange) -> Any:
    """Without what was read elsewhere, and what is not wanted any more."""
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
            f"the column key needs synrepl where tasks run ({error}): install it there, or choose the columns"
            " without key (option columns)"
        ) from error
    return KeyExtractor().added
