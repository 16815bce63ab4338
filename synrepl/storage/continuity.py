"""Checks of a log's history: facts and epochs continue it, and its end is consistent with its positions.

Followers may have seen facts that their source has lost: the homeserver's database was restored to an older
state. The log is append-only and keeps the facts, but an epoch begins, with a stream and a token: the facts
of this stream that are beyond the token and from earlier epochs are discarded.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from synrepl.base.history import EpochStart
from synrepl.errors import StorageError
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact
from synrepl.streams.writer import Writer
from synrepl.wire.position import LogPosition


class DiscardedRanges:
    """All discarded ranges of a log: each discards the facts of a stream before an epoch and beyond a token.

    `rows` are the stream, epoch and token of each.
    """

    def __init__(self, rows: Iterable[tuple[str, int, int]] = ()) -> None:
        self.by_stream: dict[str, list[tuple[int, int]]] = {}
        self.load(rows)

    def load(self, rows: Iterable[tuple[str, int, int]]) -> None:
        """Take these ranges in place of those known."""
        found: dict[str, list[tuple[int, int]]] = {}
        for stream, epoch, token in rows:
            found.setdefault(stream, []).append((epoch, token))
        # At once: the other thread may be reading.
        self.by_stream = found

    def contains(self, fact: Fact) -> bool:
        """Whether a fact is discarded."""
        ranges = self.by_stream.get(fact.stream, ())
        return any(fact.epoch < epoch and fact.token > token for epoch, token in ranges)

    def condition(self, stream: str) -> tuple[str, list[int]]:
        """An SQL condition that excludes discarded facts, and its values."""
        ranges = self.by_stream.get(stream, ())
        return (
            " AND NOT (epoch < ? AND token > ?)" * len(ranges),
            [value for one in ranges for value in one],
        )


class ChainCheck:
    """The check of a log's facts, in order, after the fact with this serial and digest.

    Without a digest the first fact is trusted. `missing` has the first missing serial of each gap, `wrong`
    the serials with a wrong digest. `highest` has the highest token, of facts not discarded, of each stream
    and writer; those in `advanced` have at least one fact that raised the writer's position.
    """

    def __init__(self, discarded: DiscardedRanges, serial: int, digest: str | None) -> None:
        self.checked = 0
        self.missing: list[int] = []
        self.wrong: list[int] = []
        self.highest: dict[Writer, int] = {}
        self.advanced: set[Writer] = set()
        self._discarded = discarded
        self._serial, self._digest = serial, digest

    def add(self, fact: Fact) -> None:
        """Check the next fact; an error in it does not affect the following ones."""
        if fact.serial != self._serial + 1:
            self.missing.append(self._serial + 1)
        elif self._digest is not None and verify([fact], self._digest) is not None:
            self.wrong.append(fact.serial)
        self._serial, self._digest = fact.serial, fact.digest
        if not self._discarded.contains(fact):
            advance(self.highest, [fact])
            if fact.prev_token < fact.token:
                self.advanced.add(Writer(fact.stream, fact.writer))
        self.checked += 1

    def skip(self, fact: Fact) -> None:
        """Leave out a fact that is known to be damaged: the next one is not checked against it."""
        if fact.serial > self._serial + 1:
            self.missing.append(self._serial + 1)
        self._serial, self._digest = fact.serial, None

    def wrong_positions(
        self, positions: Mapping[Writer, int], *, whole: bool
    ) -> Iterator[tuple[Writer, int | None, int | None]]:
        """Each writer whose position does not fit its facts, with its highest token and position,
        each None if missing.

        If only a part of the log was checked (not `whole`), writers without facts there are left out, and a
        position may be beyond late facts. In a stream that has lost facts a position may be beyond all facts.
        """
        for writer in sorted(self.highest | dict(positions) if whole else self.highest):
            token, position = self.highest.get(writer), positions.get(writer)
            is_exact = writer.stream not in self._discarded.by_stream and (whole or writer in self.advanced)
            is_behind = token is not None and (position is None or position < token)
            is_ahead = position is not None and (token is None or position > token)
            if is_behind or (is_ahead and is_exact):
                yield writer, token, position


def check_follow(facts: Sequence[Fact], serial: int, digest: str) -> None:
    """Raise `StorageError` unless all serials, and the first digest, follow from this serial and digest."""
    for expected, fact in enumerate(facts, serial + 1):
        if fact.serial != expected:
            raise StorageError(op="commit", why=f"serial {expected} must come next, not {fact.serial}")
    # The digests of the rest were chained to the first when they were made.
    if verify(facts[:1], digest) is not None:
        raise StorageError(
            op="commit",
            why=f"the digest of serial {serial + 1} does not follow from the log's digest at serial {serial}",
        )


def check_ascend(facts: Sequence[Fact], serial: int, upto: int) -> None:
    """Raise `StorageError` unless the serials of these facts ascend from above `serial` to at most `upto`."""
    last = serial
    for fact in facts:
        if fact.serial <= last:
            raise StorageError(op="commit", why=f"a serial above {last} must come next, not {fact.serial}")
        last = fact.serial
    if last > upto:
        raise StorageError(op="commit", why=f"serial {last} is beyond {upto}, the new end of the log")


def check_epoch_start(epoch_start: EpochStart, position: LogPosition) -> None:
    """Raise `StorageError` unless this epoch is above the current one and starts at the end of the log."""
    if epoch_start.epoch <= position.epoch:
        why = f"epoch {epoch_start.epoch} is not above the current epoch, {position.epoch}"
    elif epoch_start.serial != (serial := position.serial):
        why = f"the new epoch would start after serial {epoch_start.serial}, but the log ends at {serial}"
    elif epoch_start.digest != position.digest:
        why = f"the digest of the new epoch's start is not that of the log's end, serial {serial}"
    else:
        return
    raise StorageError(op="begin_epoch", why=why, tried=False)


def advance(positions: dict[Writer, int], facts: Iterable[Fact]) -> None:
    """Raise the position of each writer to the highest of its tokens: the last fact may be late."""
    writer = Writer("", "")
    for fact in facts:
        if fact.writer != writer.name or fact.stream != writer.stream:
            writer = Writer(fact.stream, fact.writer)
        if fact.token > positions.get(writer, -math.inf):
            positions[writer] = fact.token


CHECKED_AT_OPEN: Final = 1000
"""The number of last facts checked at open; checking all of a big log would take too long."""


def find_inconsistency(
    tail: Sequence[Fact],
    floor: LogPosition,
    positions: Mapping[Writer, int] | None,
    discarded: DiscardedRanges,
) -> str:
    """The first inconsistency in the last facts; "" if there is none. Beyond `floor` no fact may be missing.

    Without `positions` none are compared.

    `tail` is the last `CHECKED_AT_OPEN` facts and the one before them, or all facts beyond `floor`.
    """
    if not tail:
        return ""
    first = tail[0].serial
    is_all = len(tail) <= CHECKED_AT_OPEN or first == floor.serial + 1
    check = ChainCheck(discarded, *((floor.serial, floor.digest) if is_all else (first - 1, None)))
    for fact in tail:
        check.add(fact)
    if check.missing:
        return f"serial {check.missing[0]} is missing"
    if check.wrong:
        return f"the digest of serial {check.wrong[0]} does not follow from the facts before it"
    if positions is None:
        return ""
    for writer, token, position in check.wrong_positions(positions, whole=False):
        stored = "missing" if position is None else position
        last = f"the last token of {writer.name} in {writer.stream} is {token}"
        return f"{last}, but its stored position is {stored}"
    return ""
