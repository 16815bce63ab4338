"""The places that a log keeps beside its facts, since no fact tells them."""

from collections.abc import Iterable

import msgspec

from synrepl.ports.history import BEGINNING, LogPosition

__all__ = ["WriterPositions", "load_places"]


class WriterPositions(msgspec.Struct, frozen=True):
    """Up to `begin` the log was trimmed. At `filled` it stood when something was last left out of it.

    The facts up to `indexed` are known to be the newest of their keys, or gone: that is where trimming goes
    on. It is behind `begin` where the trimmed facts came from another log.
    """

    trimmed_upto: LogPosition = BEGINNING
    filled: LogPosition = BEGINNING
    indexed: int = 0

    @property
    def floor(self) -> LogPosition:
        """The later of the two: beyond it no fact is missing."""
        return self.trimmed_upto if self.trimmed_upto.serial > self.filled.serial else self.filled

    def rows(self) -> list[tuple[str, int, int, str]]:
        """As they are kept: name, epoch, serial and digest of each."""
        return [
            ("begin", self.trimmed_upto.epoch, self.trimmed_upto.serial, self.trimmed_upto.digest),
            ("filled", self.filled.epoch, self.filled.serial, self.filled.digest),
            ("indexed", 0, self.indexed, ""),
        ]


def load_places(rows: Iterable[tuple[str, int, int, str]]) -> WriterPositions:
    """What `WriterPositions.rows` gave."""
    by_name = {name: LogPosition(epoch, serial, digest) for name, epoch, serial, digest in rows}
    return WriterPositions(
        trimmed_upto=by_name.get("begin", BEGINNING),
        filled=by_name.get("filled", BEGINNING),
        indexed=by_name["indexed"].serial if "indexed" in by_name else 0,
    )
