"""Leases of a log that is not there, on a clock of ours: what is kept of them, and when."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.base.history import Lease
from synrepl.base.time import ExpiryClock
from synrepl.replicas.relay.leases import (
    ENDED_SLACK,
    MAX_ANONYMOUS,
    MAX_ENDED,
    MAX_LEASES,
    MAX_LEASES_OF_KEY,
    MAX_SIZE_QUERIES,
    Leases,
)
from synrepl.replicas.settings import RelaySettings
from synrepl.storage.log import Log


class FakeLog:
    """Counts what is kept. Each fact has 10 bytes. Its head and its reads are itself."""

    serial = 100

    def __init__(self, *leases: Lease) -> None:
        self.head = self.reads = self
        self.leases: Mapping[str, Lease] = {lease.uuid: lease for lease in leases}
        self.kept: list[Lease] = []
        self.dropped: list[str] = []
        self.sized: list[int] = []

    async def keep_leases(self, changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        self.kept += changed
        self.dropped += dropped

    async def size(self, after: int) -> int:
        self.sized.append(after)
        return 10 * (self.serial - after)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


def leases_of(
    log: FakeLog, clock: Clock, settings: RelaySettings, *, present: Callable[[], Collection[str]]
) -> Leases:
    expiry = ExpiryClock(clock, clock.seconds)
    return Leases(cast(Log, log), clock, settings, present=present, expiry=expiry)


@pytest.fixture
def leases(log: FakeLog, clock: Clock) -> Leases:
    made = leases_of(log, clock, RelaySettings(lease_seconds=300), present=lambda: ["r"])
    made.make("r", "replica", registered=True, serial=99)
    clock.advance(1)
    assert 1 == len(log.kept)
    return made


def acknowledge(leases: Leases, clock: Clock, serials: Sequence[int]) -> None:
    """One a second."""
    for serial in serials:
        leases.advance("r", serial)
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


def stored(count: int, *, registered: bool = True) -> list[Lease]:
    """Leases as an older release left them on disk."""
    return [
        Lease(uuid=f"u{n}", name=f"n{n}", registered=registered, serial=n % 100, made_ms=0, seen_ms=0)
        for n in range(count)
    ]


def anonymous(leases: Leases, count: int) -> None:
    for number in range(count):
        leases.make(f"a{number}", f"a{number}", registered=False, serial=100)


def test_anonymous_readers_leave_room_for_replicas(leases: Leases) -> None:
    """Anybody can name himself in a URL; a replica must get its lease all the same."""
    anonymous(leases, MAX_ANONYMOUS)

    assert "1000 anonymous leases are active" in leases.limit_reached("late", registered=False)
    assert "" == leases.limit_reached("late", registered=True)


def test_a_reader_that_has_a_lease_keeps_it(leases: Leases) -> None:
    """An excess is refused; nobody loses what he has to it."""
    anonymous(leases, MAX_ANONYMOUS)

    assert "" == leases.limit_reached("a0", registered=False)
    assert leases["a0"] is not None


def test_one_key_makes_a_bounded_number_of_leases(leases: Leases) -> None:
    """Of both kinds together. The shared secret and peers without a key have no such bound."""
    for n in range(MAX_LEASES_OF_KEY):
        leases.make(f"u{n}", f"n{n}", registered=n % 2 == 0, serial=1, key="paris")

    why = f"{MAX_LEASES_OF_KEY} leases of the key paris are active, the maximum for one key is"
    for registered in (True, False):
        assert leases.limit_reached("new", registered=registered, key="paris").startswith(why)
        assert not leases.limit_reached("u1", registered=registered, key="paris")
        for key in ("oslo", "", None):
            assert not leases.limit_reached("new", registered=registered, key=key)
    (ended,) = [lease for lease in leases.all() if lease.uuid == "u1"]
    leases.end(ended, "test")
    leases.make("u2", "n2", registered=True, serial=1, key="oslo")
    assert not leases.limit_reached("new", registered=True, key="paris")


def test_the_number_of_leases_is_limited(log: FakeLog, clock: Clock) -> None:
    """Each takes memory, a place in every answer, and a share of each check."""
    leases = leases_of(FakeLog(*stored(MAX_LEASES)), clock, RelaySettings(), present=list)

    assert "leases drop" in leases.limit_reached("late", registered=True)
    leases.drop("n7")
    assert "" == leases.limit_reached("late", registered=True)


def test_leases_that_ended_are_forgotten_beyond_a_bound(clock: Clock) -> None:
    """Those that ended first; a replica that an operator dropped must go on being refused."""
    log = FakeLog(*stored(MAX_ENDED + ENDED_SLACK + 1, registered=False))
    leases = leases_of(log, clock, RelaySettings(), present=list)
    leases.make("r", "replica", registered=True, serial=99)
    leases.drop("replica")
    for lease in log.leases.values():
        clock.advance(0.001)
        leases.end(lease, "too late")
    clock.advance(1)

    assert leases.is_dropped("r")
    assert MAX_ENDED <= len(leases.all()) <= MAX_ENDED + ENDED_SLACK
    assert leases["u0"] is None
    assert "u0" in log.dropped


def test_a_check_asks_the_log_a_bounded_number_of_times(clock: Clock) -> None:
    """Each question takes the thread that commits."""
    log = FakeLog(*stored(1000))
    leases = leases_of(log, clock, RelaySettings(), present=list)
    clock.advance(5)

    assert 0 < len(log.sized) <= MAX_SIZE_QUERIES
    assert [1000, 630, 10] == [leases.held_bytes(uuid) for uuid in ("u0", "u37", "u99")]


def test_a_lease_at_the_head_retains_nothing(clock: Clock) -> None:
    """Also before the next check: the status page shows both numbers side by side."""
    log = FakeLog(*stored(1))
    leases = leases_of(log, clock, RelaySettings(), present=list)
    clock.advance(5)
    assert 1000 == leases.held_bytes("u0")
    leases.advance("u0", log.serial)
    assert 0 == leases.held_bytes("u0")


def test_a_replica_that_was_expected_under_its_own_uuid_stays_on_disk(
    leases: Leases, log: FakeLog, clock: Clock
) -> None:
    """The lease that waited for it gives way to the one that it makes, which has the same uuid."""
    leases.add("e", "expected")
    leases.make("e", "expected", registered=True, serial=100)
    clock.advance(1)

    assert "e" not in log.dropped
    assert "e" == log.kept[-1].uuid


def test_replicas_are_found_by_the_name_they_have_now(leases: Leases) -> None:
    """A replica was renamed, and another one took its name."""
    leases.make("r", "berlin", registered=True, serial=99)
    leases.make("s", "replica", registered=True, serial=99)

    found = [leases.find(name) for name in ("berlin", "replica", "r", "rome")]

    assert ["r", "s", "r", None] == [one and one.uuid for one in found]


def test_addresses_are_those_of_replicas_that_are_served(leases: Leases) -> None:
    """Whoever becomes primary tells them; nobody else is to be told."""
    leases.make("r", "replica", registered=True, serial=99, address="tcp:b -")
    leases.make("s", "second", registered=True, serial=99, address="tcp:a -")
    leases.make("t", "third", registered=False, serial=99, address="tcp:c -")
    before = list(leases.addresses())
    leases.drop("s")

    assert [("tcp:a -", "s"), ("tcp:b -", "r")] == before
    assert [("tcp:b -", "r")] == leases.addresses()


def test_addresses_are_gone_with_the_leases_of_a_log_that_was_replaced(leases: Leases, log: FakeLog) -> None:
    """Another copy took its place, which knows none of them."""
    leases.make("r", "replica", registered=True, serial=99, address="tcp:b -")
    before = len(leases.addresses())
    log.leases = {}
    leases.reload()

    assert [1, 0] == [before, len(leases.addresses())]
    assert leases.find("replica") is None
    assert "" == leases.limit_reached("late", registered=False)


@pytest.mark.parametrize("address", ["x" * 1001, "tcp:a\n", "\x1b[2J"])
def test_an_address_that_cannot_be_one_is_not_kept(leases: Leases, address: str) -> None:
    """It would be told to other replicas, and shown to operators."""
    assert "" == leases.make("r", "replica", registered=True, serial=99, address=address).address


def test_the_slowest_reader_holds_the_log(leases: Leases) -> None:
    """What it still needs may not be trimmed, however far others are; one whose lease ended holds nothing."""
    leases.make("s", "slow", registered=True, serial=12)
    leases.make("g", "gone", registered=True, serial=3)
    leases.drop("gone")

    assert 12 == leases.lowest()
    leases.advance("s", 100)
    assert 99 == leases.lowest()


def test_nobody_holds_a_log_that_nobody_reads(clock: Clock) -> None:
    """Its retention alone decides then."""
    assert leases_of(FakeLog(), clock, RelaySettings(), present=list).lowest() is None


def test_a_lease_never_moves_back(leases: Leases, log: FakeLog, clock: Clock) -> None:
    """What was before it may be trimmed already: a late word of the reader promises nothing of it."""
    acknowledge(leases, clock, [100, 40])

    assert 100 == leases.lowest()
    assert [99, 100] == [lease.serial for lease in log.kept]


def test_time_runs_out_only_on_readers_that_are_away(clock: Clock) -> None:
    """A connected replica may hear nothing and say nothing for a week, on a homeserver without traffic."""
    leases = leases_of(FakeLog(), clock, RelaySettings(lease_seconds=300), present=lambda: ["r"])
    for uuid in ("r", "away"):
        leases.make(uuid, uuid, registered=True, serial=99)

    clock.pump([5.0] * 70)

    here, away = leases["r"], leases["away"]
    assert here is not None
    assert away is not None
    assert here.ended_ms is None
    assert "no contact for 300 seconds" in away.reason
    assert 99 == leases.lowest()


def test_bytes_run_out_on_connected_readers_too(clock: Clock) -> None:
    """A reader that stopped reading would otherwise fill the disk."""
    leases = leases_of(FakeLog(), clock, RelaySettings(lease_bytes=500), present=lambda: ["r", "s"])
    leases.make("r", "replica", registered=True, serial=49)
    leases.make("s", "second", registered=True, serial=51)

    clock.pump([5.0] * 2)

    assert [51] == [lease.serial for lease in leases.all() if lease.ended_ms is None]


def test_leases_that_could_not_be_kept_are_kept_next_time(
    leases: Leases, log: FakeLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that the disk never hears of holds nothing after a restart."""
    kept = log.keep_leases
    log.kept.clear()

    async def fail(changed: Sequence[Lease], dropped: Sequence[str] = ()) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(log, "keep_leases", fail)
    leases.make("s", "second", registered=True, serial=100)
    clock.advance(1)
    monkeypatch.setattr(log, "keep_leases", kept)
    leases.advance("r", 100)
    clock.advance(1)

    assert {"r", "s"} == {lease.uuid for lease in log.kept}


