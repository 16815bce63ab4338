"""Who still needs which part of the log, and for how long that is kept for them."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil
from typing import Any, Final, Protocol

import msgspec
from twisted.logger import Logger

from synrepl.ports.history import Lease
from synrepl.ports.interfaces import IClock
from synrepl.ports.tasks import Tasks
from synrepl.wire.peer_names import MAX_NAME, is_address
from synrepl.wire.text import printable

__all__ = ["MAX_ANONYMOUS", "MAX_ENDED", "MAX_LEASES", "LeaseTerms", "LeasedLog", "Leases"]

MAX_ANONYMOUS: Final = 1_000
"""Leases of anonymous readers that stand at once. Replicas keep the rest of `MAX_LEASES` to themselves."""
MAX_LEASES: Final = 2_000
"""Leases that stand at once. An excess is refused; no lease is dropped to make room for another."""
MAX_ENDED: Final = 1_000
"""Leases that ended and are still shown. Of more, those that ended first are forgotten."""
MAX_LOOKS: Final = 50
"""Serials whose distance from the head is asked of the log in one check."""
SPARE: Final = 100
"""How many more there may be before they are sorted: once for so many, not once for each."""

CHECK_SECONDS: Final = 5.0
SAVE_SECONDS: Final = 1.0

HEARD_SECONDS: Final = 60.0
"""How late the disk may know, at most, that a reader was heard of: an idle one is heard of all the time."""

WARN_AT: Final = 0.8
FORGET_SECONDS: Final = 24 * 3600.0
"""How long an anonymous reader's lease that ended is still shown."""

