"""The heads of a Redis' replies, checked as they arrive: before a parser makes space for what they claim.

The C parser believes a head. An array of two thousand million items is allocated at once, and a value without
an end is collected up to its end. Both take all memory of the process, for 13 bytes.
"""

import re
from typing import Final

from synrepl.errors import RemoteProtocolError
from synrepl.wire.codec import MAX_MESSAGE

MAX_LINE: Final = 8_192
"""The most bytes of a head, of a number, or of an error."""

MAX_ITEMS: Final = 65_536
"""The most items of a reply, in all its arrays together."""

MAX_DEPTH: Final = 7
"""The most arrays within each other."""

MAX_REPLY: Final = MAX_MESSAGE + 65_536
"""The most bytes of a reply: a message of the largest size, and what belongs to it."""

_END: Final = b"\r\n"
_message: Final = re.compile(rb"\*3\r\n\$7\r\nmessage\r\n\$([0-9]{1,4})\r\n")
_BULK: Final = ord("$")
_BULKS: Final = frozenset(b"$=!")
_ARRAYS: Final = frozenset(b"*~>%")
_ATTRIBUTE: Final = ord("|")


class ReplyHeads:
    """Checks replies in whatever pieces they come. What is no reply at all is left to the parser."""

    def __init__(self) -> None:
        self._head = b""
        """The beginning of a head that is not complete."""
        self._why = ""
        self._skipped = 0
        """The bytes that follow of a value."""
        self._missing: list[int] = []
        """How many items follow of each array that is open, the outermost first."""
        self._size = 0
        """The bytes of the current reply, but for those of its array's heads."""
        self._items = 0
        """The items of the current reply that its arrays have announced."""

    def check(self, data: bytes) -> None:
        """Check what has arrived next. Raises `RemoteProtocolError` for what is larger than it may be.

        After that nothing is taken any more: where the next reply begins is not known.
        """
        if self._why:
            raise RemoteProtocolError(self._why)
        try:
            self._check(data)
        except RemoteProtocolError as refused:
            self._why = refused.why
            raise

    def _check(self, data: bytes) -> None:
        data, self._head = self._head + data, b""
        at, size = self._skipped, len(data)
        while at < size:
            if not self._missing and (found := _message.match(data, at)):
                # Nearly all replies of a subscriber: its three items at once, if they have arrived.
                start = found.end() + int(found[1]) + 2
                end = data.find(_END, start, start + MAX_LINE)
                if end > 0 and data[start] == _BULK and data[start + 1 : end].isdigit() and end - start < 9:
                    at = end + 2 + int(data[start + 1 : end]) + 2
                    continue
            end = data.find(_END, at, at + MAX_LINE)
            if end < 0:
                if size - at >= MAX_LINE:
                    raise RemoteProtocolError(f"a line has more than {MAX_LINE} bytes")
                self._head, self._skipped = data[at:], 0
                return
            kind, number = data[at], data[at + 1 : end]
            if kind == _ATTRIBUTE:
                raise RemoteProtocolError("an attribute came, which only RESP3 has; nobody asked for that")
            at = end + 2
            if kind in _ARRAYS and number.isdigit():
                self._open(int(number[:20]) * (2 if kind == ord("%") else 1))
                continue
            length = len(number)
            if kind in _BULKS and number.isdigit():
                length = int(number[:20])
                at += length + 2
            self._count(length)
        self._skipped = at - size

    def _open(self, items: int) -> None:
        self._items += items
        if self._items > MAX_ITEMS:
            raise RemoteProtocolError(f"a reply has {self._items} items; at most {MAX_ITEMS} are taken")
        if len(self._missing) >= MAX_DEPTH:
            raise RemoteProtocolError(f"arrays are more than {MAX_DEPTH} deep")
        if items:
            self._missing.append(items)
        else:
            self._count(0)

    def _count(self, length: int) -> None:
        """Count an item that is no array, and the arrays that end with it."""
        self._size += length
        if self._size > MAX_REPLY:
            raise RemoteProtocolError(f"a reply has more than {MAX_REPLY} bytes")
        missing = self._missing
        while missing:
            missing[-1] -= 1
            if missing[-1]:
                return
            missing.pop()
        self._size = self._items = 0
