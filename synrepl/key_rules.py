"""The one rule for keys and secrets of synrepl: where each of them may be sent.

A key travels as with every server, as it is. Whoever reads the connection has it, and so it goes only where
nobody can: over loopback, over a UNIX socket, or over TLS whose certificate was verified. Anywhere else it is
sent only if the operator of the sender said `--insecure`. The module needs nothing but the standard library:
Spark executors ask it too, and get it by value, so that nothing in it is wrapped.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

REMEDY: Final = "use https:// or tls:, or a UNIX socket; --insecure sends the key in the clear"
LOCALHOST: Final = "localhost"


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that this text is; None for a name."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_loopback_ip(host: str) -> bool:
    """Whether this is an IP address of loopback. No name is one: it may resolve to anything."""
    found = ip_of(host)
    return found is not None and (getattr(found, "ipv4_mapped", None) or found).is_loopback


def is_loopback_host(host: str) -> bool:
    """Whether this is an IP address of loopback, or ``localhost``: what that is connected to must be checked
    (`is_loopback_ip`).
    """
    return host.lower() == LOCALHOST or is_loopback_ip(host)


def exposure(where: str, *, is_private: bool, insecure: bool) -> str:
    """Return why no key may be sent to `where`; empty if one may. `is_private`: nobody else can read it."""
    return "" if is_private or insecure else f"no key is sent to {where} in the clear: {REMEDY}"


def localhost_exposure(peer: str, *, insecure: bool) -> str:
    """Return why no key may be sent to this IP address, which ``localhost`` led to; empty if one may."""
    return exposure(f"{LOCALHOST} at {peer}", is_private=is_loopback_ip(peer), insecure=insecure)


def url_exposure(url: str, *, insecure: bool) -> str:
    """Return why no key may be sent in a request for this URL; empty if one may."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_private = parts.scheme == "https" or is_loopback_host(host)
    return exposure(
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", is_private=is_private, insecure=insecure
    )
