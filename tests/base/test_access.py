"""A keyring: configured secrets, and issued keys beside them."""

import msgspec
import pytest
from msgspec.structs import replace

from synrepl.base.access import (
    ALL_RIGHTS,
    UNSURE_RIGHTS,
    IssuedKey,
    Key,
    Keyring,
    Right,
    access_of,
    names_error,
)
from synrepl.base.key_authority import AllKeysCount
from synrepl.base.key_records import make_record

SECRET = "s" * 43
READER = IssuedKey(name="reader", rights=(Right.READ,), record=make_record(SECRET), made_ms=0)


@pytest.mark.parametrize(
    ("names", "is_valid"),
    [
        ([], True),
        (["w1"], True),
        (["persister1", "w" * 255, "\u00e9", "-"], True),
        ([""], False),
        (["w1", ""], False),
        (["w" * 256], False),
        (["w 1"], False),
        ([" w1"], False),
        (["w1\n"], False),
        (["w\x001"], False),
        (["w1,w2"], False),
    ],
)
def test_a_key_is_limited_to_names_that_the_keys_file_can_hold(names: list[str], is_valid: bool) -> None:
    """None of them is quoted: in the file it may be a secret."""
    why = "instances must be names of 1 to 255 printable characters, without spaces and commas"

    assert ("" if is_valid else why) == names_error(names, "instances")


@pytest.mark.parametrize("names", [None, ("w1",), ("w1", "w2"), ()])
def test_an_issued_key_keeps_its_instances(names: tuple[str, ...] | None) -> None:
    """In the note, on the way to a replica, and for whoever proves it."""
    stored = msgspec.json.decode(msgspec.json.encode(replace(READER, instances=names)), type=IssuedKey)
    keys = Keyring()
    keys.replace_issued([stored])
    key = keys.find(f"reader.{SECRET}".encode())

    assert names == stored.instances
    assert key is not None
    assert (None if names is None else frozenset(names)) == keys.access(key).instances


def test_an_issued_key_without_instances_is_stored_as_before_there_were_any() -> None:
    """Its digest stays the same, and an older record is read."""
    stored = msgspec.json.encode(READER)

    assert b"instances" not in stored
    assert READER == msgspec.json.decode(stored, type=IssuedKey)


def test_a_daemon_whose_last_issued_key_is_revoked_is_not_open_to_everybody() -> None:
    keys = Keyring()
    assert not keys.is_required
    keys.replace_issued([READER])
    assert keys.is_required
    keys.replace_issued([replace(READER, revoked_ms=1)])

    assert keys.is_required
    assert not keys.is_configured
    assert keys.find(f"reader.{SECRET}".encode()) is None


class InDoubt(AllKeysCount):
    """A replica that has not heard from its upstream."""

    def doubt(self) -> str:
        return "in doubt"


@pytest.mark.parametrize(
    ("rights", "what_it_may"),
    [
        (set(Right), "only read and replicate"),
        ({Right.READ, Right.WRITE}, "only read"),
        ({Right.REPLICATE, Right.ADMINISTER}, "only replicate"),
        ({Right.WRITE}, "do nothing"),
    ],
)
def test_in_doubt_a_key_is_told_which_of_its_rights_are_left(rights: set[Right], what_it_may: str) -> None:
    access = access_of(Key(name="x", rights=frozenset(rights), issued="1"), "in doubt")

    assert access.rights == rights & UNSURE_RIGHTS
    assert (
        access.withheld
        == f"in doubt, and the key x may have been revoked meanwhile: for now it may {what_it_may}"
    )


def test_a_key_of_the_file_goes_before_an_issued_one_of_its_name() -> None:
    keys = Keyring(None, [Key(name="reader", secret="of the file")])
    keys.replace_issued([READER])

    assert keys.find(f"reader.{SECRET}".encode()) is None
    assert keys.find(b"of the file") == keys.named("reader")
    assert not keys.knows_issued("reader")


def test_a_daemon_takes_its_own_issued_key_as_its_secret() -> None:
    """Also in doubt: its operator promotes it with that."""
    keys = Keyring(f"reader.{SECRET}")
    keys.replace_issued([READER])
    keys.use(InDoubt())
    key = keys.find(f"reader.{SECRET}".encode())

    assert key is not None
    assert keys.access(key).rights == ALL_RIGHTS


def test_a_key_is_valid_as_long_as_it_has_the_same_rights() -> None:
    """What a replica or a client was admitted by; a renewed record changes nothing."""
    paris = Key(name="paris", secret="of paris")
    keys = Keyring("shared", [paris])
    keys.replace_issued([READER])
    held = [keys.find(one) for one in (b"shared", b"of paris", f"reader.{SECRET}".encode())]
    assert [True] * 3 == [key is not None and keys.is_valid(key) for key in held]
    renewed = replace(READER, record=make_record(SECRET, salt=READER.record.id))
    keys.replace_issued([renewed])
    assert [True] * 3 == [key is not None and keys.is_valid(key) for key in held]

    keys.replace_issued([replace(READER, rights=(Right.READ, Right.WRITE))])
    keys.replace(Keyring("other", [replace(paris, rights=frozenset({Right.READ}))]))

    assert [False] * 3 == [key is not None and keys.is_valid(key) for key in held]


def test_reloaded_settings_leave_issued_keys_as_they_are() -> None:
    keys = Keyring("shared")
    keys.replace_issued([READER])
    keys.replace(Keyring("other"))

    assert keys.find(f"reader.{SECRET}".encode()) is not None
    assert keys.find(b"shared") is None
