"""Rivals: the search of a primary for another primary of the same log.

Two daemons can be primary at once: one was promoted by force while the other could not be reached, or came
back from a backup that knows nothing of a promotion. Each of them accepts facts that the other one will never
have, so that every minute counts. Therefore a primary asks the daemons that its operator has listed, at its
start, then once a minute, and at once when there is a sign of another primary: a replica that has seen a
later epoch, a claim that is not believed, a daemon that refuses the claim of this one. What a listed daemon
says of itself is believed (`claims.py`); each sign is reported to the operator.
"""

from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from synrepl.base.limited_logger import RepeatLimit
from synrepl.base.problems import Problem
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer
from synrepl.errors import ReplicationError
from synrepl.replicas.roles.asking import ask
from synrepl.replicas.roles.claims import claim_of
from synrepl.replicas.roles.messages import MAX_EPOCH, Claim, ClaimRefused, PeerStatus
from synrepl.replicas.roles.metrics import RoleMetrics
from synrepl.replicas.roles.role_states import Role
from synrepl.replication.addresses import Address
from synrepl.wire.text import printable

if TYPE_CHECKING:
    from synrepl.replicas.roles.manager import RoleManager

INQUIRY_SECONDS: Final = 3.0
"""How long, at most, a starting primary refuses facts until the daemons that it lists have responded."""

INQUIRY_INTERVAL: Final = 60.0
"""Seconds between two inquiries of a primary. A daemon that knew of a second primary may have lost its disk
before it notified anyone, so that only the primaries themselves can find out.
"""

REPORTED_SECONDS: Final = 300.0
"""How long a sign of another primary is reported after it was last seen."""

MAX_REPORTED: Final = 20
"""How many daemons are reported; the oldest reports are dropped first."""


