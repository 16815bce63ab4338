"""Who a peer is, as far as its connection tells: where it is, and whom its certificate names."""

from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from twisted.internet.address import UNIXAddress

__all__ = ["certified_name", "is_local"]


def is_local(address: Any) -> bool:
    """Whether this is the address of a process on this machine: loopback, or a UNIX socket."""
    return isinstance(address, UNIXAddress) or _is_loopback(str(getattr(address, "host", "")))


@lru_cache(maxsize=1_024)
def _is_loopback(host: str) -> bool:
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def certified_name(transport: Any) -> str | None:
    """The common name of the peer's certificate, which the handshake has verified; None if there is none."""
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    if certificate is None:
        return None
    from synrepl.transports.tls import common_name

    return common_name(certificate)
