"""Proofs of a shared secret, and of an issued key."""

import hmac
from hashlib import pbkdf2_hmac, sha256

import pytest

from synrepl.ports.proofs import (
    HolderProofs,
    IProofs,
    KeyRecord,
    RecordProofs,
    SharedSecret,
    make_record,
    make_secret,
    own_proofs,
    split_issued,
)

SECRET = "s" * 43
RECORD = make_record(SECRET)
PAIRS: list[tuple[IProofs, IProofs]] = [
    (SharedSecret("s"), SharedSecret("s")),
    (HolderProofs(SECRET, RECORD.salt), RecordProofs(RECORD)),
]


@pytest.mark.parametrize(("holder", "daemon"), PAIRS)
def test_each_side_accepts_the_proof_of_the_other(holder: IProofs, daemon: IProofs) -> None:
    """For one purpose, over one text."""
    for ours, theirs in ((holder, daemon), (daemon, holder)):
        shown = ours.prove("label", b"one", b"two")
        assert theirs.is_proof(shown, "label", b"one", b"two")
        assert not theirs.is_proof(shown, "other", b"one", b"two")
        assert not theirs.is_proof(shown, "label", b"one", b"three")
        assert not theirs.is_proof(shown[:-1], "label", b"one", b"two")
        assert not theirs.is_proof(b"", "label", b"one", b"two")
    assert holder.session_key("records", b"one") == daemon.session_key("records", b"one")
    assert holder.session_key("records", b"one") != daemon.session_key("records", b"two")


def test_a_record_is_that_of_rfc_5802() -> None:
    """With SHA-256 and one iteration."""
    salted = pbkdf2_hmac("sha256", SECRET.encode(), bytes.fromhex(RECORD.salt), 1)
    client_key = hmac.digest(salted, b"Client Key", "sha256")

    assert RECORD.stored_key == sha256(client_key).hexdigest()
    assert RECORD.server_key == hmac.digest(salted, b"Server Key", "sha256").hex()


def test_a_proof_of_the_holder_is_that_of_rfc_5802() -> None:
    """ClientProof = ClientKey XOR HMAC(StoredKey, AuthMessage)."""
    salted = pbkdf2_hmac("sha256", SECRET.encode(), bytes.fromhex(RECORD.salt), 1)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(bytes.fromhex(RECORD.stored_key), b"label\nsaid", "sha256")
    expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))

    assert HolderProofs(SECRET, RECORD.salt).prove("label", b"said") == expected


def test_a_record_does_not_prove_the_key() -> None:
    """Nor does the proof of a daemon, sent back."""
    daemon = RecordProofs(RECORD)

    assert not daemon.is_proof(daemon.prove("label", b"said"), "label", b"said")
    assert not HolderProofs(SECRET, RECORD.salt).is_proof(
        HolderProofs(SECRET, RECORD.salt).prove("label", b"said"), "label", b"said"
    )


def test_another_key_proves_nothing() -> None:
    """Also with the same salt."""
    other = HolderProofs(make_secret(), RECORD.salt)

    assert not RecordProofs(RECORD).is_proof(other.prove("label"), "label")
    assert not other.is_proof(RecordProofs(RECORD).prove("label"), "label")


def test_a_record_knows_its_secret() -> None:
    """Two records of a secret differ."""
    assert RECORD.is_of(SECRET)
    assert not RECORD.is_of(make_secret())
    assert make_record(SECRET) != RECORD
    assert SECRET not in repr(RECORD)
    assert RECORD.server_key not in repr(RECORD)
    assert repr(SharedSecret("s")) == "<SharedSecret>"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"laptop.{SECRET}", "laptop"),
        (f"a.b.{SECRET}", "a.b"),
        (f"ü/1.{SECRET}", "ü/1"),
        (SECRET, ""),
        (f".{SECRET}", ""),
        (f"laptop.{SECRET}x", ""),
        (f"laptop.{SECRET[:-1]}", ""),
        ("correct.horse.battery.staple", ""),
        ("", ""),
    ],
)
def test_an_issued_key_is_known_by_its_form(text: str, name: str) -> None:
    assert split_issued(text) == (name, SECRET if name else "")


def test_the_salt_of_the_challenge_says_which_proof_it_takes() -> None:
    issued = f"laptop.{SECRET}"

    assert own_proofs(issued, "") == SharedSecret(issued)
    assert RecordProofs(RECORD).is_proof(own_proofs(issued, RECORD.salt).prove("label"), "label")
    for secret, salt in ((issued, "no hexadecimal"), ("shared", RECORD.salt)):
        with pytest.raises(ValueError, match=r"hexadecimal|not an issued key"):
            own_proofs(secret, salt)


def test_a_record_has_nothing_of_the_secret() -> None:
    assert set(KeyRecord.__struct_fields__) == {"salt", "stored_key", "server_key"}
    assert len({RECORD.salt, RECORD.stored_key, RECORD.server_key}) == 3
