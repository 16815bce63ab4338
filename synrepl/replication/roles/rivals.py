"""Rivals: the search of a primary for another primary of the same log.

Two daemons can be primary at once: one was promoted by force while the other could not be reached, or came
back from a backup that knows nothing of a promotion. Each of them accepts facts that the other one will never
have, so that every minute counts; and nobody but the primaries, and daemons that have heard of both, can
notice. Therefore a primary asks the daemons that it knows, at its start and then once a minute, listens to
replicas that have seen a later epoch, and to daemons that refuse its claim. None of these is believed: what
it hears is reported to the operator, and the daemon that is named is asked itself. Only what that one proves
can fence this one.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.logger import Logger

from synrepl.ports.interfaces import IClock
from synrepl.ports.limited_logger import RepeatLimit
from synrepl.ports.problems import Problem
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import Timer
from synrepl.replication.addresses import Address
from synrepl.replication.roles.inquiry import INQUIRY_INTERVAL, Inquiry, LaterEpochs, PrimaryNotifier
from synrepl.replication.roles.messages import PRIMARY, Claim, ClaimRefused, IPeerClient, PeerStatus
from synrepl.replication.roles.states import Role
from synrepl.replication.roles.verification import (
    MAX_EPOCH,
    ClaimVerifier,
    parse_peer_address,
    plausible_epoch,
)
from synrepl.storage.log import Log


class IRivalsOwner(Protocol):
    """What the search needs of the daemon whose rivals it looks for."""

    notifier: PrimaryNotifier

    @property
    def address(self) -> Callable[[], Address]:
        """Returns the daemon's own address."""

    @property
    def role(self) -> Role:
        """The daemon's role: only a primary has rivals."""

    def daemons_to_ask(self) -> Sequence[Address]:
        """All daemons that it knows."""

    def is_known(self, address: Address) -> bool:
        """Whether this is the address of one of them."""

    async def give_way(self, claim: Claim) -> None:
        """Compare this daemon with a rival that was verified: the lower one is fenced."""

    def inquiry_ended(self) -> None:
        """The inquiry at the start has ended."""


