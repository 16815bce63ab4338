"""Ring: the newest facts, shared in memory by all readers."""

import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from synrepl.streams.facts import Fact

WRITE_BYTES: Final = 256 * 1024
"""Groups are combined into writes of up to this size. A single larger group is written whole."""


class IEncoder(Protocol):
    """Encodes facts for one kind of readers. Encoders are compared by identity."""

    def lines(self, facts: Iterable[Fact]) -> bytes:
        """Encode the facts that these readers are sent."""


class RingGroup(msgspec.Struct, eq=False):
    """Facts that were committed together, either kept or ephemeral.

    `number` counts groups from 1. A kept group holds every fact of the log after `serial_before`, up to
    `serial`, where the log's digest is `digest` (None: unknown); the serials of an ephemeral group are equal.
    `tokens` holds the last token of each ephemeral stream up to this group, `resets` how often its writers
    restarted (a fact at token 0). `size` is about the bytes that it takes in memory.
    """

    number: int
    facts: Sequence[Fact]
    serial_before: int
    serial: int
    digest: str | None
    tokens: Mapping[str, int]
    resets: Mapping[str, int]
    is_kept: bool
    size: int


class Ring:
    """A bounded buffer of the newest groups, at least the last one. Older facts must be read from the log.

    Readers share the ring and keep only a cursor in it, so a slow reader costs no memory. Its groups follow
    each other without a hole. `tokens` and `resets` are those of the newest group (`RingGroup`).
    """

    def __init__(self, max_bytes: int, *, serial: int, tokens: Mapping[str, int] | None = None) -> None:
        self._max_bytes = max_bytes
        self._groups: deque[RingGroup] = deque()
        self._bytes = 0
        self._shared: dict[tuple[object, ...], tuple[bytes, RingGroup]] = {}
        """What was encoded since the last commit, by the arguments of `lines` and of `lines_after`."""
        self._oldest = 1
        self.newest = 0
        self.newest_ephemeral = 0
        self.serial = serial
        self._digest: str | None = None
        self.tokens = tokens or {}
        self.resets: Mapping[str, int] = {}

    def add(self, facts: Sequence[Fact], *, upto: int | None = None) -> RingGroup:
        """Append facts that were just committed.

        `upto` is for a log that holds only some facts: besides these facts, it has none after the last group
        up to this serial. Without it, a hole in the serials means that facts were committed without notice:
        older groups are dropped, and readers find the facts in the log.
        """
        self.newest += 1
        before = self.serial
        is_kept = bool(facts[0].serial)
        if not is_kept:
            self.newest_ephemeral = self.newest
            self.tokens = {**self.tokens, **{fact.stream: fact.token for fact in facts}}
            for fact in facts:
                if fact.token == 0:
                    self.resets = {**self.resets, fact.stream: self.resets.get(fact.stream, 0) + 1}
        else:
            if upto is None:
                before = facts[0].serial - 1
            self.serial = facts[-1].serial if upto is None else upto
            self._digest = facts[-1].digest if facts[-1].serial == self.serial else None
        self._shared.clear()
        group = RingGroup(
            number=self.newest,
            facts=facts,
            is_kept=is_kept,
            size=sum([len(fact.rows) for fact in facts]) + 200 * len(facts),
            serial_before=before,
            serial=self.serial,
            digest=self._digest,
            tokens=self.tokens,
            resets=self.resets,
        )
        if self._groups and before != self._groups[-1].serial:
            self._groups.clear()
            self._bytes = 0
        self._groups.append(group)
        self._bytes += group.size
        while self._bytes > self._max_bytes and len(self._groups) > 1:
            self._bytes -= self._groups.popleft().size
        self._oldest = self.newest - len(self._groups) + 1
        return group

    def recent(self) -> Iterator[Fact]:
        """Yield the facts in the ring, newest first. The ring must not change meanwhile."""
        for group in reversed(self._groups):
            yield from reversed(group.facts)

    def get(self, number: int) -> RingGroup | None:
        """The group with this number; None if it left the ring or does not exist yet."""
        index = number - self._oldest
        return self._groups[index] if 0 <= index < len(self._groups) else None

    def lines(
        self,
        first: RingGroup,
        encoder: IEncoder,
        streams: frozenset[str] | None = None,
        *,
        kept: bool = False,
        upto: int | None = None,
    ) -> tuple[bytes, RingGroup]:
        """Encode this group and the next ones up to the size of one write; return the bytes and the last
        group.

        Facts of these streams are encoded (None: of all), only the `kept` ones if that is set. No group
        beyond the serial `upto` is included. The bytes are cached until the next commit: readers at the same
        group share them.
        """
        key: tuple[object, ...] = (first.number, encoder, streams)
        if kept or (upto is not None and upto < self.serial):
            key = (*key, kept, upto)
        shared = self._shared.get(key)
        if shared is None:
            size, last = 0, first
            facts: list[Fact] = []
            while True:
                if last.is_kept or not kept:
                    facts += last.facts
                size += last.size
                following = self.get(last.number + 1)
                if following is None or size + following.size > WRITE_BYTES:
                    break
                if upto is not None and following.serial > upto:
                    break
                last = following
            if streams is not None:
                facts = [fact for fact in facts if fact.stream in streams]
            shared = self._shared[key] = encoder.lines(facts), last
        return shared

    def lines_after(
        self, number: int, serial: int, encoder: IEncoder, streams: frozenset[str] | None
    ) -> tuple[bytes, RingGroup] | None:
        """Return the `lines` of the group after this number, for live readers with the facts up to `serial`.

        None if that group is not there, or begins elsewhere. Readers at the same place share this look-up.
        """
        key = number, serial, encoder, streams
        found = self._shared.get(key)
        if found is None:
            first = self.get(number + 1)
            if first is None or first.serial_before != serial:
                return None
            found = self._shared[key] = self.lines(first, encoder, streams)
        return found

    def first_after(self, serial: int) -> int | None:
        """The number of the first group with facts after this serial, or of the next group to come.

        None if facts after this serial have left the ring.
        """
        if serial < (self._groups[0].serial_before if self._groups else self.serial):
            return None
        index = bisect.bisect_right(self._groups, serial, key=lambda group: group.serial)
        return self._oldest + index
