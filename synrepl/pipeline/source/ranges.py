"""Ranges of serials, one per task: planned, read in the task, and checked for missing facts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.http_api.routes import DECLARED
from synrepl.pipeline.source.daemon_client import DataLoss, SourceClient, SourceError
from synrepl.pipeline.source.layouts import decode_rows
from synrepl.pipeline.source.offsets import Clock
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.rows import explode, row_schema

__all__ = ["SerialRange", "split_range", "CompletenessCheck", "read_range"]


@dataclass(frozen=True)
class SerialRange:
    """The facts with ``after < serial <= upto``.

    `history` and `digest` (at `after`) prove that the log is the planned one; `end_digest` is the digest at
    `upto`, if known. A `compacted` range of a trimmed log may have holes. Facts of a writer in `skip` are
    dropped up to that serial, facts of a writer in `until` after that serial.
    """

    after: int
    upto: int
    history: str = ""
    digest: str | None = None
    end_digest: str | None = None
    compacted: bool = False
    skip: Clock = field(default_factory=dict)
    until: Clock = field(default_factory=dict)


def split_range(after: int, upto: int, *, facts: int, at_least: int, at_most_each: int) -> Sequence[int]:
    """Return the bounds that split ``(after, upto]`` into equal, non-empty parts, both ends included.

    There are enough parts that each of them has at most `at_most_each` of the `facts`, and at least
    `at_least` parts, if there are as many serials.
    """
    serials = upto - after
    if serials <= 0:
        return [after]
    parts = max(at_least, -(-facts // at_most_each), 1)
    parts = min(parts, serials)
    return [after + serials * part // parts for part in range(parts + 1)]


class CompletenessCheck:
    """Checker of the record batches of one range. Raises `DataLoss`, which names the missing facts.

    In an unfiltered range serials are consecutive. In a filtered range the `prev_token` of a fact is the
    token of its predecessor of the same writer: an unused token is not a loss, a missing predecessor is.
    """

    def __init__(self, planned: SerialRange, *, is_all: bool) -> None:
        self._planned = planned
        self._is_dense = is_all and not planned.compacted
        self._is_chained = not is_all and not planned.compacted
        self._at = planned.after
        self._digest = planned.digest
        self._last: dict[tuple[str, str], tuple[int, int]] = {}

    def check(self, facts: Any) -> None:
        """Check the next facts of the range."""
        if self._is_dense:
            self._check_serials(facts["serial"])
        elif self._is_chained:
            self._check_chains(facts)
        self._at = facts["serial"][len(facts) - 1].as_py()
        self._digest = facts["digest"][len(facts) - 1].as_py()

    def finish(self) -> None:
        """Check the end of the range."""
        planned = self._planned
        if not self._is_dense:
            return
        if self._at != planned.upto:
            raise DataLoss(f"missing serials {self._at + 1} to {planned.upto}")
        if planned.end_digest is not None and self._digest != planned.end_digest:
            raise DataLoss(
                f"the log was replaced since the range was planned: the digest of serial {planned.upto} was"
                f" {planned.end_digest}, and is {self._digest}"
            )

    def _check_serials(self, serials: Any) -> None:
        first = self._at + 1
        is_dense = pc.all(pc.equal(pc.pairwise_diff(serials), 1), min_count=0).as_py()
        if serials[0].as_py() != first or not is_dense:
            pairs = zip(serials.to_pylist(), count(first))
            found, expected = next((found, expected) for found, expected in pairs if found != expected)
            raise DataLoss(f"received serial {found}, expected serial {expected}")

    def _check_chains(self, facts: Any) -> None:
        names = ("stream", "writer", "prev_token", "token", "epoch")
        for stream, writer, claimed, token, epoch in zip(
            *(facts[name].to_pylist() for name in names), strict=True
        ):
            if claimed >= token:
                continue  # Late facts have no predecessor to check.
            # The predecessor of the first fact lies before the range; only later facts are checked.
            before, epoch_before = self._last.get((stream, writer), (claimed, epoch))
            if claimed > before and epoch == epoch_before:
                raise DataLoss(
                    f"missing facts of writer {writer} in stream {stream}: after token {before}, up to token"
                    f" {claimed}"
                )
            self._last[stream, writer] = token, epoch


def read_range(planned: SerialRange, options: SourceOptions, daemon: SourceClient) -> Iterator[Any]:
    """Yield the rows of a range, ordered by serial and seq. Raises `DataLoss` if facts are missing."""
    is_all = options.streams is None and options.writers is None
    completeness = CompletenessCheck(planned, is_all=is_all)
    add_keys = _keys(daemon) if "key" in options.columns else None
    layout = options.layout
    if layout is not None and not {column.name for column in layout.columns} & set(options.columns):
        layout = None
    schema = row_schema(options.columns, layout.fields if layout else ())
    for facts in daemon.facts(
        since=planned.after,
        upto=planned.upto,
        history=planned.history,
        digest=None if planned.compacted else planned.digest,
        compacted=planned.compacted or None,
    ):
        completeness.check(facts)
        selected = _within(facts, planned)
        if not len(selected):
            continue
        rows = explode(selected)
        if add_keys is not None:
            rows = add_keys(rows)
        own = decode_rows(layout, rows["row"]) if layout else {}
        yield pa.record_batch(
            [own[name] if name in own else rows[name] for name in options.columns], schema=schema
        )
    completeness.finish()


def _within(facts: Any, planned: SerialRange) -> Any:
    """Drop the facts of writers that were read before, and those beyond the end of their writer."""
    for limits, is_out in ((planned.skip, pc.less_equal), (planned.until, pc.greater)):
        for stream, writers in limits.items():
            for writer, serial in writers.items():
                of_writer = pc.and_(pc.equal(facts["stream"], stream), pc.equal(facts["writer"], writer))
                facts = facts.filter(pc.invert(pc.and_(of_writer, is_out(facts["serial"], serial))))
    return facts


def _keys(daemon: SourceClient) -> Any:
    try:
        from synrepl.pipeline.keys import KeyExtractor  # executors may lack it
    except ImportError as error:
        raise SourceError(
            f"the column key needs synrepl on the executors ({error}): install it there, or leave key out of"
            " the option columns"
        ) from error
    try:
        declared = daemon.get(DECLARED)["streams"]
    except SourceError as error:
        if error.code != "not_found":
            raise
        declared = []  # a daemon of a release without streams of one's own
    return KeyExtractor(declared).with_keys