class Rivals:
    """Looks for other primaries, and reports what is known of them.

    `count_refused` is called with the code of each refused claim, `count_later_epoch` when a replica of this
    primary reports a later epoch.
    """

    _logger = Logger()

    def __init__(
        self,
        owner: IRivalsOwner,
        log: Log,
        clock: IClock,
        peers: IPeerClient,
        tasks: Tasks,
        verifier: ClaimVerifier,
        *,
        count_refused: Callable[[str], None],
        count_later_epoch: Callable[[], None],
    ) -> None:
        self._owner = owner
        self._log = log
        self._tasks = tasks
        self._verifier = verifier
        self._count_refused = count_refused
        self._count_later_epoch = count_later_epoch
        self._inquiry = Inquiry(
            clock, peers, tasks, on_response=self._on_inquiry_response, on_end=owner.inquiry_ended
        )
        self._inquiry_timer = Timer(clock, self._inquire)
        self._later_epochs = LaterEpochs(clock)
        self._logged = RepeatLimit(clock.seconds)
        self._epoch_questions: set[bool] = set()

    @property
    def problems(self) -> list[Problem]:
        """Signs of another primary, each with the Unix time at which it began; empty unless primary."""
        return self._later_epochs.problems() if self._owner.role == PRIMARY else []

    @property
    def is_asking(self) -> bool:
        """Whether the inquiry at the start is under way."""
        return self._inquiry.is_running

    def start(self) -> None:
        """Begin to ask; a starting primary asks at once."""
        if self._owner.role == PRIMARY:
            known = self._owner.daemons_to_ask()
            if known:
                self._logger.info("asking known daemons ({count}) which one is primary", count=len(known))
            self._inquiry.start(known)
        self._inquiry_timer.start(INQUIRY_INTERVAL)

    async def asked(self) -> None:
        """Return once the inquiry at the start has ended; at once if there is none."""
        await self._inquiry.ended()

    def stop(self) -> None:
        """Ask no more."""
        self._inquiry.stop()
        self._inquiry_timer.stop()

    def clear(self) -> None:
        """Drop all reports: they are from before this daemon became primary."""
        self._later_epochs.clear()

    def superseded(self, address: Address, why: str) -> bool:
        """Handle a daemon that knows a later primary; return whether to notify it again."""
        if self._owner.role != PRIMARY:
            return False
        text = f"another daemon may be primary: {address} refuses this one: {why}; run synrepl status there"
        self._later_epochs.add(str(address), text)
        self._warn_rate_limited("superseded", text)
        self._inquiry.ask([address])
        return True

    def on_higher_epoch(self, epoch: int, name: str, address: str) -> None:
        """Handle a replica that knows a later epoch, and gives its own address.

        That proves nothing: a primary reports it, and asks the replica for the other primary.
        """
        if self._owner.role != PRIMARY or epoch <= self._log.head.epoch:
            return
        self._count_later_epoch()
        if epoch > MAX_EPOCH:
            return
        self._warn_rate_limited(
            "later_epoch", self._later_epochs.add_replica(name, address, epoch, self._log.head.epoch)
        )
        try:
            where = parse_peer_address(address)
        except ClaimRefused:
            return
        # At most one known and one unknown replica are asked at a time.
        is_known = self._owner.is_known(where)
        if where and is_known not in self._epoch_questions:
            self._epoch_questions.add(is_known)
            question = self._tasks.start(self._ask_for_primary(where), "asking for the primary")
            question.addBoth(lambda _: self._epoch_questions.discard(is_known))

    async def _ask_for_primary(self, address: Address) -> None:
        try:
            status = await self._verifier.describe(address)
            await self._verify_rival(address, status)
        except ClaimRefused as error:
            self.report_refused("", error)

    async def _verify_rival(self, address: Address, status: PeerStatus) -> None:
        """Verify the primary that a daemon names in its status, if it is not this daemon.

        Of two primaries of one history, the one with the lower epoch, or the lower uuid in the same epoch, is
        fenced: this daemon, or the other one when it is notified. Raises `ClaimRefused` if the daemon that
        was named is not primary, or has another history.
        """
        if self._owner.role != PRIMARY or status.uuid == self._log.uuid:
            return
        where = address if status.role == PRIMARY else parse_peer_address(status.primary)
        if not where or where.is_same(self._owner.address()):
            return
        rival = await self._verifier.verify(where, uuid=status.uuid if status.role == PRIMARY else "")
        claim = Claim(epoch=rival.position.epoch, uuid=rival.uuid, address=str(where), history=rival.history)
        await self._owner.give_way(claim)

    def _inquire(self) -> None:
        self._inquiry_timer.start(INQUIRY_INTERVAL)
        if self._owner.role == PRIMARY:
            self._inquiry.ask(self._owner.daemons_to_ask())

    async def _on_inquiry_response(self, address: Address, status: PeerStatus) -> None:
        """Handle the status of a known daemon: verify the primary that it names."""
        ours = self._log.head.epoch
        if status.history != self._log.history or self._owner.role != PRIMARY:
            return
        knows_later = plausible_epoch(status.position.epoch) > ours
        if knows_later:
            text = self._later_epochs.add_replica(status.uuid, str(address), status.position.epoch, ours)
            self._warn_rate_limited("later_epoch", text)
        named = address
        try:
            if status.role != PRIMARY:
                named = parse_peer_address(status.primary)
            await self._verify_rival(address, status)
        except ClaimRefused as error:
            if knows_later or error.code == "digest_differs":
                self.report_refused(status.uuid, error)
                return
        if (
            self._owner.role == PRIMARY
            and self._owner.address()
            and status.position.epoch < ours
            and not named.is_same(self._owner.address())
        ):
            # The daemon lost the notification of this epoch, perhaps with its disk, or follows one that did.
            self._owner.notifier.add(address)

    def report_refused(self, uuid: str, error: ClaimRefused) -> None:
        self._count_refused(error.code)
        if error.code == "digest_differs" and self._owner.role == PRIMARY:
            self._later_epochs.add(uuid, f"two daemons are primary: {error}")
        self._warn_rate_limited(error.code, f"claim refused: {error.code}: {error}")

    def _warn_rate_limited(self, reason: str, text: str) -> None:
        """Log this at most once a minute for each reason: unauthenticated peers can cause it at will."""
        if self._logged.allows(reason):
            self._logger.warn("{text}", text=text)
