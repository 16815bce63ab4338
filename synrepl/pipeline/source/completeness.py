"""Whether all that was planned has come: a gap in tokens is told from a loss of facts."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.source.daemon_client import DataLoss
from synrepl.pipeline.source.ranges import SerialRange

__all__ = ["CompletenessCheck"]


class CompletenessCheck:
    """Looks at the record batches of one range as they come. Raises `DataLoss`, which names what is missing.

    Where everything is read, serials have no holes. Where facts are chosen, each says by its `prev_token`
    what its writer wrote before it: numbers that nobody used are no loss, a fact that is not there is.
    """

    def __init__(self, planned: SerialRange, *, is_all: bool) -> None:
        self._planned = planned
        self._is_dense = is_all and not planned.compacted
        self._is_chained = not is_all and not planned.compacted
        self._at = planned.after
        self._digest = planned.digest
        self._last: dict[tuple[str, str], tuple[int, int]] = {}

    def saw(self, facts: Any) -> None:
        """These facts are what comes next."""
        if self._is_dense:
            self._check_serials(facts["serial"])
        elif self._is_chained:
            self._check_chains(facts)
        self._at = facts["serial"][len(facts) - 1].as_py()
        self._digest = facts["digest"][len(facts) - 1].as_py()

    def ended(self) -> None:
        """Nothing more comes."""
        planned = self._planned
        if not self._is_dense:
            return
        if self._at != planned.upto:
            raise DataLoss(f"serials {self._at + 1} to {planned.upto} did not come")
        if planned.end_digest is not None and self._digest != planned.end_digest:
            raise DataLoss(
                f"the log is another one than when this was planned: the digest of serial {planned.upto} was"
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
        raise DataLoss(f"serial {serial} came where serial {expected} was to come")

    def _check_chains(self, facts: Any) -> None:
        # Late facts claim nothing about what lies before them.
        claiming = facts.filter(pc.less(facts["prev_token"], facts["token"]))
        names = pa.table({"stream": claiming["stream"], "writer": claiming["writer"]})
        for source in names.group_by(["stream", "writer"]).aggregate([]).to_pylist():
            stream, writer = source["stream"], source["writer"]
            is_its = pc.and_(pc.equal(claiming["stream"], stream), pc.equal(claiming["writer"], writer))
            of = claiming.filter(is_its)
            claimed, tokens, epochs = of["prev_token"], of["token"], of["epoch"]
            # What came first says of nothing here what lies before it; every other fact follows one.
            token, epoch = self._last.get((stream, writer), (claimed[0].as_py(), epochs[0].as_py()))
            before = pa.concat_arrays([pa.array([token]), tokens.slice(0, len(of) - 1)])
            epoch_before = pa.concat_arrays([pa.array([epoch]), epochs.slice(0, len(of) - 1)])
            is_lost = pc.and_(pc.greater(claimed, before), pc.equal(epochs, epoch_before))
            if pc.any(is_lost).as_py():
                at = pc.index(is_lost, True).as_py()
                raise DataLoss(
                    f"facts of {writer} in the stream {stream} did not come: those after token"
                    f" {before[at].as_py()}, up to token {claimed[at].as_py()}"
                )
            self._last[stream, writer] = tokens[len(of) - 1].as_py(), epochs[len(of) - 1].as_py()
