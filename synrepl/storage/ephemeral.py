"""Ephemeral streams: the last facts of streams without storage, in bounded memory."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from heapq import heappop, heappush

import msgspec

from synrepl.base.history import Appended, AppendKey
from synrepl.storage.append_errors import KeyReused
from synrepl.streams.facts import NO_ROWS, Fact, take_tokens

KeyOf = Callable[[str, bytes], Hashable | None]
"""Returns the key of one row (the JSON of its array) of a stream; None if it has none."""

RECEIPTS = 10_000
"""How many receipts of appends with an idempotency key are kept in memory, over all streams."""

FACT_BYTES = 300
"""The approximate size of a fact besides its rows: the object and its index entries, in bytes."""

_rows = msgspec.json.Decoder(list[msgspec.Raw])


class EphemeralStore:
    """All ephemeral streams of a log, empty after each `restart`, and the receipts of their appends."""

    def __init__(self, names: Collection[str], *, key_of: "KeyOf | None", max_bytes: int) -> None:
        self.streams: dict[str, EphemeralStream] = {}
        self.names = set(names)
        self._boots = 0
        self._key_of = key_of
        self._max_bytes = max_bytes
        self._receipts: OrderedDict[AppendKey, tuple[str, Appended]] = OrderedDict()

    def restart(self, boots: int) -> None:
        """Start all streams empty, without receipts; `boots` is their epoch."""
        self._boots = boots
        self._receipts.clear()
        self.streams = {name: self._empty_stream(name) for name in self.names}

    def add(self, name: str) -> None:
        """Add a stream, which is empty."""
        if name not in self.names:
            self.names.add(name)
            self.streams[name] = self._empty_stream(name)

    def _empty_stream(self, name: str) -> "EphemeralStream":
        return EphemeralStream(name, epoch=self._boots, key_of=self._key_of, max_bytes=self._max_bytes)

    def append(
        self,
        stream: str,
        writer: str,
        facts: Sequence[bytes],
        at_ms: int,
        *,
        key: AppendKey | None,
        checksum: str,
    ) -> tuple[Appended, list[Fact]]:
        """Append facts. Returns the response, and the new facts: none for a repeated request.

        Raises `KeyReused` if the key belongs to a request with another checksum.
        """
        if key is not None and (known := self._receipts.get(key)) is not None:
            if known[0] != checksum:
                raise KeyReused(key)
            return known[1], []
        ephemeral = self.streams[stream]
        added = ephemeral.append(writer, facts, at_ms)
        appended = Appended(ephemeral.epoch, None, [fact.token for fact in added])
        if key is not None:
            self._receipts[key] = (checksum, appended)
            if len(self._receipts) > RECEIPTS:
                self._receipts.popitem(last=False)
        return appended, added

    def append_assigned(
        self, stream: str, facts: Sequence[tuple[str, int, bytes]], at_ms: int
    ) -> tuple[Appended, list[Fact]]:
        """Append the facts beyond their writers' positions. Returns the response and the new facts."""
        ephemeral = self.streams[stream]
        added = [fact for item in facts if (fact := ephemeral.append_assigned(*item, at_ms)) is not None]
        return Appended(ephemeral.epoch, None, [fact.token for fact in added]), added

    def after(self, stream: str, token: int) -> list[Fact]:
        """A stream's facts beyond this token, in order of token; none of a stream that is not ephemeral."""
        ephemeral = self.streams.get(stream)
        return [] if ephemeral is None else ephemeral.after(token)

    def forget(self, stream: str, upto: int) -> None:
        """Drop a stream's facts up to this token: every reader has them. No effect on kept streams."""
        ephemeral = self.streams.get(stream)
        if ephemeral is not None:
            ephemeral.forget(upto)

    def life(self, stream: str) -> int:
        """A number that rises when a stream restarts, or a writer of it; 0 for kept streams."""
        ephemeral = self.streams.get(stream)
        return 0 if ephemeral is None else self._boots + ephemeral.resets

    def snapshot(self) -> list[Fact]:
        """For each stream the facts in memory, then one position marker per writer: a fact without rows.

        If a writer was reset, its marker may have a lower token than in an earlier snapshot.
        """
        found: list[Fact] = []
        for name, stream in sorted(self.streams.items()):
            found += stream.after(0)
            found += [
                Fact(0, stream.epoch, name, writer, token, token, NO_ROWS, 0, "")
                for writer, token in sorted(stream.positions.items())
            ]
        return found


