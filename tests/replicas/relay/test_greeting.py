"""Who may be served: a replica shows its secret in HELLO, where nobody else can read it."""

import pytest
from twisted.internet.address import IPv4Address
from twisted.logger import capturedLogs, formatEvent

from synrepl.base.access import Key, Keyring, Right
from synrepl.replicas.relay.hello import RelayHello
from synrepl.replicas.wire.native import VERSION, Hello
from synrepl.testing.network import MemoryTransport
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.dialect import NATIVE
from tests.raw_peer import raw_server
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode
from tests.replication.test_listener import CertifiedFactory


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (None, "no_rights: the upstream requires a secret: set secret_file"),
        ("wrong", "no_rights: the upstream knows no such secret: check secret_file"),
        (f"laptop.{'s' * 43}", "no_rights: there is no key laptop at the upstream, or it was revoked"),
    ],
)
def test_a_replica_without_the_right_secret_is_refused(theirs: str | None, why: str) -> None:
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    b = cluster.node("b", "a", secret=theirs)
    cluster.wrote(a, 3)
    cluster.pass_(2)

    assert b.replica is not None
    assert why == b.replica.why
    assert 0 == b.log.head.serial
    assert a.leases.lowest() is None


@pytest.mark.parametrize("ours", ["right", None])
def test_the_right_secret_lets_it_in(ours: str | None) -> None:
    """An upstream without keys asks for none."""
    cluster = FakeCluster()
    a = cluster.node("a", secret=ours)
    b = cluster.node("b", "a", secret="right")
    cluster.wrote(a, 3)
    cluster.pass_(2)

    assert a.log.position == b.log.position


def test_a_replica_has_the_rights_of_the_key_that_it_shows() -> None:
    """The key of another replica's name does not count, nor does one that may only read."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    rights = frozenset({Right.READ, Right.REPLICATE})
    paris, rome = (Key(name=name, secret=f"of-{name}", rights=rights) for name in ("paris", "rome"))
    reader = Key(name="reader", secret="of-reader", rights=frozenset({Right.READ}))
    a.registry.keys.replace(Keyring("right", [paris, rome, reader]))
    served = {}
    for secret in ("of-paris", "of-rome", "of-reader", "right"):
        raw = cluster.raw("a")
        is_served = raw.greet(cluster, name="paris", uuid=f"u-{secret}", secret=secret) is not None
        served[secret] = "" if is_served else raw.refusal()["message"]

    assert served == {
        "of-paris": "",
        "of-rome": "the name paris belongs to another key: set replica_name, or prove the key paris",
        "of-reader": "the key reader lacks the right replicate: add it in keys_file",
        "right": "",
    }


def test_a_replica_whose_key_is_changed_is_disconnected() -> None:
    """Another one is not."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    raws = {name: cluster.raw("a", name=name) for name in ("paris", "rome")}
    a.registry.keys.replace(Keyring("right", [Key(name=name, secret=f"of-{name}") for name in raws]))
    for name, raw in raws.items():
        assert raw.greet(cluster, name=name, uuid=name, secret=f"of-{name}") is not None
    a.registry.keys.replace(Keyring("right", [Key(name="rome", secret="of-rome")]))
    a.registry.recheck()
    cluster.pass_(0.1)

    assert [True, False] == [raw.is_lost for raw in raws.values()]


def test_the_secret_is_in_no_log_status_or_lease() -> None:
    """Nor in what the upstream tells others."""
    cluster = FakeCluster()
    with capturedLogs() as events:
        a = cluster.node("a", secret="rosebud")
        b = cluster.node("b", "a", secret="rosebud")
        stranger = cluster.node("c", "a", secret="citizen-kane")
        cluster.pass_(3)
    told = [*map(formatEvent, events), *map(str, events)]
    for node in (a, b, stranger):
        told += map(str, node.log.notes.values())
        told += [str(node.registry.status()), str(node.leases.all()), str(node.registry.connected)]
        told += [] if node.replica is None else [str(node.replica.status())]

    assert not [text for text in told if "rosebud" in text or "citizen-kane" in text]


