"""Leases: retain the part of the log that readers still need, within bounds of time and size.

A log that keeps everything fills the disk, and one that forgets by age loses facts of whoever was away for a
minute too long. A lease is the contract between the two: a reader that has one names the serial up to which
it has everything, and the log is trimmed no further than the lowest of them, as long as the reader comes back
in time (`allowed_seconds`) and does not hold too much (`lease_bytes`). A reader that breaks either bound is
not waited for any longer. It is told so when it comes back, by a refusal that says what was trimmed, and
takes a new copy; it never gets a log with a hole.

Time is counted only while this daemon runs and its clock has not jumped (`ExpiryClock`): a night in which the
primary was down, or a clock set forward, must not end the leases of readers that could not have come.

A change is in memory at once and on disk about a second later. A kill in that second makes a lease older than
it was, so that the log retains more than it must, which is safe; the opposite cannot happen.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import ceil
from typing import Final

import msgspec
from twisted.logger import Logger

from synrepl.base.history import Lease
from synrepl.base.interfaces import IClock
from synrepl.base.tasks import Tasks
from synrepl.base.time import ExpiryClock, Timer
from synrepl.replicas.settings import RelaySettings
from synrepl.storage.log import Log
from synrepl.wire.text import is_address

MAX_ANONYMOUS: Final = 1_000
"""How many leases of anonymous readers may be active. The rest of `MAX_LEASES` is for registered ones."""
MAX_LEASES: Final = 2_000
"""How many leases may be active. More are refused; no lease is dropped to make space for another."""
MAX_LEASES_OF_KEY: Final = 100
"""How many leases that one key made may be active. The shared secret has no such limit."""
MAX_ENDED: Final = 1_000
"""About how many ended leases are still shown: the first to end are forgotten, dropped replicas last."""
MAX_SIZE_QUERIES: Final = 50
"""The most serials for which one check reads from the log how many bytes follow; it estimates the rest."""
ENDED_SLACK: Final = 100
"""Leases are forgotten once more than `MAX_ENDED` and this many have ended: `MAX_ENDED` of them stay."""

CHECK_SECONDS: Final = 5.0
SAVE_SECONDS: Final = 1.0

TOUCH_SAVE_SECONDS: Final = 60.0
"""About how late the time of a message without progress is saved; earlier if `lease_seconds` is short."""

WARN_AT: Final = 0.8
FORGET_SECONDS: Final = 24 * 3600.0
"""An anonymous reader's ended lease is shown for this long, or until it is forgotten (`MAX_ENDED`)."""

DROPPED: Final = "dropped by an operator"
END_SOME: Final = "wait until some end, or end them with `synrepl leases drop NAME`"


