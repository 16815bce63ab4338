"""Whether a read by token has all facts: the index by token may lack one that is in the log.

Each fact tells the token before it of its writer. Where the one before is not there, it was trimmed, its
source has lost it, or it is missing in the index: the facts themselves tell. Late facts are followed by none:
one that is missing is not noticed here, but by ``synrepl doctor``.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from synrepl.storage.checked_rows import CHECKED_FACT, LogDamage, facts_of
from synrepl.storage.continuity import DiscardedRanges
from synrepl.storage.schema import POSITIONS
from synrepl.storage.sql import SQLConnection
from synrepl.streams.facts import NO_ROWS, Fact

LOOKED_AT: Final = 50_000
"""The number of newest facts among which those of a gap are looked for, in a log that was trimmed: there many
gaps are right."""

MANY_GAPS: Final = 10_000


class TokenRange(NamedTuple):
    """Facts of one stream with ``after < token <= upto`` and serials up to `serial`, of one writer or all."""

    stream: str
    writer: str | None
    after: int
    upto: int
    serial: int

    def condition(self, stream_column: str, discarded: DiscardedRanges) -> tuple[str, tuple[object, ...]]:
        """An SQL condition for these facts, without discarded ones, and its values."""
        not_discarded, values = discarded.condition(self.stream)
        of_writer = "" if self.writer is None else " AND writer = ?"
        return (
            f"{stream_column} = ? AND token > ? AND token <= ? AND serial <= ?{not_discarded}{of_writer}",
            (
                self.stream,
                self.after,
                self.upto,
                self.serial,
                *values,
                *(() if self.writer is None else (self.writer,)),
            ),
        )


class Gap(NamedTuple):
    """A writer has facts beyond the token `low`, but none of them was read, up to the token `high`."""

    writer: str
    low: int
    high: int


class KnownGaps:
    """Gaps that were found to be right: they stay so."""

    def __init__(self) -> None:
        self._lowest: dict[tuple[str, str, int], int] = {}

    def unknown(self, stream: str, gaps: Iterable[Gap]) -> list[Gap]:
        """Return those of these gaps in a stream that are not known."""
        return [
            gap for gap in gaps if self._lowest.get((stream, gap.writer, gap.high), gap.low + 1) > gap.low
        ]

    def add(self, stream: str, gaps: Iterable[Gap]) -> None:
        """Add gaps in a stream."""
        if len(self._lowest) > MANY_GAPS:
            self._lowest.clear()
        for gap in gaps:
            self._lowest[stream, gap.writer, gap.high] = gap.low


def find_gaps(
    connection: SQLConnection,
    asked: TokenRange,
    facts: Sequence[Fact],
    floor: int,
    unindexed_stream: str,
    *,
    is_whole: bool,
) -> list[Gap]:
    """Find the gaps in these facts, which were read as the first ones of the range, or as all (`is_whole`).

    Up to the serial `floor` facts may be missing.
    """
    gaps: list[Gap] = []
    last: dict[str, int] = {}
    for fact in facts:
        is_late = fact.prev_token == fact.token and fact.rows != NO_ROWS
        if is_late:
            continue
        low = last.get(fact.writer, asked.after)
        if low < fact.prev_token < fact.token and fact.serial > floor:
            gaps.append(Gap(fact.writer, low, fact.prev_token))
        last[fact.writer] = fact.token
    if is_whole:
        gaps += _gaps_at_end(connection, asked, last, unindexed_stream)
    return gaps


def _gaps_at_end(
    connection: SQLConnection, asked: TokenRange, last: Mapping[str, int], unindexed_stream: str
) -> list[Gap]:
    of_writer, values = ("", ()) if asked.writer is None else (" AND writer = ?", (asked.writer,))
    rows = POSITIONS.rows(connection.execute, f"WHERE stream = ?{of_writer}", (asked.stream, *values))
    ends = {writer: position for _, writer, position in rows}
    gaps = _gaps_upto(ends, asked, last)
    if gaps:
        # The positions are newer than the serial: these are the ones at that.
        newer = connection.execute(
            f"SELECT writer, min(prev_token) FROM facts WHERE serial > ? AND {unindexed_stream} = ?"
            " AND prev_token < token GROUP BY writer",
            (asked.serial, asked.stream),
        )
        for writer, position in newer.fetchall():
            ends[writer] = min(position, ends.get(writer, position))
        gaps = _gaps_upto(ends, asked, last)
    return gaps


def _gaps_upto(ends: Mapping[str, int], asked: TokenRange, last: Mapping[str, int]) -> list[Gap]:
    return [
        Gap(writer, low, high)
        for writer, end in ends.items()
        if (low := last.get(writer, asked.after)) < (high := min(end, asked.upto))
    ]


def check_gaps(
    connection: SQLConnection,
    asked: TokenRange,
    gaps: Sequence[Gap],
    floor: int,
    discarded: DiscardedRanges,
    unindexed_stream: str,
) -> None:
    """Raise `LogDamage` if a fact of one of these gaps is in the log."""
    within = asked._replace(after=min(gap.low for gap in gaps), upto=max(gap.high for gap in gaps))
    # Those of a writer are in order of token.
    by_writer: dict[str, list[Gap]] = {}
    for gap in gaps:
        by_writer.setdefault(gap.writer, []).append(gap)
    where, values = within.condition(unindexed_stream, discarded)
    first = 0 if floor == 0 else max(0, asked.serial - LOOKED_AT)
    found = connection.execute(
        f"SELECT {CHECKED_FACT} FROM facts WHERE serial > ? AND {where} AND prev_token < token",
        (first, *values),
    )
    for fact in facts_of(found):
        of_writer = by_writer.get(fact.writer, [])
        at = bisect_left(of_writer, fact.token, key=attrgetter("low")) - 1
        if at >= 0 and fact.token <= of_writer[at].high:
            raise LogDamage(f"serial {fact.serial} is missing in the index of tokens")
