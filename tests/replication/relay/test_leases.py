"""Leases of a log that is not there, on a clock of ours: what is kept of them, and when."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock

from synrepl.ports.history import Lease
from synrepl.replication.relay.leases import Leases, LeaseTerms


class FakeLog:
    """Counts what is kept."""

    serial = 100
    leases: Mapping[str, Lease] = {}

    def __init__(self) -> None:
        self.kept: list[Lease] = []

    async def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        self.kept += changed

    def size(self, after: int) -> Any:
        raise AssertionError("nobody is behind")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def leases(log: FakeLog, clock: Clock) -> Leases:
    made = Leases(log, clock, LeaseTerms(registered_seconds=300), present=lambda: ["r"])
    made.make("r", "replica", registered=True, serial=99)
    clock.advance(1)
    assert 1 == len(log.kept)
    return made


def acknowledge(leases: Leases, clock: Clock, serials: Sequence[int]) -> None:
    """One a second."""
    for serial in serials:
        leases.moved("r", serial)
        clock.advance(1)


def test_a_reader_that_moves_is_kept_within_a_second(leases: Leases, log: FakeLog, clock: Clock) -> None:
    acknowledge(leases, clock, [100, 101, 102])

    assert [99, 100, 101, 102] == [lease.serial for lease in log.kept]


def test_an_idle_reader_costs_no_commit_a_second(leases: Leases, log: FakeLog, clock: Clock) -> None:
    """The disk hears of it from time to time: here, a tenth of what it may be away."""
    acknowledge(leases, clock, [100] * 60)

    assert 3 == len(log.kept)
    assert log.kept[-1].seen_ms is not None
    assert 30_000 < log.kept[-1].seen_ms <= 60_000
    lease = leases["r"]
    assert lease is not None
    assert 60_000 == lease.seen_ms
