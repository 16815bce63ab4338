"""Issued keys travel to replicas, and to nobody else; a revocation is never taken back."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from synrepl.base.access import Access, IssuedKey, Keyring, Right
from synrepl.base.key_authority import AllKeysCount
from synrepl.base.key_records import make_record
from synrepl.errors import ConfigError, RemoteProtocolError, StorageError
from synrepl.replicas.issued_keys import MAX_KEYS, IssuedKeys, keys_block, read_keys_block
from synrepl.replicas.wire.blocks import Payload
from synrepl.replicas.wire.native import CAPABILITIES, OWN_CAPABILITIES
from tests.base.test_key_records import OLD, SECRET
from tests.replicas.clusters import FakeCluster
from tests.replicas.nodes import FakeNode
from tests.replicas.wire.block_buffer import BlockBuffer

ALL = (Right.READ, Right.WRITE, Right.REPLICATE, Right.ADMINISTER)
RECORD = {"salt": "0a", "stored_key": "0b" * 32, "server_key": "0c" * 32}
OLD_SECRET = f"laptop.{SECRET}"
VALID = {"name": "a", "rights": ["read"], "streams": ["s"], "record": RECORD, "made_ms": 1}


def add(cluster: FakeCluster, node: FakeNode, name: str, rights: Iterable[Right] = ALL, **more: Any) -> str:
    """Make a key at this node; return it as it is shown."""
    return cluster.done(Deferred.fromCoroutine(node.registry.issued.add(name, rights, **more)))[1]


def revoke(cluster: FakeCluster, node: FakeNode, name: str) -> IssuedKey | None:
    """Revoke a key at this node."""
    return cluster.done(Deferred.fromCoroutine(node.registry.issued.revoke(name)))


def access(node: FakeNode, secret: str) -> Access | None:
    """The rights of a peer that shows this secret."""
    key = node.registry.keys.find(secret.encode())
    return None if key is None else node.registry.keys.access(key)


def three(cluster: FakeCluster) -> tuple[FakeNode, FakeNode, FakeNode]:
    """A primary, a replica and a replica of that, each with an issued key of its own but the first."""
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    b = cluster.node("b", "a", secret=add(cluster, a, "b"))
    c = cluster.node("c", "b", secret=add(cluster, a, "c"))
    cluster.pass_(3)
    return a, b, c


def test_a_key_is_valid_at_replicas_of_replicas() -> None:
    """Its holder joins there, proves itself, and nobody has its secret on disk."""
    cluster = FakeCluster()
    a, b, c = three(cluster)
    limits = {"streams": ["receipts"], "instances": ["w2", "w1", "w1"]}
    secret = add(cluster, a, "laptop", (Right.READ,), **limits)
    cluster.pass_(0.5)

    for node in (a, b, c):
        found = access(node, secret)
        assert found is not None
        assert found.name == "laptop"
        assert found.rights == {Right.READ}
        assert found.streams == frozenset({"receipts"})
        assert found.instances == frozenset({"w1", "w2"})
        assert access(node, f"{secret[:-1]}-") is None
        assert secret.partition(".")[2] not in node.log.notes["keys"]
    cluster.wrote(a, 3)
    cluster.pass_(1)
    assert c.log.head.serial == a.log.head.serial


def test_a_revoked_key_is_refused_everywhere_and_disconnected() -> None:
    """The replica whose key it is, too: at its next connection it is told."""
    cluster = FakeCluster()
    a, b, c = three(cluster)
    secret = add(cluster, a, "laptop")
    cluster.pass_(0.5)
    assert revoke(cluster, a, "laptop") is not None
    cluster.pass_(0.5)
    for node in (a, b, c):
        assert access(node, secret) is None
        assert node.registry.keys.is_required
    assert revoke(cluster, a, "laptop") is None

    assert c.replica is not None
    assert c.replica.state == "live"
    revoke(cluster, a, "c")
    cluster.pass_(3)

    assert "there is no key c at the upstream, or it was revoked" in c.replica.why


def test_a_revocation_holds_after_a_restart_without_the_upstream() -> None:
    cluster = FakeCluster()
    a, b, c = three(cluster)
    secret, other = add(cluster, a, "laptop"), add(cluster, a, "desk")
    cluster.pass_(0.5)
    revoke(cluster, a, "laptop")
    cluster.pass_(0.5)
    for node in (a, b, c):
        node.kill()
    cluster.start(c)
    cluster.pass_(1)

    assert access(c, secret) is None
    assert access(c, other) is not None


def test_a_filtered_replica_knows_all_keys() -> None:
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    secret = add(cluster, a, "b")
    b = cluster.node("b", "a", secret=secret, upstream_streams=frozenset({"receipts"}))
    cluster.pass_(3)

    assert b.replica is not None
    assert b.replica.state == "live"
    assert access(b, secret) is not None


def test_nothing_is_sent_to_a_replica_that_has_the_same_keys() -> None:
    """Nor to one that does not know issued keys."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.wrote(a, 2)
    add(cluster, a, "b")
    sent = {}
    for name, more in (
        ("none", {"capabilities": OWN_CAPABILITIES}),
        ("same", {"capabilities": OWN_CAPABILITIES, "keys": a.registry.issued.digest}),
        ("older", {"capabilities": CAPABILITIES}),
    ):
        raw = cluster.raw("a")
        welcome = raw.greet(cluster, secret="right", uuid=name, **more)
        assert welcome is not None
        raw.subscribe(cluster, welcome)
        cluster.pass_(0.5)
        sent[name] = len(raw.blocks("keys"))

    assert sent == {"none": 1, "same": 0, "older": 0}


