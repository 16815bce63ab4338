"""Ring: the newest facts, shared in memory by all readers."""

import bisect
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from synrepl.streams.facts import Fact

__all__ = ["RingGroup", "IEncoder", "Ring"]

WRITE_BYTES: Final = 256 * 1024
"""Groups are combined into writes of up to this size. A single larger group is written whole."""


class IEncoder(Protocol):
    """Encodes facts for one release. Encoders are compared by identity."""

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """All lines of these facts."""


class RingGroup:
    """Facts that were committed together.

    `number` counts groups from 1. `ephemeral` holds the last token of each ephemeral stream in the group.
    `restarted` lists the streams that a writer restarted (a fact at token 0), once per restart.
    `serial_before` and `serial` are the log's serial before and after the group; they are equal if it holds
    only ephemeral facts.
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
    """A bounded buffer of the newest groups, at least one. Older groups must be read from the log.

    Readers share the ring and keep only a cursor in it, so a slow reader costs no memory.
    """

    def __init__(self, max_bytes: int, *, serial: int) -> None:
        self._max_bytes = max_bytes
        self._groups: deque[RingGroup] = deque()
        self._bytes = 0
        self._shared: dict[tuple[int, IEncoder, frozenset[str] | None], tuple[bytes, RingGroup]] = {}
        self.newest = 0
        self.serial = serial

    def add(self, facts: Sequence[Fact]) -> RingGroup:
        """Append facts that were just committed."""
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
        """The newest `count` facts, newest first."""
        found: list[Fact] = []
        for group in reversed(self._groups):
            found += reversed(group.facts)
            if len(found) >= count:
                break
        return found[:count]

    def get(self, number: int) -> RingGroup | None:
        """The group with this number; None if it left the ring or does not exist yet."""
        position = number - self._first
        return self._groups[position] if 0 <= position < len(self._groups) else None

    def lines(
        self, first: RingGroup, encoder: IEncoder, streams: frozenset[str] | None
    ) -> tuple[bytes, RingGroup]:
        """Encode this group and the next ones up to the size of one write; return the bytes and the last
        group.

        `streams` None means all. The bytes are cached until the next commit: readers at the same group share
        them.
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
        """The number of the first group with facts after this serial, or of the next group to come.

        None if facts after this serial have left the ring.
        """
        if serial < (self._groups[0].serial_before if self._groups else self.serial):
            return None
        position = bisect.bisect_right(self._groups, serial, key=lambda group: group.serial)
        return self._first + position

    @property
    def _first(self) -> int:
        return self.newest - len(self._groups) + 1
