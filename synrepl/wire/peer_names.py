"""Validation of names, uuids and addresses that readers and replicas give themselves."""

from typing import Final

__all__ = ["MAX_ADDRESS", "MAX_NAME", "MAX_UUID", "identity_error", "is_address", "is_name", "is_uuid"]

MAX_NAME: Final = 255
MAX_UUID: Final = 100
MAX_ADDRESS: Final = 1_000
"""All three in characters."""

_UUID: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")


def is_name(name: str) -> bool:
    """Whether this is a valid name of a reader, a replica or a writer."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and " " not in name


def is_uuid(uuid: str) -> bool:
    """Whether this is a valid uuid of a replica."""
    return 0 < len(uuid) <= MAX_UUID and set(uuid) <= _UUID


def is_address(address: str) -> bool:
    """Whether this is a valid address of a daemon. An empty one means that the address is unknown."""
    return len(address) <= MAX_ADDRESS and address.isprintable()


def identity_error(uuid: str, name: str, address: str = "") -> str:
    """Explain why this identity is invalid; empty if it is valid. An empty name means the uuid."""
    if not is_uuid(uuid):
        return f"a uuid is one word of 1 to {MAX_UUID} letters, digits and -_.:"
    if name and not is_name(name):
        return f"a name is one word of up to {MAX_NAME} printable characters"
    if not is_address(address):
        return f"an address has up to {MAX_ADDRESS} printable characters"
    return ""
