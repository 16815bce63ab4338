"""What is kept of streams that nobody stores: the last few facts, in memory, within a bound."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush

import msgspec

from synrepl.storage.paging import take_tokens
from synrepl.streams.facts import Fact

__all__ = ["EphemeralStream", "KeyOf"]

KeyOf = Callable[[str, bytes], Hashable | None]
"""The key of one row (the JSON of its array) of a stream; None when it has none."""

FACT_BYTES = 300
"""About what a fact costs beside its rows: the object, and its place in the indexes."""

_rows = msgspec.json.Decoder(list[msgspec.Raw])


class EphemeralStream:
    """The facts of one ephemeral stream since the daemon started.

    Tokens begin at 1 with each start; `epoch` is the number of the start, so that the restart shows. Over
    `max_bytes` the oldest facts that newer ones have replaced (all their rows' keys came again) are dropped
    first, then simply the oldest; the newest always stays. A dropped fact leaves a hole that nobody sees:
    reading after a token gives what is still held, each fact with the `prev_token` it was written with.
    """

    def __init__(
        self, name: str, *, epoch: int, key_of: KeyOf | None = None, max_bytes: int = 8 * 1024 * 1024
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.token = 0
        self.bytes_held = 0
        self.positions: dict[str, int] = {}
        self._key_of = key_of
        self._max_bytes = max_bytes
        # Not a dict: taking the first key of a dict again and again walks over all that were deleted.
        self._facts: OrderedDict[int, Fact] = OrderedDict()
        self._newest: dict[Hashable, int] = {}
        self._keys: dict[int, set[Hashable]] = {}
        self._replaced: list[int] = []

    def __len__(self) -> int:
        return len(self._facts)

    def append(self, writer: str, facts: Sequence[bytes], at_ms: int) -> list[Fact]:
        """Give these facts the next tokens and hold them, as long as the bound allows."""
        made = []
        previous = self.positions.get(writer, 0)
        for rows in facts:
            self.token += 1
            fact = Fact(0, self.epoch, self.name, writer, previous, self.token, rows, at_ms, "")
            previous = self.token
            made.append(fact)
            self._facts[self.token] = fact
            self.bytes_held += len(rows) + FACT_BYTES
            if self._key_of is not None:
                self._replace(self.token, rows, self._key_of)
        self.positions[writer] = previous
        while self.bytes_held > self._max_bytes and len(self._facts) > 1:
            self._drop_one()
        return made

    def after(self, token: int) -> list[Fact]:
        """What is held beyond `token`, in order; takes time for what it gives alone."""
        found = []
        for fact in reversed(self._facts.values()):
            if fact.token <= token:
                break
            found.append(fact)
        found.reverse()
        return found

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
        while self._facts and next(iter(self._facts)) <= upto:
            self._drop(next(iter(self._facts)))
        # Ascending, so still a heap; without this it would grow for as long as readers keep up.
        self._replaced = sorted(token for token in self._replaced if token in self._facts)

    def _replace(self, token: int, rows: bytes, key_of: KeyOf) -> None:
        """Note that this fact now stands for its rows' keys, and which facts stand for nothing any more."""
        keys: set[Hashable] = set()
        for row in _rows.decode(rows):
            key = key_of(self.name, bytes(row))
            if key is None:
                # Nothing can replace a row without a key, so that its fact counts as current for good.
                keys.add(_Unkeyed)
                continue
            older = self._newest.get(key)
            if older is not None and older != token:
                self._keys[older].discard(key)
                if not self._keys[older]:
                    heappush(self._replaced, older)
            self._newest[key] = token
            keys.add(key)
        self._keys[token] = keys

    def _drop_one(self) -> None:
        while self._replaced:
            token = heappop(self._replaced)
            if token in self._facts:
                self._drop(token)
                return
        self._drop(next(iter(self._facts)))

    def _drop(self, token: int) -> None:
        fact = self._facts.pop(token)
        self.bytes_held -= len(fact.rows) + FACT_BYTES
        for key in self._keys.pop(token, ()):
            if self._newest.get(key) == token:
                del self._newest[key]


class _Unkeyed:
    """Stands for the rows without a key of one fact."""
