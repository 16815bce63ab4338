"""A keyring: configured secrets, and issued keys beside them."""

from msgspec.structs import replace

from synrepl.ports.access import ALL_RIGHTS, IssuedKey, Key, Keyring, Right
from synrepl.ports.proofs import make_record

SECRET = "s" * 43
READER = IssuedKey(name="reader", rights=(Right.READ,), record=make_record(SECRET), made_ms=0)


def test_a_daemon_whose_last_issued_key_is_revoked_is_not_open_to_everybody() -> None:
    keys = Keyring()
    assert not keys.is_required
    keys.replace_issued([READER])
    assert keys.is_required
    keys.replace_issued([replace(READER, revoked_ms=1)])

    assert keys.is_required
    assert not keys.is_configured
    assert keys.find(f"reader.{SECRET}".encode()) is None


def test_a_key_of_the_file_goes_before_an_issued_one_of_its_name() -> None:
    keys = Keyring(None, [Key(name="reader", secret="of the file")])
    keys.replace_issued([READER])

    assert keys.find(f"reader.{SECRET}".encode()) is None
    assert keys.for_peer("reader", "reader") == keys.named("reader")
    assert keys.salt("reader") == ""


def test_a_daemon_takes_its_own_issued_key_as_its_secret() -> None:
    """Also in doubt: its operator promotes it with that."""
    keys = Keyring(f"reader.{SECRET}")
    keys.replace_issued([READER])
    keys.doubt = lambda: "in doubt"
    key = keys.find(f"reader.{SECRET}".encode())

    assert key is not None
    assert keys.access(key).rights == ALL_RIGHTS


def test_the_issued_key_that_a_replica_names_goes_before_that_of_its_name() -> None:
    """If it is valid."""
    paris = Key(name="paris", secret="of paris")
    keys = Keyring("shared", [paris])
    keys.replace_issued([READER])

    found = keys.for_peer("paris", "reader")
    assert found is not None
    assert found.name == "reader"
    assert keys.for_peer("paris", "unknown") == paris
    assert keys.for_peer("rome", "unknown") == keys.named("")
    assert keys.has_own_key("reader")


def test_reloaded_settings_leave_issued_keys_as_they_are() -> None:
    keys = Keyring("shared")
    keys.replace_issued([READER])
    keys.replace(Keyring("other"))

    assert keys.find(f"reader.{SECRET}".encode()) is not None
    assert keys.find(b"shared") is None
