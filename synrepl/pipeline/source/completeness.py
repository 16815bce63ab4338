"""Completeness check of a range: detects missing facts, and accepts unused tokens."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.source.daemon_client import DataLoss
from synrepl.pipeline.source.ranges import SerialRange

__all__ = ["CompletenessCheck"]


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
        first, last = serials[0].as_py(), serials[len(serials) - 1].as_py()
        is_dense = last - first == len(serials) - 1 and pc.all(
            pc.equal(pc.pairwise_diff(serials), 1), min_count=0
        ).as_py() in (True, None)
        if first == self._at + 1 and is_dense:
            return
        expected = self._at + 1
        for serial in serials.to_pylist():
            if serial != expected:
                break
            expected += 1
        raise DataLoss(f"received serial {serial}, expected serial {expected}")

    def _check_chains(self, facts: Any) -> None:
        # Late facts have no predecessor to check.
        claiming = facts.filter(pc.less(facts["prev_token"], facts["token"]))
        names = pa.table({"stream": claiming["stream"], "writer": claiming["writer"]})
        for source in names.group_by(["stream", "writer"]).aggregate([]).to_pylist():
            stream, writer = source["stream"], source["writer"]
            is_its = pc.and_(pc.equal(claiming["stream"], stream), pc.equal(claiming["writer"], writer))
            of = claiming.filter(is_its)
            claimed, tokens, epochs = of["prev_token"], of["token"], of["epoch"]
            # The predecessor of the first fact lies before the range; only later facts are checked.
            token, epoch = self._last.get((stream, writer), (claimed[0].as_py(), epochs[0].as_py()))
            before = pa.concat_arrays([pa.array([token]), tokens.slice(0, len(of) - 1)])
            epoch_before = pa.concat_arrays([pa.array([epoch]), epochs.slice(0, len(of) - 1)])
            is_lost = pc.and_(pc.greater(claimed, before), pc.equal(epochs, epoch_before))
            if pc.any(is_lost).as_py():
                at = pc.index(is_lost, True).as_py()
                raise DataLoss(
                    f"missing facts of writer {writer} in stream {stream}: after token"
                    f" {before[at].as_py()}, up to token {claimed[at].as_py()}"
                )
            self._last[stream, writer] = tokens[len(of) - 1].as_py(), epochs[len(of) - 1].as_py()
