"""Who may be served: both ends know the secret, and neither says it."""

import pytest
from twisted.logger import capturedLogs, formatEvent

from synrepl.ports.access import Key, Keyring
from synrepl.ports.proofs import SharedSecret
from synrepl.replication.relay.handshake import (
    PRIMARY_SIDE,
    REPLICA_SIDE,
    Greetings,
    proof,
    proves,
    record_key,
)
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import NATIVE
from synrepl.wire.native import Auth, Hello
from tests.replication.clusters import FakeCluster
from tests.replication.nodes import FakeNode
from tests.replication.test_listener import CertifiedFactory

SECRET, OTHER = SharedSecret("secret"), SharedSecret("other")
SAID = Greetings(b'HELLO {"nonce":"ours"}', b'CHALLENGE {"nonce":"theirs"}')


def test_a_proof_is_of_everything_that_was_said() -> None:
    """Another side, HELLO, CHALLENGE or WELCOME makes it another one."""
    shown = proof(SECRET, REPLICA_SIDE, SAID)

    assert proves(shown, SECRET, REPLICA_SIDE, SAID)
    assert not proves(shown, SECRET, PRIMARY_SIDE, SAID)
    assert not proves(shown, SECRET, REPLICA_SIDE, Greetings(SAID.challenge, SAID.hello))
    assert not proves(shown, SECRET, REPLICA_SIDE, Greetings(SAID.hello + b" ", SAID.challenge))
    assert not proves(shown, SECRET, REPLICA_SIDE, Greetings(SAID.hello, SAID.challenge + b" "))
    assert not proves(shown, SECRET, REPLICA_SIDE, SAID, b"WELCOME {}")
    assert not proves(shown, OTHER, REPLICA_SIDE, SAID)
    assert not proves("ü", SECRET, REPLICA_SIDE, SAID)


def test_the_keys_of_records_are_of_one_direction_and_one_connection() -> None:
    """Nor is a key what is sent as a proof."""
    other = Greetings(SAID.hello, b'CHALLENGE {"nonce":"another"}')
    sides = (REPLICA_SIDE, PRIMARY_SIDE)
    keys = [record_key(SECRET, side, said) for side in sides for said in (SAID, other)]
    keys.append(record_key(OTHER, REPLICA_SIDE, SAID))
    proofs = [bytes.fromhex(proof(SECRET, side, SAID)) for side in sides]

    assert 7 == len({*keys, *proofs})


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ("right", None, "requires a secret: set secret_file"),
        ("right", "wrong", "no_rights"),
        (None, "right", "could not prove that it knows the secret"),
    ],
)
def test_both_ends_must_prove_the_secret(ours: str | None, theirs: str | None, why: str) -> None:
    """A replica does not take facts from a stranger either."""
    cluster = FakeCluster()
    a = cluster.node("a", secret=ours)
    b = cluster.node("b", "a", secret=theirs)
    cluster.wrote(a, 3)
    cluster.pass_(2)

    assert b.replica is not None
    assert why in b.replica.why
    assert 0 == b.log.head.serial
    assert a.leases.lowest() is None


