"""What leaves the log, and when: on a clock of ours, over a log that notes how far it is trimmed."""

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock

from synrepl.base.access import Access
from synrepl.base.time import ExpiryClock
from synrepl.replication import retention as retention_module
from synrepl.replication.retention import Retention, keys_of
from synrepl.replication.settings import RetentionSettings
from synrepl.streams.facts import Fact
from synrepl.streams.table import StreamTable
from synrepl.wire.position import LogPosition


class FakeLog:
    """A fact a second from second 1 on; its head and its reads are itself."""

    def __init__(self, count: int = 20) -> None:
        self.head = self.reads = self
        self.serial = count
        self.trimmed_upto = LogPosition(1, 0, "")
        self.asked: list[int] = []

    async def facts(self, *, after: int, upto: int, limit: int) -> tuple[list[Fact], int]:
        serials = range(after + 1, min(upto, after + limit) + 1)
        return [Fact(n, 1, "events", "w", n - 1, n, b"[]", n * 1_000, "") for n in serials], upto

    async def trim(self, upto: int, keys: Any, limit: int) -> LogPosition:
        self.asked.append(upto)
        self.trimmed_upto = LogPosition(1, min(upto, self.trimmed_upto.serial + limit), "")
        return self.trimmed_upto


class Setup:
    """A log from which facts go after ten seconds, at second 14.5; who holds what is in `held`."""

    def __init__(self, *, held: Sequence[int | None] = (None,)) -> None:
        self.clock = Clock()
        self.clock.advance(14.5)
        self.log = FakeLog()
        self.held = list(held)
        self.retention = Retention(
            self.log,  # type: ignore[arg-type]  # as much of a log as is asked
            self.clock,
            RetentionSettings(retain_seconds=10),
            keys=lambda stream, rows: None,
            expiry=ExpiryClock(self.clock, self.clock.seconds),
            leases=self,
        )
        self.retention.start()

    def lowest(self) -> int | None:
        return self.held.pop(0) if len(self.held) > 1 else self.held[0]

    def renew(self, reader: str, since: int, wait: float, access: Access) -> None:
        raise AssertionError(reader)

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.01] * round(seconds * 100))


def test_rows_have_the_keys_that_their_stream_declares() -> None:
    """Two receipts of a user in a room have one key, and the later one replaces the other."""
    keys = keys_of(StreamTable.default())
    first = b'["!r:hs","m.read","@ada:hs","$1",null,{"ts":1}]'
    second = b'["!r:hs","m.read","@ada:hs","$2",null,{"ts":2}]'
    other = b'["!r:hs","m.read","@bob:hs","$1",null,{"ts":1}]'

    found = keys("receipts", b"[" + b",".join([first, second, other]) + b"]")

    assert found is not None
    assert 3 == len(found)
    assert found[0] == found[1] != found[2]
    assert keys("unknown", b"[]") is None
    kinds = b'[["@u:h",false,false],["@u:h",true,false],["@u:h",false,true],["@u:h",false,false,"far"]]'
    assert 4 == len(set(keys("device_lists", kinds) or ()))


def test_only_facts_older_than_the_retention_are_trimmed() -> None:
    """At second 14.5 facts 1 to 4 are older than ten seconds; the others follow as they get old."""
    setup = Setup()
    setup.wait(0.1)
    assert 4 == setup.log.trimmed_upto.serial

    setup.wait(10)

    assert 14 == setup.log.trimmed_upto.serial


@pytest.mark.parametrize("held", [0, 2, 4])
def test_facts_held_by_a_lease_are_kept(held: int) -> None:
    """However old it is."""
    setup = Setup(held=[held])
    setup.wait(0.1)

    assert held == setup.log.trimmed_upto.serial
    assert all(upto <= held for upto in setup.log.asked)


def test_a_lease_that_is_made_while_facts_are_read_holds_them() -> None:
    """A replica was told that it can have them."""
    setup = Setup(held=[None, 1])
    setup.wait(0.1)

    assert 1 == setup.log.trimmed_upto.serial


def test_trimming_goes_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends and reads come between."""
    monkeypatch.setattr(retention_module, "SLICE_FACTS", 3)
    setup = Setup()

    setup.wait(0.1)

    assert [3, 4] == setup.log.asked


def test_a_jump_of_the_clock_trims_nothing() -> None:
    """The clock was 8 days ahead for 8 seconds, and 23 of 23 facts were gone."""
    setup = Setup()
    lived = Clock()
    lived.advance(14.5)
    setup.retention.expiry = ExpiryClock(setup.clock, lived.seconds)

    def live(seconds: int) -> None:
        for _ in range(seconds):
            lived.advance(1)
            setup.clock.advance(1)

    setup.clock.rightNow += 8 * 86_400
    live(8)
    setup.clock.rightNow -= 8 * 86_400
    setup.clock.advance(0)

    assert 12 >= setup.log.trimmed_upto.serial