class Leases:
    """The leases of a log: creates, advances, warns of and ends them.

    `present` returns the uuids of the connected readers: only the limit of size applies to their leases. A
    change is in memory at once, and on disk about a second later; a kill in that second loses the change.
    The time of a message without progress is saved later (`TOUCH_SAVE_SECONDS`). The times of leases are
    those of `expiry`.
    """

    _logger = Logger()

    def __init__(
        self,
        log: Log,
        clock: IClock,
        settings: RelaySettings,
        *,
        present: Callable[[], Collection[str]],
        expiry: ExpiryClock,
    ) -> None:
        self._settings = settings
        self._log = log
        self._clock = clock
        self._expiry = expiry
        self._present = present
        self._leases: dict[str, Lease] = {}
        self._by_name: dict[str, dict[str, None]] = {}
        self._active_count = 0
        self._anonymous_count = 0
        self._counts_by_key: Counter[str] = Counter()
        self._addresses: list[tuple[str, str]] | None = None
        self._bytes: dict[str, int] = {}
        self._warned: set[str] = set()
        self._unsaved: set[str] = set()
        self._dropped: set[str] = set()
        self._tasks = Tasks(self._logger, "leases")
        self._is_stopped = False
        self._save_timer = Timer(clock, lambda: self._tasks.start(self.save(), "saving leases"))
        self._check_timer = Timer(clock, self._check)
        shortest = settings.allowed_seconds(registered=False)
        self._check_seconds = min(CHECK_SECONDS, shortest)
        self._touch_save_seconds = min(TOUCH_SAVE_SECONDS, shortest / 10)
        self._touched: set[str] = set()
        self._saved_at = clock.seconds()
        self.reload()
        for lease in self._leases.values():
            expiry.resume(max(lease.made_ms, lease.seen_ms or 0, lease.ended_ms or 0) / 1000)
        self._check_timer.start(self._check_seconds)

    def stop(self) -> None:
        """Stop the timers. Changes are then saved only by a call of `save`."""
        self._is_stopped = True
        self._tasks.cancel_all()
        self._save_timer.stop()
        self._check_timer.stop()

    def reload(self) -> None:
        """Read the leases of the log again, after a copy replaced the log."""
        self._leases, self._by_name, self._addresses = {}, {}, None
        self._active_count = self._anonymous_count = 0
        self._counts_by_key.clear()
        for lease in self._log.leases.values():
            self._set(lease)

    def __getitem__(self, uuid: str) -> Lease | None:
        return self._leases.get(uuid)

    def limit_reached(self, uuid: str, *, registered: bool, key: str | None = None) -> str:
        """Return why no lease can be made for this reader; empty if one can, or if it has an active one.

        `key` is the name of the key that the reader proved, as in `Lease`.
        """
        known = self._leases.get(uuid)
        if known is not None and known.ended_ms is None:
            return ""
        if key and self._counts_by_key[key] >= MAX_LEASES_OF_KEY:
            return (
                f"{self._counts_by_key[key]} leases of the key {key} are active, the maximum for one key is"
                f" {MAX_LEASES_OF_KEY}; {END_SOME}"
            )
        if self._active_count >= MAX_LEASES:
            return f"{self._active_count} leases are active, the maximum is {MAX_LEASES}; {END_SOME}"
        if not registered and self._anonymous_count >= MAX_ANONYMOUS:
            return (
                f"{self._anonymous_count} anonymous leases are active, the maximum is {MAX_ANONYMOUS};"
                f" {END_SOME}"
            )
        return ""

    def addresses(self) -> Sequence[tuple[str, str]]:
        """The address and the uuid of registered replicas with an active lease and an address, by address."""
        if self._addresses is None:
            self._addresses = sorted(
                (lease.address, lease.uuid) for lease in self._leases.values() if _serves(lease)
            )
        return self._addresses

    def allowed_seconds(self, lease: Lease) -> float:
        """How long this reader may be absent, in seconds."""
        return self._settings.allowed_seconds(registered=lease.registered)

    def all(self) -> list[Lease]:
        """Every lease, also ended ones, those that retain most of the log first."""
        return sorted(self._leases.values(), key=lambda lease: (lease.ended_ms is not None, lease.serial))

    def lowest(self) -> int | None:
        """The serial up to which leases allow the log to be trimmed; None without active leases: no limit."""
        return min((lease.serial for lease in self._leases.values() if lease.ended_ms is None), default=None)

    def make(
        self,
        uuid: str,
        name: str,
        *,
        registered: bool,
        serial: int,
        address: str = "",
        key: str | None = None,
    ) -> Lease:
        """Make or renew the lease of a connected reader that needs the facts after this serial.

        The caller has checked `limit_reached`, and that the lease is not that of another `key`. Leases that
        `add` made for this name are replaced. An empty or invalid address leaves the known one.
        """
        known = self._leases.get(uuid)
        now = self._now_ms()
        for expected in [one for one in self._named(name) if one.seen_ms is None]:
            self._forget(expected.uuid)
        lease = Lease(
            uuid=uuid,
            name=name,
            registered=registered,
            serial=serial,
            made_ms=now if known is None else known.made_ms,
            seen_ms=now,
            address=(address if is_address(address) else "") or (known.address if known is not None else ""),
            key=key,
        )
        self._put(lease)
        return lease

    def add(self, uuid: str, name: str) -> Lease:
        """Make or renew the lease of a replica that an operator expects, for facts committed from now on."""
        known = self._leases.get(uuid)
        lease = Lease(
            uuid=uuid,
            name=name,
            registered=True,
            serial=self._log.head.serial,
            made_ms=self._now_ms(),
            address=known.address if known is not None else "",
        )
        self._put(lease)
        return lease

    def advance(self, uuid: str, serial: int) -> None:
        """Record that a reader has all facts up to this serial. No effect without an active lease."""
        lease = self._leases.get(uuid)
        if lease is not None and lease.ended_ms is None:
            fresh = msgspec.structs.replace(lease, serial=max(serial, lease.serial), seen_ms=self._now_ms())
            if fresh.serial > lease.serial:
                self._put(fresh)
            else:
                self._set(fresh)
                self._touched.add(uuid)

    def touch(self, uuid: str) -> None:
        """Record the time of a contact with a reader, if it has a lease."""
        lease = self._leases.get(uuid)
        if lease is not None:
            self._put(msgspec.structs.replace(lease, seen_ms=self._now_ms()))

    def drop(self, name: str) -> Lease | None:
        """End the lease that `find` returns, as an operator requests. Returns it, or None if there is none.

        A replica is then refused; a changelog reader gets a new lease with its next request.
        """
        found = self.find(name)
        if found is not None and found.ended_ms is not None:
            self._put(msgspec.structs.replace(found, reason=DROPPED))
        elif found is not None:
            self.end(found, DROPPED)
        return found

    def find(self, name: str) -> Lease | None:
        """Return the lease with this uuid or name; None if there is none, or several have the name."""
        by_name = self._named(name)
        return self._leases.get(name) or (by_name[0] if len(by_name) == 1 else None)

    def _named(self, name: str) -> list[Lease]:
        return [self._leases[uuid] for uuid in self._by_name.get(name, ())]

    def is_dropped(self, uuid: str) -> bool:
        """Whether this reader's lease was ended by `drop`, and not made again."""
        lease = self._leases.get(uuid)
        return lease is not None and lease.reason == DROPPED

    def end(self, lease: Lease, reason: str) -> None:
        """End a lease, which then retains nothing. No effect if it has ended already."""
        if lease.ended_ms is None:
            self._logger.warn("the lease of {name} has ended: {reason}", name=lease.name, reason=reason)
            self._put(msgspec.structs.replace(lease, ended_ms=self._now_ms(), reason=reason))
            if len(self._leases) - self._active_count > MAX_ENDED + ENDED_SLACK:
                self._forget_first_ended()

    def _forget_first_ended(self) -> None:
        ended = [lease for lease in self._leases.values() if lease.ended_ms is not None]
        ended.sort(key=lambda one: (one.registered and one.reason == DROPPED, one.ended_ms))
        for lease in ended[: len(ended) - MAX_ENDED]:
            self._forget(lease.uuid)

    def held_bytes(self, uuid: str) -> int:
        """About how many bytes of the log follow a lease's serial, by its last check; 0 at the head."""
        lease = self._leases.get(uuid)
        if lease is None or lease.serial >= self._log.head.serial:
            return 0
        return self._bytes.get(uuid, 0)

    def used_share(self, lease: Lease, present: Collection[str]) -> float:
        """Return the larger of the used shares of time and of bytes; at 1 the lease ends, or has ended.

        `present` are the uuids of the connected readers.
        """
        if lease.ended_ms is not None:
            return 1.0
        absent = 0.0 if lease.uuid in present else self._absent_seconds(lease)
        return max(
            absent / self.allowed_seconds(lease), self.held_bytes(lease.uuid) / self._settings.lease_bytes
        )

    def _absent_seconds(self, lease: Lease) -> float:
        last = lease.made_ms if lease.seen_ms is None else lease.seen_ms
        return max(0.0, self._expiry.seconds() - last / 1000)

    def _check(self) -> None:
        self._check_timer.start(self._check_seconds)
        self._tasks.start(self.check(), "checking leases")

    async def check(self) -> None:
        """End leases at their limit, warn of those above `WARN_AT`, and forget old ended ones."""
        if self._touched and self._clock.seconds() - self._saved_at >= self._touch_save_seconds:
            self._save_soon()
        sizes = await self._sizes()
        present = self._present()
        for lease in list(self._leases.values()):
            if lease.ended_ms is not None:
                if not lease.registered and self._now_ms() - lease.ended_ms > FORGET_SECONDS * 1000:
                    self._forget(lease.uuid)
                continue
            if (size := sizes.get(lease.serial)) is None:
                continue  # advanced or made since the sizes were read: left to the next check
            self._bytes[lease.uuid] = size
            used = self.used_share(lease, present)
            if used >= 1:
                self.end(lease, self._why_ended(lease))
            elif used >= WARN_AT and lease.uuid not in self._warned:
                self._warned.add(lease.uuid)
                self._logger.warn(
                    "the lease of {name} has used {share}% of its limit: {why}",
                    name=lease.name,
                    share=int(used * 100),
                    why=self._why_ended(lease),
                )
            elif used < WARN_AT:
                self._warned.discard(lease.uuid)

    async def _sizes(self) -> dict[int, int]:
        """About how many bytes of the log follow each serial that a lease is at.

        At most `MAX_SIZE_QUERIES` sizes are read from the log, as each read takes the writer thread. Between
        two of these serials the bytes are assumed to be spread evenly.
        """
        head = self._log.head.serial
        serials = sorted({lease.serial for lease in self._leases.values() if lease.ended_ms is None})
        behind = serials[: bisect_left(serials, head)]
        step = max(1, ceil(len(behind) / MAX_SIZE_QUERIES))
        sampled = [*behind[::step], head]
        known = [0 if serial >= head else await self._log.reads.size(serial) for serial in sampled]
        sizes = dict.fromkeys(serials, 0)
        for serial in behind:
            index = bisect_right(sampled, serial)
            first, last = sampled[index - 1], sampled[index]
            part = (serial - first) / (last - first)
            sizes[serial] = round(known[index - 1] + part * (known[index] - known[index - 1]))
        return sizes

    def _why_ended(self, lease: Lease) -> str:
        held = self.held_bytes(lease.uuid)
        if held / self._settings.lease_bytes >= self._absent_seconds(lease) / self.allowed_seconds(lease):
            return f"it retains about {held} bytes of the log, the maximum is {self._settings.lease_bytes}"
        absent, allowed = self._absent_seconds(lease), self.allowed_seconds(lease)
        return f"no contact for {absent:.0f} seconds, the maximum is {allowed:.0f}"

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
            self._active_count += by
            self._anonymous_count += by * (not lease.registered)
            if lease.key:
                self._counts_by_key[lease.key] += by

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
        if not self._is_stopped:
            self._save_timer.start(SAVE_SECONDS)

    async def save(self) -> None:
        """Save changed leases to disk, and delete forgotten ones. After an error the next call retries."""
        unsaved, self._unsaved, self._touched = self._unsaved | self._touched, set(), set()
        self._saved_at = self._clock.seconds()
        # A reader that has reconnected since has a lease again.
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
        return int(self._expiry.seconds() * 1000)


def _serves(lease: Lease) -> bool:
    return lease.registered and lease.ended_ms is None and bool(lease.address)