class EphemeralStream:
    """The facts of one ephemeral stream since the daemon started, or last replaced its log by a copy.

    Tokens assigned by this class start at 1 with each boot; `epoch` is the number of the boot, so that the
    restart is visible. `token` is the highest position. A fact without rows moves its writer's position and
    is not stored. Above `max_bytes` the oldest replaced facts (all their rows' keys came again) are dropped
    first, then the oldest of all; the newest always stays. A read gives the facts in memory, each with its
    original `prev_token`, and does not tell which were dropped.
    """

    def __init__(
        self, name: str, *, epoch: int, key_of: KeyOf | None = None, max_bytes: int = 8 * 1024 * 1024
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.token = 0
        self.resets = 0
        """How many times a writer was reset."""
        self.stored_bytes = 0
        self.positions: dict[str, int] = {}
        self._key_of = key_of
        self._max_bytes = max_bytes
        # By order of arrival: writers that assign their own tokens may use the same ones.
        # Not a dict: finding the first key of a dict again and again walks over all deleted keys.
        self._facts: OrderedDict[int, Fact] = OrderedDict()
        self._arrived = 0
        self._by_token: list[tuple[int, int]] = []
        self._newest: dict[Hashable, int] = {}
        self._keys: dict[int, set[Hashable]] = {}
        self._replaced: list[int] = []

    def __len__(self) -> int:
        return len(self._facts)

    def append(self, writer: str, facts: Sequence[bytes], at_ms: int) -> list[Fact]:
        """Add facts with the next tokens, and drop old facts above the bound."""
        made = [self._add(writer, self.token + 1, rows, at_ms) for rows in facts]
        self._keep_within_bound()
        return made

    def append_assigned(self, writer: str, token: int, rows: bytes, at_ms: int) -> Fact | None:
        """Add a fact that has a token; None if its writer's position is at or beyond it."""
        if token <= self.positions.get(writer, 0):
            return None
        made = self._add(writer, token, rows, at_ms)
        self._keep_within_bound()
        return made

    def reset_writer(self, writer: str, at_ms: int) -> Fact:
        """Drop a writer's facts and set its position to 0. Returns the fact at token 0 that tells readers."""
        for number in [number for number, fact in self._facts.items() if fact.writer == writer]:
            self._drop(number)
        self._by_token = [position for position in self._by_token if position[1] in self._facts]
        self.resets += 1
        self.positions[writer] = 0
        self.token = max(self.positions.values())
        return Fact(0, self.epoch, self.name, writer, 0, 0, NO_ROWS, at_ms, "")

    def after(self, token: int) -> list[Fact]:
        """The facts beyond `token`, in order of token, then of arrival."""
        first = bisect_left(self._by_token, (token + 1, 0))
        return [self._facts[number] for _, number in self._by_token[first:]]

    def read_tokens(
        self, *, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[list[Fact], bool]:
        """Read facts in memory as `FactPages.tokens` does."""
        return take_tokens(
            (
                fact
                for fact in self.after(after)
                if fact.token <= upto and (writer is None or fact.writer == writer)
            ),
            limit,
        )

    def forget(self, upto: int) -> None:
        """Drop the facts up to this token."""
        first = bisect_left(self._by_token, (upto + 1, 0))
        for _, number in self._by_token[:first]:
            self._drop(number)
        del self._by_token[:first]
        # Sorted, so still a heap. Unfiltered it would only grow while no fact is dropped above the bound.
        self._replaced = sorted(number for number in self._replaced if number in self._facts)

    def _add(self, writer: str, token: int, rows: bytes, at_ms: int) -> Fact:
        fact = Fact(0, self.epoch, self.name, writer, self.positions.get(writer, 0), token, rows, at_ms, "")
        self.positions[writer] = token
        self.token = max(self.token, token)
        if rows != NO_ROWS:
            self._arrived += 1
            self._facts[self._arrived] = fact
            insort(self._by_token, (token, self._arrived))
            self.stored_bytes += len(rows) + FACT_BYTES
            if self._key_of is not None:
                self._replace(self._arrived, rows, self._key_of)
        return fact

    def _replace(self, number: int, rows: bytes, key_of: KeyOf) -> None:
        """Make this fact the newest of its rows' keys, and find the facts that are now fully replaced."""
        keys: set[Hashable] = set()
        for row in _rows.decode(rows):
            key = key_of(self.name, bytes(row))
            if key is None:
                # A row without a key is never replaced, so its fact stays current.
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
        while self.stored_bytes > self._max_bytes and len(self._facts) > 1:
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
        # The caller removes the fact from `_by_token`.
        fact = self._facts.pop(number)
        self.stored_bytes -= len(fact.rows) + FACT_BYTES
        for key in self._keys.pop(number, ()):
            if self._newest.get(key) == number:
                del self._newest[key]


class _Unkeyed:
    """Represents the rows without a key of one fact."""