DROPPED: Final = "dropped by an operator"
END_SOME: Final = "wait until some end, or end them with `synrepl leases drop NAME`"


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
        self._leases: dict[str, Lease] = {}
        self._by_name: dict[str, dict[str, None]] = {}
        self._standing = 0
        self._anonymous = 0
        self._addresses: list[tuple[str, str]] | None = None
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
        self.reload()
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
        self._leases, self._by_name, self._addresses = {}, {}, None
        self._standing = self._anonymous = 0
        for lease in self._log.leases.values():
            # Releases before 26.11 took names of any characters.
            self._set(msgspec.structs.replace(lease, name=printable(lease.name, limit=MAX_NAME)))

    # -- who has one ---------------------------------------------------------------------------------------

    def __getitem__(self, uuid: str) -> Lease | None:
        return self._leases.get(uuid)

    def refuses(self, uuid: str, *, registered: bool) -> str:
        """Why no lease can be made for this reader; empty if one can. A reader that has one keeps it."""
        known = self._leases.get(uuid)
        if known is not None and known.ended_ms is None:
            return ""
        if self._standing >= MAX_LEASES:
            return f"{self._standing} leases stand, of {MAX_LEASES} that may; {END_SOME}"
        if not registered and self._anonymous >= MAX_ANONYMOUS:
            return f"{self._anonymous} anonymous leases stand, of {MAX_ANONYMOUS} that may; {END_SOME}"
        return ""

    def addresses(self) -> Sequence[tuple[str, str]]:
        """The address and the uuid of each replica with a lease that stands, in order of address."""
        if self._addresses is None:
            self._addresses = sorted(
                (lease.address, lease.uuid) for lease in self._leases.values() if _serves(lease)
            )
        return self._addresses

    def all(self) -> list[Lease]:
        """Every lease, ended ones included, those that hold most back first."""
        return sorted(self._leases.values(), key=lambda lease: (lease.ended_ms is not None, lease.serial))

    def lowest(self) -> int | None:
        """The serial beyond which nothing may be trimmed; None if nobody needs anything."""
        return min((lease.serial for lease in self._leases.values() if lease.ended_ms is None), default=None)

    def make(self, uuid: str, name: str, *, registered: bool, serial: int, address: str = "") -> Lease:
        """A reader has come, and needs what is beyond this serial.

        The caller has asked `refuses`. An address that cannot be one is not kept.
        """
        known = self._leases.get(uuid)
        now = self._now_ms()
        for expected in [one for one in self._named(name) if one.seen_ms is None]:
            # It has come.
            self._forget(expected.uuid)
        lease = Lease(
            uuid=uuid,
            name=name,
            registered=registered,
            serial=serial,
            made_ms=now if known is None else known.made_ms,
            seen_ms=now,
            address=(address if is_address(address) else "") or (known.address if known is not None else ""),
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
                self._set(fresh)
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
        by_name = self._named(name)
        return self._leases.get(name) or (by_name[0] if len(by_name) == 1 else None)

    def _named(self, name: str) -> list[Lease]:
        return [self._leases[uuid] for uuid in self._by_name.get(name, ())]

    def is_dropped(self, uuid: str) -> bool:
        """Whether an operator dropped this reader."""
        lease = self._leases.get(uuid)
        return lease is not None and lease.reason == DROPPED

    def end(self, lease: Lease, reason: str) -> None:
        """It holds nothing any more."""
        if lease.ended_ms is None:
            self._logger.warn("the lease of {name} has ended: {reason}", name=lease.name, reason=reason)
            self._put(msgspec.structs.replace(lease, ended_ms=self._now_ms(), reason=reason))
            if len(self._leases) - self._standing > MAX_ENDED + SPARE:
                self._forget_first_ended()

    def _forget_first_ended(self) -> None:
        """Forget all but `MAX_ENDED` of those that ended; a replica that was dropped is forgotten last."""
        ended = [lease for lease in self._leases.values() if lease.ended_ms is not None]
        ended.sort(key=lambda one: (one.registered and one.reason == DROPPED, one.ended_ms))
        for lease in ended[: len(ended) - MAX_ENDED]:
            self._forget(lease.uuid)

    # -- time and bytes ------------------------------------------------------------------------------------

    def held_bytes(self, uuid: str) -> int:
        """About how much of the log this lease holds back, as of the last look."""
        return self._bytes.get(uuid, 0)

    def share(self, lease: Lease, present: Collection[str]) -> float:
        """How much of its time or of its bytes is used, the larger; 1 ends it. `present` are the readers that
        are connected."""
        if lease.ended_ms is not None:
            return 1.0
        away = 0.0 if lease.uuid in present else self._away(lease)
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
        sizes = await self._sizes()
        present = self._present()
        for lease in list(self._leases.values()):
            if lease.ended_ms is not None:
                self._forget_old(lease)
                continue
            if (size := sizes.get(lease.serial)) is None:
                continue  # it moved, or was made, while the sizes were looked up: the next check knows
            self._bytes[lease.uuid] = size
            share = self.share(lease, present)
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

    async def _sizes(self) -> dict[int, int]:
        """About how many bytes of the log lie beyond each serial that a lease stands at.

        The log is asked about `MAX_LOOKS` times at most, as each time takes the thread that writes. The bytes
        between two of these serials are taken to be spread evenly.
        """
        head = self._log.serial
        serials = sorted({lease.serial for lease in self._leases.values() if lease.ended_ms is None})
        behind = serials[: bisect_left(serials, head)]
        step = max(1, ceil(len(behind) / MAX_LOOKS))
        looked = [*behind[::step], head]
        known = [0 if serial >= head else await self._log.size(serial) for serial in looked]
        sizes = dict.fromkeys(serials, 0)
        for serial in behind:
            position = bisect_right(looked, serial)
            first, last = looked[position - 1], looked[position]
            part = (serial - first) / (last - first)
            sizes[serial] = round(known[position - 1] + part * (known[position] - known[position - 1]))
        return sizes

    def _why_ended(self, lease: Lease) -> str:
        held = self.held_bytes(lease.uuid)
        if held / self.terms.bytes >= self._away(lease) / self.terms.seconds(lease):
            return f"it holds back about {held} bytes of the log, of {self.terms.bytes} that it may"
        return f"not heard of for {self._away(lease):.0f} seconds, of {self.terms.seconds(lease):.0f}"

    def _forget_old(self, lease: Lease) -> None:
        assert lease.ended_ms is not None
        if not lease.registered and self._now_ms() - lease.ended_ms > FORGET_SECONDS * 1000:
            self._forget(lease.uuid)

    # -- in memory, the one place that changes it; and on disk ---------------------------------------------

    def _set(self, lease: Lease) -> None:
        before = self._leases.get(lease.uuid)
        self._leases[lease.uuid] = lease
        self._by_name.setdefault(lease.name, {})[lease.uuid] = None
        self._count(lease, 1)
        if before is not None:
            self._count(before, -1)
            if before.name != lease.name:
                self._unname(before)
        if before is None or (before.address, _serves(before)) != (lease.address, _serves(lease)):
            self._addresses = None

    def _forget(self, uuid: str) -> None:
        lease = self._leases.pop(uuid)
        self._count(lease, -1)
        self._unname(lease)
        self._addresses = None
        self._bytes.pop(uuid, None)
        self._warned.discard(uuid)
        self._dropped.add(uuid)
        self._save_soon()

    def _count(self, lease: Lease, by: int) -> None:
        if lease.ended_ms is None:
            self._standing += by
            self._anonymous += by * (not lease.registered)

    def _unname(self, lease: Lease) -> None:
        uuids = self._by_name[lease.name]
        del uuids[lease.uuid]
        if not uuids:
            del self._by_name[lease.name]

    def _put(self, lease: Lease) -> None:
        self._set(lease)
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
        # A reader that has come back since has a lease again.
        dropped, self._dropped = self._dropped - self._leases.keys(), set()
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


def _serves(lease: Lease) -> bool:
    return lease.registered and lease.ended_ms is None and bool(lease.address)
