"""Line buffer: splits received bytes into lines."""

from synrepl.wire.codec import MAX_LENGTH

__all__ = ["LineBuffer"]


class LineBuffer:
    """Splits received bytes into lines at every LF, at any chunk boundaries.

    Buffers at most one unfinished line of at most `MAX_LENGTH` bytes.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        """Return the lines that are now complete, and whether a line that is too long follows.

        After such a line the rest of the input is dropped.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        # Find the long line only if there is one: a chunk has tens of kilobytes.
        if lines and max(map(len, lines)) > MAX_LENGTH:
            first = next(position for position, line in enumerate(lines) if len(line) > MAX_LENGTH)
            self._rest = b""
            return lines[:first], True
        if len(self._rest) > MAX_LENGTH:
            self._rest = b""
            return lines, True
        return lines, False