@pytest.mark.parametrize(
    ("peer", "insecure", "is_sent"),
    [
        ("127.0.0.1", False, True),
        ("127.9.9.9", False, True),
        ("::1", False, True),
        ("::ffff:127.0.0.1", False, True),
        ("192.0.2.1", False, False),
        ("192.0.2.1", True, True),
        ("0.0.0.0", False, False),  # a peer, not a listener
    ],
)
def test_no_secret_is_sent_in_the_clear_to_another_machine(
    peer: str, is_sent: bool, insecure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a secret of its own, a replica follows whom it likes."""
    monkeypatch.setattr(MemoryTransport, "getPeer", lambda _: IPv4Address("TCP", peer, 1))
    cluster = FakeCluster()
    peers = raw_server(cluster.network, "far")
    for secret in ("right", None):
        peers.clear()
        b = cluster.node("b", "far", secret=secret, insecure=insecure)
        cluster.pass_(1)
        heard = "".join(line for one in peers for line in one.heard)
        assert ("right" in heard) is is_sent if secret else "secret" not in heard
        assert b.replica is not None
        hint = "use https:// or tls:, or a UNIX socket; --insecure sends the key in the clear"
        assert (hint in b.replica.why) is (secret is not None and not is_sent)
        b.kill()


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_replica_is_told_what_to_do(version: int) -> None:
    cluster = FakeCluster()
    cluster.node("a")
    raw = cluster.raw("a")
    raw.tell("HELLO", Hello(uuid="u", name="n", version=version))
    cluster.pass_(0.2)

    assert "version" == raw.refusal()["code"]
    assert "update the replica to a release after 26.11.1" in raw.refusal()["message"]


@pytest.mark.parametrize(
    "line",
    [
        'CHALLENGE {"nonce":"n","proof":true,"version":1}',
        "ERROR cannot parse HELLO: body is invalid: Object missing required field `nonce`",
    ],
)
def test_an_older_upstream_is_named(line: str) -> None:
    """In one line of the status."""
    cluster = FakeCluster()
    peers = raw_server(cluster.network, "old")
    b = cluster.node("b", "old")
    cluster.pass_(0.5)
    peers[-1].says(line)
    cluster.pass_(0.05)

    assert b.replica is not None
    assert "update it first, to a release after 26.11.1" in b.replica.why


@pytest.mark.parametrize("line", ["JOIN {}", "DIGESTS [1]", "UP o 1 REMOTE_SERVER_UP far"])
def test_nothing_is_said_to_who_is_not_known(line: str) -> None:
    """The order of the conversation is not a matter of taste."""
    cluster = FakeCluster()
    cluster.node("a", secret="right")
    raw = cluster.raw("a")
    raw.say("NAME n", line)
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
        hello=RelayHello(node.registry),
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
    node.registry.keys.replace(Keyring("right", [Key(name="paris", secret=None)]))
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


def test_a_replica_that_says_no_greeting_is_closed() -> None:
    """It holds a connection, and that costs its peer nothing."""
    cluster = FakeCluster()
    native_listener(cluster, "native")
    raw = cluster.raw("native")
    for _ in range(29):
        raw.say("PING 1")
        cluster.pass_(1, step=0.1)
    assert not raw.is_lost

    cluster.pass_(2, step=0.1)

    assert raw.is_lost
    assert [b"no valid HELLO came within 30 seconds"] == raw.lines("ERROR")


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
        raw.tell("HELLO", Hello(**({"uuid": "u", "name": "n", "version": VERSION} | said)))  # type: ignore[arg-type]
        cluster.pass_(0.2)

    assert (why, "bad_name") == (raw.refusal()["message"], raw.refusal()["code"])
    assert raw.is_lost
    assert [] == list(a.registry.leases.all())
    assert all(formatEvent(event).isprintable() and len(formatEvent(event)) < 500 for event in events)
