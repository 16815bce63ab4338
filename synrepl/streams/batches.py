"""Rows that share a token, joined again on the receiving side.

On the wire the rows of one fact come as ``batch``, ``batch``, N. Nobody promises that the N ever comes: a
row too long for the wire is skipped by real masters, and then what was begun must not grow for ever, nor
be joined to the next fact after a reconnect.
"""

from typing import Generic, TypeVar

from synrepl.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["Batches", "split"]

T = TypeVar("T")

MAX_PENDING_ROWS = 100_000
MAX_PENDING_BYTES = 64 * 1024 * 1024


def split(rows: int, token: int) -> list[int | None]:
    """The tokens to send with the rows of one fact: None (``batch``) for all but the last.

    >>> split(3, 54)
    [None, None, 54]
    """
    if rows < 1:
        raise LocalProtocolError("a fact has at least one row")
    return [*[None] * (rows - 1), token]


class Batches(Generic[T]):
    """Facts that have begun to arrive, by stream and writer. Bounded over all of them together."""

    def __init__(self, *, max_rows: int = MAX_PENDING_ROWS, max_bytes: int = MAX_PENDING_BYTES) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._pending: dict[tuple[str, str], list[T]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._rows = 0
        self._bytes = 0

    @property
    def pending_rows(self) -> int:
        """How many rows wait for the end of their fact."""
        return self._rows

    @property
    def pending_bytes(self) -> int:
        """How large these are together."""
        return self._bytes

    def add(self, stream: str, writer: str, token: int | None, row: T, size: int) -> list[T] | None:
        """Takes a row; gives all rows of its fact once that is complete, else None.

        `token` is None for every row but the last. Raises RemoteProtocolError beyond the bounds, and
        forgets everything: the connection is over then.
        """
        if token is not None:
            if not self._pending:
                return [row]
            key = (stream, writer)
            rows = self._pending.pop(key, None)
            if rows is None:
                return [row]
            self._rows -= len(rows)
            self._bytes -= self._sizes.pop(key)
            rows.append(row)
            return rows
        if self._rows + 1 > self.max_rows or self._bytes + size > self.max_bytes:
            why = (
                f"too many unfinished batch rows ({self._rows + 1} rows, {self._bytes + size} bytes; at most"
                f" {self.max_rows} rows, {self.max_bytes} bytes), the last one of {stream} from {writer}"
            )
            self.clear_all()
            raise RemoteProtocolError(why)
        key = (stream, writer)
        self._pending.setdefault(key, []).append(row)
        self._sizes[key] = self._sizes.get(key, 0) + size
        self._rows += 1
        self._bytes += size
        return None

    def clear(self, stream: str, writer: str | None = None) -> None:
        """Forgets what was begun of a stream (of one writer, if given): after a POSITION it never ends."""
        for key in [key for key in self._pending if key[0] == stream and writer in (None, key[1])]:
            self._rows -= len(self._pending.pop(key))
            self._bytes -= self._sizes.pop(key)

    def clear_all(self) -> None:
        """Forgets everything that was begun: after a reconnect none of it ever ends."""
        self._pending.clear()
        self._sizes.clear()
        self._rows = self._bytes = 0
