"""Records of issued keys: of today, and of release 26.11."""

import pytest

from synrepl.base.key_records import KeyRecord, make_record, make_secret, split_issued

SECRET = "kpRm5ft_837irC9yIJ5vTAVnY8KJj02vDlN49DrCSgA"
OLD = KeyRecord(
    salt="540baf3be6b7774ca7b06965aec569c9",
    stored_key="9fb333fbe1144f891f3731456088e8a4bf44c5f9c9f7add79b36dbbc2754e697",
    server_key="d85424967b4909cf6a4eed410b1d4b9e234cb83d793043971eb7b9454752d71f",
)
"""As release 26.11 has made it of this secret."""


@pytest.mark.parametrize("record", [make_record(SECRET), make_record(SECRET, salt=OLD.salt), OLD])
def test_a_record_knows_its_secret_and_no_other(record: KeyRecord) -> None:
    """Its hashes are no secrets, but are not shown either."""
    record.check()
    assert record.is_of(SECRET)
    for other in (make_secret(), SECRET[:-1], f"{SECRET} ", "", record.sha256, record.stored_key):
        assert not record.is_of(other)
    assert repr(record) == "<KeyRecord>"
    assert SECRET not in str(record)


def test_a_renewed_record_is_of_the_same_key() -> None:
    assert make_record(SECRET, salt=OLD.salt).id == OLD.id
    assert make_record(SECRET).id != OLD.id
    assert (OLD.is_old, make_record(SECRET, salt=OLD.salt).is_old) == (True, False)


@pytest.mark.parametrize(
    "record",
    [
        KeyRecord(),
        KeyRecord(sha256="00"),
        KeyRecord(sha256="x" * 64),
        KeyRecord(salt=OLD.salt, stored_key="00", server_key="00"),
        KeyRecord(salt="x", stored_key=OLD.stored_key),
        KeyRecord(salt="", stored_key=OLD.stored_key),
        KeyRecord(sha256="0" * 64, salt="x"),
    ],
)
def test_what_is_no_record_is_refused(record: KeyRecord) -> None:
    with pytest.raises(ValueError, match=r"hexadecimal|needs a"):
        record.check()


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
