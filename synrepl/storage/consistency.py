"""Whether the end of a log contradicts itself: going on from there would make it worse."""

from collections.abc import Mapping, Sequence
from typing import Final

from synrepl.ports.history import LogPosition
from synrepl.storage.continuity import advance
from synrepl.storage.discarded import DiscardedRanges
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["CHECKED_AT_OPEN", "what_is_wrong"]

CHECKED_AT_OPEN: Final = 1000
"""Facts at the head that are checked when the log is opened; all of a big log would take too long."""


def what_is_wrong(
    tail: Sequence[Fact], floor: LogPosition, positions: Mapping[tuple[str, str], int], voids: DiscardedRanges
) -> str:
    """What is wrong with the last facts beyond `floor`, from where on none is missing; "" if nothing is.

    They are `CHECKED_AT_OPEN` and one before them, or all that there are.
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
    return _of_positions(tail, positions, voids)


def _of_positions(
    tail: Sequence[Fact], positions: Mapping[tuple[str, str], int], voids: DiscardedRanges
) -> str:
    counting = [fact for fact in tail if not voids.hold(fact)]
    moving = {(fact.stream, fact.writer) for fact in counting if fact.prev_token < fact.token}
    told: dict[tuple[str, str], int] = {}
    advance(told, counting)
    for pair, token in told.items():
        stream, writer = pair
        kept = positions.get(pair)
        # Where history was lost, a position stands where that ended, not at a fact; where all facts came
        # late, it stands at one before them.
        is_exact = pair in moving and not voids.of(stream)
        if kept is None or kept < token or (is_exact and kept > token):
            return f"the last token of {writer} in {stream} is {token}, its position says {kept}"
    return ""
