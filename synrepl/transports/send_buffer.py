"""The send buffer of a Twisted transport, which has no public attributes for it."""

from typing import Any

from twisted.internet.interfaces import ISSLTransport


def unsent_bytes(transport: Any) -> int:
    """Return the bytes that wait in the send buffer."""
    held = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return int(held + getattr(transport, "_tempDataLen", 0))


def direct_transport(transport: Any) -> Any:
    """Return the transport of a plain socket, for `write_now`; None for TLS and for others."""
    inner = getattr(transport, "transport", transport)  # a factory that limits connections wraps it
    is_plain = not ISSLTransport.providedBy(transport) and not ISSLTransport.providedBy(inner)
    return inner if is_plain and hasattr(inner, "writeSomeData") else None


def write_now(transport: Any, data: bytes) -> None:
    """Write to a socket at once, if nothing waits before this; what does not fit goes into the send buffer.

    `transport.write` waits for the reactor's next turn, and asks the system twice more about the socket: for
    a message to many connections that takes longer than the sending.
    """
    if not unsent_bytes(transport) and transport.connected and not transport.disconnecting:
        sent = transport.writeSomeData(data)
        if isinstance(sent, int):  # or an error, which the next write finds as well
            data = data[sent:]
    if data:
        transport.write(data)
