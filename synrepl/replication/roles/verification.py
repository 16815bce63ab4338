"""Verification of claims: is the daemon at an address the primary that a peer claims it is?"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.defer import TimeoutError as TimedOut

from synrepl.errors import ReplicationError
from synrepl.ports.history import EMPTY, EpochStart
from synrepl.ports.interfaces import IClock
from synrepl.ports.time import Timer
from synrepl.replication.addresses import Address
from synrepl.replication.roles.messages import ClaimRefused, IPeerClient, PeerStatus
from synrepl.storage.log import Log
from synrepl.wire.text import MAX_ADDRESS, printable

T = TypeVar("T")

MAX_EPOCH: Final = 2**53
"""The largest plausible epoch: epochs count promotions, restores and losses of facts."""

VERIFY_SECONDS: Final = 5.0
"""Timeout of one verification."""

MAX_QUEUED: Final = 8
"""How many verifications may wait or run in each queue; more are refused as busy."""

REST_SECONDS: Final = 0.5
"""Pause after a failed verification of an unknown address, so that claims cannot be used to scan ports."""


def plausible_epoch(epoch: int) -> int:
    """Return this epoch, or 0 if no daemon can have reached it."""
    return epoch if 1 <= epoch <= MAX_EPOCH else 0


def parse_peer_address(text: str) -> Address:
    """Return the address that a peer sent.

    Raises `ClaimRefused` unless it is short and printable, and its URL, if any, is an HTTP URL.
    """
    if len(text) > MAX_ADDRESS:
        raise ClaimRefused("bad_request", f"an address may have at most {MAX_ADDRESS} characters")
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
    """Return the last serial that two histories share, as far as their epoch starts show.

    One history ends at `upto`, the other at `their_upto`.
    """
    shared = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        shared += 1
    parted = [epoch_starts[shared].serial for epoch_starts in (ours, theirs) if len(epoch_starts) > shared]
    return min(upto, their_upto, *parted)


@dataclass(eq=False, repr=False)
class ClaimVerifier:
    """Requests the status of the daemon at an address, and compares its history with `log`.

    Known addresses (`is_known`) and unknown ones have a queue each, so that unknown peers cannot delay
    daemons of this deployment. A queue asks one address at a time, within `VERIFY_SECONDS`.
    """

    log: Log
    clock: IClock
    peers: IPeerClient
    _: KW_ONLY
    is_known: Callable[[Address], bool]

    def __post_init__(self) -> None:
        self._known = _Queue(self.clock, rest_seconds=0)
        self._unknown = _Queue(self.clock, rest_seconds=REST_SECONDS)

    def stop(self) -> None:
        """Cancel the pause after a failed verification."""
        self._unknown.stop()

    async def describe(self, address: Address) -> PeerStatus:
        """Return a daemon's status. Raises `ClaimRefused` if it does not respond or has another history."""
        return await self._queue(address).run(address, lambda: self._describe(address, must_administer=False))

    async def verify(
        self, address: Address, *, epoch: int = 0, uuid: str = "", is_far: bool = False
    ) -> PeerStatus:
        """Return the status of the daemon. Raises `ClaimRefused` unless it is primary of this history.

        If this daemon has a secret or keys, the other one must prove one with the right `administer`. It must
        be in `epoch` or a later one, and have this `uuid`, unless that is empty. `is_far` says that the epoch
        is more than one step beyond all that this daemon has seen.
        """

        async def work() -> PeerStatus:
            status = await self._describe(address, must_administer=True)
            where = printable(str(address))
            if uuid and status.uuid != uuid:
                raise _unverified(f"{where} is the daemon {printable(status.uuid)}, not {printable(uuid)}")
            if status.role != "primary":
                raise _unverified(f"{where} is {printable(status.role)}, not primary")
            if status.position.epoch < epoch:
                why = f"{where} is in epoch {status.position.epoch}, below the claimed epoch {epoch}"
                raise ClaimRefused("epoch_too_far", why) if is_far else _unverified(why)
            await self._compare_histories(address, status)
            return status

        return await self._queue(address).run(address, work)

    def _queue(self, address: Address) -> "_Queue":
        return self._known if self.is_known(address) else self._unknown

    async def _describe(self, address: Address, *, must_administer: bool) -> PeerStatus:
        status = await self.peers.describe(address, must_administer=must_administer)
        where = printable(str(address))
        if status.history != self.log.history:
            raise ClaimRefused(
                "other_history", f"{where} has another log, {printable(status.history)}, than this daemon"
            )
        if not plausible_epoch(status.position.epoch):
            why = f"{where} reports epoch {status.position.epoch}; an epoch must be from 1 to 2**53"
            raise ClaimRefused("epoch_too_far", why)
        return status

    async def _compare_histories(self, address: Address, status: PeerStatus) -> None:
        """Raise `ClaimRefused` if both histories are known to differ where they should be equal."""
        where, position, ours = printable(str(address)), status.position, self.log.position
        if position.epoch != (status.epoch_starts[-1].epoch if status.epoch_starts else 1):
            raise _unverified(f"{where} does not report the start of epoch {position.epoch}")
        if not _is_coherent(status):
            raise _unverified(f"the epochs that {where} reports do not fit the end of its log")
        serial = common_serial(self.log.head.epoch_starts, ours.serial, status.epoch_starts, position.serial)
        known = {epoch_start.serial: epoch_start.digest for epoch_start in status.epoch_starts} | {
            position.serial: position.digest,
            0: EMPTY,
        }
        theirs = known.get(serial)
        if theirs is None and serial >= status.trimmed_upto:
            theirs = await self.peers.digest(address, serial)
        digest = ours.digest if serial == ours.serial else await self.log.reads.digest(serial)
        if digest is not None and theirs is not None and digest != theirs:
            raise ClaimRefused(
                "digest_differs",
                f"{where} has other facts at serial {serial} or before than this daemon; nothing was changed",
            )


