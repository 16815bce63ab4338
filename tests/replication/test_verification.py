"""Whom a daemon believes that another one is primary: the one that it can ask, and whose log is its own."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.errors import NotConnected
from synrepl.ports.history import EpochStart, LogPosition
from synrepl.replication.addresses import Address
from synrepl.replication.roles.messages import ClaimRefused, PeerStatus
from synrepl.replication.roles.verification import MAX_EPOCH, MAX_QUEUED, REST_SECONDS, ClaimVerifier

THERE = Address.parse("there -")
TURN = EpochStart(epoch=2, serial=5, digest="d5", at_ms=0, why="promoted")


class FakeLog:
    """A log of ours, at serial 7 of epoch 1; its head and its reads are itself."""

    history = "h"
    epoch_starts: tuple[EpochStart, ...] = ()
    position = LogPosition(1, 7, "d7")

    def __init__(self) -> None:
        self.head = self.reads = self

    async def digest(self, serial: int) -> str:
        return f"d{serial}"


class Others:
    """What others say of themselves; `failure` if they cannot be asked."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {
            "history": "h",
            "uuid": "u",
            "role": "primary",
            "position": LogPosition(2, 9, "d9"),
            "epoch_starts": (TURN,),
        }
        self.failure: Exception | None = None
        self.asked: list[str] = []
        self.digests = "d"
        self.waits: Deferred[None] | None = None

    async def describe(
        self, address: Address, *, must_administer: bool, after: int | None = None
    ) -> PeerStatus:
        self.asked.append(str(address))
        if self.waits is not None:
            await self.waits
        if self.failure is not None:
            raise self.failure
        return PeerStatus(**self.told)

    async def digest(self, address: Address, serial: int) -> str:
        return f"{self.digests}{serial}"


class Setup:
    """A verifier, and what came of what it was asked."""

    def __init__(self, *, is_known: bool = False) -> None:
        self.clock = Clock()
        self.others = Others()
        self.verifier = ClaimVerifier(
            FakeLog(),  # type: ignore[arg-type]  # as much of a log as is asked
            self.clock,
            self.others,  # type: ignore[arg-type]  # nobody is told anything
            is_known=lambda address: is_known,
        )
        self.codes: list[str] = []

    def verify(self, address: Address = THERE, **asked: Any) -> str:
        """The code of the refusal; empty if it is believed."""
        given: dict[str, Any] = {"epoch": 2, "uuid": "u"} | asked
        asked_of = Deferred.fromCoroutine(self.verifier.verify(address, **given))
        asked_of.addCallbacks(
            lambda _: self.codes.append(""),
            lambda failure: self.codes.append(failure.value.code),
        )
        return self.codes[-1] if self.codes else "waits"


def test_a_primary_whose_log_goes_on_where_ours_is_believed() -> None:
    """It has begun the epoch that is claimed."""
    assert "" == Setup().verify()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"uuid": "somebody"}, "not_verified"),
        ({"role": "replica"}, "not_verified"),
        ({"role": "fenced"}, "not_verified"),
        ({"history": "other"}, "other_history"),
        ({"position": LogPosition(1, 9, "d9"), "epoch_starts": ()}, "not_verified"),
        ({"position": LogPosition(MAX_EPOCH + 1, 9, "d9")}, "epoch_too_far"),
        ({"position": LogPosition(0, 9, "d9")}, "epoch_too_far"),
        ({"epoch_starts": ()}, "not_verified"),
        ({"position": LogPosition(2, 4, "d4")}, "not_verified"),
        (
            {"epoch_starts": (EpochStart(epoch=2, serial=5, digest="x", at_ms=0, why="promoted"),)},
            "digest_differs",
        ),
    ],
)
def test_daemons_that_differ_in_any_field_are_not_believed(said: dict[str, Any], code: str) -> None:
    """Each of these could be anybody who knows an address."""
    setup = Setup()
    setup.others.told |= said

    assert code == setup.verify()


def test_a_daemon_with_another_fact_is_not_believed() -> None:
    """Its turns say nothing of the serial at which ours ends, so it is asked."""
    setup = Setup()
    setup.others.told |= {
        "epoch_starts": (EpochStart(epoch=2, serial=8, digest="d8", at_ms=0, why="promoted"),)
    }
    assert "" == setup.verify()

    setup.others.digests = "x"

    assert "digest_differs" == setup.verify()


def test_strangers_that_fail_are_asked_seldom() -> None:
    """Nobody scans the ports of a network through a daemon."""
    setup = Setup()
    setup.others.failure = NotConnected("refused")
    for number in range(4):
        setup.verify(Address.parse(f"s{number} -"))
    assert ["s0 -"] == setup.others.asked

    setup.clock.pump([REST_SECONDS / 2] * 3)

    assert ["s0 -", "s1 -"] == setup.others.asked


def test_known_daemons_are_asked_at_once() -> None:
    """One that was away may be there again."""
    setup = Setup(is_known=True)
    setup.others.failure = NotConnected("refused")

    assert ["not_verified"] * 3 == [setup.verify() for _ in range(3)]
    assert 3 == len(setup.others.asked)


def test_the_number_of_waiting_claims_is_limited() -> None:
    """Each holds a claim in memory."""
    setup = Setup()
    setup.others.waits = Deferred()
    for _ in range(MAX_QUEUED):
        setup.verify()

    assert "busy" == setup.verify()
    setup.others.waits.callback(None)
    assert ["busy", *[""] * MAX_QUEUED] == setup.codes


def test_a_claim_refused_says_whether_to_try_again() -> None:
    """What may pass is told as such."""
    assert ClaimRefused("busy", "why", retryable=True).retryable
