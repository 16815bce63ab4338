"""Packed keys: keys of several arguments sent as one string, so that one row can have many."""

from typing import Final

import msgspec

from synrepl.streams import jsontext

__all__ = ["PACKED", "pack", "unpack"]

# A row of these caches is a list of packed keys (docs/reference/peers.md#caches). A row of any other cache is
# one key, argument by argument.
PACKED: Final = ("_get_e2e_cross_signing_signatures_for_device", "_get_server_keys_json")

_read: Final = msgspec.json.Decoder(tuple[str, ...])


def pack(key: tuple[str, ...]) -> str:
    """Pack a key into one string, with the spaces of real writers."""
    return jsontext.dumps(key, spaced=True).decode("ascii")


def unpack(text: str) -> tuple[str, ...]:
    """Unpack a key. Raises ValueError if the text is not a list of strings."""
    try:
        return _read.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(f"{text!r} is not a list of strings: {error}") from error
