"""Limits of what a server that answers as Redis can make this process hold."""

import re
from typing import Final

MAX_PARTS: Final = 9_999
"""The most parts of a reply. Messages have three. The parser allocates as many as a reply announces, before
any of them has arrived.
"""

MAX_REPLY: Final = 128 * 1024 * 1024
"""The most bytes of a reply, and of what arrived with it: twice the largest message of a channel."""

# No reply of ours has such a line but as the head of an array or map: a message is one line of text.
_LARGE: Final = re.compile(rb"(?:^|\n)[*%~>|]0*[0-9]{5,}")
_TAIL: Final = 64
"""The bytes of a read in which a head may begin that ends in the next one."""


class ReplyLimits:
    """Checks received bytes before the parser gets them."""

    def __init__(self) -> None:
        self._held = 0
        self._tail = b"\n"

    def refusal(self, data: bytes) -> str:
        """Return why these bytes must not be parsed; empty if they may be."""
        text = self._tail + data
        self._tail = text[-_TAIL:]
        if _LARGE.search(text):
            return f"it announces a reply of more than {MAX_PARTS:,} parts"
        self._held += len(data)
        if self._held > MAX_REPLY:
            return f"a reply has more than {MAX_REPLY // 1024**2} MiB"
        return ""

    def completed(self) -> None:
        """Note that a reply is complete."""
        self._held = 0
