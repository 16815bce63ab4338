"""The consistency check of the end of a log: an inconsistent log must not be extended."""

from collections.abc import Mapping, Sequence
from typing import Final

from synrepl.ports.history import LogPosition
from synrepl.storage.continuity import advance
from synrepl.storage.discarded import DiscardedRanges
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["CHECKED_AT_OPEN", "find_inconsistency"]

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
        is_exact = pair in advanced and not discarded.for_stream(stream)
        if position is None or position < token or (is_exact and position > token):
            return f"the last token of {writer} in {stream} is {token}, its position is {position}"
    return ""