def test_a_revocation_that_a_promotion_lost_is_listed_until_it_is_made_again() -> None:
    """The daemon that knows it goes on to refuse the key."""
    cluster, a, b, secret = with_lost_revocation()
    assert list(a.registry.issued.unrevoked) == ["laptop"]
    assert access(a, secret) is None
    revoke(cluster, b, "laptop")
    cluster.pass_(1)
    assert list(a.registry.issued.unrevoked) == []
    assert access(b, secret) is None


def test_a_revocation_that_a_promotion_lost_counts_again_once_who_knows_it_is_primary() -> None:
    """Then nothing is lost any more, and the others are told."""
    cluster, a, b, secret = with_lost_revocation()

    cluster.promote(a)
    cluster.pass_(5)

    assert (a.roles.role, list(a.registry.issued.unrevoked)) == ("primary", [])
    cluster.resync(b)
    cluster.pass_(5)
    assert access(b, secret) is None


def with_lost_revocation() -> tuple[FakeCluster, FakeNode, FakeNode, str]:
    """Return a replica that knows a key to be revoked, the primary that does not, and the secret."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    b = cluster.node("b", "a", secret="right")
    cluster.pass_(3)
    secret = add(cluster, a, "laptop")
    cluster.pass_(0.5)
    b.kill()
    revoke(cluster, a, "laptop")
    a.kill()
    cluster.start(b)
    cluster.promote(b, force=True, lose_acknowledged=True)
    assert access(b, secret) is not None
    cluster.start(a)
    cluster.pass_(5)
    cluster.resync(a)
    cluster.pass_(5)

    assert a.roles.role == "replica", (a.roles.why, a.replica and a.replica.why)
    return cluster, a, b, secret


def test_a_promotion_takes_the_revocations_that_others_know() -> None:
    """Of two replicas the one that has not heard of it is promoted."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    secret = add(cluster, a, "laptop")
    b = cluster.node("b", "a", secret="right")
    c = cluster.node("c", "a", secret="right")
    cluster.pass_(3)
    b.kill()
    revoke(cluster, a, "laptop")
    cluster.pass_(0.5)
    a.kill()
    cluster.start(b)
    cluster.pass_(0.1)
    assert access(b, secret) is not None
    cluster.promote(b, force=True)
    cluster.pass_(3)

    assert access(b, secret) is None
    assert c.registry.issued.digest == b.registry.issued.digest
    assert not c.registry.issued.unrevoked


def test_an_orderly_promotion_waits_for_the_keys() -> None:
    """They are still on their way to the replica, which has all facts."""
    cluster = FakeCluster(delay=lambda: 0.5)
    a = cluster.node("a", secret="right")
    b = cluster.node("b", "a", secret="right")
    cluster.pass_(20)
    secret = add(cluster, a, "laptop")
    cluster.pass_(3)
    revoke(cluster, a, "laptop")
    assert access(b, secret) is not None
    cluster.promote(b)

    assert access(b, secret) is None
    assert b.registry.issued.digest == a.registry.issued.digest


