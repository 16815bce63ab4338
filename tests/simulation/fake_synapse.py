"""A process of today's Synapse as it is heard on the channel: its habits, good and bad, and nothing else.

Written from what was observed of real ones, not from their source. Several share a
`SynapseDatabase`, which gives the ids and outlives them.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from twisted.internet.task import deferLater

from synrepl.base.metrics import Metrics
from synrepl.errors import NotConnected
from synrepl.replication.follower.updates import MissedFacts
from synrepl.streams.catalog import TYPING
from synrepl.streams.table import StreamTable
from synrepl.wire.commands import Position, Rdata, Replicate
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun
from tests.redis.daemon import link_to
from tests.redis.fake_redis import FakeRedis

__all__ = ["FakeSynapse", "SynapseDatabase"]

LOOK_SECONDS: Final = 1.0
"""How often a process looks at what it has to tell, although nobody poked it."""

PAGE_ROWS: Final = 100

Stored = tuple[str, list[bytes]]
"""Who wrote it, and the rows as JSON texts."""


class SynapseDatabase:
    """What the processes of a homeserver share: a sequence for each stream, and what is committed.

    `rows` holds, by stream and token, what was committed. The first id of a sequence is 2.
    """

    def __init__(self) -> None:
        self.sequences: defaultdict[str, int] = defaultdict(lambda: 1)
        self.rows: defaultdict[str, dict[int, Stored]] = defaultdict(dict)

    def allocate(self, stream: str, count: int) -> list[int]:
        """So many ids."""
        first = self.sequences[stream] + 1
        self.sequences[stream] += count
        return list(range(first, first + count))

    def highest(self, stream: str) -> int:
        """The highest id that was committed; 1 if there is none."""
        return max(self.rows[stream], default=1)


class _PendingWrite:
    """What one process knows of one stream that it writes."""

    def __init__(self, published: int) -> None:
        self.published = published
        self.seen = published
        self.unfinished: set[int] = set()
        self.has_allocated = False

    def current(self) -> int:
        """Its own token: below whatever is unfinished here, else the highest id seen anywhere."""
        return min(self.unfinished) - 1 if self.unfinished else self.seen


class FakeSynapse:
    """One process, from `start` to `kill`, and again.

    It is also an `ICatchUp`: the HTTP that its peers ask. `attempted` counts the messages that it wrote to
    its connection; what became of them is another matter. `likes_to_lose`: it forgets REPLICATE now and then,
    and answers it late.
    """

    def __init__(
        self,
        redis: FakeRedis,
        database: SynapseDatabase,
        *,
        name: str,
        writes: Sequence[str],
        chance: random.Random | None = None,
        delay: Callable[[], float] = lambda: 0.001,
        page_rows: int = PAGE_ROWS,
        likes_to_lose: bool = False,
    ) -> None:
        self.name = name
        self.writes = tuple(writes)
        self.is_running = False
        self.is_http_broken = False
        self.page_rows = page_rows
        self.attempted: Counter[bytes] = Counter()
        self.typing: dict[str, tuple[int, bytes]] = {}
        self.typing_token = 0
        self._redis = redis
        self._clock = redis.network.clock
        self._database = database
        self._chance = chance or random.Random(1)
        self._delay = delay
        self._likes_to_lose = likes_to_lose
        self._table = StreamTable.default()
        self._telling: dict[str, _PendingWrite] = {}
        self._typing_published = 0
        self._life = 0
        self._link: Any = None
        self._is_hearing = False
        self._is_speaking = False
        self._has_announced = False
        self._poke_timer: Any = None

    # -- its life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, where the database stands; what was in memory is gone."""
        self._life += 1
        self.is_running = True
        self._is_hearing = self._is_speaking = self._has_announced = False
        self.typing, self.typing_token, self._typing_published = {}, 0, 0
        self._telling = {
            stream: _PendingWrite(self._first_position(stream))
            for stream in self.writes
            if stream != TYPING.name
        }
        metrics = Metrics(CollectorRegistry())
        self._link = link_to(self._redis, self, instance=self.name, chance=self._chance, metrics=metrics)
        self._link.start()
        self._look(self._life)

    def kill(self) -> None:
        """End at once: transactions that are open are rolled back."""
        self._life += 1
        self.is_running = False
        for connection in self._redis.network.links_of(self.name):
            connection.cut()
        self._link.stop()

    def _first_position(self, stream: str) -> int:
        # Of caches no position is kept for anybody.
        if stream == "caches":
            return self._database.highest(stream)
        return self._database.sequences[stream]

    def positions(self) -> dict[str, int]:
        """What it would tell now if it were asked: up to where it has published."""
        told = {stream: telling.published for stream, telling in self._telling.items()}
        if TYPING.name in self.writes:
            told[TYPING.name] = self._typing_published
        return told

    # -- writing -------------------------------------------------------------------------------------------

    def write(
        self, stream: str, facts: Sequence[list[bytes]], *, seconds: float = 0.0, rolls_back: bool = False
    ) -> list[int]:
        """Persist facts, in a transaction that takes so long. Gives their ids."""
        if stream == TYPING.name:
            for rows in facts:
                self.typing_token += 1
                for row in rows:
                    self.typing[_first(row)] = (self.typing_token, row)
            self.poke()
            return [self.typing_token]
        telling = self._telling[stream]
        tokens = self._database.allocate(stream, len(facts))
        telling.unfinished.update(tokens)
        telling.seen = max(telling.seen, tokens[-1])
        telling.has_allocated = True
        ends = (self._finish, self._life, stream, list(zip(tokens, facts, strict=True)), rolls_back)
        if seconds:
            self._clock.callLater(seconds, *ends)
        else:
            self._finish(*ends[1:])
        return tokens

    def _finish(self, life: int, stream: str, facts: list[tuple[int, list[bytes]]], rolls_back: bool) -> None:
        if life != self._life:
            return
        for token, rows in facts:
            if not rolls_back:
                self._database.rows[stream][token] = (self.name, rows)
            self._telling[stream].unfinished.discard(token)
        self.poke()

    # -- telling -------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Something was written: tell it soon."""
        if self._poke_timer is None:
            self._poke_timer = self._clock.callLater(0.001, self._poked)

    def _poked(self) -> None:
        self._poke_timer = None
        if self.is_running:
            self._tell()

    def _look(self, life: int) -> None:
        if life == self._life:
            self._tell()
            self._clock.callLater(LOOK_SECONDS, self._look, life)

    def _tell(self) -> None:
        lines: list[str] = []
        for stream, telling in self._telling.items():
            current = telling.current()
            if current <= telling.published or (stream == "caches" and not telling.has_allocated):
                continue
            lines += self._lines(stream, telling.published, current)
            telling.published = current
        if self.typing_token > self._typing_published:
            for token, row in sorted(self.typing.values()):
                if token > self._typing_published:
                    lines.append(f"RDATA typing {self.name} {token} {row.decode()}")
            self._typing_published = self.typing_token
        # With nobody connected it just moves on.
        if self._has_announced:
            self._say(lines)

    def _lines(self, stream: str, published: int, current: int) -> list[str]:
        facts = self._facts(stream, published, current)
        if not facts:
            return [f"POSITION {stream} {self.name} {published} {current}"]
        lines = []
        for token, rows in facts:
            told = ["batch"] * (len(rows) - 1) + [str(token)]
            lines += [
                f"RDATA {stream} {self.name} {word} {row.decode()}"
                for word, row in zip(told, rows, strict=True)
            ]
        if facts[-1][0] < current:
            lines.append(f"POSITION {stream} {self.name} {facts[-1][0]} {current}")
        return lines

    def _facts(self, stream: str, after: int, upto: int) -> list[tuple[int, list[bytes]]]:
        """What it finds in the database, in the order in which it tells it."""
        declared = self._table[stream]
        # Rows of caches are read without an upper bound.
        has_end = stream != "caches"
        found = [
            (token, rows)
            for token, (writer, rows) in self._database.rows[stream].items()
            if after < token
            and (token <= upto or not has_end)
            and (writer == self.name or declared.any_writer)
        ]
        return sorted(found, key=lambda fact: fact[0], reverse=declared.descends)

    def _announce(self) -> None:
        self._say([f"POSITION {name} {self.name} {at} {at}" for name, at in self.positions().items()])

    def _say(self, lines: Sequence[str]) -> None:
        if lines:
            encoded = [line.encode() for line in lines]
            self.attempted.update(encoded)
            self._link.write(b"".join(line + b"\n" for line in encoded))

    # -- what its connections say --------------------------------------------------------------------------

    def subscriber_up(self) -> None:
        self._is_hearing = True
        self._join()

    def subscriber_down(self, why: str) -> None:
        self._is_hearing = self._has_announced = False

    def publisher_up(self) -> None:
        self._is_speaking = True
        self._join()

    def publisher_down(self, why: str) -> None:
        self._is_speaking = False

    def unreachable(self, why: str) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def _join(self) -> None:
        """It asks everybody, then tells where it stands itself; both once a subscription."""
        if not (self._is_hearing and self._is_speaking) or self._has_announced:
            return
        if not (self._likes_to_lose and self._chance.random() < 0.3):
            self._say(["REPLICATE "])
        self._announce()
        self._has_announced = True

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        for command in commands:
            if isinstance(command, Replicate):
                if self._likes_to_lose and self._chance.random() < 0.3:
                    self._clock.callLater(self._chance.uniform(0, 0.5), self._announce_late, self._life)
                else:
                    self._announce()
            elif isinstance(command, (RdataRun, Rdata, Position)) and command.instance != self.name:
                telling = self._telling.get(command.stream)
                if telling is not None:
                    tokens = command.tokens if isinstance(command, RdataRun) else [command.token]
                    telling.seen = max([telling.seen, *(token for token in tokens if token is not None)])

    def _announce_late(self, life: int) -> None:
        if life == self._life and self._has_announced:
            self._announce()

    # -- its HTTP ------------------------------------------------------------------------------------------

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> MissedFacts:
        """What its peers get when they ask for what they missed."""
        life = self._life
        await deferLater(self._clock, self._delay(), lambda: None)  # type: ignore[arg-type]
        if not self.is_running or life != self._life or self.is_http_broken:
            raise NotConnected("connection refused")
        answer = self._answer(stream, after, upto)
        await deferLater(self._clock, self._delay(), lambda: None)  # type: ignore[arg-type]
        if life != self._life or self.is_http_broken:
            raise NotConnected("connection lost")
        return answer

    def _answer(self, stream: str, after: int, upto: int) -> MissedFacts:
        if stream == TYPING.name:
            # Whoever comes from beyond knew a former life.
            first = 0 if after > upto else after
            facts = [(token, [row]) for token, row in sorted(self.typing.values()) if token > first]
            return MissedFacts(facts=facts, upto=upto, limited=False)
        if after >= upto:
            return MissedFacts(facts=[], upto=upto, limited=False)
        page: list[tuple[int, list[bytes]]] = []
        size = 0
        facts = self._facts(stream, after, upto)
        # A page that descends begins with the highest, and leads on from its lowest: what lies below it is
        # never given. That is how real ones do it.
        most = max(PAGE_ROWS, self.page_rows) if self._table[stream].descends else self.page_rows
        for token, rows in facts:
            if size >= most:
                return MissedFacts(facts=page, upto=page[-1][0], limited=True)
            page.append((token, rows))
            size += len(rows)
        return MissedFacts(facts=page, upto=upto, limited=False)


def _first(row: bytes) -> str:
    """The first item of a row, which is a string."""
    return row.split(b'"', 2)[1].decode()
