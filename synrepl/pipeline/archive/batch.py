"""A batch of an archive, as its commit and `END` have it."""

import msgspec

from synrepl.base.history import EpochStart
from synrepl.streams.digest import EMPTY

Clock = dict[str, dict[str, int]]
"""`VClock.to_json`: the last token of each writer of each stream."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, and the state of the archive after it.

    `epoch` and `digest` are those of the last fact, `end` is the clock after it; `epoch_starts` are all epoch
    starts up to `epoch`. Up to `compacted_upto` the archive has only the facts that a trimmed log still had;
    `origin` is the clock at that serial. `version` is that of the table, set on reading.
    """

    first_serial: int
    last_serial: int
    facts: int
    rows: int
    bytes: int
    epoch: int
    digest: str = EMPTY
    end: Clock
    history: str = ""
    server_name: str = ""
    first_at_ms: int = 0
    last_at_ms: int = 0
    archived_at_ms: int = 0
    compacted_upto: int = 0
    origin: Clock = {}
    epoch_starts: list[EpochStart] = []
    version: int = 0

    @property
    def is_compacted(self) -> bool:
        """Whether this is the first batch of a trimmed log, which may lack serials."""
        return self.last_serial <= self.compacted_upto

    def continues(self, epoch: int, serial: int) -> bool:
        """Whether no later epoch began before this serial: the facts between would be those of a fork."""
        return not any(start.epoch > epoch and start.serial < serial for start in self.epoch_starts)
