"""Bytes to lines."""

from synrepl.wire.codec import MAX_LENGTH

__all__ = ["LineBuffer"]


class LineBuffer:
    """Cuts what arrives into lines at every LF, however it was parted on the way.

    Holds at most one unfinished line, and that no longer than `MAX_LENGTH`.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        """The lines that are now whole, and whether an over-long one follows (then nothing after it
        counts)."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        # A chunk is tens of kilobytes: look for the long line only where there may be one.
        if lines and max(map(len, lines)) > MAX_LENGTH:
            first = next(position for position, line in enumerate(lines) if len(line) > MAX_LENGTH)
            self._rest = b""
            return lines[:first], True
        if len(self._rest) > MAX_LENGTH:
            self._rest = b""
            return lines, True
        return lines, False
