"""Ranges of serials, one per task: planned in the driver, read in the task, checked for missing facts.

Spark asks twice: in the driver for the end of the next micro-batch, and in tasks, perhaps minutes later, on
other machines and more than once, for its rows. In between the log may be trimmed, another daemon may be
promoted, another log may answer at the same address. A task that then reads what it finds would write a batch
that no other attempt can repeat.

So a plan is made of what cannot change its meaning: serials, which are never used twice in a history, and the
digests of the log before and after each range, which prove that the daemon that answers has the facts that
were planned (it is asked for the digest after a filtered range, whose last fact may not be in the answer). A
task that cannot prove it fails, with the reason; it never returns fewer rows. Within a range nothing may be
missing either: without a filter serials are consecutive, and with one each fact names the token before it
(`CompletenessCheck`).

If the daemon dies while a task reads, these follow:

1. `SourceClient.facts` (`daemon_client.py`) asks again within the task, at the next URL if there are several:
   for what comes after the last fact that it received, until the option `retry_seconds` has passed.
2. Then the task fails, and Spark repeats it, with the same plan.
3. Then the query fails. It starts again from its checkpoint, where Spark keeps the offsets (`offsets.py`),
   each with its digest; the daemon is not told of a commit (`StreamReader.commit` in `data_source.py`).

Writing is safe in the same way: `FactSink` (`data_sink.py`) makes idempotency keys of the name of the query,
the batch and the number of the file in it, which do not depend on the partitions.

Planning asks only for extents (how many facts, how many bytes, up to which serial), and reads facts only to
find the serial of a token that a query starts or ends with.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.http_api.routes import DECLARED, DIGESTS, STATUS
from synrepl.pipeline.source.daemon_client import DataLoss, SourceClient, SourceError
from synrepl.pipeline.source.offsets import EARLIEST, LATEST, Clock, Offset
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.rows import decode_rows, explode, row_schema

MAX_SERIALS: Final = 1_000
"""Maximum number of digests per request."""

LIKELY_BYTES: Final = 100
"""Assumed size of the rows of a fact, until facts were measured."""

FROM_EARLIEST: Final = -2
FROM_LATEST: Final = -1
"""Tokens that stand for the earliest and the latest fact, as in the Kafka source."""

_logger = logging.getLogger("synrepl.pipeline")


@dataclass(frozen=True)
class SerialRange:
    """The facts with ``after < serial <= upto``.

    `history` and `digest` (at `after`) prove that the log is the planned one; `end_digest` is the digest at
    `upto`, and `epoch` that of the planned log. An unknown digest or epoch is None. A `compacted` range of
    a trimmed log may have holes. Facts of a writer in `skip` are dropped up to the serial given there,
    facts of a writer in `until` after the serial there.
    """

    after: int
    upto: int
    history: str = ""
    digest: str | None = None
    end_digest: str | None = None
    epoch: int | None = None
    compacted: bool = False
    skip: Clock = field(default_factory=dict)
    until: Clock = field(default_factory=dict)


def split_range(after: int, upto: int, *, at_least: int, at_most_each: int) -> Sequence[int]:
    """Return the bounds of non-empty parts of ``(after, upto]`` of about equal size, with both ends.

    There are enough parts that each of them has at most `at_most_each` serials, and at least `at_least`
    parts, if there are as many serials.
    """
    serials = upto - after
    if serials <= 0:
        return [after]
    parts = min(max(at_least, -(-serials // at_most_each), 1), serials)
    return [after + serials * part // parts for part in range(parts + 1)]


class Planner:
    """Planner of one query. It requests extents and digests, and reads facts only to locate tokens."""

    def __init__(self, options: SourceOptions, daemon: SourceClient) -> None:
        self._options = options
        self._daemon = daemon
        self._fact_bytes = LIKELY_BYTES

    def start(self) -> Offset:
        """Return the start offset of a query that has read no facts yet."""
        options = self._options
        # A timestamp overrides offsets, as in the Kafka source.
        request = options.starting_timestamp or options.starting_offsets
        if request.offset is not None:
            return self._with_proof(request.offset)
        trimmed_upto = 0 if options.compacted else self._trimmed_upto()
        if request.word == LATEST:
            return self.last(Offset(serial=trimmed_upto), None)
        if request.at_ms is not None:
            return self._with_proof(Offset(serial=self._serial_before(request.at_ms, trimmed_upto)))
        if request.clock is None:
            return self._with_proof(Offset(serial=trimmed_upto))
        skip, head = self._serial_limits(request.clock, trimmed_upto, is_start=True)
        after = trimmed_upto
        if all(writer in skip.get(stream, {}) for stream, of in head["clock"].items() for writer in of):
            wanted = min([head["serial"], *(serial for of in skip.values() for serial in of.values())])
            after = max(wanted, trimmed_upto)
        return self._with_proof(Offset(serial=after, clock=request.clock, skip=skip))

    def end(self, start: Offset, *, limit: int | None, upto: int | None = None) -> Offset:
        """Return the end of a micro-batch of at most `limit` facts, not beyond `upto`; `start` for none."""
        found = self._limited_extent(start, limit, upto)
        if not found["facts"] and found["serial"] - start.serial < self._options.facts_per_partition:
            # A short range without selected facts is not worth a micro-batch.
            return start
        return start.advance(found)

    def count_waiting(self, start: Offset, most: int) -> int:
        """Return the number of facts after `start`, at most `most`."""
        return int(self._extent(start, limit=most)["facts"])

    def _limited_extent(self, start: Offset, limit: int | None, upto: int | None) -> Any:
        """Return the extent after `start`, of about `max_bytes_per_trigger`.

        Neither a fact nor an atomic append is ever divided.
        """
        most = self._options.max_bytes_per_trigger
        if most is None:
            return self._extent(start, limit=limit, upto=upto)
        fits: Any = None
        shortest = -1
        is_over = False
        count = most // self._fact_bytes
        while True:
            count = max(1, count if limit is None else min(count, limit))
            found = self._extent(start, limit=count, upto=upto)
            facts, size = found["facts"], max(1, found["bytes"])
            if size > most and facts > 1 and found["serial"] != shortest:
                is_over, shortest = True, found["serial"]
                count = max(facts * most // size, facts // 4)
                if fits is not None and count <= fits["facts"]:
                    return fits
                continue
            if facts:
                self._fact_bytes = max(1, size // facts)
            if is_over or facts < count or count == limit or 2 * size > most:
                return found
            fits, count = found, facts * most // size

    def last(self, start: Offset, upto: int | None) -> Offset:
        """Return the offset of the head, or of the serial `upto`; `start` if `upto` is not after it."""
        is_past = upto is not None and upto <= start.serial
        return start if is_past else start.advance(self._extent(start, upto=upto))

    def closed_range(self) -> tuple[Offset, Offset, Clock]:
        """Return start and end of a closed range, and the last serial of each writer with an ending token.

        Raises `SourceError` if the log does not have the ending serial yet.
        """
        start = self.start()
        request = self._options.ending_timestamp or self._options.ending_offsets
        if request.word == EARLIEST:
            return start, start, {}
        upto = None if request.offset is None else request.offset.serial
        if request.at_ms is not None:
            upto = self._serial_before(request.at_ms, start.serial)
        end = self.last(start, upto)
        if request.offset is not None and end.serial < request.offset.serial:
            raise SourceError(
                f"endingOffsets: the log ends at serial {end.serial}, before serial {request.offset.serial}"
            )
        until = {} if request.clock is None else self._serial_limits(request.clock, start.serial)[0]
        return start, end, until

    def _serial_before(self, at_ms: int, trimmed_upto: int) -> int:
        """Return the serial before the first fact committed at `at_ms` or later; the head if there is none.

        A binary search: commit times ascend, unless the clock of the daemon was set back.
        """
        low = trimmed_upto
        high = max(trimmed_upto, self._daemon.extent(limit=1, compacted=True)["head"])
        while low < high:
            middle = (low + high) // 2
            found = self._daemon.extent(since=middle, limit=1, compacted=True)
            if not found["facts"] or found["committed_at_ms"] >= at_ms:
                high = middle
            else:
                low = found["serial"]
        return low

    def _trimmed_upto(self) -> int:
        return int(self._daemon.extent(limit=1, compacted=True)["trimmed_upto"])

    def _with_proof(self, offset: Offset) -> Offset:
        if offset.history and offset.digest is not None:
            return offset
        found = self._daemon.get(DIGESTS, serials=[offset.serial])
        return replace(
            offset,
            history=offset.history or found["history"],
            digest=offset.digest or found["digests"][str(offset.serial)],
        )

    def _extent(self, start: Offset, **query: Any) -> Any:
        compacted = self._options.compacted and not start.serial
        given = {
            "since": start.serial,
            "epoch": start.epoch,
            "digest": start.digest,
            "history": start.history,
            "compacted": compacted or None,
            # The lease of `reader` retains facts after this position. Tasks do not move it: they read facts
            # after the position.
            "reader": self._options.reader,
        }
        try:
            found = self._daemon.extent(**given, **query)
            trimmed_upto = min(found["trimmed_upto"], query.get("upto") or found["head"])
            if compacted and found["serial"] < trimmed_upto:
                # Whatever the limit: where the rest begins, nothing tells a trimmed fact from a lost one.
                found = self._daemon.extent(**given, upto=trimmed_upto)
            return found
        except DataLoss as loss:
            if self._options.fail_on_data_loss:
                raise
            trimmed_upto = self._trimmed_upto()
            _logger.warning("%s; continuing after serial %d", loss, trimmed_upto)
            return self._daemon.extent(since=trimmed_upto, **query)

    def _serial_limits(
        self, clock: Clock, trimmed_upto: int, *, is_start: bool = False
    ) -> tuple[dict[str, dict[str, int]], Any]:
        """Return the last serial up to the token of each writer of `clock`, and the extent of the log.

        Reads facts of the writers from the daemon, when a query starts. Raises `DataLoss` if the log was
        trimmed beyond a token at which the query is to start (`is_start`).
        """
        # Asked before the head: what is committed in between is no loss.
        positions = self._daemon.get(STATUS)["streams"] if is_start and trimmed_upto else {}
        head = self._daemon.extent(since=trimmed_upto, compacted=True)
        found: dict[str, dict[str, int]] = {}
        for stream, writers in clock.items():
            for writer, token in writers.items():
                serial = head["serial"]
                if token == FROM_EARLIEST:
                    serial = 0
                elif token != FROM_LATEST:
                    for batch in self._daemon.facts(
                        since=trimmed_upto, upto=serial, compacted=True, streams=[stream], writers=[writer]
                    ):
                        first = pc.index(pc.greater(batch["token"], token), True).as_py()
                        if first >= 0:
                            serial = batch["serial"][first].as_py() - 1
                            before = batch["prev_token"][first].as_py()
                            # A late fact names no predecessor.
                            is_lost = token < before < batch["token"][first].as_py()
                            break
                    else:
                        is_lost = _position(positions, stream, writer) > token
                    if is_start and trimmed_upto and is_lost:
                        self._tell_loss(stream, writer, token, trimmed_upto)
                found.setdefault(stream, {})[writer] = serial
        return found, head

    def _tell_loss(self, stream: str, writer: str, token: int, trimmed_upto: int) -> None:
        why = (
            f"startingOffsets: facts of writer {writer} in stream {stream} after token {token} were trimmed,"
            f" as the log is trimmed up to serial {trimmed_upto}"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{why}; begin at earliest, or set failOnDataLoss=false to skip trimmed facts")
        _logger.warning("%s; beginning after them", why)

    def ranges(self, start: Offset, end: Offset, until: Clock) -> list[SerialRange]:
        """Return the ranges of the tasks between two offsets, of about equal size."""
        options = self._options
        serials = split_range(
            start.serial,
            end.serial,
            at_least=options.min_partitions,
            at_most_each=options.facts_per_partition,
        )
        digests: dict[int, str | None] = {}
        epoch = end.epoch
        for first in range(0, len(serials), MAX_SERIALS):
            found = self._daemon.get(DIGESTS, serials=serials[first : first + MAX_SERIALS])
            digests.update((int(serial), digest) for serial, digest in found["digests"].items())
        if (known := digests.get(end.serial)) is not None and end.digest in (None, known):
            # This log has the end: a daemon in the same epoch will have it too, and only a later one may not.
            epoch = max(epoch, found["epoch"])
        may_lack = options.compacted or not options.fail_on_data_loss
        trimmed_upto = self._trimmed_upto() if may_lack else 0
        return [
            SerialRange(
                after=after,
                upto=upto,
                history=end.history,
                digest=digests.get(after),
                end_digest=digests.get(upto),
                epoch=epoch,
                compacted=after < trimmed_upto,
                skip=start.skip,
                until=until,
            )
            for after, upto in pairwise(serials)
        ]


def _position(streams: Mapping[str, Any], stream: str, writer: str) -> int:
    """Return the last token of a writer, whose facts may all be trimmed, from a status."""
    of = streams.get(stream) or {}
    return int((of.get("writers") or {}).get(writer, 0))


class CompletenessCheck:
    """Checker of the record batches of one range. Raises `DataLoss` for missing facts or a replaced log.

    In an unfiltered range serials are consecutive. In a filtered range the `prev_token` of a fact is the
    token of its predecessor of the same writer. The first fact of a writer in the range, a late fact and the
    first of an epoch are not checked; nor is a compacted range.
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
        """Check the last serial and digest of an unfiltered range that is not compacted."""
        planned = self._planned
        if not self._is_dense:
            return
        if self._at != planned.upto:
            raise DataLoss(f"the response lacks serials {self._at + 1} to {planned.upto}")
        if planned.end_digest is not None and self._digest != planned.end_digest:
            raise DataLoss(_replaced(planned, self._digest))

    def _check_serials(self, serials: Any) -> None:
        first = self._at + 1
        is_dense = pc.all(pc.equal(pc.pairwise_diff(serials), 1), min_count=0).as_py()
        if serials[0].as_py() != first or not is_dense:
            pairs = zip(serials.to_pylist(), count(first))
            found, expected = next((found, expected) for found, expected in pairs if found != expected)
            raise DataLoss(f"the response has serial {found} in place of serial {expected}")

    def _check_chains(self, facts: Any) -> None:
        names = ("stream", "writer", "prev_token", "token", "epoch")
        has_rows = pc.not_equal(facts["rows"], "[]").to_pylist()
        for stream, writer, claimed, token, epoch, is_late in zip(
            *(facts[name].to_pylist() for name in names), has_rows, strict=True
        ):
            if claimed >= token:
                # Late facts have no predecessor to check, and one without rows says that the log has lost it.
                if not is_late:
                    self._last[stream, writer] = token, epoch
                continue
            # The predecessor of the first fact lies before the range; only later facts are checked.
            before, epoch_before = self._last.get((stream, writer), (claimed, epoch))
            if claimed > before and epoch == epoch_before:
                raise DataLoss(
                    f"missing facts of writer {writer} in stream {stream}: after token {before}, up to token"
                    f" {claimed}"
                )
            self._last[stream, writer] = token, epoch