def test_a_revocation_that_the_upstream_never_knew_is_kept() -> None:
    """The key may come again, from the next primary."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    issued = a.registry.issued
    valid = IssuedKey(name="laptop", rights=ALL, record=make_record("x"), made_ms=0)
    for theirs in ([replace(valid, revoked_ms=1)], [], [valid]):
        cluster.done(Deferred.fromCoroutine(issued.take(theirs)))

    assert [one.revoked_ms for one in issued.all] == [1]
    assert list(issued.unrevoked) == ["laptop"]


def test_only_a_primary_makes_and_revokes_keys() -> None:
    cluster = FakeCluster()
    a, b, _ = three(cluster)
    cluster.pass_(0.5)
    for change in (b.registry.issued.add("x", ALL), b.registry.issued.revoke("c")):
        with pytest.raises(StorageError, match="this daemon is a replica"):
            cluster.done(Deferred.fromCoroutine(change))
    assert [one.name for one in a.registry.issued.all] == ["b", "c"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("b", "there is a key b already"), ("", "a key needs a name"), ("two words", "a key needs a name")],
)
def test_a_name_is_one_word_and_taken_once(name: str, why: str) -> None:
    cluster = FakeCluster()
    a, _, _ = three(cluster)

    with pytest.raises(ConfigError, match=why):
        add(cluster, a, name)


@pytest.mark.parametrize("what", ["streams", "instances"])
@pytest.mark.parametrize("names", [[""], ["a", ""], ["a b"], ["a,b"], ["a\n"], ["a" * 256]])
def test_a_key_is_limited_to_names(what: str, names: list[str]) -> None:
    """By the rules of the keys file; a bad one makes no key."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)

    with pytest.raises(ConfigError, match=f"{what} must be names of 1 to 255 printable characters"):
        add(cluster, a, "laptop", ALL, **{what: names})
    assert [] == a.registry.issued.all


def test_a_revoked_name_can_be_given_again() -> None:
    """The secret is another one; what was revoked stays so."""
    cluster = FakeCluster()
    a, _, c = three(cluster)
    before = add(cluster, a, "laptop")
    revoke(cluster, a, "laptop")
    after = add(cluster, a, "laptop")
    cluster.pass_(0.5)

    for node in (a, c):
        assert access(node, before) is None
        assert access(node, after) is not None
    assert not c.registry.issued.unrevoked


def test_a_daemon_without_a_secret_makes_no_key() -> None:
    """It would refuse everybody else from then on."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.pass_(0.1)

    with pytest.raises(ConfigError, match="configure secret_file or keys_file first"):
        add(cluster, a, "laptop")


class Unheard(AllKeysCount):
    """A replica that has not heard from its upstream."""

    def doubt(self) -> str:
        return "this replica has not heard from its upstream for 75 seconds"


def test_a_replica_in_doubt_lets_issued_keys_only_read_and_replicate() -> None:
    """Keys of its own file are not in doubt."""
    keys = Keyring("shared")
    record = make_record("s" * 43)
    keys.replace_issued([IssuedKey(name="laptop", rights=ALL, record=record, made_ms=0)])
    keys.use(Unheard())
    for secret, rights in (("shared", set(ALL)), (f"laptop.{'s' * 43}", {Right.READ, Right.REPLICATE})):
        key = keys.find(secret.encode())
        assert key is not None
        found = keys.access(key)
        assert found.rights == rights
        assert ("for now it may only read and replicate" in found.withheld) is (secret != "shared")


def test_the_first_that_were_revoked_are_forgotten() -> None:
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    many = [
        IssuedKey(name=f"k{at}", rights=ALL, record=make_record(f"{at}"), made_ms=0, revoked_ms=at)
        for at in range(MAX_KEYS)
    ]
    cluster.done(Deferred.fromCoroutine(a.registry.issued.take(many)))
    add(cluster, a, "new")

    names = [one.name for one in a.registry.issued.all]
    assert len(names) == MAX_KEYS
    assert (names[0], names[-1]) == ("k1", "new")


def test_there_are_not_more_than_so_many() -> None:
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    many = [
        IssuedKey(name=f"k{at}", rights=ALL, record=make_record(f"{at}"), made_ms=0) for at in range(MAX_KEYS)
    ]
    cluster.done(Deferred.fromCoroutine(a.registry.issued.take(many)))

    with pytest.raises(ConfigError, match="500 keys are valid already"):
        add(cluster, a, "new")


def test_keys_that_would_not_fit_a_block_are_refused() -> None:
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)

    with pytest.raises(ConfigError, match="too many streams and instances: all together they must fit 4 MiB"):
        add(cluster, a, "laptop", instances=[f"{number:0250}" for number in range(20_000)])


def test_the_block_of_keys_is_read_as_it_was_written() -> None:
    record = make_record("x")
    limits = {"streams": ("s",), "instances": ("w1", "w2")}
    keys = [IssuedKey(name="a", rights=(Right.READ,), record=record, made_ms=1, revoked_ms=2, **limits)]
    (payload,) = BlockBuffer().runs(keys_block(keys))

    assert isinstance(payload, Payload)
    assert read_keys_block(payload.data) == keys
    assert read_keys_block(b"") == []


def test_a_record_from_before_there_were_instances_is_read() -> None:
    """The key may publish under any name, as before."""
    line = msgspec.json.encode(VALID) + b"\n"
    (key,) = read_keys_block(line)
    (payload,) = BlockBuffer().runs(keys_block([key]))

    assert key.instances is None
    assert isinstance(payload, Payload)
    assert line == payload.data


def test_the_digest_covers_the_instances() -> None:
    """A replica whose keys have other ones is sent those of the upstream."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    issued = a.registry.issued
    key = IssuedKey(name="laptop", rights=ALL, record=make_record("x"), made_ms=0)
    digests = []
    for names in (None, ("w1",), ("w2",)):
        cluster.done(Deferred.fromCoroutine(issued.take([replace(key, instances=names)])))
        digests.append(issued.digest)

    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b'{"name":"a","rights":["read"],"record":{"salt":"x","stored_key":"","server_key":""},"made_ms":1}\n',
        msgspec.json.encode(VALID) + b"\n" + msgspec.json.encode({**VALID, "instances": "w1"}) + b"\n",
        b'{"name":"a b","rights":[],"record":{"salt":"","stored_key":"","server_key":""},"made_ms":1}\n',
        b'{"name":"a","rights":[],"record":{"salt":"","stored_key":"","server_key":""},"made_ms":1}\n' * 501,
        b"x" * (8 * 1024 * 1024 + 1),
    ],
)
def test_a_bad_block_of_keys_is_refused(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="key"):
        read_keys_block(line)


