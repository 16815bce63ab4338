"""Commands on their way up, spoken by hand: none lost, none twice, in order."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry
from twisted.internet.task import Clock

from synrepl.base.access import Access, Right
from synrepl.base.metrics import Metrics
from synrepl.replicas.command_forwarder import CommandForwarder, Numbered
from synrepl.replicas.command_receiver import EXPIRY_SECONDS, CommandReceiver
from synrepl.replicas.replica.conversation import IConversation
from synrepl.wire.commands import RemovePusher, UserSync
from synrepl.wire.grammar import Command

REMOVE = b"REMOVE_PUSHER app key%d @ada:hs"
SYNC = UserSync(instance_id="i", user_id="@ada:hs", is_syncing=True, last_sync_ms=1)


class Upstream:
    """A conversation that notes what was said, but for reminders; and the daemon's, which knows who syncs."""

    def __init__(self) -> None:
        self.told: list[Numbered] = []

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        self.told += [one for one in commands if not one[1].startswith(b"PING")]

    def syncing_commands(self) -> Iterator[Command]:
        yield SYNC

    def federation_acks(self) -> Iterator[Command]:
        yield from ()


def forwarder(clock: Clock) -> CommandForwarder:
    """Of a replica."""
    own: Any = Upstream()
    return CommandForwarder(own, clock, origin="b", is_active=lambda: True, dropped=lambda name: None)


def remove(number: int) -> RemovePusher:
    """A command that nobody may lose."""
    return RemovePusher(app_id="app", push_key=f"key{number}", user_id="@ada:hs")


def lines(told: Sequence[Numbered]) -> list[bytes]:
    return [line for _, line in told]


def test_what_was_not_taken_is_said_again_in_order() -> None:
    """The connection was lost with some of it; nobody knows with how much."""
    clock, first, second = Clock(), Upstream(), Upstream()
    made = forwarder(clock)
    made.connected(cast(IConversation, first))
    for number in range(4):
        made.forward(remove(number))
    clock.advance(0)
    made.acknowledged("b", 1, 1)
    made.disconnected()
    made.forward(remove(4))

    made.connected(cast(IConversation, second))
    clock.advance(0)

    assert [1, 2, 3, 4] == [number for number, _ in first.told]
    assert [2, 3, 4, 5] == [number for number, _ in second.told]
    assert [REMOVE % number for number in (1, 2, 3, 4)] == lines(second.told)


def test_another_primary_is_told_who_is_syncing() -> None:
    """It knows what was said from a later number on: nothing of what came before."""
    clock, there = Clock(), Upstream()
    made = forwarder(clock)
    made.connected(cast(IConversation, there))
    made.forward(remove(1))
    clock.advance(0)

    made.acknowledged("b", 1, 1)
    clock.advance(0)
    assert 1 == len(there.told)
    made.acknowledged("b", 1, 9)
    clock.advance(0)

    assert [b"USER_SYNC i @ada:hs"] == [b" ".join(line.split()[:3]) for line in lines(there.told)[1:]]


class Primary:
    """As much of a publisher as takes what is forwarded."""

    def __init__(self) -> None:
        self.heard: list[Command] = []
        self.lost: list[str] = []
        self.metrics = Metrics(CollectorRegistry())
        self.follower_commands = SimpleNamespace(
            received=lambda origin, command: self.heard.append(command),
            connection_lost=lambda origin: self.lost.append(origin.name),
            syncing=SimpleNamespace(mark_active=lambda origin: None),
        )

    def receiver(self, clock: Clock) -> CommandReceiver:
        commands: Any = self.follower_commands
        return CommandReceiver(commands, self.metrics, clock, broadcast=lambda command, source: None)


def test_a_command_is_taken_once() -> None:
    """Of what is said again after a cut, only the rest is news."""
    primary = Primary()
    receiver = primary.receiver(Clock())

    assert (2, 1) == receiver.receive("b", [(1, REMOVE % 1), (2, REMOVE % 2)])
    assert (3, 1) == receiver.receive("b", [(1, REMOVE % 1), (2, REMOVE % 2), (3, REMOVE % 3)])

    assert [remove(1), remove(2), remove(3)] == primary.heard


def test_a_replica_without_the_right_to_write_invalidates_nothing() -> None:
    """One that may read alone, and one that may write other streams. What else it says is taken."""
    line = b'INVALIDATE_CACHE get_user_by_id ["@a:hs"]'
    for access, count in (
        (Access(rights=frozenset({Right.READ, Right.REPLICATE}), is_proven=True), 1),
        (Access(streams=frozenset({"pushers"}), is_proven=True), 1),
        (Access(streams=frozenset({"events"}), is_proven=True), 0),
        (Access(is_proven=True), 2),
    ):
        primary = Primary()

        told = primary.receiver(Clock()).receive("b", [(1, line), (2, REMOVE % 2)], access=access)

        assert (2, 1) == told
        assert count == len(primary.heard)


def test_a_replica_that_is_silent_is_gone_with_its_users() -> None:
    """It has died; one that lives says so each minute."""
    clock, primary = Clock(), Primary()
    receiver = primary.receiver(clock)
    receiver.receive("dead", [(1, b"PING")])
    receiver.receive("alive", [(1, b"PING")])
    for _ in range(12):
        clock.advance(EXPIRY_SECONDS / 10)
        receiver.receive("alive", [(1, b"PING")])

    assert ["dead"] == primary.lost
