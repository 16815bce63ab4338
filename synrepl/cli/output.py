"""What goes to standard output: JSON lines, many at a time, and numbers in words."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from synrepl.wire import jsontext

__all__ = ["JsonLines", "OutputClosed"]


class OutputClosed(Exception):
    """Nobody reads our output any more."""


class _OutputStream(Protocol):
    def write(self, data: bytes, /) -> Any: ...

    def flush(self) -> Any: ...


class JsonLines:
    """Gathers lines; `flush` writes them in one go. What `flush` returned from was handed to the system."""

    def __init__(self, stream: _OutputStream | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._waiting: list[bytes] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, line: Mapping[str, Any]) -> None:
        """One object, one line."""
        self._waiting.append(jsontext.dumps(line))

    def flush(self) -> None:
        """Write what was gathered. Raises `OutputClosed` if nobody reads it."""
        if not self._waiting:
            return
        self._waiting.append(b"")
        data, self._waiting = b"\n".join(self._waiting), []
        try:
            self._stream.write(data)
            self._stream.flush()
        except BrokenPipeError:
            # Python flushes standard output once more at the end; let that go nowhere, not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise OutputClosed from None
