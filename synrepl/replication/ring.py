"""The newest facts, in memory once for all readers."""

import bisect
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from synrepl.streams.facts import Fact

__all__ = ["RingGroup", "IEncoder", "Ring"]

WRITE_BYTES: Final = 256 * 1024
"""Groups are written together up to so many bytes; one large group alone may be larger."""


class IEncoder(Protocol):
    """Who writes facts as bytes; told from another by identity."""

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """All lines of these facts."""


class RingGroup:
    """Facts that were committed together.

    `number` counts groups from 1. `ephemeral` holds the last token of each ephemeral stream in it,
    `restarted` the streams that a writer began anew (a fact at token 0), once for each time.
    `serial_before` and `serial` are the log's serial before and after it (equal when it holds ephemeral
    facts only).
    """

    def __init__(self, number: int, facts: Sequence[Fact], serial_before: int) -> None:
        self.number = number
        self.facts = facts
        self.serial_before = serial_before
        self.serial = max(serial_before, facts[-1].serial)
        self.ephemeral = {fact.stream: fact.token for fact in facts if not fact.serial}
        self.restarted = [fact.stream for fact in facts if not fact.serial and fact.token == 0]
        self.size = sum(len(fact.rows) for fact in facts) + 200 * len(facts)


class Ring:
    """The newest groups, up to so many bytes (the newest always). Older ones must be read from the log.

    Readers do not hold queues of their own: each has a place in here, so that a slow one costs nothing.
    """

    def __init__(self, max_bytes: int, *, serial: int) -> None:
        self._max_bytes = max_bytes
        self._groups: deque[RingGroup] = deque()
        self._bytes = 0
        self._shared: dict[tuple[int, IEncoder, frozenset[str] | None], tuple[bytes, RingGroup]] = {}
        self.newest = 0
        self.serial = serial

    def add(self, facts: Sequence[Fact]) -> RingGroup:
        """Take in facts that were just committed."""
        self.newest += 1
        group = RingGroup(self.newest, facts, self.serial)
        self.serial = group.serial
        self._shared.clear()
        self._groups.append(group)
        self._bytes += group.size
        while self._bytes > self._max_bytes and len(self._groups) > 1:
            self._bytes -= self._groups.popleft().size
        return group

    def recent(self, count: int) -> list[Fact]:
        """The newest facts, the newest first."""
        found: list[Fact] = []
        for group in reversed(self._groups):
            found += reversed(group.facts)
            if len(found) >= count:
                break
        return found[:count]

    def get(self, number: int) -> RingGroup | None:
        """The group of this number; None if it is no longer, or not yet, here."""
        position = number - self._first
        return self._groups[position] if 0 <= position < len(self._groups) else None

    def lines(
        self, first: RingGroup, encoder: IEncoder, streams: frozenset[str] | None
    ) -> tuple[bytes, RingGroup]:
        """The lines of this group and those after it, as many as make one good write; and the last of them.

        `streams` None takes all. Readers at one place share the bytes: only the first of them causes work.
        """
        key = (first.number, encoder, streams)
        if key not in self._shared:
            size, last = 0, first
            facts: list[Fact] = []
            while True:
                facts += last.facts
                size += last.size
                following = self.get(last.number + 1)
                if following is None or size + following.size > WRITE_BYTES:
                    break
                last = following
            if streams is not None:
                facts = [fact for fact in facts if fact.stream in streams]
            self._shared[key] = encoder.lines(facts), last
        return self._shared[key]

    def first_after(self, serial: int) -> int | None:
        """The number of the first group with facts beyond this serial, or of the next one to come.

        None if facts beyond it are no longer here.
        """
        if serial < (self._groups[0].serial_before if self._groups else self.serial):
            return None
        position = bisect.bisect_right(self._groups, serial, key=lambda group: group.serial)
        return self._first + position

    @property
    def _first(self) -> int:
        return self.newest - len(self._groups) + 1
