"""Whose a lease is: of the key that made it."""

import pytest

from synrepl.base.access import ALL_RIGHTS, LOCAL, Access, Key, Keyring, Right, access_of
from tests.replicas.clusters import FakeCluster

REPLICATE = frozenset({Right.READ, Right.REPLICATE})
PARIS = Key(name="paris", secret="of paris", rights=REPLICATE)
OSLO = Key(name="oslo", secret="of oslo", rights=REPLICATE)
ADMIN = Key(name="admin", secret="of admin", rights=ALL_RIGHTS)
SHARED = Access(is_proven=True)
LEASE = "lease u belongs to another key: synrepl leases drop u and synrepl leases add u give it to any key"
NAME = "the name paris belongs to another key: set replica_name, or prove the key paris"

CASES: list[tuple[str | None, str, Access, str, str]] = [
    ("oslo", "u", access_of(OSLO), "", ""),
    ("oslo", "u", access_of(PARIS), "", LEASE),
    ("", "u", access_of(PARIS), "", LEASE),
    ("oslo", "u", access_of(ADMIN), "", ""),
    ("oslo", "u", SHARED, "", ""),
    ("oslo", "u", LOCAL, "", ""),
    (None, "u", access_of(PARIS), "", ""),
    ("", "paris", access_of(PARIS), "", ""),
    ("oslo", "u", access_of(OSLO), "paris", NAME),
    ("oslo", "u", access_of(OSLO), "made-up", ""),
    ("paris", "u", access_of(PARIS), "paris", ""),
    ("paris", "u", SHARED, "paris", ""),
]


@pytest.mark.parametrize(("owner", "lease_name", "access", "name", "why"), CASES)
def test_a_lease_is_for_the_key_that_made_it(
    owner: str | None, lease_name: str, access: Access, name: str, why: str
) -> None:
    """Or for the key of its name, if it had none of its own before, and for whoever may administer."""
    cluster = FakeCluster()
    a = cluster.node("a")
    a.registry.keys = Keyring("shared", [PARIS, OSLO, ADMIN])
    a.leases.make("u", lease_name, registered=True, serial=0, key=owner)

    refused = a.registry.owner_refusal("u", access, name=name)

    assert (None if refused is None else (refused.code, refused.message)) == (
        ("no_rights", why) if why else None
    )


def test_a_native_replica_does_not_count_as_present_under_the_uuid_of_another() -> None:
    """It is refused before it has requested anything: its lease would not end, and not be trimmed."""
    cluster = FakeCluster()
    a = cluster.node("a")
    cluster.wrote(a, 3)
    a.registry.keys = Keyring(None, [PARIS, OSLO])
    a.leases.make("u", "paris", registered=True, serial=1, key="paris")
    raw = cluster.raw("a")
    raw.greet(cluster, secret="of oslo", uuid="u", name="oslo")
    cluster.pass_(0.2)

    assert raw.refusal()["message"].startswith(
        "lease paris belongs to another key: synrepl leases drop paris"
    )
    assert a.registry.present() == set()
    lease = a.leases["u"]
    assert lease is not None
    assert (lease.serial, lease.key, lease.name) == (1, "paris", "paris")


def test_a_lease_that_an_operator_has_added_again_is_for_any_key() -> None:
    """The replica may have another key now."""
    cluster = FakeCluster()
    a = cluster.node("a")
    a.leases.make("u", "n", registered=True, serial=0, key="oslo")
    a.leases.drop("u")
    assert a.registry.owner_refusal("u", access_of(PARIS)) is not None
    a.leases.add("u", "n")

    assert a.registry.owner_refusal("u", access_of(PARIS)) is None


def test_a_replicas_lease_has_the_name_of_its_key() -> None:
    """After a restart as well."""
    cluster = FakeCluster()
    a = cluster.node("a", secret="right")
    cluster.node("b", "a", secret="right")
    cluster.wrote(a, 3)
    cluster.pass_(2)
    a.kill()
    cluster.start(a)

    assert [lease.key for lease in a.leases.all()] == [""]
