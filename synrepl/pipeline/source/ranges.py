"""Ranges of serials, one per task."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from synrepl.pipeline.source.offsets import Clock

__all__ = ["SerialRange", "split_range"]


@dataclass(frozen=True)
class SerialRange:
    """The facts with ``after < serial <= upto``.

    `history` and `digest` (at `after`) prove that the log is the planned one; `end_digest` is the digest at
    `upto`, if known. A `compacted` range of a trimmed log may have holes. Facts of a writer in `skip` are
    dropped up to that serial, facts of a writer in `until` after that serial.
    """

    after: int
    upto: int
    history: str = ""
    digest: str | None = None
    end_digest: str | None = None
    compacted: bool = False
    skip: Clock = field(default_factory=dict)
    until: Clock = field(default_factory=dict)


def split_range(after: int, upto: int, *, facts: int, at_least: int, at_most_each: int) -> Sequence[int]:
    """Return the bounds that split ``(after, upto]`` into equal, non-empty parts, both ends included.

    There are enough parts that each of them has at most `at_most_each` of the `facts`, and at least
    `at_least` parts, if there are as many serials.
    """
    serials = upto - after
    if serials <= 0:
        return [after]
    parts = max(at_least, -(-facts // at_most_each), 1)
    parts = min(parts, serials)
    return [after + serials * part // parts for part in range(parts + 1)]
