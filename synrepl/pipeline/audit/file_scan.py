"""Looking at one file: its bytes, and what its rows say by themselves. One pass, on executors."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from synrepl.pipeline.audit.file_rows import AT_ONCE, DAMAGE, read_checked
from synrepl.pipeline.store import NotFound, Store

__all__ = ["SEEN", "FileProblem", "TokenRun", "FileScan", "look", "look_at_all"]

ODD_AT_MOST: Final = 50
"""Of one file more is not told: a file in disorder is in disorder everywhere."""

COLUMNS: Final = ["serial", "stream", "writer", "prev_token", "token", "seq"]

SUM: Final = 2**63
"""Sums of serials are taken modulo this: those of damaged files would not fit into JSON."""

SEEN: Final = "`seen` binary NOT NULL"
"""What tasks answer, for Spark: `FileScan` as JSON."""


class TokenRun(msgspec.Struct, kw_only=True):
    """The facts of one writer in a file: what it was at before the first, and at after the last.

    Facts that came late move nothing; with only such, both are None. `goes_on` says that each fact begins
    where the one before it ended.
    """

    before: int | None = None
    after: int | None = None
    goes_on: bool = True
    low: int
    high: int
    first_serial: int
    last_serial: int


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something odd about one row."""

    what: str
    writer: str
    token: int
    serial: int
    seq: int


class FileScan(msgspec.Struct, kw_only=True):
    """What was seen of a file. `serials` is the sum of the serials of its facts; `digest` that of the last.

    `strangers` are the streams of rows that are of another one than the file.
    """

    path: str
    exists: bool = True
    bytes: int = 0
    sha256: str = ""
    unreadable: str = ""
    rows: int = 0
    facts: int = 0
    serials: int = 0
    first: int = 0
    last: int = 0
    digest: str = ""
    strangers: list[str] = []
    runs: dict[str, TokenRun] = {}
    odd: list[FileProblem] = []


def look_at_all(store: Store, batches: Iterable[Any]) -> Iterator[Any]:
    """Look at the files whose `path`, `stream` and `sha256` are in these record batches; gives batches of
    `SEEN`.
    """
    for batch in batches:
        for file in batch.to_pylist():
            seen = msgspec.json.encode(look(store, file["path"], file["stream"], file["sha256"]))
            yield pa.record_batch([pa.array([seen], pa.binary())], names=["seen"])


def look(store: Store, path: str, stream: str, sha256: str) -> FileScan:
    """Look at this file, which should have rows of this stream, and this checksum.

    The checksum goes first. Of a file that has it, the columns that tell the order are enough; of any other
    file all columns are read, and it is `unreadable` if a single value cannot be.
    """
    seen = FileScan(path=path)
    try:
        seen.bytes = store.size(path)
        seen.sha256 = store.sha256(path)
    except NotFound:
        seen.exists = False
        return seen
    try:
        with store.filesystem.open_input_file(store.path(path)) as source:
            rows = _Rows(seen, stream)
            if seen.sha256 != sha256:
                for batch in read_checked(source):
                    rows.add(batch)
                    seen.digest = batch["digest"][-1].as_py() if len(batch) else seen.digest
                return seen
            file = pq.ParquetFile(source)
            for batch in file.iter_batches(AT_ONCE, columns=COLUMNS):
                rows.add(batch)
            if file.metadata.num_row_groups:
                last = file.read_row_group(file.metadata.num_row_groups - 1, columns=["digest"])
                seen.digest = last["digest"][-1].as_py() if len(last) else ""
    except DAMAGE as error:
        seen.unreadable = (str(error) or type(error).__name__).splitlines()[0]
        seen.runs, seen.odd = {}, []
    return seen


class _Rows:
    """The rows of a file, as they come by."""

    def __init__(self, seen: FileScan, stream: str) -> None:
        self._seen = seen
        self._stream = stream
        self._serial = self._seq = -1

    def add(self, batch: Any) -> None:
        """These rows come next."""
        seen = self._seen
        if not len(batch):
            return
        serial, seq = batch["serial"].to_numpy(), batch["seq"].to_numpy()
        begins = seq == 0
        if not seen.rows:
            seen.first = seen.last = int(serial[0])
        seen.rows += len(batch)
        seen.facts += int(begins.sum())
        seen.serials = (seen.serials + sum(serial[begins].tolist())) % SUM
        seen.first = min(seen.first, int(serial.min()))
        seen.last = max(seen.last, int(serial.max()))
        for name in pc.unique(batch["stream"]).to_pylist():
            if name != self._stream and name not in seen.strangers:
                seen.strangers = [*seen.strangers, name]
        self._look_at_order(batch, serial, seq)
        self._look_at_writers(batch.filter(pa.array(begins)))

    def _look_at_order(self, batch: Any, serial: Any, seq: Any) -> None:
        """Whether each row is the next of its fact, or the first of a later one."""
        serials = np.concatenate(([self._serial], serial))
        seqs = np.concatenate(([self._seq], seq))
        self._serial, self._seq = int(serial[-1]), int(seq[-1])
        is_same = serials[1:] == serials[:-1]
        is_right = np.where(
            is_same, seqs[1:] == seqs[:-1] + 1, (serials[1:] > serials[:-1]) & (seqs[1:] == 0)
        )
        for position in np.nonzero(~is_right)[0].tolist():
            if len(self._seen.odd) >= ODD_AT_MOST:
                return
            before = (int(serials[position]), int(seqs[position]))
            here = (int(serial[position]), int(seq[position]))
            what = "doubled-row" if here == before else "out-of-order" if here < before else "missing-row"
            odd = FileProblem(
                what=what,
                writer=batch["writer"][position].as_py(),
                token=batch["token"][position].as_py(),
                serial=here[0],
                # Of a fact of which rows are missing, the first that is.
                seq=before[1] + 1
                if what == "missing-row" and here[0] == before[0]
                else 0
                if what == "missing-row"
                else here[1],
            )
            self._seen.odd = [*self._seen.odd, odd]

    def _look_at_writers(self, facts: Any) -> None:
        coded = pc.dictionary_encode(facts["writer"])
        codes = coded.indices.to_numpy()
        before, token = facts["prev_token"].to_numpy(), facts["token"].to_numpy()
        serial = facts["serial"].to_numpy()
        for code, writer in enumerate(coded.dictionary.to_pylist()):
            mine = codes == code
            tokens, serials = token[mine], serial[mine]
            run = self._seen.runs.get(writer)
            if run is None:
                run = TokenRun(
                    low=int(tokens[0]),
                    high=int(tokens[0]),
                    first_serial=int(serials[0]),
                    last_serial=int(serials[0]),
                )
                self._seen.runs = {**self._seen.runs, writer: run}
            run.low, run.high = min(run.low, int(tokens.min())), max(run.high, int(tokens.max()))
            run.first_serial = min(run.first_serial, int(serials.min()))
            run.last_serial = max(run.last_serial, int(serials.max()))
            moves = mine & (before != token)
            starts, ends = before[moves], token[moves]
            if not len(starts):
                continue
            if run.before is None:
                run.before = int(starts[0])
            elif run.after != int(starts[0]):
                run.goes_on = False
            if (starts[1:] != ends[:-1]).any():
                run.goes_on = False
            run.after = int(ends[-1])
