"""How far all federation senders are, without connections; with them see test_serving."""

import random

import pytest
from twisted.internet.task import Clock

from synrepl.errors import RemoteProtocolError
from synrepl.replication.serving import federation_acks as acks_module
from synrepl.replication.serving.command_lines import REMIND_SECONDS, CommandOrigin
from synrepl.replication.serving.federation_acks import (
    MAX_NAME,
    MAX_SENDERS,
    PRESENT_SECONDS,
    RECONNECT_SECONDS,
    REMINDED_SECONDS,
    FederationAcks,
)
from tests.operations import count_operations


def test_the_lowest_is_that_of_the_slowest_sender() -> None:
    """What it lacks must stay."""
    acks = FederationAcks(Clock())
    acks.acknowledge("c1", "s1", 3)
    acks.acknowledge("c2", "s2", 5)
    assert 3 == acks.lowest()
    acks.acknowledge("c1", "s1", 9)

    assert 5 == acks.lowest()


def test_nobody_has_anything_before_somebody_says_so() -> None:
    """Nothing may be forgotten then."""
    assert FederationAcks(Clock()).lowest() is None


class Token(int):
    """A token that counts how often one is compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Token.comparisons += 1
        return super().__lt__(other)

    def __eq__(self, other: object) -> bool:
        Token.comparisons += 1
        return super().__eq__(other)

    __hash__ = int.__hash__


def test_many_acks_cost_little_each() -> None:
    """133,500 lines with made-up names stopped a daemon for 15 seconds: each looked through all names."""

    def cost(count: int) -> int:
        acks = FederationAcks(Clock())

        def acknowledge() -> None:
            for number in range(count):
                acks.acknowledge(number // 100, f"fs{number}", Token(number % 7))
                acks.lowest()

        Token.comparisons = 0
        return count_operations(acknowledge) + Token.comparisons

    # Each look-through of all names would cost four times as much.
    assert cost(2_000) < 2.5 * cost(1_000)


def test_a_sender_that_acks_for_ever_costs_no_memory() -> None:
    """It says FEDERATION_ACK after nearly every token, while another one stands still."""
    acks = FederationAcks(Clock())
    acks.acknowledge("c1", "slow", 1)
    for token in range(10_000):
        acks.acknowledge("c2", "fast", token + 2)

    assert 1 == acks.lowest()
    assert len(acks._heap) < 30


def test_a_sender_that_reconnects_finds_what_it_lacks() -> None:
    """It asks for what comes after its last ack; the others' acks must not have let that go."""
    clock = Clock()
    acks = FederationAcks(clock)
    acks.acknowledge("c1", "s1", 3)
    acks.acknowledge("c2", "s2", 5)
    acks.connection_lost("c1")
    clock.advance(RECONNECT_SECONDS - 1)
    acks.acknowledge("c2", "s2", 7)
    assert 3 == acks.lowest()

    acks.acknowledge("c3", "s1", 6)
    clock.advance(RECONNECT_SECONDS + 1)

    assert 6 == acks.lowest()


def test_a_sender_that_was_retired_holds_nothing_back() -> None:
    """Its name was kept for ever, and the stream's memory with it."""
    clock = Clock()
    acks = FederationAcks(clock)
    acks.acknowledge("c1", "old-name", 3)
    acks.connection_lost("c1")
    acks.acknowledge("c2", "new-name", 500)
    clock.advance(RECONNECT_SECONDS + 1)
    assert 500 == acks.lowest()

    acks.connection_lost("c2")
    clock.advance(RECONNECT_SECONDS + 1)

    assert acks.lowest() is None


def test_an_old_connection_that_ends_takes_no_ack_of_a_newer_one() -> None:
    """A worker's half-open connection times out after it has reconnected."""
    clock = Clock()
    acks = FederationAcks(clock)
    acks.acknowledge("old", "s1", 3)
    acks.acknowledge("new", "s1", 8)
    acks.connection_lost("old")

    assert 8 == acks.lowest()
    clock.advance(RECONNECT_SECONDS + 1)
    assert 8 == acks.lowest()


