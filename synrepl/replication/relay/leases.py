"""Who still needs which part of the log, and for how long that is kept for them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from twisted.logger import Logger

from synrepl.ports.history import Lease
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks

__all__ = ["LeaseTerms", "LeasedLog", "Leases"]

CHECK_SECONDS: Final = 5.0
SAVE_SECONDS: Final = 1.0

HEARD_SECONDS: Final = 60.0
"""How late the disk may know, at most, that a reader was heard of: an idle one is heard of all the time."""

WARN_AT: Final = 0.8
FORGET_SECONDS: Final = 24 * 3600.0
"""How long an anonymous reader's lease that ended is still shown."""

DROPPED: Final = "dropped by an operator"


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How long the log is kept for a reader that is away, in seconds, and how much of it, in bytes."""

    anonymous_seconds: float = 3600.0
    registered_seconds: float = 7 * 24 * 3600.0
    bytes: int = 1024 * 1024 * 1024

    def seconds(self, lease: Lease) -> float:
        """For this reader."""
        return self.registered_seconds if lease.registered else self.anonymous_seconds


class LeasedLog(Protocol):
    """What is asked of the log."""

    @property
    def serial(self) -> int: ...

    @property
    def leases(self) -> Mapping[str, Lease]: ...

    async def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None: ...

    def size(self, after: int) -> Any: ...


class Leases:
    """The leases of a log: made, moved on, warned of, ended.

    `present` says which readers are connected just now: time does not run out on them, bytes do. What is
    told of a lease is kept in memory at once and on disk within a second: a lease that is older there than
    here keeps more than it need, never less. Only that a reader was heard of, which has not moved, comes to
    the disk later: a kill can cost it up to a tenth of its time.
    """

    _logger = Logger()

    def __init__(
        self, log: LeasedLog, clock: IClock, terms: LeaseTerms, *, present: Callable[[], Collection[str]]
    ) -> None:
        self.terms = terms
        self._log = log
        self._clock = clock
        self._present = present
        self._leases = dict(log.leases)
        self._bytes: dict[str, int] = {}
        self._warned: set[str] = set()
        self._unsaved: set[str] = set()
        self._dropped: set[str] = set()
        self._tasks = Tasks(self._logger, "leases")
        self._is_stopped = False
        self._save_timer: Any = None
        self._check_seconds = min(CHECK_SECONDS, terms.anonymous_seconds, terms.registered_seconds)
        shortest = min(terms.anonymous_seconds, terms.registered_seconds)
        self._heard_seconds = min(HEARD_SECONDS, shortest / 10)
        self._heard: set[str] = set()
        self._saved_at = clock.seconds()
        self._check_timer: Any = clock.callLater(self._check_seconds, self._check)

    def stop(self) -> None:
        """End the timers; what is told from now on is kept nowhere."""
        self._is_stopped = True
        self._tasks.cancel_all()
        for timer in (self._save_timer, self._check_timer):
            if timer is not None and timer.active():
                timer.cancel()

    def reload(self) -> None:
        """The log was replaced by another copy."""
        self._leases = dict(self._log.leases)

    # -- who has one ---------------------------------------------------------------------------------------

    def __getitem__(self, uuid: str) -> Lease | None:
        return self._leases.get(uuid)

    def all(self) -> list[Lease]:
        """Every lease, ended ones included, those that hold most back first."""
        return sorted(self._leases.values(), key=lambda lease: (lease.ended_ms is not None, lease.serial))

    def lowest(self) -> int | None:
        """The serial beyond which nothing may be trimmed; None if nobody needs anything."""
        return min((lease.serial for lease in self._leases.values() if lease.ended_ms is None), default=None)

    def make(self, uuid: str, name: str, *, registered: bool, serial: int, address: str = "") -> Lease:
        """A reader has come, and needs what is beyond this serial."""
        known = self._leases.get(uuid)
        now = self._now_ms()
        for expected in [one for one in self._leases.values() if one.name == name and one.seen_ms is None]:
            # It has come.
            del self._leases[expected.uuid]
            self._dropped.add(expected.uuid)
        lease = Lease(
            uuid=uuid,
            name=name,
            registered=registered,
            serial=serial,
            made_ms=now if known is None else known.made_ms,
            seen_ms=now,
            address=address or (known.address if known is not None else ""),
        )
        self._put(lease)
        return lease

    def add(self, uuid: str, name: str) -> Lease:
        """An operator expects a replica: what comes from now on is kept for it."""
        serial = self._log.serial
        known = self._leases.get(uuid)
        lease = Lease(
            uuid=uuid,
            name=name,
            registered=True,
            serial=serial,
            made_ms=self._now_ms(),
            address=known.address if known is not None else "",
        )
        self._put(lease)
        return lease

    def moved(self, uuid: str, serial: int) -> None:
        """A reader holds everything up to this serial."""
        lease = self._leases.get(uuid)
        if lease is not None and lease.ended_ms is None:
            fresh = msgspec.structs.replace(lease, serial=max(serial, lease.serial), seen_ms=self._now_ms())
            if fresh.serial > lease.serial:
                self._put(fresh)
            else:
                self._leases[uuid] = fresh
                self._heard.add(uuid)

    def seen(self, uuid: str) -> None:
        """A reader was heard of."""
        lease = self._leases.get(uuid)
        if lease is not None:
            self._put(msgspec.structs.replace(lease, seen_ms=self._now_ms()))

    def drop(self, name: str) -> Lease | None:
        """An operator drops a reader, by uuid or by name: it holds nothing, and is not served any more."""
        found = self.find(name)
        if found is not None:
            self.end(found, DROPPED)
        return found

    def find(self, name: str) -> Lease | None:
        """The lease of a reader, by uuid or by name."""
        by_name = [lease for lease in self._leases.values() if lease.name == name]
        return self._leases.get(name) or (by_name[0] if len(by_name) == 1 else None)

    def is_dropped(self, uuid: str) -> bool:
        """Whether an operator dropped this reader."""
        lease = self._leases.get(uuid)
        return lease is not None and lease.reason == DROPPED

    def end(self, lease: Lease, reason: str) -> None:
        """It holds nothing any more."""
        if lease.ended_ms is None:
            self._logger.warn("the lease of {name} has ended: {reason}", name=lease.name, reason=reason)
            self._put(msgspec.structs.replace(lease, ended_ms=self._now_ms(), reason=reason))

    # -- time and bytes ------------------------------------------------------------------------------------

    def held_bytes(self, uuid: str) -> int:
        """About how much of the log this lease holds back, as of the last look."""
        return self._bytes.get(uuid, 0)

    def share(self, lease: Lease) -> float:
        """How much of its time or of its bytes is used, the larger; 1 ends it."""
        if lease.ended_ms is not None:
            return 1.0
        away = 0.0 if lease.uuid in self._present() else self._away(lease)
        return max(away / self.terms.seconds(lease), self.held_bytes(lease.uuid) / self.terms.bytes)

    def _away(self, lease: Lease) -> float:
        last = lease.made_ms if lease.seen_ms is None else lease.seen_ms
        return max(0.0, self._clock.seconds() - last / 1000)

    def _check(self) -> None:
        self._check_timer = self._clock.callLater(self._check_seconds, self._check)
        self._tasks.start(self.check(), "looking after leases")

    async def check(self) -> None:
        """End what has run out, and warn of what soon will."""
        if self._heard and self._clock.seconds() - self._saved_at >= self._heard_seconds:
            self._save_soon()
        for lease in list(self._leases.values()):
            if lease.ended_ms is not None:
                self._forget_old(lease)
                continue
            behind = lease.serial < self._log.serial
            self._bytes[lease.uuid] = await self._log.size(lease.serial) if behind else 0
            share = self.share(lease)
            if share >= 1:
                self.end(lease, self._why_ended(lease))
            elif share >= WARN_AT and lease.uuid not in self._warned:
                self._warned.add(lease.uuid)
                self._logger.warn(
                    "the lease of {name} is used up to {share} %: {why}",
                    name=lease.name,
                    share=int(share * 100),
                    why=self._why_ended(lease),
                )
            elif share < WARN_AT:
                self._warned.discard(lease.uuid)

    def _why_ended(self, lease: Lease) -> str:
        held = self.held_bytes(lease.uuid)
        if held / self.terms.bytes >= self._away(lease) / self.terms.seconds(lease):
            return f"it holds back about {held} bytes of the log, of {self.terms.bytes} that it may"
        return f"not heard of for {self._away(lease):.0f} seconds, of {self.terms.seconds(lease):.0f}"

    def _forget_old(self, lease: Lease) -> None:
        assert lease.ended_ms is not None
        if not lease.registered and self._now_ms() - lease.ended_ms > FORGET_SECONDS * 1000:
            del self._leases[lease.uuid]
            self._dropped.add(lease.uuid)
            self._save_soon()

    # -- on disk -------------------------------------------------------------------------------------------

    def _put(self, lease: Lease) -> None:
        self._leases[lease.uuid] = lease
        self._unsaved.add(lease.uuid)
        self._save_soon()

    def _save_soon(self) -> None:
        if self._save_timer is None and not self._is_stopped:
            self._save_timer = self._clock.callLater(SAVE_SECONDS, self._save)

    def _save(self) -> None:
        self._save_timer = None
        self._tasks.start(self.save(), "keeping leases")

    async def save(self) -> None:
        """Keep on disk what has changed."""
        unsaved, self._unsaved, self._heard = self._unsaved | self._heard, set(), set()
        self._saved_at = self._clock.seconds()
        dropped, self._dropped = self._dropped, set()
        changed = [self._leases[uuid] for uuid in unsaved if uuid in self._leases]
        if changed or dropped:
            try:
                await self._log.keep_leases(changed, sorted(dropped))
            except Exception:
                self._unsaved |= unsaved
                self._dropped |= dropped
                raise

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)
