"""Writer: one writer of one stream."""

from typing import NamedTuple


class Writer(NamedTuple):
    """The process `name` as a writer of `stream`: positions, gaps and conflicts are those of such a pair.

    It is a tuple of both, which sorts and unpacks. To make one takes ten times as long as a bare tuple, so
    code that handles each fact makes one only where the writer changes.
    """

    stream: str
    name: str
