"""What a peer may call itself: the one rule for names, uuids and addresses of readers and replicas."""

from typing import Final

__all__ = ["MAX_ADDRESS", "MAX_NAME", "MAX_UUID", "identity_error", "is_address", "is_name", "is_uuid"]

MAX_NAME: Final = 255
MAX_UUID: Final = 100
MAX_ADDRESS: Final = 1_000
"""All three in characters."""

_UUID: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")


def is_name(name: str) -> bool:
    """Whether a reader, a replica or a writer may be called so."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and " " not in name


def is_uuid(uuid: str) -> bool:
    """Whether this can be the uuid of a replica."""
    return 0 < len(uuid) <= MAX_UUID and set(uuid) <= _UUID


def is_address(address: str) -> bool:
    """Whether this can be the address of a daemon; the empty one stands for an unknown address."""
    return len(address) <= MAX_ADDRESS and address.isprintable()


def identity_error(uuid: str, name: str, address: str = "") -> str:
    """Why a peer cannot be known by these, for people; empty if it can. An empty name stands for the uuid."""
    if not is_uuid(uuid):
        return f"a uuid is one word of 1 to {MAX_UUID} letters, digits and -_.:"
    if name and not is_name(name):
        return f"a name is one word of up to {MAX_NAME} printable characters"
    if not is_address(address):
        return f"an address has up to {MAX_ADDRESS} printable characters"
    return ""
