"""Who may be served: both ends know the secret, and neither says it."""

import pytest

from synrepl.replication.relay.proof import PRIMARY, REPLICA, proof, proves
from synrepl.wire.native import Greeting, Known, Proof, read
from tests.replication.worlds import World

NONCES = ("theirs", "ours")


def test_a_proof_is_of_everything_that_was_said() -> None:
    """Another side, nonce, uuid or name makes it another one."""
    shown = proof("secret", REPLICA, NONCES, "u", "n")

    assert proves(shown, "secret", REPLICA, NONCES, "u", "n")
    assert not proves(shown, "secret", PRIMARY, NONCES, "u", "n")
    assert not proves(shown, "secret", REPLICA, ("ours", "theirs"), "u", "n")
    assert not proves(shown, "secret", REPLICA, NONCES, "v", "n")
    assert not proves(shown, "secret", REPLICA, NONCES, "u", "m")
    assert not proves(shown, "other", REPLICA, NONCES, "u", "n")
    assert not proves(shown, None, REPLICA, NONCES, "u", "n")
    assert not proves("ü", "secret", REPLICA, NONCES, "u", "n")


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ("right", None, "none is set here"),
        ("right", "wrong", "no_rights"),
        (None, "right", "could not prove that it knows the secret"),
    ],
)
def test_both_ends_must_know_it(ours: str | None, theirs: str | None, why: str) -> None:
    """A replica does not take facts from a stranger either."""
    world = World()
    a = world.node("a", secret=ours)
    b = world.node("b", "a", secret=theirs)
    world.wrote(a, 3)
    world.pass_(2)

    assert b.replica is not None
    assert why in b.replica.why
    assert 0 == b.log.serial
    assert a.leases.lowest() is None


def test_the_right_secret_lets_it_in() -> None:
    """Both of them."""
    world = World()
    a = world.node("a", secret="right")
    b = world.node("b", "a", secret="right")
    world.wrote(a, 3)
    world.pass_(2)

    assert a.log.place == b.log.place


def test_an_overheard_proof_is_of_no_use() -> None:
    """The next connection has another nonce."""
    world = World()
    world.node("a", secret="right")
    first = world.raw("a")
    assert first.greet(world, secret="right") is not None
    nonce = "overheard"
    second = world.raw("a")
    second.tell("HELLO", Greeting(uuid="u", name="n", nonce=nonce))
    world.pass_(0.05)
    shown = proof("right", REPLICA, (read(Known, second.lines("CHALLENGE")[0]).nonce, nonce), "u", "n")
    third = world.raw("a")
    third.tell("HELLO", Greeting(uuid="u", name="n", nonce=nonce))
    world.pass_(0.05)
    third.tell("AUTH", Proof(shown))
    world.pass_(0.05)

    assert "no_rights" == third.refusal()["code"]


@pytest.mark.parametrize("line", ["JOIN {}", 'AUTH {"proof":""}', "DIGESTS [1]"])
def test_nothing_is_said_to_who_is_not_known(line: str) -> None:
    """The order of the conversation is not a matter of taste."""
    world = World()
    world.node("a", secret="right")
    raw = world.raw("a")
    if line.startswith("AUTH"):
        raw.say(line)
    else:
        raw.tell("HELLO", Greeting(uuid="u", name="n", nonce="x"))
        raw.say(line)
    world.pass_(0.2)

    assert raw.is_lost
    assert raw.lines("ERROR")
