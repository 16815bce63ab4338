"""Failures of connections in words for operators."""

import os
from typing import Any

from twisted.internet import error
from twisted.internet.address import HostnameAddress
from twisted.python.failure import Failure

MAX_LENGTH = 300

PEER_CLOSED = "the peer closed the connection"


def address_text(address: Any) -> str:
    """Return an address of Twisted as an operator writes it: host and port, or the path of a socket."""
    host, port = getattr(address, "host", None), getattr(address, "port", None)
    if isinstance(address, HostnameAddress):
        host = address.hostname.decode()
    if host is None:
        name = getattr(address, "name", None)
        return os.fsdecode(name) if name else str(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def describe_failure(failure: Failure) -> str:
    """Return why a connection could not be opened, or was lost, in a few words and on one line."""
    match failure.value:
        case error.ConnectionRefusedError():
            return "connection refused"
        case error.DNSLookupError():
            return "no such host"
        case error.TimeoutError() | error.TCPTimedOutError():
            return "no answer"
        case error.ConnectionDone():
            return PEER_CLOSED
        case error.ConnectError(osError=int(number)):
            return os.strerror(number)
        case error.ConnectionLost(args=()):
            return "the connection was lost"
    return " ".join(failure.getErrorMessage().split())[:MAX_LENGTH] or type(failure.value).__name__
