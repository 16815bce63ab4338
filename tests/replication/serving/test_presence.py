"""Who is syncing where, without connections; with them see test_serving."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.task import Clock

from synrepl.errors import RemoteProtocolError
from synrepl.replication.serving import presence as syncing_module
from synrepl.replication.serving.presence import (
    EXPIRY_SECONDS,
    MAX_INSTANCES,
    MAX_NAME,
    MAX_USERS,
    SyncingUser,
    SyncingUsers,
)
from synrepl.wire.commands import ClearUserSync, UserSync
from tests.operations import count_operations


def said(
    user: str, *, instance: str = "", device: str | None = None, starts: bool = True, at: int = 1
) -> UserSync:
    return UserSync(instance_id=instance, user_id=user, device_id=device, is_syncing=starts, last_sync_ms=at)


class Watched:
    """Users who are syncing, and every change that was told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.users = SyncingUsers(self.clock)
        self.told: list[tuple[str, bool]] = []
        self.users.subscribers.append(self._note)

    def _note(self, change: SyncingUser) -> None:
        self.told.append((change.user_id, change.is_syncing))


def test_made_up_names_cost_the_same_each() -> None:
    """80,000 lines of 32 bytes stopped a daemon for 22 seconds: each looked through all workers."""

    def cost(count: int) -> int:
        watched = Watched()
        connections = [object() for _ in range(10)]
        lines = [said(f"@u{number}:x", instance=f"i{number}", device="dev") for number in range(count)]

        def sync() -> None:
            for number, line in enumerate(lines):
                connection = connections[number * 10 // count]
                watched.users.mark_active(connection)
                watched.users.user_sync(connection, line)

        spent = count_operations(sync)
        assert count == len(watched.users.users())
        return spent

    # Looking through all workers each time would cost four times as much.
    assert cost(2_000) < 2.5 * cost(1_000)


@pytest.mark.parametrize("instance", ["w1", ""])
def test_users_end_once_however_they_were_said(instance: str) -> None:
    """A repeated start or end changes nothing."""
    watched = Watched()
    for starts in (True, True, False, False, True):
        watched.users.user_sync("c", said("@a:hs", instance=instance, starts=starts))

    assert [("@a:hs", True), ("@a:hs", False), ("@a:hs", True)] == watched.told


def test_an_instance_belongs_to_the_connection_that_spoke_for_it_last() -> None:
    """The old connection of a worker that has reconnected takes nothing with it when it times out."""
    watched = Watched()
    watched.users.user_sync("old", said("@a:hs", instance="w1"))
    watched.users.user_sync("new", said("@b:hs", instance="w1"))
    watched.users.connection_lost("old")
    for _ in range(60):
        watched.clock.advance(EXPIRY_SECONDS / 30)
        watched.users.mark_active("new")

    assert {"@a:hs", "@b:hs"} == watched.users.users()


def test_an_instance_waits_from_the_last_sign_of_life_of_its_connection() -> None:
    """Not from its last USER_SYNC, which may be hours old."""
    watched = Watched()
    watched.users.user_sync("c", said("@a:hs", instance="w1"))
    for _ in range(60):
        watched.clock.advance(EXPIRY_SECONDS / 30)
        watched.users.mark_active("c")
    watched.users.connection_lost("c")
    watched.clock.pump([EXPIRY_SECONDS / 30] * 29)
    assert {"@a:hs"} == watched.users.users()

    watched.clock.pump([EXPIRY_SECONDS / 30] * 5)

    assert set() == watched.users.users()


def test_a_process_on_the_shared_channel_is_not_kept_by_the_others() -> None:
    """All speak on one channel: that it is alive says nothing of each of them."""
    watched = Watched()
    watched.users.user_sync(None, said("@a:hs", instance="dead"))
    for _ in range(36):
        watched.clock.advance(EXPIRY_SECONDS / 30)
        watched.users.user_sync(None, said("@b:hs", instance="alive"))

    assert {"@b:hs"} == watched.users.users()


@pytest.mark.parametrize(
    ("bound", "commands", "why"),
    [
        (
            "MAX_INSTANCES",
            [said("@a:x", instance=f"i{n}") for n in range(4)],
            "USER_SYNC names more than 3 instances on one connection",
        ),
        (
            "MAX_USERS",
            [said(f"@u{n}:x", instance="i") for n in range(4)],
            "USER_SYNC names more than 3 users on one connection",
        ),
        (
            "MAX_USERS",
            [said("@a:x", instance=f"i{n // 2}", device=f"d{n}") for n in range(4)],
            "USER_SYNC names more than 3 users on one connection",
        ),
        (
            "MAX_USERS",
            [said(f"@u{n}:x") for n in range(4)],
            "USER_SYNC names more than 3 users on one connection",
        ),
    ],
)
def test_syncing_users_of_a_connection_are_limited(
    monkeypatch: pytest.MonkeyPatch, bound: str, commands: list[UserSync], why: str
) -> None:
    """One peer must not fill the memory; what it said is dropped at once."""
    monkeypatch.setattr(syncing_module, bound, 3)
    watched = Watched()
    watched.users.user_sync("honest", said("@h:hs", instance="w1"))
    for command in commands[:3]:
        watched.users.user_sync("c", command)

    with pytest.raises(RemoteProtocolError, match=why):
        watched.users.user_sync("c", commands[3])
    assert {"@h:hs"} == watched.users.users()


def test_users_who_ended_count_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that runs for weeks serves many users, few at a time."""
    monkeypatch.setattr(syncing_module, "MAX_USERS", 3)
    watched = Watched()
    for number in range(20):
        watched.users.user_sync("c", said(f"@u{number}:x", instance=f"i{number}"))
        watched.users.user_sync("c", said(f"@u{number}:x", instance=f"i{number}", starts=False))
    watched.users.user_sync("c", said("@a:x", instance="i"))
    watched.users.clear(ClearUserSync(instance_id="i"))

    assert set() == watched.users.users()


def test_taking_over_an_instance_takes_its_users_into_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one connection could gather the users of many."""
    monkeypatch.setattr(syncing_module, "MAX_USERS", 3)
    watched = Watched()
    for connection in "ab":
        for number in range(3):
            watched.users.user_sync(connection, said(f"@u{number}:x", instance=connection))

    with pytest.raises(RemoteProtocolError):
        watched.users.user_sync("a", said("@u0:x", instance="b", starts=False))


@pytest.mark.parametrize("field", ["instance", "user", "device"])
def test_a_name_is_bounded(field: str) -> None:
    """A line holds 16 kB, and every name is kept."""
    names = {"instance": "i", "user": "@a:hs", "device": "d"} | {field: "x" * (MAX_NAME + 1)}
    with pytest.raises(RemoteProtocolError, match=f"exceeds {MAX_NAME} characters"):
        Watched().users.user_sync(
            "c", said(names["user"], instance=names["instance"], device=names["device"])
        )


def test_users_who_wait_for_lost_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that connects again and again leaves no more than that; the oldest go first."""
    monkeypatch.setattr(syncing_module, "MAX_DETACHED_USERS", 5)
    watched = Watched()
    for number in range(4):
        for user in range(2):
            watched.users.user_sync(number, said(f"@{user}:{number}", instance=f"i{number}"))
        watched.users.connection_lost(number)

    assert {"@0:2", "@1:2", "@0:3", "@1:3"} == watched.users.users()


@pytest.mark.parametrize(("bound", "what"), [("MAX_ALL_INSTANCES", "instances"), ("MAX_ALL_USERS", "users")])
def test_syncing_users_of_all_connections_are_limited(
    monkeypatch: pytest.MonkeyPatch, bound: str, what: str
) -> None:
    """Many can name as much as each of them may; the one that names the most is dropped."""
    monkeypatch.setattr(syncing_module, bound, 6)
    watched = Watched()
    watched.users.user_sync("honest", said("@h:hs", instance="w1"))
    for connection in ("a", "b"):
        for number in range(2 if connection == "a" else 3):
            watched.users.user_sync(
                connection, said(f"@{connection}{number}:x", instance=f"{connection}{number}")
            )

    with pytest.raises(RemoteProtocolError, match=f"together name more than 6 {what} .* this one the most"):
        watched.users.user_sync("b", said("@b3:x", instance="b3"))
    assert {"@h:hs", "@a0:x", "@a1:x"} == watched.users.users()
    for number in range(3):
        watched.users.user_sync("c", said(f"@c{number}:x", instance=f"c{number}" if number else "c1"))
    assert "@h:hs" in watched.users.users()


@pytest.mark.parametrize("bound", ["MAX_ALL_INSTANCES", "MAX_ALL_USERS"])
def test_a_connection_that_says_little_takes_the_room_of_others(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Of instances that wait for their connection first, then of the one that holds the most."""
    monkeypatch.setattr(syncing_module, bound, 4)
    watched = Watched()
    watched.users.user_sync("left", said("@left:x", instance="left"))
    watched.users.connection_lost("left")
    for number in range(3):
        watched.users.user_sync("much", said(f"@m{number}:x", instance=f"m{number}"))

    watched.users.user_sync("one", said("@1:hs", instance="w1"))
    assert {"@m0:x", "@m1:x", "@m2:x", "@1:hs"} == watched.users.users()
    watched.users.user_sync("two", said("@2:hs", instance="w2"))
    assert {"@1:hs", "@2:hs"} == watched.users.users()
    watched.users.user_sync("much", said("@m0:x", instance="m0"))
    assert {"@1:hs", "@2:hs", "@m0:x"} == watched.users.users()


def test_a_late_end_of_a_worker_that_speaks_elsewhere_ends_nothing() -> None:
    """It was said before the worker connected to another daemon, and came by a longer way."""
    watched = Watched()
    watched.users.user_sync("old", said("@a:x", instance="i"))
    watched.users.user_sync("new", said("@b:x", instance="i"))

    assert not watched.users.clear(ClearUserSync(instance_id="i"), "old")
    assert {"@a:x", "@b:x"} == watched.users.users()
    assert watched.users.clear(ClearUserSync(instance_id="i"), "new")
    assert set() == watched.users.users()


def test_the_shared_channel_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks for every process there is, and cannot be closed on."""
    monkeypatch.setattr(syncing_module, "MAX_INSTANCES", 1)
    watched = Watched()
    for number in range(3):
        watched.users.user_sync(None, said(f"@u{number}:x", instance=f"i{number}"))

    assert 3 == len(watched.users.users())


def test_the_bounds_leave_room_for_the_largest_deployments() -> None:
    """A large sync worker has 100,000 users; some hundred workers stand behind a bridge."""
    assert MAX_USERS >= 150_000
    assert MAX_INSTANCES >= 500


class _Model(RuleBasedStateMachine):
    """Counting tells the same as looking through everything does."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = Watched()
        self.workers: dict[str, set[str]] = {}
        self.owner: dict[str, str] = {}

    @rule(connection=st.sampled_from("ab"), instance=st.sampled_from("xyz"), user=st.sampled_from("uvw"))
    def start(self, connection: str, instance: str, user: str) -> None:
        self.watched.users.user_sync(connection, said(user, instance=instance))
        self.workers.setdefault(instance, set()).add(user)
        self.owner[instance] = connection

    @rule(connection=st.sampled_from("ab"), instance=st.sampled_from("xyz"), user=st.sampled_from("uvw"))
    def end(self, connection: str, instance: str, user: str) -> None:
        self.watched.users.user_sync(connection, said(user, instance=instance, starts=False))
        self.workers.setdefault(instance, set()).discard(user)

    @rule(connection=st.sampled_from("ab"), user=st.sampled_from("uvw"), starts=st.booleans())
    def legacy(self, connection: str, user: str, starts: bool) -> None:
        self.watched.users.user_sync(connection, said(user, starts=starts))
        users = self.workers.setdefault(f"connection {connection}", set())
        if starts:
            users.add(user)
        else:
            users.discard(user)

    @rule(instance=st.sampled_from("xyz"))
    def clear(self, instance: str) -> None:
        self.watched.users.clear(ClearUserSync(instance_id=instance))
        self.workers.pop(instance, None)

    @rule(connection=st.sampled_from("ab"))
    def lose(self, connection: str) -> None:
        self.watched.users.connection_lost(connection)
        self.workers.pop(f"connection {connection}", None)

    @rule()
    def expire(self) -> None:
        self.watched.clock.pump([EXPIRY_SECONDS / 10] * 12)
        self.workers.clear()

    @invariant()
    def same(self) -> None:
        expected = set().union(*self.workers.values()) if self.workers else set()
        assert expected == self.watched.users.users()
        told: dict[str, bool] = {}
        for user, starts in self.watched.told:
            assert told.get(user, False) is not starts
            told[user] = starts
        assert expected == {user for user, is_syncing in told.items() if is_syncing}

    def teardown(self) -> None:
        self.watched.users.stop()
        assert all(worker.users for worker in self.watched.users._workers.values())
        held = sum(one.user_count for one in self.watched.users._connections.values())
        waiting = self.watched.users._detached_users
        everybody = sum(len(one.users) for one in self.watched.users._workers.values())
        assert held + waiting == everybody == self.watched.users._user_count


_Model.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestModel = _Model.TestCase