def read_range(planned: SerialRange, options: SourceOptions, daemon: SourceClient) -> Iterator[Any]:
    """Yield record batches of the rows of a range, in order. Raises `DataLoss` and `SourceError`."""
    is_all = options.streams is None and options.writers is None
    completeness = CompletenessCheck(planned, is_all=is_all)
    add_keys = _keys(daemon, planned) if "key" in options.columns else None
    layout = options.layout
    if layout is not None and not {column.name for column in layout.columns} & set(options.columns):
        layout = None
    schema = row_schema(options.columns, layout.fields if layout else ())
    for facts in daemon.facts(
        since=planned.after,
        upto=planned.upto,
        epoch=planned.epoch,
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
    if not (is_all and not planned.compacted) and planned.end_digest is not None:
        # The last fact of the range may not be in the response. Of a trimmed one the digest is unknown.
        digest = daemon.digest_at(planned.upto, epoch=planned.epoch)
        if digest not in (None, planned.end_digest):
            raise DataLoss(_replaced(planned, digest))


def _replaced(planned: SerialRange, digest: str | None) -> str:
    return (
        f"the log was replaced since the range was planned: the digest of serial {planned.upto} was"
        f" {planned.end_digest}, and is {digest}"
    )


def _within(facts: Any, planned: SerialRange) -> Any:
    """Drop the facts that `skip` and `until` of the range exclude."""
    for limits, is_out in ((planned.skip, pc.less_equal), (planned.until, pc.greater)):
        for stream, writers in limits.items():
            for writer, serial in writers.items():
                of_writer = pc.and_(pc.equal(facts["stream"], stream), pc.equal(facts["writer"], writer))
                facts = facts.filter(pc.invert(pc.and_(of_writer, is_out(facts["serial"], serial))))
    return facts


def _keys(daemon: SourceClient, planned: SerialRange) -> Any:
    """Return what adds keys to rows, with the streams that were declared up to the end of the range."""
    try:
        from synrepl.pipeline.keys import KeyExtractor  # executors may lack it
    except ImportError as error:
        raise SourceError(
            f"the column key needs synrepl on the executors ({error}): install it there, or leave key out of"
            " the option columns"
        ) from error
    try:
        # A replica that is behind may not have the declaration yet: the same daemon is asked for both.
        daemon.digest_at(planned.upto, epoch=planned.epoch)
        declared = daemon.get(DECLARED)["streams"]
    except SourceError as error:
        if error.code != "not_found":
            raise
        declared = []  # a daemon of a release without declared streams
    return KeyExtractor(declared).with_keys