def _is_coherent(status: PeerStatus) -> bool:
    """Whether each epoch began within the log, or at its end with the same digest."""
    position = status.position
    return position.serial >= 0 and all(
        0 <= epoch_start.serial < position.serial
        or (epoch_start.serial, epoch_start.digest) == (position.serial, position.digest)
        for epoch_start in status.epoch_starts
    )


def _unverified(why: str) -> ClaimRefused:
    return ClaimRefused("not_verified", why)


class _Queue:
    """Runs verifications one at a time, and pauses for `rest_seconds` after a failed one."""

    def __init__(self, clock: IClock, *, rest_seconds: float) -> None:
        self._clock: Any = clock
        self._rest_seconds = rest_seconds
        self._lock = DeferredLock()
        self._length = 0
        self._timer = Timer(clock, self._release)

    def stop(self) -> None:
        self._timer.stop()

    async def run(self, address: Address, work: Callable[[], Awaitable[T]]) -> T:
        if self._length >= MAX_QUEUED:
            why = f"{MAX_QUEUED} checks of other daemons are running or waiting already: retry later"
            raise ClaimRefused("busy", why)
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
                self._timer.start(rest)
            else:
                self._release()

    def _release(self) -> None:
        self._length -= 1
        self._lock.release()

    async def _within(self, address: Address, work: Callable[[], Awaitable[T]]) -> T:
        response: Deferred[T] = Deferred.fromCoroutine(work())  # type: ignore[arg-type]
        try:
            return await response.addTimeout(VERIFY_SECONDS, self._clock)
        except TimedOut:
            where = printable(str(address))
            raise _unverified(f"{where} did not respond within {VERIFY_SECONDS:g} seconds") from None
        except ClaimRefused:
            raise
        except ReplicationError as error:
            raise _unverified(printable(str(error), limit=500)) from error
