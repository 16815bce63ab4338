"""Text from peers: sanitizing for terminals and logs, validation of names, uuids and addresses."""

from typing import Any, Final

from synrepl.errors import RemoteProtocolError

SHOWN: Final = 200
"""The most characters of a peer's text that are shown by default."""

MAX_NAME: Final = 255
MAX_UUID: Final = 100
MAX_ADDRESS: Final = 1_000
"""The most characters in an address; `MAX_NAME` and `MAX_UUID` are those of names and uuids."""

_UUID: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")


def printable(text: str, *, limit: int = SHOWN) -> str:
    """Return `text` in a form that is safe for logs, messages and terminals.

    Escape sequences, line ends, other control characters, marks that change the direction of text and lone
    surrogates are shown as escapes (``\\x1b``). Text longer than `limit` characters ends in ``...``.
    """
    shown = text if len(text) <= limit else text[:limit] + "..."
    if shown.isprintable():
        return shown
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in shown
    )


def printable_values(value: Any) -> Any:
    """Make every string in a JSON value `printable`, member names too, without a length limit."""
    if isinstance(value, str):
        return printable(value, limit=len(value))
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable_values(name): printable_values(member) for name, member in value.items()}
    return value


def is_name(name: str) -> bool:
    """Whether this is a valid name of a reader, a replica or a writer."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and " " not in name


def is_uuid(uuid: str) -> bool:
    """Whether this is a valid uuid of a replica."""
    return 0 < len(uuid) <= MAX_UUID and set(uuid) <= _UUID


def is_address(address: str) -> bool:
    """Whether this is a valid address of a daemon. An empty one means that the address is unknown."""
    return len(address) <= MAX_ADDRESS and address.isprintable()


def check_printable(*texts: str) -> None:
    """Raises `RemoteProtocolError` unless these names and addresses of an upstream pass `is_address`."""
    for text in texts:
        if not is_address(text):
            raise RemoteProtocolError(
                "the upstream sent an invalid name or address: it must have at most"
                f" {MAX_ADDRESS} characters, all printable: {printable(text)}"
            )


def identity_error(uuid: str, name: str, address: str = "") -> str:
    """Explain why this identity is invalid; empty if it is valid. An empty name means the uuid."""
    if not is_uuid(uuid):
        return f"invalid uuid: it must be one word of 1 to {MAX_UUID} letters, digits and -_.:"
    if name and not is_name(name):
        return f"invalid name: it must be one word of up to {MAX_NAME} printable characters"
    if not is_address(address):
        return f"invalid address: it must have at most {MAX_ADDRESS} characters, all printable"
    return ""
