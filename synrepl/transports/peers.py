"""Where a peer is: on this machine, or on another one."""

from ipaddress import ip_address
from typing import Any

from twisted.internet.address import UNIXAddress

__all__ = ["is_local"]


def is_local(address: Any) -> bool:
    """Whether this is the address of a process on this machine: loopback, or a UNIX socket."""
    if isinstance(address, UNIXAddress):
        return True
    try:
        found = ip_address(str(getattr(address, "host", "")).partition("%")[0])
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
