"""Ports for programs that must get the same one twice."""

import contextlib
import itertools
import random
import socket
from typing import Final

__all__ = ["free_port"]

FIRST: Final = 20_000
LAST: Final = 31_999
"""Not those that systems give to connections going out: such a one may be in use when it comes back."""

BLOCK: Final = 400
"""How many ports a process of tests has for itself."""

_locks: list[socket.socket] = []
"""Held for the life of this process: each says that a block of ports is its own."""


def free_port() -> int:
    """A TCP port that nobody listens on now, and that no other process of tests gets meanwhile.

    Another program may take it before it is used: try another then.
    """
    while True:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _own_block() -> range:
    """Ports that no other process of tests has."""
    blocks = list(range(FIRST, LAST + 1, BLOCK))
    random.shuffle(blocks)
    first = next(filter(_is_locked, blocks), blocks[0])
    return range(first, first + BLOCK)


def _is_locked(first: int) -> bool:
    """Whether the block is now ours. Its name is given back by the system when this process ends."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0synrepl-tests-{first}")
    except OSError:
        lock.close()
        return False
    _locks.append(lock)
    return True


_ports: Final = itertools.cycle(_own_block())
