"""Provenance: facts of the daemon's own streams that the primary of their epoch cannot have written.

Only the daemon's own code writes these streams (`streams/origin.py`). Releases up to 26.11.0 stored such
facts of anybody who could publish, under any writer's name, and a log keeps them. What a log shows of its
primaries is the epochs: between two promotions there is one primary, so that of several writers at most one
was it. A log does not show which one; a primary knows its own name.

An atomic mark has the name of any writer, but its facts were committed together with it.
"""

from collections.abc import Collection, Iterable
from typing import Final

from synrepl.base.history import EpochStart
from synrepl.streams.atomic_appends import STREAM as MARKS
from synrepl.streams.atomic_appends import end_of
from synrepl.streams.catalog import DECLARATIONS, PROMISES
from synrepl.streams.facts import NO_ROWS, Fact

NAMED: Final = (PROMISES.name, DECLARATIONS.name)
"""The streams whose writer is the primary."""


def reign_of(epoch: int, starts: Iterable[EpochStart]) -> int:
    """Return the first epoch of the primary that was primary in this one; 0 for the first primary.

    In an epoch that begins because a source lost facts, the primary stays the same.
    """
    return max((one.epoch for one in starts if one.why != "lost" and one.epoch <= epoch), default=0)


def unproven(facts: Iterable[Fact], starts: Collection[EpochStart], *, primary: str = "") -> list[Fact]:
    """Return those of these facts of `NAMED` that are not proven to be of a primary.

    `primary` is the writer of the primary of the newest epoch, if it is known. A fact without rows is never
    proven: no primary writes one.
    """
    reigns: dict[int, list[Fact]] = {}
    for fact in facts:
        reigns.setdefault(reign_of(fact.epoch, starts), []).append(fact)
    newest = max((one.epoch for one in starts if one.why != "lost"), default=0)
    found: list[Fact] = []
    for reign, all_of_it in reigns.items():
        writers = {fact.writer for fact in all_of_it if fact.rows != NO_ROWS}
        if primary and reign == newest:
            writers &= {primary}
        elif len(writers) > 1:
            writers.clear()
        found += [fact for fact in all_of_it if fact.rows == NO_ROWS or fact.writer not in writers]
    return sorted(found, key=lambda fact: fact.serial)


def newest_by_writer(facts: Iterable[Fact], starts: Collection[EpochStart]) -> list[Fact]:
    """Return the last given fact of each writer of a stream under each primary, with and without rows.

    That is enough for `unproven`, and somebody may have forged any number.
    """
    found = {(one.stream, reign_of(one.epoch, starts), one.writer, one.rows == NO_ROWS): one for one in facts}
    return list(found.values())


class MarkCheck:
    """Finds atomic marks that are followed by other facts than those that were committed with them.

    Give it all facts in order, then call `end`. `wrong` are the serials of such marks.
    """

    def __init__(self) -> None:
        self.wrong: list[int] = []
        self._mark: Fact | None = None
        self._last = 0

    def add(self, fact: Fact) -> None:
        """Look at the next fact."""
        mark, before, self._last = self._mark, self._last, fact.serial
        if fact.serial != before + 1:
            # What is between them is not known: a copy with a filter, or a trimmed part.
            self._mark = mark = None
        if mark is not None:
            is_first = fact.serial == mark.serial + 1
            if (
                fact.stream == MARKS
                or fact.committed_at_ms != mark.committed_at_ms
                or (is_first and fact.writer != mark.writer)
            ):
                self.wrong.append(mark.serial)
                self._mark = mark = None
            elif fact.serial == end_of(mark):
                self._mark = mark = None
        if fact.stream == MARKS and end_of(fact) == fact.serial:
            self.wrong.append(fact.serial)
        elif fact.stream == MARKS:
            self._mark = fact

    def end(self) -> None:
        """Note that there are no more facts."""
        if self._mark is not None:
            self.wrong.append(self._mark.serial)
            self._mark = None
