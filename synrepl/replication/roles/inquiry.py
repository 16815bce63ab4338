"""Inquiry of a primary for another primary, reports of later epochs, and notification of other daemons."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.errors import ReplicationError
from synrepl.ports.interfaces import IClock
from synrepl.ports.problems import Problem
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import Timer
from synrepl.replication.addresses import Address
from synrepl.replication.roles.messages import Claim, IPeerClient, PeerStatus
from synrepl.wire.text import printable

INQUIRY_SECONDS: Final = 3.0
"""How long, at most, a starting primary refuses facts until the daemons that it knows have responded."""

INQUIRY_INTERVAL: Final = 60.0
"""Seconds between two inquiries of a primary. A daemon that knew of a second primary may have lost its disk
before it notified anyone, so that only the primaries themselves can find out.
"""

MAX_ASKED: Final = 20
"""How many daemons one inquiry asks at most."""


@dataclass(eq=False, repr=False)
class Inquiry:
    """Asks daemons for their status, all at once, and hands each response to `on_response`.

    The inquiry at startup ends when each request has failed or its response is handled, or after
    `INQUIRY_SECONDS`, and then calls `on_end`. Later responses are handled all the same.
    """

    clock: IClock
    peers: IPeerClient
    tasks: Tasks
    _: KW_ONLY
    on_response: Callable[[Address, PeerStatus], Awaitable[None]]
    on_end: Callable[[], None]

    def __post_init__(self) -> None:
        self.is_running = False
        self._pending: set[Address] = set()
        self._timer = Timer(self.clock, self._end)
        self._waiting: list[Deferred[None]] = []

    def start(self, addresses: Sequence[Address]) -> None:
        """Ask these daemons at startup. With no addresses the inquiry does not run."""
        if addresses:
            self.is_running = True
            self._timer.start(INQUIRY_SECONDS)
            self.ask(addresses)

    def ask(self, addresses: Sequence[Address]) -> None:
        """Ask the first `MAX_ASKED` of these daemons, except those with a request under way."""
        fresh = [address for address in addresses[:MAX_ASKED] if address not in self._pending]
        self._pending.update(fresh)
        for address in fresh:
            question = self.tasks.start(self._ask(address), "asking for the primary")
            question.addBoth(self._on_response_handled, address)

    def stop(self) -> None:
        """End the inquiry at startup. `on_end` is not called, and `ended` does not return."""
        self._timer.stop()
        self.is_running = False

    async def ended(self) -> None:
        """Return once the inquiry at startup has ended by itself; at once if none is running."""
        if self.is_running:
            waiter: Deferred[None] = Deferred()
            self._waiting.append(waiter)
            await waiter

    async def _ask(self, address: Address) -> None:
        try:
            status = await self.peers.describe(address, must_administer=False)
        except ReplicationError:
            return  # unreachable, or not willing
        await self.on_response(address, status)

    def _on_response_handled(self, _: object, address: Address) -> None:
        self._pending.discard(address)
        if not self._pending:
            self._end()

    def _end(self) -> None:
        if not self.is_running:
            return
        self.stop()
        self.on_end()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)


REPORTED_SECONDS: Final = 300.0
"""How long a sign of another primary is reported after it was last seen."""

MAX_REPORTED: Final = 20
"""How many daemons are reported; the oldest reports are dropped first."""


class LaterEpochs:
    """Reports about daemons that know a later epoch, or another primary, for the status of this primary."""

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float, str]] = {}

    def add(self, name: str, text: str) -> None:
        """Report this text for a daemon, for `REPORTED_SECONDS`."""
        self._forget()
        before = self._seen.pop(name, None)
        now = self._clock.seconds()
        self._seen[name] = (now if before is None else before[0], now, text)
        while len(self._seen) > MAX_REPORTED:
            del self._seen[next(iter(self._seen))]

    def add_replica(self, name: str, address: str, epoch: int, ours: int) -> str:
        """Report that a daemon knows `epoch` while this primary is in epoch `ours`. Returns the text."""
        at = f" at {printable(address)}" if address else ""
        text = (
            f"{printable(name)}{at} knows epoch {epoch}, but this primary is in epoch {ours}: if another"
            " one was promoted, this one must not accept facts; run synrepl status at the daemon named first"
        )
        self.add(name, text)
        return text

    def clear(self) -> None:
        """Drop all reports: they are from before this daemon became primary."""
        self._seen.clear()

    def problems(self) -> list[Problem]:
        """The texts of the reports, each with the Unix time at which it began."""
        self._forget()
        return [Problem(text, began) for began, _, text in self._seen.values()]

    def _forget(self) -> None:
        oldest = self._clock.seconds() - REPORTED_SECONDS
        self._seen = {name: one for name, one in self._seen.items() if one[1] >= oldest}


NOTIFY_RETRY_SECONDS: Final = 5.0
"""First delay before an unreachable daemon is notified of a new epoch again; it grows with each retry."""

MAX_NOTIFY_RETRY_SECONDS: Final = 60.0


@dataclass(eq=False, repr=False)
class PrimaryNotifier:
    """Sends the current claim to daemons until each has acknowledged it, or is known to have another log.

    `claim` returns the claim of the primary that this daemon knows; None if its address is unknown.
    `complete` adds parts of addresses that are known by now. `save` stores the addresses still to be
    notified. `on_superseded` is called for a daemon that refuses the claim because it knows a later primary,
    and returns whether to notify it again.
    """

    _logger = Logger()
    clock: IClock
    peers: IPeerClient
    tasks: Tasks
    _: KW_ONLY
    claim: Callable[[], Claim | None]
    complete: Callable[[Sequence[Address]], list[Address]]
    save: Callable[[Sequence[Address]], Awaitable[None]]
    on_superseded: Callable[[Address, str], bool]

    def __post_init__(self) -> None:
        self.unnotified: list[Address] = []
        self._is_running = False
        self._retry_seconds = NOTIFY_RETRY_SECONDS
        self._retry_waiter: Deferred[None] | None = None

    def notify(self, addresses: Sequence[Address]) -> None:
        """Notify these daemons, and no others, of the current claim."""
        self.unnotified = list(addresses)
        self._retry_seconds = NOTIFY_RETRY_SECONDS
        if self._retry_waiter is not None and not self._retry_waiter.called:
            # The claim that waits for its retry is outdated.
            self._retry_waiter.callback(None)
        if self.unnotified and not self._is_running:
            self._is_running = True
            self.tasks.start(self._notify_all(), "notifying of the new epoch").addBoth(self._on_end)

    def add(self, address: Address) -> None:
        """Notify this daemon as well."""
        if address not in self.unnotified:
            self.notify([*self.unnotified, address])

    def _on_end(self, _: object) -> None:
        self._is_running = False

    async def _notify_all(self) -> None:
        while self.unnotified and (claim := self.claim()) is not None:
            # A peer of which only half of the address was known may have connected and sent the other half.
            self.unnotified = self.complete(self.unnotified)
            for address in list(self.unnotified):
                if await self._is_settled(address, claim) and address in self.unnotified:
                    self.unnotified.remove(address)
            await self.save(self.unnotified)
            if self.unnotified:
                await self._wait_before_retry()

    async def _is_settled(self, address: Address, claim: Claim) -> bool:
        """Notify one daemon; return whether it need not be notified again."""
        try:
            await self.peers.claim(address, claim)
        except ReplicationError as error:
            code = getattr(error, "code", "")
            # A daemon with another log cannot be primary of this one.
            is_settled = code == "other_history" or (
                code == "superseded" and not self.on_superseded(address, str(error))
            )
            self._logger.info(
                "cannot notify {address} of epoch {epoch}: {why}; {what_next}",
                address=str(address),
                epoch=claim.epoch,
                why=str(error),
                what_next="will not retry" if is_settled else "will retry",
            )
            return is_settled
        return claim == self.claim()

    async def _wait_before_retry(self) -> None:
        """Wait for the retry delay, or until there is a new claim to send."""
        waiter = self._retry_waiter = Deferred()
        seconds = self._retry_seconds
        self._retry_seconds = min(seconds * 1.5, MAX_NOTIFY_RETRY_SECONDS)
        try:
            await waiter.addTimeout(seconds, self.clock, lambda *_: None)  # type: ignore[arg-type]
        finally:
            self._retry_waiter = None