def test_keys_are_read_from_the_log_at_the_start() -> None:
    """What a restarted daemon does first."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    secret = add(cluster, a, "laptop")
    keyring = Keyring("right")

    assert [one.name for one in IssuedKeys(a.log, keyring, a.clock, a.registry.tasks).all] == ["laptop"]
    assert keyring.find(secret.encode()) is not None


def take_old(cluster: FakeCluster, node: FakeNode) -> None:
    """Give this node a key as release 26.11 has made it."""
    key = IssuedKey(name="laptop", rights=ALL, record=OLD, made_ms=0)
    cluster.done(Deferred.fromCoroutine(node.registry.issued.take([*node.registry.issued.all, key])))


def records(node: FakeNode) -> list[bool]:
    """Whether the records of its valid keys are of release 26.11."""
    return [one.record.is_old for one in node.registry.issued.all if one.revoked_ms is None]


def test_an_old_record_travels_unchanged_and_is_renewed_at_the_primary() -> None:
    """A replica that is shown the secret renews nothing: it would differ from its upstream."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    take_old(cluster, a)
    b = cluster.node("b", "a", secret="right")
    cluster.pass_(3)
    assert a.registry.issued.all == b.registry.issued.all
    for _ in range(2):
        assert access(b, OLD_SECRET) is not None
        cluster.pass_(0.5)
    assert ([True], [True]) == (records(a), records(b))

    c = cluster.node("c", "a", secret=OLD_SECRET)
    cluster.pass_(3)

    assert ([False], [False], [False]) == (records(a), records(b), records(c))
    assert a.registry.issued.all == b.registry.issued.all == c.registry.issued.all
    assert c.replica is not None
    assert "live" == c.replica.state
    for node in (a, b, c):
        assert access(node, OLD_SECRET) is not None
        assert access(node, f"laptop.{'s' * 43}") is None


def test_a_renewed_key_does_not_come_back_where_it_was_revoked() -> None:
    """It is the same key, whatever its record looks like."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    take_old(cluster, a)
    assert access(a, OLD_SECRET) is not None
    cluster.pass_(0.5)
    renewed = a.registry.issued.all
    assert [False] == records(a)
    revoked = [replace(one, record=OLD, revoked_ms=1) for one in renewed]
    for theirs in (revoked, renewed):
        cluster.done(Deferred.fromCoroutine(a.registry.issued.take(theirs)))

    assert access(a, OLD_SECRET) is None
    assert ["laptop"] == list(a.registry.issued.unrevoked)


def test_a_revoked_key_is_not_renewed() -> None:
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.pass_(0.1)
    take_old(cluster, a)
    revoke(cluster, a, "laptop")
    assert access(a, OLD_SECRET) is None
    cluster.pass_(0.5)

    assert [OLD] == [one.record for one in a.registry.issued.all]
