"""Batches: rows that share a token, reassembled on the receiving side.

On the wire the rows of one fact have the tokens ``batch``, ``batch``, N. The N may never come: real masters
skip a row that is too long for the wire (docs/reference/peers.md#tcp-batches). Unfinished batches must not
grow without bound, nor be joined to the next fact after a reconnect.
"""

from typing import Generic, TypeVar

from synrepl.errors import LocalProtocolError, RemoteProtocolError

T = TypeVar("T")

MAX_PENDING_ROWS = 100_000
MAX_PENDING_BYTES = 64 * 1024 * 1024


def split(rows: int, token: int) -> list[int | None]:
    """Return the tokens to send with a fact of `rows` rows (at least 1): None (``batch``) but for the last.

    >>> split(3, 54)
    [None, None, 54]
    """
    if rows < 1:
        raise LocalProtocolError(f"cannot send a fact of {rows} rows: at least one is needed")
    return [*[None] * (rows - 1), token]


class Batches(Generic[T]):
    """Unfinished facts by stream and writer. The bounds apply to all of them together."""

    def __init__(self, *, max_rows: int = MAX_PENDING_ROWS, max_bytes: int = MAX_PENDING_BYTES) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        # By stream and writer: bare tuples, as one is made for each row.
        self._pending: dict[tuple[str, str], list[T]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self.pending_rows = 0
        """Number of rows in unfinished facts."""
        self.pending_bytes = 0
        """Bytes of rows in unfinished facts."""

    def add(self, stream: str, writer: str, token: int | None, row: T, size: int) -> list[T] | None:
        """Add a row. Returns all rows of its fact once that is complete, else None.

        `token` is None for every row but the last. Beyond the bounds all unfinished facts are dropped, and
        RemoteProtocolError is raised: the caller must end the connection.
        """
        if token is not None:
            if not self._pending:
                return [row]
            key = (stream, writer)
            rows = self._pending.pop(key, None)
            if rows is None:
                return [row]
            self.pending_rows -= len(rows)
            self.pending_bytes -= self._sizes.pop(key)
            rows.append(row)
            return rows
        if self.pending_rows + 1 > self.max_rows or self.pending_bytes + size > self.max_bytes:
            why = (
                f"too many unfinished batch rows ({self.pending_rows + 1} rows, {self.pending_bytes + size}"
                f" bytes; at most {self.max_rows} rows, {self.max_bytes} bytes), the last one of {stream}"
                f" from {writer}"
            )
            self.clear_all()
            raise RemoteProtocolError(why)
        key = (stream, writer)
        self._pending.setdefault(key, []).append(row)
        self._sizes[key] = self._sizes.get(key, 0) + size
        self.pending_rows += 1
        self.pending_bytes += size
        return None

    def clear(self, stream: str, writer: str | None = None) -> None:
        """Drop unfinished facts of a stream, or of one writer: after a POSITION their end never comes."""
        for key in [key for key in self._pending if key[0] == stream and writer in (None, key[1])]:
            self.pending_rows -= len(self._pending.pop(key))
            self.pending_bytes -= self._sizes.pop(key)

    def clear_all(self) -> None:
        """Drop all unfinished facts: after a reconnect their end never comes."""
        self._pending.clear()
        self._sizes.clear()
        self.pending_rows = self.pending_bytes = 0
