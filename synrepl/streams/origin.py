"""Origin: the ways in which facts come into a log, and which of them a stream takes.

A stream that the daemon reads as its own state is written by the daemon that is primary, and reaches its
replicas by replication alone. The way in decides, not the writer's name: anybody can say a name, and the
facts of an earlier primary, under its own name, still count after a promotion. Whatever stores facts asks
`catalog.takes` first; replication, which copies what the primary has, does not ask.
"""

from enum import IntEnum


class Origin(IntEnum):
    """A way in, each trusted more than the one before.

    A stream declares the least trusted one that it takes facts from (`Stream.origin`).
    """

    SOURCE = 0
    """A channel (Redis or the RESP port), a followed server, or a table."""
    APPEND = 1
    """An append, over HTTP or forwarded by a replica."""
    DAEMON = 2
    """The code of the daemon itself."""
