"""Plans: which task reads which serials."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from synrepl.pipeline.source.offsets import Clock

__all__ = ["SerialRange", "cuts"]


@dataclass(frozen=True)
class SerialRange:
    """The facts with ``after < serial <= upto``.

    `history` and `digest`, the one at `after`, prove that it is the same log; `end_digest` is that at `upto`,
    where these are known. A `compacted` range may have holes, as its log was trimmed. Of a writer in `skip`
    what comes up to that serial is left out, of one in `until` what comes after it.
    """

    after: int
    upto: int
    history: str = ""
    digest: str | None = None
    end_digest: str | None = None
    compacted: bool = False
    skip: Clock = field(default_factory=dict)
    until: Clock = field(default_factory=dict)


def cuts(after: int, upto: int, *, facts: int, at_least: int, at_most_each: int) -> Sequence[int]:
    """The serials at which ``(after, upto]`` is cut, both ends included: in equal parts, none of them empty.

    `facts` are wanted of it: as many parts as hold `at_most_each` of them, and `at_least` so many, if there
    are as many serials.
    """
    serials = upto - after
    if serials <= 0:
        return [after]
    parts = max(at_least, -(-facts // at_most_each), 1)
    parts = min(parts, serials)
    return [after + serials * part // parts for part in range(parts + 1)]
