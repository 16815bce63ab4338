"""What is kept of streams that nobody stores: the last few facts, in memory, within a bound."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush

import msgspec

from synrepl.storage.paging import take_tokens
from synrepl.streams.facts import NO_ROWS, Fact

__all__ = ["EphemeralStream", "KeyOf"]

KeyOf = Callable[[str, bytes], Hashable | None]
"""The key of one row (the JSON of its array) of a stream; None when it has none."""

FACT_BYTES = 300
"""About what a fact costs beside its rows: the object, and its place in the indexes."""

_rows = msgspec.json.Decoder(list[msgspec.Raw])


class EphemeralStream:
    """The facts of one ephemeral stream since the daemon started.

    Tokens that are given here begin at 1 with each start; `epoch` is the number of the start, so that the
    restart shows. `token` is the highest position. A fact without rows moves its writer's position and is not
    held. Over `max_bytes` the oldest facts that newer ones have replaced (all their rows' keys came again)
    are dropped first, then simply the oldest; the newest always stays. A dropped fact leaves a hole that
    nobody sees: reading after a token gives what is still held, each fact with the `prev_token` it was
    written with.
    """

    def __init__(
        self, name: str, *, epoch: int, key_of: KeyOf | None = None, max_bytes: int = 8 * 1024 * 1024
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.token = 0
        self.writer_resets = 0
        self.bytes_held = 0
        self.positions: dict[str, int] = {}
        self._key_of = key_of
        self._max_bytes = max_bytes
        # By number of arrival: writers that bring their own tokens may bring the same.
        # Not a dict: taking the first key of a dict again and again walks over all that were deleted.
        self._facts: OrderedDict[int, Fact] = OrderedDict()
        self._arrived = 0
        self._by_token: list[tuple[int, int]] = []
        self._newest: dict[Hashable, int] = {}
        self._keys: dict[int, set[Hashable]] = {}
        self._replaced: list[int] = []

    def __len__(self) -> int:
        return len(self._facts)

    def append(self, writer: str, facts: Sequence[bytes], at_ms: int) -> list[Fact]:
        """Give these facts the next tokens and hold them, as long as the bound allows."""
        made = [self._add(writer, self.token + 1, rows, at_ms) for rows in facts]
        self._keep_within_bound()
        return made

    def append_assigned(self, writer: str, token: int, rows: bytes, at_ms: int) -> Fact | None:
        """Hold a fact that has its token already; None when its writer has reached that token."""
        if token <= self.positions.get(writer, 0):
            return None
        made = self._add(writer, token, rows, at_ms)
        self._keep_within_bound()
        return made

    def reset_writer(self, writer: str, at_ms: int) -> Fact:
        """Forget the facts of a writer that began anew; gives the one that says so, at token 0."""
        for number in [number for number, fact in self._facts.items() if fact.writer == writer]:
            self._drop(number)
        self._by_token = [position for position in self._by_token if position[1] in self._facts]
        self.positions[writer] = 0
        self.writer_resets += 1
        self.token = max(self.positions.values())
        return Fact(0, self.epoch, self.name, writer, 0, 0, NO_ROWS, at_ms, "")

    def after(self, token: int) -> list[Fact]:
        """What is held beyond `token`, in order of token, then of arrival."""
        first = bisect_left(self._by_token, (token + 1, 0))
        return [self._facts[number] for _, number in self._by_token[first:]]

    def read_tokens(
        self, *, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """As `IEngine.read_tokens`, of what is held."""
        return take_tokens(
            (
                fact
                for fact in self.after(after)
                if fact.token <= upto and (writer is None or fact.writer == writer)
            ),
            limit,
        )

    def forget(self, upto: int) -> None:
        """Let go of the facts up to this token."""
        first = bisect_left(self._by_token, (upto + 1, 0))
        for _, number in self._by_token[:first]:
            self._drop(number)
        del self._by_token[:first]
        # Ascending, so still a heap; without this it would grow for as long as readers keep up.
        self._replaced = sorted(number for number in self._replaced if number in self._facts)

    def _add(self, writer: str, token: int, rows: bytes, at_ms: int) -> Fact:
        fact = Fact(0, self.epoch, self.name, writer, self.positions.get(writer, 0), token, rows, at_ms, "")
        self.positions[writer] = token
        self.token = max(self.token, token)
        if rows != NO_ROWS:
            self._arrived += 1
            self._facts[self._arrived] = fact
            insort(self._by_token, (token, self._arrived))
            self.bytes_held += len(rows) + FACT_BYTES
            if self._key_of is not None:
                self._replace(self._arrived, rows, self._key_of)
        return fact

    def _replace(self, number: int, rows: bytes, key_of: KeyOf) -> None:
        """Note that this fact now stands for its rows' keys, and which facts stand for nothing any more."""
        keys: set[Hashable] = set()
        for row in _rows.decode(rows):
            key = key_of(self.name, bytes(row))
            if key is None:
                # Nothing can replace a row without a key, so that its fact counts as current for good.
                keys.add(_Unkeyed)
                continue
            older = self._newest.get(key)
            if older is not None and older != number:
                self._keys[older].discard(key)
                if not self._keys[older]:
                    heappush(self._replaced, older)
            self._newest[key] = number
            keys.add(key)
        self._keys[number] = keys

    def _keep_within_bound(self) -> None:
        while self.bytes_held > self._max_bytes and len(self._facts) > 1:
            number = self._first_to_go()
            position = (self._facts[number].token, number)
            self._drop(number)
            del self._by_token[bisect_left(self._by_token, position)]

    def _first_to_go(self) -> int:
        while self._replaced:
            number = heappop(self._replaced)
            if number in self._facts:
                return number
        return next(iter(self._facts))

    def _drop(self, number: int) -> None:
        """Let go of one fact; its place in `_by_token` is the caller's."""
        fact = self._facts.pop(number)
        self.bytes_held -= len(fact.rows) + FACT_BYTES
        for key in self._keys.pop(number, ()):
            if self._newest.get(key) == number:
                del self._newest[key]


class _Unkeyed:
    """Stands for the rows without a key of one fact."""
