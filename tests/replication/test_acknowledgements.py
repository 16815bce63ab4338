"""Appends that wait until replicas have their facts on disk."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.ports.history import Appended
from synrepl.ports.response_errors import NotForwarded
from synrepl.replication import acknowledgements
from synrepl.wire.acks import Acks
from tests.replication.clusters import FakeCluster
from tests.replication.nodes import FakeNode

TIMEOUT = 10.0


class Disk:
    """The disk of a replica: it is slow for as long as a test wants."""

    def __init__(self) -> None:
        self.delay = 0.0005

    def __call__(self) -> float:
        return self.delay


class Setup:
    """A primary a, and replicas of it."""

    def __init__(self, *names: str, **options: dict[str, Any]) -> None:
        self.cluster = FakeCluster()
        self.a = self.cluster.node("a")
        self.disks = {name: Disk() for name in names}
        self.replicas = {
            name: self.cluster.node(name, "a", disk_delay=self.disks[name], **options.get(name, {}))
            for name in names
        }
        self.cluster.pass_(3)

    def append(
        self, acks: str, *, key: str | None = None, timeout: float = TIMEOUT, writer: str = "master"
    ) -> "Deferred[Appended]":
        """Append a fact as the HTTP API does, and wait."""

        async def work() -> Appended:
            wanted, waiting = Acks.parse(acks), self.a.relays.acknowledgements
            waiting.check(wanted)
            rows = [[f'["@{key or acks}"]'.encode()]]
            facts: Sequence[bytes] = [b"[%b]" % row for (row,) in rows]
            appended = await self.a.log.append("push_rules", writer, facts, key=key)
            assert appended.first_serial is not None
            await waiting.wait(wanted, ("push_rules", writer), appended.first_serial, timeout)
            return appended

        return Deferred.fromCoroutine(work())

    def done(self, waiting: "Deferred[Any]", seconds: float = 5) -> Any:
        return self.cluster.done(waiting, seconds)

    def on_disk(self, node: FakeNode) -> int:
        """The serial that a node would have after a kill."""
        found: int = node.engine.head().position.serial
        return found


def test_it_waits_until_the_fact_is_on_the_disk_of_a_replica() -> None:
    """What the replica has received, and would lose with its memory, does not count."""
    setup = Setup("b")
    setup.disks["b"].delay = 2.0

    waiting = setup.append("1")
    setup.cluster.pass_(1.5)
    assert 1 == setup.a.log.head.serial
    assert setup.on_disk(setup.replicas["b"]) == 0
    assert not waiting.called

    assert 1 == setup.done(waiting).first_serial
    assert setup.on_disk(setup.replicas["b"]) == 1


def test_readers_and_other_appends_do_not_wait() -> None:
    """Nor does the fact itself: it is in the log, and is sent to everybody."""
    setup = Setup("b")
    setup.disks["b"].delay = 3.0
    waiting = setup.append("1")

    assert 2 == setup.cluster.wrote(setup.a).first_serial
    assert [1, 2] == [fact.serial for fact in setup.a.publisher.ring.recent()][::-1]
    assert not waiting.called
    setup.done(waiting)


@pytest.mark.parametrize(("acks", "slow"), [("2", 1), ("3", 2), ("1", 0), ("b,c", 1), ("b,c,d", 2), ("b", 0)])
def test_so_many_or_certain_ones(acks: str, slow: int) -> None:
    """b is fast, c takes a second, d two."""
    setup = Setup("b", "c", "d")
    for seconds, name in enumerate("bcd"):
        setup.disks[name].delay = seconds or 0.0005

    waiting = setup.append(acks)
    if slow:
        setup.cluster.pass_(slow - 0.2)
        assert not waiting.called
    setup.cluster.pass_(0.5)

    assert waiting.called
    setup.done(waiting)


def test_a_copy_without_the_stream_does_not_count() -> None:
    """It acknowledges serials that it was never sent."""
    setup = Setup("b", "c", b={"upstream_streams": ("receipts",)}, c={"upstream_writers": ("other",)})

    with pytest.raises(NotForwarded) as refused:
        setup.done(setup.append("1", timeout=3))
    assert [] == refused.value.more["acknowledged"]

    setup.done(setup.append("1", writer="other"))


def test_at_the_time_out_it_is_said_who_has_it_and_a_retry_waits_again() -> None:
    """Nothing is taken back."""
    setup = Setup("b", "c")
    setup.replicas["c"].kill()
    setup.cluster.pass_(0.1)

    with pytest.raises(NotForwarded, match=r"of 1 replicas \(b\); acks=2 was asked for") as refused:
        setup.done(setup.append("2", key="k", timeout=2))
    assert ("outcome_unknown", 504) == (refused.value.code, refused.value.status)
    assert {"serial": 1, "acknowledged": ["b"]} == refused.value.more

    again = setup.append("2", key="k")
    setup.cluster.pass_(0.1)
    assert not again.called
    setup.cluster.start(setup.replicas["c"])

    assert 1 == setup.done(again).first_serial
    assert 1 == setup.a.log.head.serial


def test_a_replica_that_comes_back_counts_for_what_it_has() -> None:
    """It was stored before the connection was lost, and the acknowledgement was lost with that."""
    setup = Setup("b")
    waiting = setup.append("1")
    cut = False
    for _ in range(100):
        setup.cluster.clock.advance(0.0005)
        if setup.on_disk(setup.replicas["b"]) == 1 and not waiting.called:
            for link in setup.replicas["b"].links():
                link.cut()
            cut = True
            break
    assert cut
    assert not waiting.called

    assert 1 == setup.done(waiting).first_serial


def test_a_primary_that_is_fenced_believes_nobody() -> None:
    """The facts of another history have the same serials."""
    setup = Setup("b", "c")
    setup.disks["c"].delay = 3
    waiting = setup.append("c", timeout=5)
    setup.cluster.promote(setup.replicas["b"], force=True)
    setup.cluster.pass_(0.5)
    assert "fenced" == setup.a.roles.role
    assert not waiting.called

    with pytest.raises(NotForwarded):
        setup.done(waiting, 6)


@pytest.mark.parametrize(
    ("acks", "why"),
    [
        ("3", "3 replicas are more than there are: b, c"),
        ("b,x,y", "no replica is called x, y; there are: b, c"),
    ],
)
def test_what_can_never_be_is_refused_before_anything_is_stored(acks: str, why: str) -> None:
    """Whoever asks for two copies of three must not learn after a time-out that there is one."""
    setup = Setup("b", "c")

    with pytest.raises(NotForwarded, match=why) as refused:
        setup.done(setup.append(acks))

    assert "bad_request" == refused.value.code
    assert 0 == setup.a.log.head.serial


def test_a_replica_whose_lease_has_ended_is_none() -> None:
    """One that is away for a moment is one: its lease waits for it."""
    setup = Setup("b")
    setup.replicas["b"].kill()
    setup.cluster.pass_(1)
    setup.a.relays.acknowledgements.check(Acks(1))

    setup.a.relays.leases.drop("b")

    with pytest.raises(NotForwarded, match="there are: none"):
        setup.a.relays.acknowledgements.check(Acks(1))


def test_the_number_of_those_who_wait_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each that is answered or timed out makes room."""
    monkeypatch.setattr(acknowledgements, "MAX_WAITERS", 3)
    setup = Setup("b")
    setup.disks["b"].delay = 1.0
    waiting = [setup.append("1", key=f"k{number}", timeout=0.5) for number in range(3)]
    setup.cluster.pass_(0.1)

    with pytest.raises(NotForwarded, match="3 appends already wait") as refused:
        setup.done(setup.append("1"))
    assert "busy" == refused.value.code

    for one in waiting:
        with pytest.raises(NotForwarded):
            setup.done(one)
    setup.done(setup.append("1"))


def test_many_that_wait_are_answered_in_order() -> None:
    """Each as soon as its own serial is acknowledged."""
    setup = Setup("b", "c")
    answered: dict[str, list[int | None]] = {"2": [], "b,c": []}

    def note(acks: str, appended: Appended) -> Appended:
        answered[acks].append(appended.first_serial)
        return appended

    waits: list[Deferred[Appended]] = []
    for number in range(20):
        acks = "2" if number % 2 else "b,c"
        wait = setup.append(acks, key=f"k{number:02}")
        waits.append(wait.addCallback(partial(note, acks)))
        setup.cluster.pass_(0.01)
    for wait in waits:
        setup.done(wait)

    assert {"2": list(range(2, 21, 2)), "b,c": list(range(1, 20, 2))} == answered
    assert {} == setup.a.relays.acknowledgements._awaited
