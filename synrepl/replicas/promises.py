"""Promises: in the log, the replicas whose acknowledgements appends wait for.

Whoever becomes primary without the old one must know who could have acknowledged facts that it lacks. So the
first append with acks, and each one after the replicas have changed, stores a fact of the stream
``promises`` before its own: the registered replicas with their addresses, and the ways in which appends of
this epoch wait. A replica that has a fact which was acknowledged under a promise has the promise too, since
it comes first.

A promise counts once every replica in it has it on disk (`PromiseKeeper.settled`). Until then appends wait
for the replicas of the promise before it that are in both. This is what makes the check at a promotion
(`roles/promise_check.py`) sound: of a promise of M replicas any N may acknowledge; a candidate that was
answered by M-N+1 of them, itself included, has asked one of any N. One that knows only the promise before
is answered by somebody who knows a later one, and so is ahead of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from synrepl.base.response_errors import NotForwarded
from synrepl.errors import RowError
from synrepl.replication.own_facts import read_stream
from synrepl.storage.log import Log
from synrepl.storage.provenance import reign_of
from synrepl.streams.catalog import PROMISES, Promise
from synrepl.streams.facts import NO_ROWS, Fact
from synrepl.streams.origin import Origin
from synrepl.wire import jsontext
from synrepl.wire.acks import Acks
from synrepl.wire.dialect import NEWEST

MAX_PROMISED: Final = 100
"""The largest number of different names, or lists of names, that appends of one epoch can wait for."""


class PromisedReplica(NamedTuple):
    """A replica in a promise. `address` is ``NATIVE HTTP``; empty if it is unknown."""

    uuid: str
    name: str
    address: str


class StoredPromise(msgspec.Struct, frozen=True):
    """A promise in the log: after its fact it holds for appends of this epoch."""

    serial: int
    epoch: int
    digest: str
    acks: tuple[Acks, ...]
    replicas: tuple[PromisedReplica, ...]
    writer: str

    def covers(self, acks: Acks) -> bool:
        """Whether a check of this promise finds facts that only so many, or these, replicas acknowledged."""
        if acks.names:
            return acks in self.acks
        return any(0 < one.number <= acks.number for one in self.acks if not one.names)

    def uuids(self) -> set[str]:
        """The uuids of its replicas."""
        return {one.uuid for one in self.replicas}


async def newest_promise(log: Log) -> StoredPromise | None:
    """Return the newest promise in the log; None if there is none. Raises `StorageError`."""
    return max(await newest_promises(log), key=lambda one: one.serial, default=None)


async def newest_promises(log: Log) -> list[StoredPromise]:
    """Return the newest promise of each writer under the primary that has promised last.

    There is one writer, unless somebody forged promises (`storage/provenance.py`). Raises `StorageError`.
    """
    found: dict[str, StoredPromise] = {}
    reign = 0
    async for facts in read_stream(log, PROMISES.name):
        for fact in facts:
            promise, its_reign = _read(fact), reign_of(fact.epoch, log.head.epoch_starts)
            if promise is None or its_reign < reign:
                continue
            if its_reign > reign:
                reign, found = its_reign, {}
            known = found.get(promise.writer)
            if known is None or known.serial < promise.serial:
                found[promise.writer] = promise
    return sorted(found.values(), key=lambda one: one.serial)


def _read(fact: Fact) -> StoredPromise | None:
    if fact.rows == NO_ROWS:
        return None
    try:
        row: Any = PROMISES.decode(jsontext.split(fact.rows)[-1], NEWEST)
        acks = tuple(map(Acks.parse, row.acks))
        replicas = tuple(PromisedReplica(*one) for one in row.replicas)
    except (RowError, ValueError, TypeError):
        Logger().error("cannot read the promise of serial {serial}", serial=fact.serial)
        return None
    return StoredPromise(fact.serial, fact.epoch, fact.digest, acks, replicas, fact.writer)


class IPromised(Protocol):
    """A subscribed replica of this daemon."""

    uuid: str
    acknowledged: int
    """The replica has everything up to this serial on disk."""


@dataclass(eq=False, repr=False)
class PromiseKeeper:
    """Stores the promises of a primary, and knows which one counts.

    `replicas` returns all that may acknowledge. `instance` is the writer of the facts.
    """

    _logger = Logger()
    log: Log
    _: KW_ONLY
    instance: str
    replicas: Callable[[], Sequence[PromisedReplica]]

    def __post_init__(self) -> None:
        self.newest: StoredPromise | None = None
        self.settled: StoredPromise | None = None
        """The newest promise that each of its replicas has on disk."""
        self._is_loaded = False
        self._lock = DeferredLock()

    def forget(self) -> None:
        """Read the promises again when they are asked for: the log has been replaced."""
        self.newest = self.settled = None
        self._is_loaded = False

    async def promise(self, acks: Acks) -> None:
        """Store a promise for this way of waiting, and the replicas that there are now, unless one holds.

        Raises `StorageError`, and `NotForwarded` if appends already wait in too many ways.
        """
        if self._holds(acks):
            return
        async with self._lock:
            if not self._is_loaded:
                self.newest = await newest_promise(self.log)
                if self.newest is not None and self.newest.digest == self.log.notes.get("promised"):
                    self.settled = self.newest
                self._is_loaded = True
            if not self._holds(acks):
                await self._store(acks)

    def _holds(self, acks: Acks) -> bool:
        newest = self.newest
        return (
            newest is not None
            and newest.epoch == self.log.head.epoch
            and newest.covers(acks)
            and newest.replicas == tuple(self.replicas())
        )

    async def _store(self, acks: Acks) -> None:
        newest = self.newest
        before = newest.acks if newest is not None and newest.epoch == self.log.head.epoch else ()
        numbers = [one.number for one in (*before, acks) if not one.names]
        named = {one for one in (*before, acks) if one.names}
        if len(named) > MAX_PROMISED:
            why = f"acks: appends already wait for {MAX_PROMISED} different lists of replicas; use a number"
            raise NotForwarded("bad_request", why)
        # Whoever finds what one has acknowledged finds what two have.
        promised = sorted([*map(Acks, sorted(numbers)[:1]), *named], key=str)
        replicas = tuple(self.replicas())
        promise = Promise(
            kind="acks", acks=[str(one) for one in promised], replicas=[list(one) for one in replicas]
        )
        fact = PROMISES.canonical_fact([promise])  # type: ignore[list-item]  # `row` makes a struct
        appended = await self.log.append(PROMISES.name, self.instance, [fact], origin=Origin.DAEMON)
        serial = appended.first_serial
        assert serial is not None
        digest = await self.log.reads.digest(serial) or ""
        self.newest = StoredPromise(serial, appended.epoch, digest, tuple(promised), replicas, self.instance)

    @property
    def is_settled(self) -> bool:
        """Whether the newest promise counts, or there is none."""
        return self.newest is self.settled

    def advanced(self, replicas: Iterable[IPromised]) -> bool:
        """Note what these replicas have on disk; return whether the newest promise has begun to count."""
        if self.is_settled or self.late(replicas):
            return False
        self.settled = self.newest
        return True

    def late(self, replicas: Iterable[IPromised]) -> list[str]:
        """The names of the replicas that do not have the newest promise on disk, as far as is known."""
        newest = self.newest
        if newest is None or self.is_settled:
            return []
        on_disk = {one.uuid for one in replicas if one.acknowledged >= newest.serial}
        return [one.name for one in newest.replicas if one.uuid not in on_disk]

    async def save(self) -> None:
        """Save which promise counts, so that after a restart it need not be acknowledged again."""
        if self.settled is not None:
            await self.log.note(promised=self.settled.digest)

    def counted(self, acks: Acks) -> set[str]:
        """The uuids of the replicas whose acknowledgements count."""
        newest, settled = self.newest, self.settled
        if newest is None or settled is None or not settled.covers(acks):
            return set()
        return newest.uuids() & settled.uuids()