def test_the_right_secret_lets_it_in() -> None:
    """Both of them."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    b = cluster.node("b", "a", secret="right")
    cluster.wrote(a, 3)
    cluster.pass_(2)

    assert a.log.position == b.log.position


def test_an_overheard_proof_is_of_no_use() -> None:
    """The next connection has another nonce."""
    cluster = FakeCluster()
    cluster.node("a", secret="right")
    first = cluster.raw("a")
    assert first.greet(cluster, secret="right") is not None
    hello = Hello(uuid="u", name="n", nonce="overheard")
    shown = proof(SharedSecret("right"), REPLICA_SIDE, cluster.raw("a").say_hello(cluster, hello))
    third = cluster.raw("a")
    third.say_hello(cluster, hello)
    third.tell("AUTH", Auth(shown))
    cluster.pass_(0.05)

    assert "no_rights" == third.refusal()["code"]


@pytest.mark.parametrize(
    "line", ["JOIN {}", 'AUTH {"proof":""}', "DIGESTS [1]", "UP o 1 REMOTE_SERVER_UP far"]
)
def test_nothing_is_said_to_who_is_not_known(line: str) -> None:
    """The order of the conversation is not a matter of taste."""
    cluster = FakeCluster()
    cluster.node("a", secret="right")
    raw = cluster.raw("a")
    if line.startswith("AUTH"):
        raw.say(line)
    else:
        raw.tell("HELLO", Hello(uuid="u", name="n", nonce="x"))
        raw.say(line)
    cluster.pass_(0.2)

    assert raw.is_lost
    (error,) = raw.lines("ERROR")
    assert b"is valid only in the state" in error or b"UP is not valid before WELCOME" in error


def native_listener(
    cluster: FakeCluster, address: str, made_by: type[PublisherFactory] = PublisherFactory
) -> FakeNode:
    """A daemon with a secret, and a listener of it that serves replicas only."""
    node = cluster.node("a", secret="right")
    factory = made_by(
        node.publisher,
        server_name="hs",
        dialect=NATIVE,
        clock=cluster.clock,
        metrics=node.metrics,
        relays=lambda: node.relays,
    )
    cluster.network.listen(address, factory)
    return node


@pytest.mark.parametrize(
    "line",
    [
        "REPLICATE",
        'INVALIDATE_CACHE get_user_by_id ["@a:hs"]',
        "FEDERATION_ACK s 5",
        "USER_SYNC i @a:hs None start 1",
        "REMOTE_SERVER_UP far",
        'USER_IP @a:hs ["t","i","u",null,1]',
        "CLEAR_USER_SYNC i",
    ],
)
@pytest.mark.parametrize("is_known", [False, True], ids=["before", "after"])
def test_what_followers_say_is_refused_where_only_replicas_are_served(line: str, *, is_known: bool) -> None:
    """It was ignored in silence, whether or not the peer knew the secret."""
    cluster = FakeCluster()
    node = native_listener(cluster, "native")
    raw = cluster.raw("native")
    if is_known:
        raw.greet(cluster, secret="right")
    raw.say(line)
    cluster.pass_(0.2)

    (error,) = raw.lines("ERROR")
    assert error.endswith(b"is not a command of replicas; only replicas are served here")
    assert raw.is_lost
    assert 0 == node.log.head.serial


@pytest.mark.parametrize(("name", "is_served"), [("paris", True), ("rome", False)])
def test_a_certificate_that_keys_file_names_is_proof_enough(name: str, is_served: bool) -> None:
    """It needs no secret besides; another one of the same CA is no proof."""
    cluster = FakeCluster()
    node = native_listener(cluster, "native", CertifiedFactory)
    node.relays.keys.replace(Keyring("right", [Key(name="paris", secret=None)]))
    raw = cluster.raw("native", name=name)

    assert is_served is (raw.greet(cluster, name=name) is not None)
    assert (not is_served) is raw.is_lost


def test_replicas_may_say_what_every_client_says_first() -> None:
    """NAME and PING go out with the connection, before HELLO."""
    cluster = FakeCluster()
    native_listener(cluster, "native")
    raw = cluster.raw("native")
    raw.say("NAME paris", "PING 1")
    welcome = raw.greet(cluster, secret="right")
    raw.say("NAME paris", "PING 2")
    for _ in range(20):
        raw.say("PING 3")
        cluster.pass_(2, step=0.1)

    assert welcome is not None
    assert not raw.is_lost


@pytest.mark.parametrize("has_said_hello", [False, True])
def test_a_replica_that_does_not_finish_its_greeting_is_closed(*, has_said_hello: bool) -> None:
    """Half a greeting holds a connection, and costs its peer nothing."""
    cluster = FakeCluster()
    native_listener(cluster, "native")
    raw = cluster.raw("native")
    if has_said_hello:
        raw.tell("HELLO", Hello(uuid="u", name="n", nonce="x"))
    for _ in range(29):
        raw.say("PING 1")
        cluster.pass_(1, step=0.1)
    assert not raw.is_lost

    cluster.pass_(2, step=0.1)

    assert raw.is_lost
    assert [b"HELLO and AUTH were not finished within 30 seconds"] == raw.lines("ERROR")


BAD_NAME = "invalid name: it must be one word of up to 255 printable characters"
BAD_UUID = "invalid uuid: it must be one word of 1 to 100 letters, digits and -_.:"
BAD_ADDRESS = "invalid address: it must have at most 1000 characters, all printable"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"name": "a\nFORGED \x1b[2J"}, BAD_NAME),
        ({"name": "two words"}, BAD_NAME),
        ({"name": "x" * 256}, BAD_NAME),
        ({"uuid": "\x1b[2J"}, BAD_UUID),
        ({"uuid": "x" * 101}, BAD_UUID),
        ({"address": "tcp:\x1b[2J:1"}, BAD_ADDRESS),
        ({"address": "x" * 1001}, BAD_ADDRESS),
    ],
)
def test_names_that_cannot_be_shown_are_refused(said: dict[str, str], why: str) -> None:
    """They stood raw on terminals and in the log, and 16 kB of them in each lease."""
    cluster = FakeCluster()
    a = cluster.node("a")
    raw = cluster.raw("a")
    with capturedLogs() as events:
        raw.tell("HELLO", Hello(**({"uuid": "u", "name": "n", "nonce": "x"} | said)))  # type: ignore[arg-type]
        cluster.pass_(0.2)

    assert (why, "bad_name") == (raw.refusal()["message"], raw.refusal()["code"])
    assert raw.is_lost
    assert [] == list(a.relays.leases.all())
    assert all(formatEvent(event).isprintable() and len(formatEvent(event)) < 500 for event in events)
