"""Stateful processor for Spark: stores the state of each writer and of the log, and decides nothing."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from synrepl.pipeline.watch.events import WatchEvent, encode, order
from synrepl.pipeline.watch.log_state import THE_LOG, LogState, TaskObservations, look, look_ms, pass_time
from synrepl.pipeline.watch.writer_chain import (
    FactRun,
    WatchRules,
    WriterChain,
    advance,
    deadline_ms,
    silence,
)

__all__ = ["EVENTS_DDL", "WatchProcessor"]

EVENTS_DDL: Final = "serial bigint, kind int, line string"
"""Lines and their sort key (`events.order`)."""

_chain: Final = msgspec.json.Decoder(WriterChain)
_log: Final = msgspec.json.Decoder(LogState)
_run: Final = msgspec.json.Decoder(FactRun)
_seen: Final = msgspec.json.Decoder(TaskObservations)


class WatchProcessor(StatefulProcessor):
    """A processor whose state is one JSON text per key, with at most one timer."""

    def __init__(self, rules: WatchRules) -> None:
        self._rules = rules
        self._handle: Any = None
        self._state: Any = None

    def init(self, handle: Any) -> None:
        """Open the state (called by Spark)."""
        self._handle = handle
        self._state = handle.getValueState("state", "state string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Handle new observations of a key."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        observations = [row["observation"] for row in rows]
        kept = self._kept()
        if tuple(key) == THE_LOG:
            log = None if kept is None else _log.decode(kept)
            # Tasks are unordered; the facts of a task are ordered.
            seen = sorted(map(_seen.decode, observations), key=lambda one: one.serial)
            log, events = look(log, seen, now_ms=now_ms, rules=self._rules)
            self._keep(log, look_ms(log))
        else:
            chain = None if kept is None else _chain.decode(kept)
            runs = sorted(map(_run.decode, observations), key=lambda one: one.serial)
            stream, writer = key
            chain, events = advance(
                chain, runs, stream=stream, writer=writer, now_ms=now_ms, rules=self._rules
            )
            self._keep(chain, deadline_ms(chain, self._rules))
        yield from map(_row, events)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Handle a timer. It may be early: new observations do not move it."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        kept = self._kept()
        assert kept is not None, "a key with a timer has a state"
        if tuple(key) == THE_LOG:
            log, events = pass_time(
                msgspec.structs.replace(_log.decode(kept), timer_ms=None), now_ms=now_ms, rules=self._rules
            )
            self._keep(log, look_ms(log))
        else:
            chain = msgspec.structs.replace(_chain.decode(kept), timer_ms=None)
            stream, writer = key
            chain, events = silence(chain, stream=stream, writer=writer, now_ms=now_ms, rules=self._rules)
            self._keep(chain, deadline_ms(chain, self._rules))
        yield from map(_row, events)

    def close(self) -> None:
        """Do nothing (called by Spark)."""

    def _kept(self) -> str | None:
        kept = self._state.get()
        return None if kept is None else str(kept[0])

    def _keep(self, state: WriterChain | LogState, due_ms: int | None) -> None:
        """Store the state, and set a timer no later than `due_ms`."""
        timer_ms = state.timer_ms
        if due_ms is not None and (timer_ms is None or due_ms < timer_ms):
            if timer_ms is not None:
                self._handle.deleteTimer(timer_ms)
            self._handle.registerTimer(due_ms)
            timer_ms = due_ms
        self._state.update((msgspec.json.encode(msgspec.structs.replace(state, timer_ms=timer_ms)).decode(),))


def _row(line: WatchEvent) -> Row:
    serial, kind = order(line)
    return Row(serial=serial, kind=kind, line=encode(line).decode())
