"""Push: the mode of servers before 1.13, which push what a follower missed."""

from collections.abc import Sequence

from synrepl.replication.follower.mode import Judgement, Mode, StreamHistory, Verdict
from synrepl.replication.follower.order import Order
from synrepl.replication.follower.updates import RawFact
from synrepl.wire.commands import Position

__all__ = ["Push", "PushBacklog"]


class PushBacklog:
    """Joins pushed rows to facts: old masters mark the rows of one fact only by their equal token.

    The backlog ends with `close`, at the first POSITION.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._last: RawFact | None = None

    def add(self, writer: str, token: int, rows: list[bytes]) -> list[RawFact]:
        """Add rows. Returns the facts that they show to be complete."""
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


class Push(Mode):
    """A server before 1.13: it pushes the missed facts, and ends them with a POSITION."""

    pushes = True

    def __init__(self, history: StreamHistory, order: Order) -> None:
        super().__init__(history, order, collects_rows=True)
        self._backlog = PushBacklog()
        self._start = dict(history.positions.tokens)
        if not order.is_exact:
            # A token says nothing about earlier facts until POSITION ends the push.
            history.positions.hold_back()

    @property
    def in_backlog(self) -> bool:
        """Whether the server still pushes what it had before this connection."""
        return self._backlog.is_open

    def collect(self, writer: str, token: int, rows: list[bytes]) -> Sequence[RawFact]:
        """Join pushed rows to facts."""
        return self._backlog.add(writer, token, rows)

    def flush(self, writer: str) -> Sequence[RawFact]:
        """End the backlog. From now on the rows of one fact are marked."""
        self.collects_rows = False
        return self._backlog.close()

    def accepts_writer(self, writer: str) -> bool:
        """Always: a push has no POSITION before its rows."""
        self.ready.add(writer)
        return True

    def announce(self, writer: str) -> bool:
        """Returns whether the POSITION ends the backlog."""
        return self._backlog.is_open

    def judge(self, command: Position, *, is_first: bool) -> Judgement:
        """What the POSITION that ends a push shows (`is_first`), or a later one."""
        writer, token = command.instance, command.token
        known = self._positions.tokens.get(writer, token)
        # Only the end of a push certifies. A later POSITION ahead of its rows says nothing about them.
        is_certain = self._is_certain(command, is_first=is_first) and (
            token == known or (is_first and known < token)
        )
        return Judgement(
            Verdict.CERTAIN if is_certain else Verdict.UNCERTAIN,
            token,
            is_rewound=is_first and token < self._start.get(writer, token),
            void_after=token if token < known else None,
        )