class Rivals:
    """Looks for other primaries, and reports what is known of them."""

    _logger = Logger()

    def __init__(self, roles: "RoleManager", tasks: Tasks, metrics: RoleMetrics) -> None:
        self._roles = roles
        self._metrics = metrics
        self._log = roles.log
        self._clock = clock = roles.clock
        self._tasks = tasks
        self.is_asking = False
        """Whether the inquiry at the start is under way."""
        self._start_timer = Timer(clock, self._end_start)
        self._started: list[Deferred[None]] = []
        self._interval = Timer(clock, self._inquire)
        self._asked: dict[Address, list[Deferred[PeerStatus | None]]] = {}
        """The daemons with a request under way, and who else waits for its answer."""
        self._seen: dict[str, tuple[float, Problem]] = {}
        """Reports by the names of daemons, each with the time at which it was last seen."""
        self._logged = RepeatLimit(clock.seconds)

    # -- asking --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ask; a starting primary asks at once."""
        listed = self._roles.listed()
        if self._roles.role == Role.PRIMARY and listed:
            self._logger.info(
                "asking the daemons in --upstream ({count}) which one is primary", count=len(listed)
            )
            self.is_asking = True
            self._start_timer.start(INQUIRY_SECONDS)
            self.look().addBoth(lambda _: self._end_start())
        self._interval.start(INQUIRY_INTERVAL)

    async def asked(self) -> None:
        """Return once the inquiry at the start has ended; at once if there is none."""
        if self.is_asking:
            waiter: Deferred[None] = Deferred()
            self._started.append(waiter)
            await waiter

    def stop(self) -> None:
        """Ask no more."""
        self.is_asking = False
        self._start_timer.stop()
        self._interval.stop()

    def look(self, about: str = "") -> "Deferred[Any]":
        """Ask all listed daemons, but none with two requests at a time. Fires when all answers are handled.

        A daemon that is not primary itself heeds only the answer of the one with the uuid `about`.
        """
        questions: Any = [
            self._tasks.start(self._ask(one, about), "asking for the primary")
            for one in self._roles.listed()
            if about or one not in self._asked
        ]
        return DeferredList(questions, consumeErrors=True)

    def _inquire(self) -> None:
        self._interval.start(INQUIRY_INTERVAL)
        if self._roles.role == Role.PRIMARY:
            self.look()

    def _end_start(self) -> None:
        if self.is_asking:
            self.is_asking = False
            self._start_timer.stop()
            self._roles.update_gate()
            started, self._started = self._started, []
            for waiter in started:
                waiter.callback(None)

    async def _ask(self, address: Address, about: str) -> None:
        status = await self.status_of(address)
        if status is None or status.history != self._log.history or status.uuid == self._log.uuid:
            return
        claim = claim_of(status, address, self._log.history)
        if claim is not None:
            await self._roles.claims.consider(claim, about=about)
        if self._roles.role != Role.PRIMARY:
            return
        theirs, ours = status.position.epoch, self._log.head.epoch
        if ours < theirs <= MAX_EPOCH:
            self._report_epoch(status.uuid, str(address), theirs)
        elif theirs < ours:
            # It lost the notification of this epoch, perhaps with its disk, or follows one that did.
            self._notify_again(address, status)

    def _notify_again(self, address: Address, status: PeerStatus) -> None:
        """Notify a listed daemon that has not heard of this primary's epoch, unless it follows this one."""
        ours = self._roles.address()
        named = address if status.role == Role.PRIMARY else Address.parse(status.primary)
        if ours and not named.is_same(ours):
            self._roles.notifier.add(address)

    async def status_of(self, address: Address) -> PeerStatus | None:
        """Return what a daemon says of itself; None without an answer. One request is under way at a time."""
        others = self._asked.get(address)
        if others is not None:
            waiter: Deferred[PeerStatus | None] = Deferred()
            others.append(waiter)
            return await waiter
        waiting: list[Deferred[PeerStatus | None]] = []
        self._asked[address] = waiting
        status = None
        try:
            status = await ask(self._roles.peers, self._clock, address)
        except ReplicationError:
            pass  # unreachable, or not willing
        finally:
            del self._asked[address]
            for waiter in waiting:
                if not waiter.called:
                    waiter.callback(status)
        return status

    # -- signs ---------------------------------------------------------------------------------------------

    def superseded(self, address: Address, why: str) -> bool:
        """Handle a daemon that knows a later primary; return whether to notify it again."""
        if self._roles.role != Role.PRIMARY:
            return False
        text = f"another daemon may be primary: {address} refuses this one: {why}; run synrepl status there"
        self._report("superseded", str(address), text)
        self.look()
        return True

    def on_higher_epoch(self, epoch: int, name: str, address: str) -> None:
        """Handle a replica that knows a later epoch, and gives its own address. That proves nothing."""
        if self._roles.role != Role.PRIMARY or epoch <= self._log.head.epoch:
            return
        self._metrics.later_epochs.inc()
        if epoch <= MAX_EPOCH:
            self._report_epoch(name, address, epoch)
            self.look()

    def claim_refused(self, claim: Claim, error: ClaimRefused) -> None:
        """Handle a claim that was refused: what is not believed is a sign all the same."""
        self._metrics.claims_refused.labels(error.code).inc()
        if error.code in ("not_verified", "epoch_too_far", "superseded") and claim.epoch <= MAX_EPOCH:
            at = f" at {printable(claim.address)}" if claim.address else ""
            text = (
                f"another daemon may be primary: {printable(claim.uuid)}{at} claims it in epoch"
                f" {claim.epoch}, and is not believed: {error}; run synrepl status there"
            )
            self._add(claim.uuid, text)
        self._warn(error.code, f"claim refused: {error.code}: {error}")

    # -- reports -------------------------------------------------------------------------------------------

    @property
    def problems(self) -> list[Problem]:
        """Signs of another primary, each with the Unix time at which it began; empty unless primary."""
        self._forget()
        return [one for _, one in self._seen.values()] if self._roles.role == Role.PRIMARY else []

    def clear(self) -> None:
        """Drop all reports: they are from before this daemon became primary."""
        self._seen.clear()

    def _report_epoch(self, name: str, address: str, epoch: int) -> None:
        at = f" at {printable(address)}" if address else ""
        ours = self._log.head.epoch
        text = (
            f"{printable(name)}{at} knows epoch {epoch}, but this primary is in epoch {ours}: if another"
            " one was promoted, this one must not accept facts; run synrepl status at the daemon named first"
        )
        self._report("later_epoch", name, text)

    def _report(self, reason: str, name: str, text: str) -> None:
        self._add(name, text)
        self._warn(reason, text)

    def _add(self, name: str, text: str) -> None:
        """Report this text for a daemon, for `REPORTED_SECONDS`."""
        self._forget()
        now = self._clock.seconds()
        before = self._seen.pop(name, None)
        self._seen[name] = now, Problem(text, now if before is None else before[1].since)
        while len(self._seen) > MAX_REPORTED:
            del self._seen[next(iter(self._seen))]

    def _forget(self) -> None:
        oldest = self._clock.seconds() - REPORTED_SECONDS
        self._seen = {name: one for name, one in self._seen.items() if one[0] >= oldest}

    def _warn(self, reason: str, text: str) -> None:
        """Log this at most once a minute for each reason: unauthenticated peers can cause it at will."""
        if self._logged.allows(reason):
            self._logger.warn("{text}", text=text)
