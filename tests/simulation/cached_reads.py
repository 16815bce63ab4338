"""Cached reads in a simulation, and what they must not be older than."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from synrepl.base.interfaces import IClock
from synrepl.caches.vintage import Drop
from synrepl.replication.follower.caches import Caches
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.updates import FollowerEvent, Updates
from synrepl.streams.catalog import Receipt, Typing
from synrepl.streams.facts import Fact
from synrepl.wire import jsontext
from tests.caches.fakes import LEGACY

__all__ = ["ROOMS", "Change", "CachedReader", "CacheTruth", "invalidation"]

ROOMS: Final = tuple(f"!r{n}" for n in range(5))

_STREAMS: Final = {
    "get_topic": "caches",  # named there, alone or all of it
    "get_users_in_room": "caches",  # reached there by an alias
    "get_receipts": "receipts",  # implied by a stream with order
    "get_typing": "typing",  # implied by one whose tokens go back
}
"""The cached functions, each with the stream that invalidates it."""

_VINTAGE = LEGACY.extended("simulated")


@_VINTAGE.implied(
    "receipts",
    samples=[
        Receipt(room_id="!r", receipt_type="", user_id="", event_id="", thread_id=None, data={}),
    ],
)
def _read_receipts(row: Receipt) -> Iterator[Drop]:
    yield "get_receipts", (row.room_id,)


@_VINTAGE.implied("typing", samples=[Typing(room_id="!r", user_ids=[])])
def _typing(row: Typing) -> Iterator[Drop]:
    yield "get_typing", (row.room_id,)


def invalidation(n: int) -> list[Any]:
    """A row of ``caches``: of each kind in turn."""
    room = ROOMS[n % len(ROOMS)]
    match n % 6:
        case 0:
            return ["get_topic", None, n]
        case 1:
            return ["cs_cache_fake", [room, "@u:hs"], n]
        case 2:
            return [f"get_{n}", ["k"], n]
        case _:
            return ["get_topic", [room], n]


def _changed_by(stream: str, row: list[Any]) -> Iterator[tuple[str, str]]:
    """What a row says has changed: cached functions, and the rooms of which they are asked."""
    if stream == "caches":
        func, keys = row[:2]
        name = "get_users_in_room" if func == "cs_cache_fake" else func
        if name in _STREAMS:
            for room in ROOMS if keys is None else keys[:1]:
                yield name, room
        return
    for name, told_on in _STREAMS.items():
        if told_on == stream:
            yield name, row[0]


class Change(msgspec.Struct, frozen=True):
    """What a fact changed: from it on, the value of `name` for `room` is `version`.

    `life` counts the lives of the daemon where they matter: a stream in memory begins anew in each.
    """

    stream: str
    writer: str
    token: int
    life: int
    name: str
    room: str
    version: int


class CacheTruth:
    """What the database says, which is what every fact that was ever committed makes of it."""

    def __init__(self) -> None:
        self.life = 0
        self.latest: list[Change] = []
        self._ephemeral: frozenset[str] = frozenset()
        self._serial = 0
        self._versions: Counter[tuple[str, str]] = Counter()
        self._changes: defaultdict[tuple[str, str], list[Change]] = defaultdict(list)
        self._of_fact: defaultdict[tuple[str, int], list[Change]] = defaultdict(list)

    def begin_life(self, ephemeral: Iterable[str], facts: Iterable[Fact]) -> None:
        """The daemon has started, with these facts in its log."""
        self.life += 1
        self._ephemeral = frozenset(ephemeral)
        self.committed(facts)

    def committed(self, facts: Iterable[Fact]) -> None:
        """These facts are there from now on."""
        for fact in facts:
            is_kept = fact.stream not in self._ephemeral
            if is_kept and fact.serial <= self._serial:
                continue
            self._serial = max(self._serial, fact.serial)
            rows = [jsontext.loads(row) for row in jsontext.split(fact.rows)]
            for position in dict.fromkeys(
                position for row in rows for position in _changed_by(fact.stream, row)
            ):
                self._versions[position] += 1
                life = 0 if is_kept else self.life
                change = Change(
                    fact.stream, fact.writer, fact.token, life, *position, version=self._versions[position]
                )
                self._changes[position].append(change)
                if is_kept:
                    self._of_fact[fact.stream, fact.token].append(change)
                self.latest = [*self.latest[-9:], change]

    def changes_of(self, stream: str, token: int) -> Sequence[Change]:
        """What a fact that is kept has changed; nothing for one of a stream in memory."""
        return self._of_fact.get((stream, token), ())

    def read(self, name: str, room: str) -> int:
        """The value now."""
        return self._versions[name, room]

    def required(self, name: str, room: str, covers: Callable[[Change], bool]) -> int:
        """The value that the last of the facts that are covered has made."""
        changes = self._changes[name, room]
        return next((change.version for change in reversed(changes) if covers(change)), 0)


class _Counted(Caches):
    """Caches that count how often all of a stream was cleared."""

    def __init__(self) -> None:
        super().__init__(vintage=_VINTAGE)
        self.cleared: Counter[str] = Counter()

    def invalidate_stream(self, stream: str) -> None:
        self.cleared[stream] += 1
        super().invalidate_stream(stream)


class CachedReader:
    """What one life of a worker reads, through caches that it has from its follower's start."""

    def __init__(
        self, truth: CacheTruth, clock: IClock, chance: random.Random, *, name: str, knows_writers: bool
    ) -> None:
        self.caches = _Counted()
        self.stale: list[str] = []
        self._follower: Follower
        self._truth = truth
        self._clock = clock
        self._chance = chance
        self._name = name
        self._knows_writers = knows_writers
        self._connected_in = 0
        self._lives: dict[tuple[str, str], int] = {}
        self._functions = {
            name: self.caches.cached(name=name, streams=(stream,), max_entries=4)(self._function(name))
            for name, stream in _STREAMS.items()
        }

    def follow(self, follower: Follower) -> None:
        """Its positions are what reads must not be older than."""
        self._follower = follower
        follower.on_event(self._happened)

    def read_something(self) -> None:
        """One of everything there is."""
        self.read(self._chance.choice(list(_STREAMS)), self._chance.choice(ROOMS))

    def read_everything(self) -> None:
        """All there is."""
        for name in _STREAMS:
            for room in ROOMS:
                self.read(name, room)

    def read_after(self, change: Change) -> None:
        """Wait for a fact, and read what it changed in the very turn in which it is there."""
        writer = change.writer if self._knows_writers else "master"
        timeout = self._chance.uniform(0.01, 2)
        waiter = self._follower.wait_for(change.stream, {writer: change.token}, timeout)
        waiter.addCallbacks(lambda _: self.read(change.name, change.room, change), lambda _: None)

    def read_within(self, updates: Updates[Any]) -> None:
        """Read what a fact changed in a subscriber that is called with it."""
        for change in self._truth.changes_of(updates.stream, updates.token):
            self.read(change.name, change.room, change)

    def read(self, name: str, room: str, after: Change | None = None) -> None:
        """Read, now and then without staying to hear the answer."""
        positions = self._follower.positions().get(_STREAMS[name], {})
        required = self._truth.required(name, room, partial(self._covers, positions))
        if after is not None and after.life == 0:
            required = max(required, after.version)
        reading: Deferred[int] = Deferred.fromCoroutine(self._functions[name](room))

        def check(version: int) -> None:
            if version < required:
                self.stale.append(
                    f"{self._name} read version {version} of {name} {room} when it had version {required}"
                    f" at {positions}{f', in the turn of {after}' if after else ''}"
                )

        reading.addCallback(check)
        reading.addErrback(lambda failure: failure.trap(CancelledError))
        if self._chance.random() < 0.05:
            reading.cancel()

    def _covers(self, tokens: Mapping[str, int], change: Change) -> bool:
        """Whether these positions, which the follower tells, are past this."""
        writer = change.writer if self._knows_writers else "master"
        if writer not in tokens:
            return False
        if change.life == 0:
            return change.token <= tokens[writer]
        return (change.life, change.token) <= (self._lives.get((change.stream, writer), 0), tokens[writer])

    def _happened(self, event: FollowerEvent) -> None:
        if event.kind == "connected":
            self._connected_in = self._truth.life
        elif event.kind == "position":
            self._lives[event.stream, event.writer] = self._connected_in

    def _function(self, name: str) -> Any:
        async def compute(room: str) -> int:
            await self._pause()
            version = self._truth.read(name, room)
            await self._pause()
            return version

        return compute

    async def _pause(self) -> None:
        if self._chance.random() < 0.7:
            seconds = self._chance.uniform(0, 0.03)
            await deferLater(self._clock, seconds, lambda: None)  # type: ignore[arg-type]
