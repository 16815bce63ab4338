"""Appends that wait until replicas have their facts on disk."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from synrepl.base.history import Appended
from synrepl.base.response_errors import NotForwarded
from synrepl.replicas import acknowledgements
from synrepl.replicas.roles.messages import CannotPromote
from synrepl.replicas.wire.native import Subscribe
from synrepl.streams.writer import Writer
from synrepl.wire import jsontext
from synrepl.wire.acks import Acks
from tests.memory_engine import FaultyEngine
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode

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
        listed = ["a", *names]
        self.a = self.cluster.node("a", listed=listed)
        self.disks = {name: Disk() for name in names}
        self.replicas = {
            name: self.cluster.node(
                name, "a", disk_delay=self.disks[name], listed=listed, **options.get(name, {})
            )
            for name in names
        }
        self.cluster.pass_(3)

    def append(
        self, acks: str, *, key: str | None = None, timeout: float = TIMEOUT, writer: str = "master"
    ) -> "Deferred[Appended]":
        """Append a fact as the HTTP API does, and wait."""

        async def work() -> Appended:
            wanted, waiting = Acks.parse(acks), self.a.registry.acknowledgements
            waiting.check(wanted)
            await self.a.registry.promises.promise(wanted)
            rows = [[f'["@{key or acks}"]'.encode()]]
            facts: Sequence[bytes] = [b"[%b]" % row for (row,) in rows]
            appended = await self.a.log.append("push_rules", writer, facts, key=key)
            assert appended.first_serial is not None
            await waiting.wait(wanted, Writer("push_rules", writer), appended.first_serial, timeout)
            return appended

        return Deferred.fromCoroutine(work())

    def prime(self, acks: str) -> int:
        """Have a promise on the disks of all, and a first fact; return its serial."""
        serial = self.done(self.append(acks, key=f"first {acks}")).first_serial
        assert isinstance(serial, int)
        return serial

    def done(self, waiting: "Deferred[Any]", seconds: float = 5) -> Any:
        return self.cluster.done(waiting, seconds)

    def on_disk(self, node: FakeNode) -> int:
        """The serial that a node would have after a kill."""
        found: int = node.engine.head().position.serial
        return found


def test_it_waits_until_the_fact_is_on_the_disk_of_a_replica() -> None:
    """What the replica has received, and would lose with its memory, does not count."""
    setup = Setup("b")
    first = setup.prime("1")
    setup.disks["b"].delay = 2.0

    waiting = setup.append("1")
    setup.cluster.pass_(1.5)
    assert first + 1 == setup.a.log.head.serial
    assert setup.on_disk(setup.replicas["b"]) == first
    assert not waiting.called

    assert first + 1 == setup.done(waiting).first_serial
    assert setup.on_disk(setup.replicas["b"]) == first + 1


def test_readers_and_other_appends_do_not_wait() -> None:
    """Nor does the fact itself: it is in the log, and is sent to everybody."""
    setup = Setup("b")
    first = setup.prime("1")
    setup.disks["b"].delay = 3.0
    waiting = setup.append("1")

    assert first + 2 == setup.cluster.wrote(setup.a).first_serial
    assert first + 1 in [fact.serial for fact in setup.a.publisher.ring.recent()]
    assert not waiting.called
    setup.done(waiting)


@pytest.mark.parametrize(("acks", "slow"), [("2", 1), ("3", 2), ("1", 0), ("b,c", 1), ("b,c,d", 2), ("b", 0)])
def test_so_many_or_certain_ones(acks: str, slow: int) -> None:
    """b is fast, c takes a second, d two."""
    setup = Setup("b", "c", "d")
    setup.prime(acks)
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
        setup.done(setup.append("b", timeout=3))
    assert [] == refused.value.more["acknowledged"]

    setup.done(setup.append("c", writer="other"))


def test_only_a_whole_copy_counts_for_a_number() -> None:
    """Whoever has a key for one stream can acknowledge what it likes; a copy of it cannot be promoted."""
    setup = Setup("b", "f", f={"upstream_streams": ("push_rules",)})
    setup.prime("f")
    setup.prime("1")
    setup.replicas["b"].kill()
    setup.cluster.pass_(1)

    with pytest.raises(NotForwarded) as refused:
        setup.done(setup.append("1", timeout=3))
    assert [] == refused.value.more["acknowledged"]

    setup.done(setup.append("f"))


def test_what_is_acknowledged_before_the_admission_does_not_count() -> None:
    """Whether it has anything of this log is looked up first, and what it copies is not known either."""
    setup = Setup("b", "f", f={"upstream_streams": ("receipts",)})
    first = setup.prime("1")
    setup.replicas["b"].kill()
    setup.cluster.pass_(1)
    waiting = setup.append("1", timeout=3)
    for link in setup.replicas["f"].links():
        link.cut()
    setup.a.registry.subscription_refusal = lambda *_, **__: Deferred()  # type: ignore[assignment]
    raw = setup.cluster.raw("a", name="f")
    welcome = raw.greet(setup.cluster, uuid=setup.replicas["f"].log.uuid, name="f")
    assert welcome is not None
    raw.tell("SUBSCRIBE", Subscribe(history=welcome.history, position=welcome.position))
    raw.say(f"ACK 1 {welcome.position.serial} 0")
    setup.cluster.pass_(0.5)

    assert welcome.position.serial == first + 1
    assert not waiting.called
    with pytest.raises(NotForwarded):
        setup.done(waiting)


def test_at_the_time_out_it_is_said_who_has_it_and_a_retry_waits_again() -> None:
    """Nothing is taken back."""
    setup = Setup("b", "c")
    first = setup.prime("2")
    setup.replicas["c"].kill()
    setup.cluster.pass_(0.1)

    with pytest.raises(NotForwarded, match=r"of 1 replica \(b\); acks=2 was asked for") as refused:
        setup.done(setup.append("2", key="k", timeout=2))
    assert ("outcome_unknown", 504) == (refused.value.code, refused.value.status)
    assert {"serial": first + 1, "acknowledged": ["b"]} == refused.value.more

    again = setup.append("2", key="k")
    setup.cluster.pass_(0.1)
    assert not again.called
    setup.cluster.start(setup.replicas["c"])

    assert first + 1 == setup.done(again).first_serial == setup.a.log.head.serial


def test_a_replica_that_comes_back_counts_for_what_it_has() -> None:
    """It was stored before the connection was lost, and the acknowledgement was lost with that."""
    setup = Setup("b")
    first = setup.prime("1")
    waiting = setup.append("1")
    cut = False
    for _ in range(100):
        setup.cluster.clock.advance(0.0005)
        if setup.on_disk(setup.replicas["b"]) > first and not waiting.called:
            for link in setup.replicas["b"].links():
                link.cut()
            cut = True
            break
    assert cut
    assert not waiting.called

    assert first + 1 == setup.done(waiting).first_serial


def test_a_primary_that_is_fenced_believes_nobody() -> None:
    """The facts of another history have the same serials."""
    setup = Setup("b", "c")
    setup.prime("c")
    setup.disks["c"].delay = 3
    waiting = setup.append("c", timeout=5)
    setup.cluster.promote(setup.replicas["b"], force=True, lose_acknowledged=True)
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
    setup.a.registry.acknowledgements.check(Acks(1))

    setup.a.registry.leases.drop("b")

    with pytest.raises(NotForwarded, match="there are: none"):
        setup.a.registry.acknowledgements.check(Acks(1))


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
    setup.prime("2")
    first = setup.prime("b,c")
    answered: dict[str, list[int]] = {"2": [], "b,c": []}

    def note(acks: str, appended: Appended) -> Appended:
        assert appended.first_serial is not None
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

    assert [10, 10] == [len(serials) for serials in answered.values()]
    assert all(sorted(serials) == serials for serials in answered.values())
    assert first + 20 == setup.a.log.head.serial
    assert {} == setup.a.registry.acknowledgements._waiting


class TestPromotion:
    """By force, when the primary is gone: nothing that was acknowledged is given up."""

    @staticmethod
    def lost(*names: str, acks: str = "1", lagging: str = "c", **options: Any) -> Setup:
        """The primary was killed after a fact that the `lagging` replica lacks, and others acknowledged."""
        setup = Setup(*names, **options)
        setup.prime(acks)
        setup.disks[lagging].delay = 1000.0
        setup.done(setup.append(acks, key="last"))
        setup.a.kill()
        setup.replicas[lagging].kill()
        setup.disks[lagging].delay = 0.0005
        setup.cluster.start(setup.replicas[lagging])
        setup.cluster.pass_(1)
        return setup

    def refusal(self, setup: Setup, name: str) -> CannotPromote:
        """Why it is not promoted."""
        with pytest.raises(CannotPromote) as refused:
            setup.cluster.promote(setup.replicas[name], force=True, seconds=20)
        assert "replica" == setup.replicas[name].roles.role
        return refused.value

    def test_the_wrong_one_is_refused_and_the_right_one_is_not(self) -> None:
        """It is said who is ahead, and of what."""
        setup = self.lost("b", "c")
        refused = self.refusal(setup, "c")

        assert "others_ahead" == refused.code
        (ahead,) = refused.more["ahead"]
        assert ("b", 3, [{"serial": 3, "stream": "push_rules", "writer": "master", "token": 2}]) == (
            ahead["name"],
            ahead["serial"],
            [dict(one) for one in ahead["facts"]],
        )
        setup.cluster.promote(setup.replicas["b"], force=True)
        setup.cluster.pass_(3)
        assert 3 == setup.replicas["b"].log.head.serial
        assert [1, 2, 3] == [serial for serial in range(1, 4) if setup.on_disk(setup.replicas["c"]) >= serial]

    def test_who_gives_it_up_says_so(self) -> None:
        """As by a promotion by force before there were acks."""
        setup = self.lost("b", "c")

        setup.cluster.promote(setup.replicas["c"], force=True, lose_acknowledged=True)

        assert "primary" == setup.replicas["c"].roles.role

    @pytest.mark.parametrize(
        ("acks", "silent", "is_promoted"),
        [
            ("1", "", True),
            ("1", "c", False),
            ("2", "c", True),
            ("2", "cd", False),
            ("3", "cd", True),
            ("b,c", "cd", True),
            ("c,d", "c", True),
            ("c,d", "cd", False),
        ],
    )
    def test_enough_of_those_who_could_have_acknowledged_must_answer(
        self, acks: str, silent: str, is_promoted: bool
    ) -> None:
        """Of M replicas M-N+1, itself included; of certain replicas one."""
        setup = Setup("b", "c", "d")
        setup.prime(acks)
        setup.a.kill()
        for name in silent:
            setup.replicas[name].kill()
        setup.cluster.pass_(1)

        if is_promoted:
            setup.cluster.promote(setup.replicas["b"], force=True, seconds=20)
            return
        refused = self.refusal(setup, "b")
        assert "replicas_silent" == refused.code
        assert list(silent) == [one["name"] for one in refused.more["silent"]]

    def test_without_acks_nobody_is_in_the_way(self) -> None:
        """A promotion by force is what it was, also of one that lacks what others have."""
        setup = Setup("b", "c")
        setup.replicas["b"].kill()
        setup.cluster.wrote(setup.a)
        setup.cluster.pass_(1)
        setup.a.kill()
        setup.cluster.start(setup.replicas["b"])

        setup.cluster.promote(setup.replicas["b"], force=True, seconds=1)

    def test_a_copy_of_other_streams_is_asked_and_is_not_ahead(self) -> None:
        """Its position is that of the log, and it has no fact that the candidate lacks."""
        setup = self.lost("b", "c", "f", f={"upstream_streams": ("receipts",)}, acks="b")
        refused = self.refusal(setup, "c")

        assert ["b"] == [one["name"] for one in refused.more["ahead"]]
        setup.cluster.promote(setup.replicas["b"], force=True)

    def test_a_copy_of_the_stream_is_ahead(self) -> None:
        """It acknowledged a fact, and cannot be promoted: an operator decides, and is shown the fact."""
        setup = self.lost("c", "f", f={"upstream_streams": ("push_rules",)}, acks="f")
        refused = self.refusal(setup, "c")

        (ahead,) = refused.more["ahead"]
        assert ("f", "push_rules") == (ahead["name"], ahead["facts"][0]["stream"])

    def test_a_fenced_daemon_does_not_give_up_what_came_after_it(self) -> None:
        """The primary that fenced it may have acknowledged facts to others."""
        setup = Setup("b", "c")
        setup.prime("1")
        setup.cluster.promote(setup.replicas["b"], force=True)
        setup.cluster.pass_(3)
        assert "fenced" == setup.a.roles.role

        with pytest.raises(CannotPromote) as refused:
            setup.cluster.promote(setup.a, force=True)
        assert "others_ahead" == refused.value.code
        assert [2, 2] == [one["epoch"] for one in refused.value.more["ahead"]]
        setup.cluster.promote(setup.a, force=True, lose_acknowledged=True)
        assert "primary" == setup.a.roles.role

    def test_one_that_knows_of_no_promise_asks_whom_it_knows(self) -> None:
        """It was away since before the first append with acks."""
        setup = Setup("b", "c")
        c = setup.replicas["c"]
        c.kill()
        setup.a.registry.leases.drop("c")
        setup.prime("1")
        setup.a.kill()
        setup.cluster.start(c)
        setup.cluster.pass_(1)
        refused = self.refusal(setup, "c")

        assert ("others_ahead", ["b"]) == (
            refused.code,
            [one["address"].split()[0] for one in refused.more["ahead"]],
        )
        setup.replicas["b"].kill()
        setup.cluster.promote(c, force=True, seconds=20)

    def test_another_daemon_at_the_address_has_not_answered(self) -> None:
        """Whatever it has."""
        setup = self.lost("b", "c")
        setup.replicas["b"].kill()
        stranger = setup.cluster.node("other")
        setup.cluster.nodes["b"] = stranger

        assert "replicas_silent" == self.refusal(setup, "c").code


class TestPromises:
    """The replicas that may acknowledge are in the log before anything that they acknowledge."""

    @staticmethod
    def promises(node: FakeNode) -> list[tuple[list[str], list[str]]]:
        """Each promise: the ways in which appends wait, and the names of replicas."""
        facts = [fact for fact in node.publisher.ring.recent() if fact.stream == "promises"]
        rows = [
            jsontext.loads(fact.rows.encode() if isinstance(fact.rows, str) else fact.rows) for fact in facts
        ]
        return [(row[1], sorted(one[1] for one in row[2])) for (row,) in reversed(rows)]

    def test_one_is_stored_when_something_changes(self) -> None:
        """Not for each append: only for fewer replicas than before, other names, and other replicas."""
        setup = Setup("b", "c")
        for acks in ("2", "2", "1", "2", "c", "c"):
            setup.done(setup.append(acks))
        assert [(["2"], ["b", "c"]), (["1"], ["b", "c"]), (["1", "c"], ["b", "c"])] == self.promises(setup.a)

        setup.cluster.node("d", "a")
        setup.cluster.pass_(3)
        setup.done(setup.append("3"))
        assert (["1", "c"], ["b", "c", "d"]) == self.promises(setup.a)[-1]

    def test_a_new_replica_counts_once_all_know_of_it(self) -> None:
        """One that knows the promise before must find somebody who knows the new one."""
        setup = Setup("b", "c")
        setup.prime("1")
        setup.disks["c"].delay = 1000.0
        d = setup.cluster.node("d", "a")
        setup.cluster.pass_(3)
        for name in "b":
            setup.replicas[name].kill()

        with pytest.raises(NotForwarded, match="list of replicas is not on the disk of b, c yet") as refused:
            setup.done(setup.append("1", timeout=2))
        assert setup.on_disk(d) == setup.a.log.head.serial
        assert ["d"] == refused.value.more["acknowledged"]

        setup.a.registry.leases.drop("c")
        setup.cluster.start(setup.replicas["b"])
        setup.cluster.pass_(2)
        setup.done(setup.append("2"))

    def test_after_a_restart_a_replica_that_is_away_does_not_matter(self) -> None:
        """Which promise counts is remembered: nobody need acknowledge it again."""
        setup = Setup("b", "c")
        setup.prime("1")
        setup.cluster.pass_(1)
        setup.replicas["c"].kill()
        setup.a.kill()
        setup.cluster.start(setup.a)
        setup.cluster.pass_(5)

        setup.done(setup.append("1"))
        assert [] == self.promises(setup.a)

    def test_replicas_that_are_named_are_not_a_number_of_them(self) -> None:
        """A promise to wait for b says nothing of an append that waits for any two."""
        setup = Setup("b", "c")
        setup.prime("b")
        setup.prime("2")

        assert (["2", "b"], ["b", "c"]) == self.promises(setup.a)[-1]

    def test_a_new_primary_begins_anew(self) -> None:
        """With the replicas that it has; the promise of the old one is still asked at a promotion."""
        setup = Setup("b", "c")
        setup.prime("1")
        setup.cluster.promote(setup.replicas["b"])
        setup.cluster.pass_(5)
        setup.a = setup.replicas["b"]

        setup.done(setup.append("1"))

        assert (["1"], ["c"]) == self.promises(setup.a)[-1]

    def test_a_replica_with_a_new_disk_takes_its_own_place(self) -> None:
        """The lease of its former disk waits for nobody."""
        setup = Setup("b", "c")
        setup.prime("2")
        b = setup.replicas["b"]
        b.kill()
        b.engine = FaultyEngine()
        setup.cluster.start(b)
        setup.cluster.pass_(3)
        assert 3 == len(setup.a.registry.leases.all())

        setup.done(setup.append("2"))

        assert 2 == len(setup.a.registry.promises.newest.replicas)  # type: ignore[union-attr]

    def test_a_replica_that_is_only_expected_is_not_waited_for(self) -> None:
        """An operator has made a lease for it, and it has never come."""
        setup = Setup("b")
        setup.a.registry.leases.add("uuid-of-lisbon", "lisbon")

        setup.done(setup.append("1"))

        assert (["1"], ["b"]) == self.promises(setup.a)[-1]
