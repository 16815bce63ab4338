"""Keys of several arguments that travel as one string, so that one row can hold many of them."""

from typing import Final

import msgspec

from synrepl.streams import jsontext

__all__ = ["PACKED", "pack", "unpack"]

# A row of any other cache is one key, argument by argument; of these it is a list of keys.
PACKED: Final = ("_get_e2e_cross_signing_signatures_for_device", "_get_server_keys_json")

_read: Final = msgspec.json.Decoder(tuple[str, ...])


def pack(key: tuple[str, ...]) -> str:
    """The key as one string, spaced as real writers space it."""
    return jsontext.dumps(key, spaced=True).decode("ascii")


def unpack(text: str) -> tuple[str, ...]:
    """The key that was packed. Raises ValueError if this is no list of strings."""
    try:
        return _read.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(f"{text!r} is no list of strings: {error}") from error
