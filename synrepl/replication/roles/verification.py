"""Verification of claims: whether the daemon at an address is the primary that somebody says it is."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.defer import TimeoutError as TimedOut

from synrepl.errors import ReplicationError
from synrepl.ports.history import EMPTY, EpochStart
from synrepl.ports.interfaces import IClock
from synrepl.replication.addresses import Address
from synrepl.replication.roles.errors import ClaimRefused
from synrepl.replication.roles.interfaces import IPeerClient, PeerStatus, RoleLog
from synrepl.wire.peer_names import MAX_ADDRESS
from synrepl.wire.text import printable

__all__ = ["MAX_EPOCH", "ClaimVerifier", "believable", "checked_address", "common_serial"]

T = TypeVar("T")

MAX_EPOCH: Final = 2**53
"""A daemon counts promotions: no honest epoch comes near it."""

VERIFY_SECONDS: Final = 5.0
"""How long one verification may take."""

MAX_QUEUED: Final = 8
"""How many verifications may wait or be under way; more are refused as busy."""

REST_SECONDS: Final = 0.5
"""How long no other unknown address is asked after one that failed, so that nobody scans ports through us."""


def believable(epoch: int) -> int:
    """This epoch, or 0 if no daemon can have reached it."""
    return epoch if 1 <= epoch <= MAX_EPOCH else 0


def checked_address(text: str) -> Address:
    """The address that a peer gave.

    Raises `ClaimRefused` unless it is short, printable, and its URL, if any, is one of HTTP.
    """
    if len(text) > MAX_ADDRESS:
        raise ClaimRefused("bad_request", f"an address has {MAX_ADDRESS} characters at most")
    address = Address.parse(text)
    if not text.isprintable() or not (address.http == "" or _is_http(address.http)):
        raise ClaimRefused("bad_request", f"{printable(text)} is not an address of a daemon")
    return address


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in url
        )
    except ValueError:
        return False


def common_serial(
    ours: Sequence[EpochStart], upto: int, theirs: Sequence[EpochStart], their_upto: int
) -> int:
    """The last serial that two histories share, as far as their turns tell. One ends at `upto`, the other at
    `their_upto`."""
    shared = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        shared += 1
    parted = [epoch_starts[shared].serial for epoch_starts in (ours, theirs) if len(epoch_starts) > shared]
    return min(upto, their_upto, *parted)


class ClaimVerifier:
    """Asks the daemon at an address what it is, and compares its history with that of `log`.

    One address is asked at a time, within `VERIFY_SECONDS`. Addresses that `is_known` have a queue of their
    own, so that strangers cannot hold up a daemon of this deployment.
    """

    def __init__(
        self, log: RoleLog, clock: IClock, tell: IPeerClient, *, is_known: Callable[[Address], bool]
    ) -> None:
        self._log = log
        self._tell = tell
        self._is_known = is_known
        self._known = _Queue(clock, rest_seconds=0)
        self._unknown = _Queue(clock, rest_seconds=REST_SECONDS)

    def stop(self) -> None:
        """Cancel the timers."""
        self._unknown.stop()

    async def describe(self, address: Address, *, trusted: bool) -> PeerStatus:
        """What the daemon there says of itself. Raises `ClaimRefused`."""
        return await self._queue(address).run(address, lambda: self._describe(address, trusted=trusted))

    async def verify(
        self, address: Address, *, trusted: bool, epoch: int = 0, uuid: str = "", is_far: bool = False
    ) -> PeerStatus:
        """What the daemon there says of itself, if it is primary of our history in `epoch` or a later one.

        It must have this `uuid`, unless that is empty. `is_far` says that the epoch is more than one step
        beyond all that were seen here. Raises `ClaimRefused`.
        """

        async def work() -> PeerStatus:
            told = await self._describe(address, trusted=trusted)
            where = printable(str(address))
            if uuid and told.uuid != uuid:
                raise _unverified(f"{where} is the daemon {printable(told.uuid)}, not {printable(uuid)}")
            if told.role != "primary":
                raise _unverified(f"{where} is {printable(told.role)}, not primary")
            if told.position.epoch < epoch:
                why = f"{where} is in epoch {told.position.epoch}, not {epoch}"
                raise ClaimRefused("epoch_too_far", why) if is_far else _unverified(why)
            await self._compare(address, told, trusted=trusted)
            return told

        return await self._queue(address).run(address, work)

    def _queue(self, address: Address) -> "_Queue":
        return self._known if self._is_known(address) else self._unknown

    async def _describe(self, address: Address, *, trusted: bool) -> PeerStatus:
        told = await self._tell.describe(address, trusted=trusted)
        where = printable(str(address))
        if told.history != self._log.history:
            raise ClaimRefused(
                "other_history", f"{where} holds another log, {printable(told.history)}, than this daemon"
            )
        if not believable(told.position.epoch):
            raise ClaimRefused("epoch_too_far", f"{where} is in an epoch that cannot be")
        return told

    async def _compare(self, address: Address, told: PeerStatus, *, trusted: bool) -> None:
        """Raises `ClaimRefused` if both histories differ where they should be one, as far as it is known."""
        where, position, ours = printable(str(address)), told.position, self._log.position
        if position.epoch != (told.epoch_starts[-1].epoch if told.epoch_starts else 1):
            raise _unverified(f"{where} does not tell where epoch {position.epoch} began")
        if not _is_coherent(told):
            raise _unverified(f"what {where} tells of its epochs does not fit the end of its log")
        serial = common_serial(self._log.epoch_starts, ours.serial, told.epoch_starts, position.serial)
        known = {epoch_start.serial: epoch_start.digest for epoch_start in told.epoch_starts} | {
            position.serial: position.digest,
            0: EMPTY,
        }
        theirs = known.get(serial)
        if theirs is None and serial >= told.trimmed_upto:
            theirs = await self._tell.digest(address, serial, trusted=trusted)
        here = ours.digest if serial == ours.serial else await self._log.digest_at(serial)
        if here is not None and theirs is not None and here != theirs:
            raise ClaimRefused(
                "digest_differs",
                f"{where} has another fact at serial {serial} than this daemon; nothing is changed",
            )


def _is_coherent(told: PeerStatus) -> bool:
    """Whether no epoch began behind the end of the log, or there with another digest."""
    position = told.position
    return position.serial >= 0 and all(
        0 <= epoch_start.serial < position.serial
        or (epoch_start.serial, epoch_start.digest) == (position.serial, position.digest)
        for epoch_start in told.epoch_starts
    )


def _unverified(why: str) -> ClaimRefused:
    return ClaimRefused("not_verified", why, retryable=True)


class _Queue:
    """Verifications that wait for each other. After one that failed the next waits `rest_seconds`."""

    def __init__(self, clock: IClock, *, rest_seconds: float) -> None:
        self._clock: Any = clock
        self._rest_seconds = rest_seconds
        self._lock = DeferredLock()
        self._length = 0
        self._timer: Any = None

    def stop(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    async def run(self, address: Address, work: Callable[[], Awaitable[T]]) -> T:
        if self._length >= MAX_QUEUED:
            raise ClaimRefused("busy", f"{MAX_QUEUED} claims are being verified already", retryable=True)
        self._length += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._length -= 1
            raise
        rest = self._rest_seconds
        try:
            found = await self._within(address, work)
            rest = 0
            return found
        finally:
            if rest:
                self._timer = self._clock.callLater(rest, self._release)
            else:
                self._release()

    def _release(self) -> None:
        self._length -= 1
        self._lock.release()

    async def _within(self, address: Address, work: Callable[[], Awaitable[T]]) -> T:
        asked: Deferred[T] = Deferred.fromCoroutine(work())  # type: ignore[arg-type]
        try:
            return await asked.addTimeout(VERIFY_SECONDS, self._clock)
        except TimedOut:
            where = printable(str(address))
            raise _unverified(f"{where} has not answered within {VERIFY_SECONDS:g} seconds") from None
        except ClaimRefused:
            raise
        except ReplicationError as error:
            raise _unverified(printable(str(error), limit=500)) from error