def test_a_sender_whose_tokens_begin_anew_is_believed() -> None:
    """The stream begins from zero when the server restarts."""
    acks = FederationAcks(Clock())
    acks.acknowledge("c1", "s1", 500)
    acks.acknowledge("c1", "s1", 0)

    assert 0 == acks.lowest()


def test_the_senders_of_one_connection_are_bounded() -> None:
    """Which bound it was is said; what the connection said is dropped."""
    acks = FederationAcks(Clock())
    acks.acknowledge("honest", "s1", 400)
    for number in range(MAX_SENDERS):
        acks.acknowledge("c", f"fs{number}", number)

    with pytest.raises(RemoteProtocolError, match="names more than 100 senders on one connection"):
        acks.acknowledge("c", "another", 1)
    assert 400 == acks.lowest()


def test_a_name_is_bounded() -> None:
    """A line holds 16 kB, and every name is kept."""
    with pytest.raises(RemoteProtocolError, match=f"exceeds {MAX_NAME} characters"):
        FederationAcks(Clock()).acknowledge("c", "x" * (MAX_NAME + 1), 1)


def test_acks_of_lost_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that connects again and again leaves no more than that; the oldest go first."""
    monkeypatch.setattr(acks_module, "MAX_DETACHED", 10)
    acks = FederationAcks(Clock())
    for number in range(50):
        acks.acknowledge(number, f"fs{number}", number)
        acks.connection_lost(number)

    assert 10 == len(acks._acks)
    assert 40 == acks.lowest()


def test_a_sender_counts_while_its_replica_names_it() -> None:
    """Another replica cannot name it, and who has said nothing is not known."""
    clock = Clock()
    acks = FederationAcks(clock)
    paris, oslo = CommandOrigin("", "paris-1", 1), CommandOrigin("", "oslo-1", 1)
    acks.acknowledge(paris, "s1", 3)
    acks.acknowledge("c", "s2", 9)
    for _ in range(100):
        clock.advance(REMIND_SECONDS)
        acks.refresh(paris, "s1")
        acks.refresh(oslo, "s1")
        acks.refresh(oslo, "unknown")
    assert (3, {"s1": 3, "s2": 9}) == (acks.lowest(), dict(acks.present()))

    clock.advance(PRESENT_SECONDS)
    acks.refresh(oslo, "s1")
    assert (3, {"s2": 9}) == (acks.lowest(), dict(acks.present()))
    clock.advance(REMINDED_SECONDS - PRESENT_SECONDS)

    assert 9 == acks.lowest()


def test_a_replica_that_is_gone_takes_its_senders_along() -> None:
    """They may come back at another one."""
    clock = Clock()
    acks = FederationAcks(clock)
    paris = CommandOrigin("", "paris-1", 1)
    acks.acknowledge(paris, "s1", 3)
    acks.acknowledge("c", "s2", 9)
    acks.connection_lost(paris)
    clock.advance(RECONNECT_SECONDS - 1)
    assert 3 == acks.lowest()
    clock.advance(2)

    assert 9 == acks.lowest()
    assert {"s2": 9} == dict(acks.present())


@pytest.mark.parametrize("seed", range(20))
def test_the_heap_tells_the_same_as_looking_through_all(seed: int) -> None:
    """With connections that come and go, and senders that move between them."""
    chance = random.Random(seed)
    clock = Clock()
    acks = FederationAcks(clock)
    told: dict[str, tuple[int, int, float | None]] = {}
    for _ in range(2_000):
        connection, name = chance.randrange(5), f"s{chance.randrange(8)}"
        match chance.randrange(10):
            case 0:
                acks.connection_lost(connection)
                for known, (token, at, lost) in list(told.items()):
                    if at == connection and lost is None:
                        told[known] = (token, at, clock.seconds())
            case 1:
                clock.advance(chance.choice([1, RECONNECT_SECONDS / 3]))
            case _:
                token = chance.randrange(50)
                acks.acknowledge(connection, name, token)
                told[name] = (token, connection, None)
        limit = clock.seconds() - RECONNECT_SECONDS
        told = {known: ack for known, ack in told.items() if ack[2] is None or ack[2] > limit}
        assert min((token for token, _, _ in told.values()), default=None) == acks.lowest()
