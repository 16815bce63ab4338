"""Planner of a query: resolves offsets, and splits the log into ranges for tasks."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pyarrow.compute as pc

from synrepl.http_api.routes import DIGESTS
from synrepl.pipeline.source.daemon_client import DataLoss, SourceClient
from synrepl.pipeline.source.offsets import EARLIEST, LATEST, Clock, Offset
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.ranges import SerialRange, split_range

__all__ = ["BatchPacer", "Planner"]


class BatchPacer:
    """The pacer of one query. The first micro-batch is due at once, as the age of its facts is unknown."""

    def __init__(self, options: SourceOptions, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._seconds = seconds
        self._began: float | None = None

    def is_due(self, waiting: int) -> bool:
        """Whether to start a micro-batch now, with `waiting` facts. If so, the delay starts again."""
        enough, now = self._options.min_offsets_per_trigger, self._seconds()
        if enough is not None and waiting < enough:
            is_late = self._began is None or now - self._began >= self._options.max_trigger_delay
            if not (waiting and is_late):
                return False
        self._began = now
        return True


MAX_SERIALS: Final = 1_000
"""Maximum number of digests per request."""

LIKELY_BYTES: Final = 100
"""Assumed size of the rows of a fact, until facts were measured."""

FROM_EARLIEST: Final = -2
FROM_LATEST: Final = -1
"""Special tokens, as in the Kafka source."""

_log = logging.getLogger("synrepl.pipeline")


class Planner:
    """Planner of one query. Requests metadata of the daemon; reads facts only to locate tokens."""

    def __init__(self, options: SourceOptions, daemon: SourceClient) -> None:
        self._options = options
        self._daemon = daemon
        self._fact_bytes = LIKELY_BYTES

    # -- offsets -------------------------------------------------------------------------------------------

    def start(self) -> Offset:
        """Return the start offset of a query that has read no facts yet."""
        options = self._options
        request = options.starting
        if request.offset is not None:
            return self._with_proof(request.offset)
        trimmed_upto = 0 if options.compacted else self._trimmed_upto()
        if request.word == LATEST:
            return self.last(Offset(serial=trimmed_upto), None)
        if request.at_ms is not None:
            return self._with_proof(Offset(serial=self._serial_before(request.at_ms, trimmed_upto)))
        if request.clock is None:
            return self._with_proof(Offset(serial=trimmed_upto))
        skip, head = self._serial_limits(request.clock, trimmed_upto)
        if all(writer in skip.get(stream, {}) for stream, of in head["clock"].items() for writer in of):
            trimmed_upto = min([head["serial"], *(serial for of in skip.values() for serial in of.values())])
        return self._with_proof(Offset(serial=max(trimmed_upto, 0), clock=request.clock, skip=skip))

    def end(self, start: Offset, *, limit: int | None, upto: int | None = None) -> Offset:
        """Return the furthest offset after `start`: at most `limit` facts, not beyond the serial `upto`."""
        found = self._limited_extent(start, limit, upto)
        if not found["facts"] and found["serial"] - start.serial < self._options.facts_per_partition:
            # A short range without selected facts is not worth a micro-batch.
            return start
        return start.advance(found)

    def count_waiting(self, start: Offset, most: int) -> int:
        """Return the number of facts after `start`, at most `most`."""
        return int(self._extent(start, limit=most)["facts"])

    def _limited_extent(self, start: Offset, limit: int | None, upto: int | None) -> Any:
        """Return the extent after `start`, of about `max_bytes` at most. A fact is never split."""
        most = self._options.max_bytes_per_trigger
        if most is None:
            return self._extent(start, limit=limit, upto=upto)
        fits: Any = None
        is_over = False
        count = most // self._fact_bytes
        while True:
            count = max(1, count if limit is None else min(count, limit))
            found = self._extent(start, limit=count, upto=upto)
            facts, size = found["facts"], max(1, found["bytes"])
            if size > most and facts > 1:
                is_over = True
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
        """Return the offset of the head, or of the serial `upto`."""
        return (
            start
            if upto is not None and upto <= start.serial
            else start.advance(self._extent(start, upto=upto))
        )

    def closed_range(self) -> tuple[Offset, Offset, Clock]:
        """Return start and end of a closed range, and the last serial of writers that end earlier."""
        start, request = self.start(), self._options.ending
        if request.word == EARLIEST:
            return start, start, {}
        upto = None if request.offset is None else request.offset.serial
        if request.at_ms is not None:
            upto = self._serial_before(request.at_ms, start.serial)
        end = self.last(start, upto)
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
        """Return the serial up to which the log was trimmed."""
        return int(self._daemon.extent(limit=1, compacted=True)["trimmed_upto"])

    def _with_proof(self, offset: Offset) -> Offset:
        """Return the offset with its digest and history."""
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
        try:
            return self._daemon.extent(
                since=start.serial,
                epoch=start.epoch,
                digest=start.digest,
                history=start.history,
                compacted=compacted or None,
                # The lease of `reader` retains facts after this position. Tasks read later ones, so they do
                # not set it.
                reader=self._options.reader,
                **query,
            )
        except DataLoss as loss:
            if self._options.fail_on_data_loss:
                raise
            trimmed_upto = self._trimmed_upto()
            _log.warning("%s; continuing after serial %d", loss, trimmed_upto)
            return self._daemon.extent(since=trimmed_upto, **query)

    def _serial_limits(self, clock: Clock, trimmed_upto: int) -> tuple[dict[str, dict[str, int]], Any]:
        """Return for each writer of `clock` the last serial up to its token, and the extent of the log.

        Reads the facts of the writers from the daemon, once per query.
        """
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
                            break
                found.setdefault(stream, {})[writer] = serial
        return found, head

    # -- ranges --------------------------------------------------------------------------------------------

    def ranges(self, start: Offset, end: Offset, until: Clock) -> list[SerialRange]:
        """Return the ranges of the tasks between two offsets, of about equal size."""
        options = self._options
        serials = split_range(
            start.serial,
            end.serial,
            facts=end.serial - start.serial,
            at_least=options.min_partitions,
            at_most_each=options.facts_per_partition,
        )
        digests = self._digests(serials)
        may_lack = options.compacted or not options.fail_on_data_loss
        trimmed_upto = self._trimmed_upto() if may_lack else 0
        return [
            SerialRange(
                after=after,
                upto=upto,
                history=end.history,
                digest=digests.get(after),
                end_digest=digests.get(upto),
                compacted=after < trimmed_upto,
                skip=start.skip,
                until=until,
            )
            for after, upto in pairwise(serials)
        ]

    def _digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        found: dict[int, str | None] = {}
        for first in range(0, len(serials), MAX_SERIALS):
            some = serials[first : first + MAX_SERIALS]
            digests = self._daemon.get(DIGESTS, serials=some)["digests"]
            found.update((int(serial), digest) for serial, digest in digests.items())
        return found
