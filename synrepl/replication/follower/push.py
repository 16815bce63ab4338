"""PushBacklog: the facts that a server pushes before it announces a position."""

from synrepl.replication.follower.updates import RawFact

__all__ = ["PushBacklog"]


class PushBacklog:
    """Joins pushed rows to facts: old masters mark the rows of one fact only by their equal token.

    The backlog ends with `close`, at the first POSITION. From then on facts are marked as usual.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._last: RawFact | None = None

    def add(self, writer: str, token: int, rows: list[bytes]) -> list[RawFact]:
        """Add rows. Returns the facts that they show to be complete."""
        if not self.is_open:
            return [(writer, token, rows)]
        last = self._last
        if last is not None and last[:2] == (writer, token):
            last[2].extend(rows)
            return []
        self._last = (writer, token, rows)
        return [] if last is None else [last]

    def close(self) -> list[RawFact]:
        """End the backlog, and return its last fact."""
        last, self._last, self.is_open = self._last, None, False
        return [] if last is None else [last]
