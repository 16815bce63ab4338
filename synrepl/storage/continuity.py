"""Checks of a log's history: facts and epochs continue it, and its end is consistent with its positions.

Followers may have seen facts that their source has lost: the homeserver's database was restored to an older
state. The log is append-only and keeps the facts. The epoch that begins then marks the end of the old
history: the facts of its stream that were written before this epoch with a higher token are discarded.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from synrepl.errors import StorageError
from synrepl.ports.history import EpochStart, LogPosition
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = [
    "CHECKED_AT_OPEN",
    "DiscardedRanges",
    "advance",
    "check_ascend",
    "check_epoch_start",
    "check_follow",
    "discarded_rows",
    "find_inconsistency",
]


class DiscardedRanges:
    """All discarded ranges of a log: each discards the facts of a stream before an epoch and beyond a token.

    `rows` are the stream, epoch and token of each.
    """

    def __init__(self, rows: Iterable[tuple[str, int, int]] = ()) -> None:
        self._by_stream: dict[str, list[tuple[int, int]]] = {}
        for stream, epoch, token in rows:
            self._by_stream.setdefault(stream, []).append((epoch, token))

    def has_stream(self, stream: str) -> bool:
        """Whether there is a range of this stream."""
        return stream in self._by_stream

    def contains(self, fact: Fact) -> bool:
        """Whether a fact is discarded."""
        ranges = self._by_stream.get(fact.stream, ())
        return any(fact.epoch < epoch and fact.token > token for epoch, token in ranges)

    def condition(self, stream: str) -> tuple[str, list[int]]:
        """An SQL condition that excludes discarded facts, and its values."""
        ranges = self._by_stream.get(stream, ())
        return (
            " AND NOT (epoch < ? AND token > ?)" * len(ranges),
            [value for one in ranges for value in one],
        )


def discarded_rows(epoch_starts: Iterable[EpochStart]) -> list[tuple[str, int, int]]:
    """The ranges that these starts of epochs discard, as rows of `DiscardedRanges`."""
    return [(one.stream, one.epoch, one.token) for one in epoch_starts if one.stream]


def check_follow(facts: Sequence[Fact], serial: int, digest: str) -> None:
    """Raise `StorageError` unless these facts continue a log that ends at this serial and digest."""
    for expected, fact in enumerate(facts, serial + 1):
        if fact.serial != expected:
            raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {expected - 1}")
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
            raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {last}")
        last = fact.serial
    if last > upto:
        raise StorageError(op="commit", why=f"serial {last} is beyond {upto}, the new end of the log")


def check_epoch_start(epoch_start: EpochStart, position: LogPosition) -> None:
    """Raise `StorageError` unless this epoch is above the current one and starts at the end of the log."""
    if epoch_start.epoch <= position.epoch:
        raise StorageError(
            op="begin_epoch", why=f"epoch {epoch_start.epoch} cannot follow epoch {position.epoch}"
        )
    if epoch_start.serial != position.serial:
        raise StorageError(
            op="begin_epoch",
            why=f"the new epoch would start after serial {epoch_start.serial}, but the log ends at"
            f" {position.serial}",
        )
    if epoch_start.digest != position.digest:
        raise StorageError(
            op="begin_epoch",
            why=f"the new epoch starts after serial {position.serial}, but with another digest than the"
            " log's there",
        )


def advance(positions: dict[tuple[str, str], int], facts: Iterable[Fact]) -> None:
    """Raise the position of each (stream, writer) to the highest of its tokens: the last fact may be late."""
    for fact in facts:
        pair = (fact.stream, fact.writer)
        positions[pair] = max(fact.token, positions.get(pair, fact.token))


CHECKED_AT_OPEN: Final = 1000
"""The number of last facts checked at open; checking all of a big log would take too long."""


def find_inconsistency(
    tail: Sequence[Fact],
    floor: LogPosition,
    positions: Mapping[tuple[str, str], int],
    discarded: DiscardedRanges,
) -> str:
    """The first inconsistency in the last facts; "" if there is none. No fact is missing beyond `floor`.

    `tail` is the last `CHECKED_AT_OPEN` facts and the one before them, or all facts.
    """
    if not tail:
        return ""
    first = tail[0].serial
    is_all = len(tail) <= CHECKED_AT_OPEN or first == floor.serial + 1
    expected = floor.serial + 1 if is_all else first
    for serial, fact in enumerate(tail, expected):
        if fact.serial != serial:
            return f"serial {serial} is missing"
    wrong = verify(tail, floor.digest) if is_all else verify(tail[1:], tail[0].digest)
    if wrong is not None:
        return f"the digest of serial {wrong} does not follow from the facts before it"
    return _check_positions(tail, positions, discarded)


def _check_positions(
    tail: Sequence[Fact], positions: Mapping[tuple[str, str], int], discarded: DiscardedRanges
) -> str:
    valid = [fact for fact in tail if not discarded.contains(fact)]
    advanced = {(fact.stream, fact.writer) for fact in valid if fact.prev_token < fact.token}
    expected_positions: dict[tuple[str, str], int] = {}
    advance(expected_positions, valid)
    for pair, token in expected_positions.items():
        stream, writer = pair
        position = positions.get(pair)
        # After a loss a position is where the old history ended rather than at a fact. If all facts of the
        # tail were late, it is at a fact before them.
        is_exact = pair in advanced and not discarded.has_stream(stream)
        if position is None or position < token or (is_exact and position > token):
            return f"the last token of {writer} in {stream} is {token}, its position is {position}"
    return ""
