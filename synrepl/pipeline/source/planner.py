"""From what a user says and what a daemon has to ranges that tasks read."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pyarrow.compute as pc

from synrepl.pipeline.source.daemon_client import DataLoss, SourceClient
from synrepl.pipeline.source.offsets import EARLIEST, LATEST, Clock, Offset
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.ranges import SerialRange, cuts

__all__ = ["Planner"]

MAX_SERIALS: Final = 1_000
"""Digests that are asked for at once."""

LIKELY_BYTES: Final = 100
"""Of a fact's rows, until some were seen."""

FROM_EARLIEST: Final = -2
FROM_LATEST: Final = -1
"""In place of a token, as in Kafka's source."""

_log = logging.getLogger("synrepl.pipeline")


class Planner:
    """Plans what one query reads. Asks the daemon; reads nothing itself, but where tokens are to be found."""

    def __init__(self, options: SourceOptions, daemon: SourceClient) -> None:
        self._options = options
        self._daemon = daemon
        self._fact_bytes = LIKELY_BYTES

    # -- where to begin and end ----------------------------------------------------------------------------

    def start(self) -> Offset:
        """Where a query begins that has read nothing yet."""
        options = self._options
        wish = options.starting
        if wish.offset is not None:
            return self._proved(wish.offset)
        trimmed_upto = 0 if options.compacted else self._begin()
        if wish.word == LATEST:
            return self.last(Offset(serial=trimmed_upto), None)
        if wish.at_ms is not None:
            return self._proved(Offset(serial=self._serial_before(wish.at_ms, trimmed_upto)))
        if wish.clock is None:
            return self._proved(Offset(serial=trimmed_upto))
        skip, head = self._serials(wish.clock, trimmed_upto)
        if all(writer in skip.get(stream, {}) for stream, of in head["clock"].items() for writer in of):
            trimmed_upto = min([head["serial"], *(serial for of in skip.values() for serial in of.values())])
        return self._proved(Offset(serial=max(trimmed_upto, 0), clock=wish.clock, skip=skip))

    def end(self, start: Offset, *, limit: int | None, upto: int | None = None) -> Offset:
        """The furthest place from there, after at most `limit` facts, not beyond the serial `upto`."""
        found = self._fitting(start, limit, upto)
        if not found["facts"] and found["serial"] - start.serial < self._options.facts_per_partition:
            # Of what is not wanted, a little makes no progress.
            return start
        return start.reached(found)

    def waiting(self, start: Offset, most: int) -> int:
        """How many facts come after it, as far as they matter."""
        return int(self._extent(start, limit=most)["facts"])

    def _fitting(self, start: Offset, limit: int | None, upto: int | None) -> Any:
        """What lies from there on, about as many bytes as are wanted at most. A fact is never split."""
        most = self._options.max_bytes
        if most is None:
            return self._extent(start, limit=limit, upto=upto)
        fits: Any = None
        is_over = False
        asked = most // self._fact_bytes
        while True:
            asked = max(1, asked if limit is None else min(asked, limit))
            found = self._extent(start, limit=asked, upto=upto)
            facts, size = found["facts"], max(1, found["bytes"])
            if size > most and facts > 1:
                is_over = True
                asked = max(facts * most // size, facts // 4)
                if fits is not None and asked <= fits["facts"]:
                    return fits
                continue
            if facts:
                self._fact_bytes = max(1, size // facts)
            if is_over or facts < asked or asked == limit or 2 * size > most:
                return found
            fits, asked = found, facts * most // size

    def last(self, start: Offset, upto: int | None) -> Offset:
        """The head, or where the log is at the serial `upto`."""
        return (
            start
            if upto is not None and upto <= start.serial
            else start.reached(self._extent(start, upto=upto))
        )

    def closed(self) -> tuple[Offset, Offset, Clock]:
        """Where a query over a closed range begins and ends; and up to which serial some writers are read."""
        start, wish = self.start(), self._options.ending
        if wish.word == EARLIEST:
            return start, start, {}
        upto = None if wish.offset is None else wish.offset.serial
        if wish.at_ms is not None:
            upto = self._serial_before(wish.at_ms, start.serial)
        end = self.last(start, upto)
        until = {} if wish.clock is None else self._serials(wish.clock, start.serial)[0]
        return start, end, until

    def _serial_before(self, at_ms: int, trimmed_upto: int) -> int:
        """The serial after which the first fact comes that was committed then, or later; the head if there is
        none. Commits ascend in time, unless somebody has set the clock back.
        """
        low = trimmed_upto
        high = max(trimmed_upto, self._daemon.extent(limit=1, compacted="true")["head"])
        while low < high:
            middle = (low + high) // 2
            found = self._daemon.extent(since=middle, limit=1, compacted="true")
            if not found["facts"] or found["committed_at_ms"] >= at_ms:
                high = middle
            else:
                low = found["serial"]
        return low

    def _begin(self) -> int:
        """The serial up to which the log was trimmed."""
        return int(self._daemon.extent(limit=1, compacted="true")["trimmed_upto"])

    def _proved(self, offset: Offset) -> Offset:
        """With the digest there, and whose history it is."""
        if offset.history and offset.digest is not None:
            return offset
        found = self._daemon.get("/v1/digests", serials=offset.serial)
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
                compacted="true" if compacted else None,
                # What comes after it is kept; tasks must not say so, as they read what comes later.
                reader=self._options.reader,
                **query,
            )
        except DataLoss as loss:
            if self._options.fail_on_data_loss:
                raise
            trimmed_upto = self._begin()
            _log.warning("%s; going on after serial %d", loss, trimmed_upto)
            return self._daemon.extent(since=trimmed_upto, **query)

    def _serials(self, clock: Clock, trimmed_upto: int) -> tuple[dict[str, dict[str, int]], Any]:
        """Up to which serial each of these writers has written no token beyond its own here; and the head.

        The daemon is read for it, from `begin` on, once a query.
        """
        head = self._daemon.extent(since=trimmed_upto, compacted="true")
        found: dict[str, dict[str, int]] = {}
        for stream, writers in clock.items():
            for writer, token in writers.items():
                serial = head["serial"]
                if token == FROM_EARLIEST:
                    serial = 0
                elif token != FROM_LATEST:
                    for batch in self._daemon.facts(
                        since=trimmed_upto, upto=serial, compacted="true", streams=stream, writers=writer
                    ):
                        first = pc.index(pc.greater(batch["token"], token), True).as_py()
                        if first >= 0:
                            serial = batch["serial"][first].as_py() - 1
                            break
                found.setdefault(stream, {})[writer] = serial
        return found, head

    # -- who reads what ------------------------------------------------------------------------------------

    def ranges(self, start: Offset, end: Offset, until: Clock) -> list[SerialRange]:
        """The tasks that read what lies between the two, about as much each."""
        options = self._options
        serials = cuts(
            start.serial,
            end.serial,
            facts=end.serial - start.serial,
            at_least=options.min_partitions,
            at_most_each=options.facts_per_partition,
        )
        digests = self._digests(serials)
        may_lack = options.compacted or not options.fail_on_data_loss
        trimmed_upto = self._begin() if may_lack else 0
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
            some = ",".join(map(str, serials[first : first + MAX_SERIALS]))
            told = self._daemon.get("/v1/digests", serials=some)["digests"]
            found.update((int(serial), digest) for serial, digest in told.items())
        return found