def test_a_replica_is_dropped_although_its_lease_has_ended(leases: Leases) -> None:
    """An operator who drops it wants it refused."""
    lease = leases["r"]
    assert lease is not None
    leases.end(lease, "trimmed")

    assert leases.drop("replica") is not None
    assert leases.is_dropped("r")


def test_a_jump_of_the_clock_ends_no_lease(log: FakeLog) -> None:
    """The lease of a replica that was away ended, as the clock was 8 days ahead for 8 seconds."""
    wall, lived = Clock(), Clock()
    expiry = ExpiryClock(wall, lived.seconds)
    leases = Leases(cast(Log, log), wall, RelaySettings(lease_seconds=300), present=list, expiry=expiry)
    leases.make("r", "replica", registered=True, serial=99)

    def live(seconds: int) -> None:
        for _ in range(seconds):
            lived.advance(1)
            wall.rightNow += 1
            Deferred.fromCoroutine(leases.check())

    live(100)
    wall.rightNow += 8 * 86_400
    live(8)
    wall.rightNow -= 8 * 86_400
    live(100)
    assert 99 == leases.lowest()
    wall.rightNow -= 3_600
    live(90)
    assert 99 == leases.lowest()

    live(3_900)

    assert leases.lowest() is None


def test_the_time_that_the_daemon_was_off_ends_no_lease_before_readers_can_come_back(log: FakeLog) -> None:
    """Nobody can tell it from a clock that is ahead at the start."""
    clock = Clock()
    clock.advance(10 * 86_400)
    log.leases = {"r": Lease(uuid="r", name="r", registered=True, serial=9, made_ms=0, seen_ms=1_000)}
    leases = leases_of(log, clock, RelaySettings(lease_seconds=2 * 86_400), present=list)
    for _ in range(23):
        clock.advance(3_600)
    assert 9 == leases.lowest()

    clock.pump([1_800] * 3)

    assert leases.lowest() is None
