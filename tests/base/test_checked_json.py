"""JSON with a checksum of its own: whichever bit flips, it is refused; files of earlier releases are read."""

import msgspec
import pytest

from synrepl.base import checked_json


class Saved(msgspec.Struct, omit_defaults=True):
    """What is in the file."""

    name: str
    counts: dict[str, int] = {}
    why: str = ""


class Later(Saved, kw_only=True):
    """The same of a later release, which has always had checksums."""

    log: dict[str, str] = {}


SAVED = Saved("räuber", {"a": 1}, 'a "quoted" word, {"check":"0"}')


@pytest.mark.parametrize("indent", [0, 1])
@pytest.mark.parametrize("saved", [SAVED, Later(name="n", log={"a": "b"})])
def test_every_flipped_bit_is_refused(saved: Saved, indent: int) -> None:
    """Also those of the checksum, of its name, and of what is around it."""
    data = checked_json.encode(saved, indent=indent)
    assert saved == checked_json.decode(data, type(saved), later=frozenset({"log"}))

    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(ValueError, match=r"."):
            checked_json.decode(bytes(flipped), type(saved), later=frozenset({"log"}))


def test_it_is_json_with_one_more_member() -> None:
    """Others read it, and an indented one is for people."""
    data = checked_json.encode(SAVED, indent=1)

    assert SAVED == msgspec.json.decode(data, type=Saved)
    assert b'{\n "name"' == data[:9]
    assert b'"\n}\n' == data[-4:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"name":"n"}', Saved("n")),
        (b'{"name":"n","counts":{"a":1}}\n', Saved("n", {"a": 1})),
        (b'{"name":"n","chebk":"0"}', "it has no checksum, and the unknown member 'chebk'"),
        (b'{"name":"n","log":{}}', "it has no checksum, and the unknown member 'log'"),
        (b'{"name":1}', "Expected `str`, got `int` - at `$.name`"),
        (b"[]", "Expected `object`, got `array`"),
        (b"\xff", "is malformed"),
    ],
)
def test_a_file_without_a_checksum(data: bytes, expected: Saved | str) -> None:
    """It has what earlier releases wrote, and nothing else."""
    if isinstance(expected, Saved):
        assert expected == checked_json.decode(data, Saved)
    else:
        with pytest.raises(ValueError, match=r"(?s).*") as raised:
            checked_json.decode(data, Later, later=frozenset({"log"}))
        assert expected in str(raised.value)
