"""Writes to a Twisted transport at once, and its send buffer, for which it has no public attributes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.interfaces import ISSLTransport


def unsent_bytes(transport: Any) -> int:
    """Return the bytes that wait in the send buffer."""
    held = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return int(held + getattr(transport, "_tempDataLen", 0))


def immediate_write(transport: Any) -> Callable[[bytes], object]:
    """Return the function that writes to this transport: `write_now` for a plain socket, else its `write`.

    The `write` of a socket waits for the reactor's next turn, and makes two more calls of the system: for a
    message to many connections that takes three times as long.
    """
    inner = getattr(transport, "transport", transport)  # a factory that limits connections wraps it
    is_plain = not ISSLTransport.providedBy(transport) and not ISSLTransport.providedBy(inner)
    is_socket = is_plain and hasattr(inner, "socket") and hasattr(inner, "dataBuffer")
    return partial(write_now, inner) if is_socket else transport.write


def write_now(transport: Any, data: bytes) -> None:
    """Write to a socket at once, if nothing waits before this; what does not fit goes to the send buffer.

    So does a write that is larger than the buffer: it pauses the producer, so that others have their turn.
    """
    is_first = not transport.dataBuffer and not transport._tempDataLen
    is_small = len(data) <= transport.bufferSize
    if is_first and is_small and transport.connected and not transport.disconnecting:
        try:
            data = data[transport.socket.send(data) :]
        except OSError:
            pass  # There is no space, or the connection is lost, which the reactor's write finds as well.
    if data:
        transport.write(data)
