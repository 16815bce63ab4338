"""The head of a log: where it ends, as far as its commits are known."""

from collections.abc import Iterable

from synrepl.base.interfaces import Head
from synrepl.streams.digest import EMPTY
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition


class LogHead:
    """The end of the log after the last commit of known outcome. Only the log and its committer change it."""

    def __init__(self) -> None:
        self.floor = 0
        """Every token that this log gives is above this one (`token_floor.py`)."""
        self.load(Head(epoch=0, serial=0, digest=EMPTY, boots=0, positions={}, allocated={}))

    def load(self, head: Head) -> None:
        """Take over the engine's head."""
        self.epoch = head.epoch
        self.serial = head.serial
        """The last committed serial."""
        self.digest = head.digest
        """The digest at `serial`."""
        self.receipts_upto = head.serial
        """A serial beyond which no append has a receipt."""
        self.trimmed_upto = head.trimmed_upto
        """The position up to which the log is trimmed."""
        self.epoch_starts = head.epoch_starts
        """The starts of all epochs after the first, in order."""
        self.allocated = dict(head.allocated)
        """The highest token of each kept stream, over all writers."""
        self.positions: dict[str, dict[str, int]] = {}
        """The position of each writer of each kept stream."""
        for (stream, writer), token in head.positions.items():
            self.positions.setdefault(stream, {})[writer] = token

    @property
    def position(self) -> LogPosition:
        """Epoch, serial and digest together."""
        return LogPosition(self.epoch, self.serial, self.digest)

    def move_to(self, position: LogPosition) -> None:
        """Continue from this position, whatever facts lie before it."""
        self.epoch, self.serial, self.digest = position.epoch, position.serial, position.digest

    def advance(self, facts: Iterable[Fact]) -> None:
        """Advance over these committed facts."""
        fact = None
        for fact in facts:
            # A late fact leaves the position alone: its writer is beyond its token already.
            if fact.prev_token < fact.token or not fact.token or fact.is_lost:
                self.positions.setdefault(fact.stream, {})[fact.writer] = fact.token
            if fact.token > self.allocated.get(fact.stream, 0):
                self.allocated[fact.stream] = fact.token
        if fact is not None:
            self.serial = fact.serial
            self.digest = fact.digest
