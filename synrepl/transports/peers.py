"""Identity of a peer by its connection: its address, and the name in its certificate."""

from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from twisted.internet.address import UNIXAddress

__all__ = ["certified_name", "is_local"]


def is_local(address: Any) -> bool:
    """Whether this address is on this machine: loopback, or a UNIX socket."""
    return isinstance(address, UNIXAddress) or _is_loopback(str(getattr(address, "host", "")))


@lru_cache(maxsize=1_024)
def _is_loopback(host: str) -> bool:
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def certified_name(transport: Any) -> str | None:
    """The common name of the peer's verified certificate; None without one."""
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    if certificate is None:
        return None
    from synrepl.transports.tls import common_name

    return common_name(certificate)
