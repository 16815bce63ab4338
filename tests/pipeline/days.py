"""A day of a homeserver, made up: streams, writers and rhythm as real ones have them, always the same."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from synrepl.base.history import EpochStart
from synrepl.pipeline.archive.archive import BatchCommitter
from synrepl.pipeline.archive.batch import Batch
from synrepl.pipeline.archive.table import ArchiveTable
from synrepl.pipeline.store import Store
from synrepl.streams.digest import EMPTY, chain
from synrepl.streams.facts import Fact
from tests.pipeline.archives import BEGAN_MS, DAY_MS, LOG, write_facts

HOUR_MS = 3600 * 1000

PERSISTERS = ("event_persister1", "event_persister2")
RECEIPTS = ("receipts1", "receipts2")
EVERYBODY = ("master", *PERSISTERS, *RECEIPTS)

STREAMS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("events", PERSISTERS, 22),
    ("caches", EVERYBODY, 24),
    ("receipts", RECEIPTS, 26),
    ("device_lists", ("master",), 8),
    ("to_device", ("master",), 9),
    ("account_data", ("master",), 5),
    ("backfill", PERSISTERS, 2),
    ("pushers", ("master",), 0.4),
    ("push_rules", ("master",), 0.5),
)


class Day:
    """Facts, one after the other, over `hours` from `began_ms` on; about `count` of them."""

    def __init__(
        self,
        count: int,
        *,
        hours: float = 24,
        began_ms: int = BEGAN_MS,
        seed: int = 7,
        turn_at: int | None = None,
    ) -> None:
        self.epoch_starts: list[EpochStart] = []
        self._count = count
        self._hours = hours
        self._began_ms = began_ms
        self._random = Random(seed)
        self._turn_at = turn_at
        self._digest = EMPTY
        self._epoch = 1
        self._heads: dict[str, int] = defaultdict(int)
        self._tokens: dict[tuple[str, str], int] = {}
        self.facts: list[Fact] = []
        self._make()

    def add(
        self, stream: str, writer: str, rows: Sequence[Any], at_ms: int, *, late: bool = False, skip: int = 0
    ) -> None:
        """One fact more."""
        serial = len(self.facts) + 1
        before = self._tokens.get((stream, writer), 0)
        token = before if late else self._heads[stream] + 1 + skip
        made: dict[str, Any] = {
            "serial": serial,
            "epoch": self._epoch,
            "stream": stream,
            "writer": writer,
            "prev_token": before,
            "token": token,
            "committed_at_ms": at_ms,
            "rows": msgspec.json.encode(rows),
        }
        self._digest = chain(self._digest, **made)
        self._tokens[stream, writer] = token
        self._heads[stream] = max(token, self._heads[stream])
        self.facts.append(Fact(**made, digest=self._digest))

    def _make(self) -> None:
        names, writers, weights = zip(*STREAMS, strict=True)
        who = dict(zip(names, writers, strict=True))
        for at_ms in sorted(self._moments()):
            hour = (at_ms - self._began_ms) / HOUR_MS
            (stream,) = self._random.choices(names, weights)
            writer = self._random.choice(who[stream])
            if writer == "event_persister2" and 0.58 < hour / self._hours < 0.69:
                writer = "event_persister1"  # it hung
            if writer == "receipts2" and hour / self._hours > 0.9:
                writer = "receipts1"  # it does so still
            if self._turn_at is not None and len(self.facts) == self._turn_at:
                self._epoch += 1
                epoch_start = EpochStart(self._epoch, len(self.facts), self._digest, at_ms, "promoted")
                self.epoch_starts.append(epoch_start)
            before = self._tokens.get((stream, writer))
            if stream == "caches" and before is not None and self._random.random() < 0.004:
                self.add(stream, writer, [self._cache(at_ms)], at_ms, late=True)
                continue
            skip = self._random.randrange(1, 4) if self._random.random() < 0.003 else 0
            self.add(stream, writer, list(self._rows(stream, at_ms)), at_ms, skip=skip)
            if stream in {"events", "receipts"} and self._random.random() < 0.02:
                (other,) = set(who[stream]) - {writer}
                is_hung = other == "event_persister2" and 0.58 < hour / self._hours < 0.69
                if not is_hung and not (other == "receipts2" and hour / self._hours > 0.9):
                    self.add(stream, other, [], at_ms)

    def _moments(self) -> Iterator[int]:
        for _ in range(self._count):
            while True:
                share = self._random.random()
                hour = 24 * share
                people = (
                    0.08
                    + math.exp(-(((hour - 9.5) / 2.2) ** 2))
                    + 0.7 * math.exp(-(((hour - 14) / 2.5) ** 2))
                    + 1.3 * math.exp(-(((hour - 20.2) / 1.9) ** 2))
                )
                if self._random.random() * 1.9 < people:
                    yield self._began_ms + int(share * self._hours * HOUR_MS)
                    break

    def _rows(self, stream: str, at_ms: int) -> Iterator[list[Any]]:
        user, room = self._user(), self._room()
        number = len(self.facts)
        match stream:
            case "events":
                kind = self._random.choice(["m.room.message"] * 9 + ["m.room.member", "m.reaction"])
                key = user if kind == "m.room.member" else None
                member = "join" if key else None
                yield ["ev", [f"${number}:localhost", room, kind, key, None, None, member, False, False]]
                if key:
                    yield ["state", [room, kind, key, f"${number}:localhost"]]
            case "caches":
                for _ in range(1 + int(self._random.paretovariate(1.6) * 0.7)):
                    yield self._cache(at_ms)
            case "receipts":
                for _ in range(1 + int(self._random.expovariate(1.2))):
                    yield [room, "m.read", self._user(), f"${number}:localhost", None, {"ts": at_ms}]
            case "device_lists":
                for _ in range(int(self._random.paretovariate(1.1)) if number % 50 == 0 else 1):
                    yield [self._user(), False, False]
            case "to_device":
                yield [user if self._random.random() < 0.7 else self._server()]
            case "account_data":
                yield [user, room if self._random.random() < 0.5 else None, "m.fully_read"]
            case "backfill":
                for position in range(self._random.randrange(1, 25)):
                    yield [f"$old{number}-{position}", room, "m.room.message", None, None, None]
            case "pushers":
                yield [user, "im.app", f"pushkey{number % 97}", False]
            case _:
                yield [user]

    def _cache(self, at_ms: int) -> list[Any]:
        room, user = self._room(), self._user()
        match self._random.randrange(100):
            case n if n < 22:
                changed = {self._user() for _ in range(int(self._random.paretovariate(1.3)))}
                return ["cs_cache_fake", [room, *sorted(changed)[:50]], at_ms]
            case n if n < 40:
                return ["get_user_by_id", [user], at_ms]
            case n if n < 55:
                return ["get_last_receipt_event_id_for_user", [user, room, "m.read"], at_ms]
            case n if n < 65:
                return ["count_e2e_one_time_keys", [user, "DEVICE"], at_ms]
            case n if n < 75:
                return ["_get_bare_e2e_cross_signing_keys", [user], at_ms]
            case n if n < 82:
                packed = [msgspec.json.encode([user, f"D{position}"]).decode() for position in range(3)]
                return ["_get_e2e_cross_signing_signatures_for_device", packed, at_ms]
            case n if n < 90:
                return ["get_user_by_access_token", [f"syt_{self._random.randrange(3000)}"], at_ms]
            case n if n < 91:
                return ["get_all_push_rules_enabled", None, at_ms]
            case 91 if self._random.random() < 0.2:
                return ["ph_cache_fake", [room], at_ms]
            case _:
                return ["get_unread_event_push_actions_by_room_for_user", [room], at_ms]

    def _user(self) -> str:
        number = int(self._random.paretovariate(0.8))
        server = "localhost" if number < 40 or self._random.random() < 0.4 else self._server()
        return f"@user{number % 5000}:{server}"

    def _room(self) -> str:
        return f"!room{int(self._random.paretovariate(0.7)) % 2000}:localhost"

    def _server(self) -> str:
        return f"server{int(self._random.paretovariate(0.9)) % 300}.example.org"


def archive_day(position: str, day: Day, *, every_ms: int = 15 * 60 * 1000) -> list[Batch]:
    """An archive of this day, a batch for every so often; between 3 and 5 o'clock archiving stood still."""
    store, random = Store(position), Random(3)
    committer = BatchCommitter(store, LOG)
    for full_ms, facts in _batches(day.facts, every_ms):
        hour = full_ms % DAY_MS / HOUR_MS
        at_ms = full_ms - full_ms % DAY_MS + 5 * HOUR_MS if 3 <= hour < 5 else full_ms
        committer.commit(
            write_facts(store, facts),
            epoch_starts=day.epoch_starts,
            now_ms=at_ms + random.randrange(2_000, 40_000),
        )
    return ArchiveTable(store).batches()


def _batches(facts: Sequence[Fact], every_ms: int) -> Iterator[tuple[int, list[Fact]]]:
    some: list[Fact] = []
    for fact in facts:
        if some and fact.committed_at_ms // every_ms != some[0].committed_at_ms // every_ms:
            yield (some[0].committed_at_ms // every_ms + 1) * every_ms, some
            some = []
        some.append(fact)
    if some:
        yield (some[0].committed_at_ms // every_ms + 1) * every_ms, some
