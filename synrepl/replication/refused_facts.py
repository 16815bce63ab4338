"""RefusedFacts: facts that could not be read, kept as they were sent until an operator looks at them.

They are rows of the stream ``refused``, which the primary writes, so its replicas have them too. In place of
each the log has a fact that says that it is lost (`streams.facts.LOST`); that one comes later, so that a kill
between the two loses neither.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from twisted.logger import Logger

from synrepl.base.metrics import Metrics
from synrepl.errors import RowError
from synrepl.replication.own_facts import read_stream
from synrepl.storage.log import Log
from synrepl.streams.catalog import REFUSED, RefusedFact
from synrepl.streams.facts import Fact
from synrepl.streams.origin import Origin
from synrepl.streams.table import StreamTable
from synrepl.streams.writer import Writer
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST

MAX_BYTES: Final = 16 * 1024 * 1024
"""The bytes of all rows that are kept."""

MAX_OF_PUBLISHER: Final = 4 * 1024 * 1024
"""The bytes of those rows that one publisher sent."""

MAX_FACTS: Final = 10_000

MAX_UNKEPT: Final = 1_000
"""The most streams and writers of which it is counted what was not kept."""

Key = tuple[str, str, int]
"""Stream, writer and token."""

Outcome = Literal["replayed", "known", "refused", "absent"]
"""The outcome of a replay: stored; stored before; still refused; no such refused fact."""


class KeptFact(msgspec.Struct, frozen=True):
    """A refused fact in the log. `at` is when it was refused, in Unix seconds."""

    fact: RefusedFact
    serial: int
    at: float


class Unkept(msgspec.Struct):
    """Refused facts of a stream and writer without space to keep them; their lowest and highest token."""

    facts: int
    first: int
    last: int


class _Size(msgspec.Struct, frozen=True):
    publisher: str
    bytes: int


class RefusedFacts:
    """Keeps refused facts in the log, within bounds, and puts them where they belong once they can be read.

    `unkept` counts those beyond the bounds, since the start. `instance` is the writer of the stream.
    `committed` is for `Log.subscribe`.
    """

    _logger = Logger()

    def __init__(self, log: Log, table: StreamTable, metrics: Metrics, *, instance: str) -> None:
        self.unkept: dict[Writer, Unkept] = {}
        self._log = log
        self._table = table
        self._metrics = metrics
        self._instance = instance
        self._sizes: dict[Key, _Size] = {}
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size(self) -> int:
        """The bytes of all rows that are kept."""
        return self._bytes.total()

    async def load(self) -> None:
        """Find what the log has kept. Raises `StorageError`."""
        self._sizes.clear()
        self._bytes.clear()
        async for facts in read_stream(self._log, REFUSED.name):
            for one in _read(facts):
                self._note(one.fact)

    async def keep(self, facts: Iterable[RefusedFact]) -> None:
        """Keep these facts once, as far as there is space. Raises `StorageError`."""
        found: dict[Key, bytes] = {}
        added: Counter[str] = Counter()
        for one in facts:
            key, size, publisher = _key(one), _size(one), one.publisher
            if key in self._sizes or key in found:
                continue
            if (
                len(self) + len(found) >= MAX_FACTS
                or self.size + added.total() + size > MAX_BYTES
                or self._bytes[publisher] + added[publisher] + size > MAX_OF_PUBLISHER
            ):
                self._count_unkept(one)
                continue
            found[key] = REFUSED.canonical_fact([one])  # type: ignore[list-item]  # `row` makes a struct
            added[publisher] += size
        if found:
            await self._append(list(found.values()))

    async def kept(self) -> list[KeptFact]:
        """Return what is kept, in the order of the log. Raises `StorageError`."""
        found: dict[Key, KeptFact] = {}
        async for facts in read_stream(self._log, REFUSED.name):
            found |= {_key(one.fact): one for one in _read(facts)}
        return [one for one in found.values() if one.fact.rows is not None]

    async def remove(self, keys: Iterable[Key]) -> list[Key]:
        """Forget these facts, and return those that there were. Raises `StorageError`."""
        found = [key for key in keys if key in self._sizes]
        if found:
            rows = [_removed(key) for key in found]
            await self._append([REFUSED.canonical_fact([row]) for row in rows])  # type: ignore[list-item]
        return found

    async def replay(self, keys: Sequence[Key]) -> list[tuple[Outcome, str]]:
        """Store refused facts under their own writers and tokens, and forget them. Return the outcomes.

        The text says why a fact was not stored. One is stored once, also if this process dies in between.
        They are stored in the order of their tokens: a stream in order would not take an earlier one later.
        Raises `StorageError`.
        """
        kept = {_key(one.fact): one.fact for one in await self.kept()}
        outcomes = {key: await self._replay(key, kept.get(key)) for key in sorted(set(keys))}
        return [outcomes[key] for key in keys]

    async def _replay(self, key: Key, one: RefusedFact | None) -> tuple[Outcome, str]:
        if one is None:
            return "absent", "there is no such refused fact"
        name, writer, token = key
        if name not in self._table:
            return "refused", f"this daemon has no stream {name}"
        stream = self._table[name]
        try:
            rows = [stream.canonical(text.encode(), NEWEST) for text in one.rows or ()]
        except RowError as error:
            return "refused", str(error)
        if stream.ephemeral:
            return "refused", f"the rows of {name} are of their moment: a log has none of them"
        fact = jsontext.join(rows)
        position = self._log.positions(name).get(writer, -1)
        # It may be there: an earlier replay died before it was forgotten.
        if stream.ordered and token <= position and not await self._has(name, writer, token, fact):
            return "refused", (
                f"the readers of {name} have passed token {token} of {writer}, they are at {position}: a"
                " stream in order takes no late facts"
            )
        appended = await self._log.append_assigned(name, [(writer, token, fact)])
        if not appended.tokens and not await self._has(name, writer, token, fact):
            return "refused", f"the log does not take it under token {token} of {writer}"
        await self.remove([key])
        return ("replayed", "") if appended.tokens else ("known", "the log has this fact already")

    async def _has(self, stream: str, writer: str, token: int, rows: bytes) -> bool:
        log = self._log
        facts, _ = await log.reads.tokens(
            stream=stream, writer=writer, after=token - 1, upto=token, serial=log.head.serial, limit=MAX_FACTS
        )
        return any(fact.rows == rows for fact in facts)

    async def _append(self, facts: Sequence[bytes]) -> None:
        await self._log.append(REFUSED.name, self._instance, facts, origin=Origin.DAEMON)

    def committed(self, facts: Sequence[Fact]) -> None:
        """Note what these facts of the log keep, and what they remove."""
        for one in _read(fact for fact in facts if fact.stream == REFUSED.name):
            self._note(one.fact)

    def _note(self, one: RefusedFact) -> None:
        key = _key(one)
        if (known := self._sizes.pop(key, None)) is not None:
            self._bytes[known.publisher] -= known.bytes
        if one.rows is not None:
            self._sizes[key] = _Size(one.publisher, _size(one))
            self._bytes[one.publisher] += _size(one)
        self._metrics.refused_facts.set(len(self))

    def _count_unkept(self, one: RefusedFact) -> None:
        self._metrics.refused_unkept.labels(one.stream).inc()
        writer = Writer(one.stream, one.writer)
        known = self.unkept.get(writer)
        if known is not None:
            known.facts += 1
            known.first, known.last = min(known.first, one.token), max(known.last, one.token)
        elif len(self.unkept) < MAX_UNKEPT:
            self.unkept[writer] = Unkept(1, one.token, one.token)


def _key(one: RefusedFact) -> Key:
    return one.stream, one.writer, one.token


def _removed(key: Key) -> RefusedFact:
    stream, writer, token = key
    return RefusedFact(stream=stream, writer=writer, token=token, publisher="", why="", rows=None)


def _size(one: RefusedFact) -> int:
    return sum(len(row.encode()) for row in one.rows or ())


def _read(facts: Iterable[Fact]) -> Iterable[KeptFact]:
    for fact in facts:
        for text in jsontext.split(fact.rows):
            try:
                one = REFUSED.decode(text, NEWEST)
            except RowError as error:
                RefusedFacts._logger.error("cannot read a refused fact: {why}", why=error)
            else:
                yield KeptFact(one, fact.serial, fact.committed_at_ms / 1000)
