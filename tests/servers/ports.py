"""Ports for programs that must get the same one twice."""

import contextlib
import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """A TCP port that nobody listens on now. Another program may take it before it is used: try another then.

    Not one of those that systems give to connections going out: such a one may be in use when it comes back.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
