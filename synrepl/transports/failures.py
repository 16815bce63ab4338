"""Failures of connections in words for operators."""

import os
from typing import Any

from twisted.internet import error
from twisted.internet.address import HostnameAddress
from twisted.python.failure import Failure

from synrepl.wire.text import printable

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
        case error.TimeoutError() | error.TCPTimedOutError() | error.ConnectingCancelledError():
            return "no answer"
        case error.ConnectionDone():
            return PEER_CLOSED
        case error.ConnectError(osError=int(number)):
            return os.strerror(number)
        case error.ConnectionLost(args=()):
            return "the connection was lost"
    return " ".join(failure.getErrorMessage().split())[:MAX_LENGTH] or type(failure.value).__name__


def root_cause(error: BaseException | None) -> BaseException | None:
    """Return the error that Twisted has wrapped in lists of reasons."""
    while (reasons := getattr(error, "reasons", None)) and isinstance(reasons[0], Failure):
        error = reasons[0].value
    return error


def describe_error(error: BaseException | None) -> str:
    """Return why a request, or its response, failed, in a few printable words."""
    return printable(describe_failure(Failure(root_cause(error))), limit=1_000)
