"""The bounds of a log: stored positions that cannot be derived from its facts."""

from collections.abc import Iterable

import msgspec

from synrepl.ports.history import BEGINNING, LogPosition

__all__ = ["LogBounds", "load_bounds"]


class LogBounds(msgspec.Struct, frozen=True):
    """`trimmed_upto` is the end of the trimmed part, `filled` the end of the part with gaps.

    Facts up to serial `indexed` are in the index of keys or deleted; trimming continues there. That is
    before `trimmed_upto` while a base copied from another log is being indexed.
    """

    trimmed_upto: LogPosition = BEGINNING
    filled: LogPosition = BEGINNING
    indexed: int = 0

    @property
    def floor(self) -> LogPosition:
        """The later of the two positions: beyond it no fact is missing."""
        return self.trimmed_upto if self.trimmed_upto.serial > self.filled.serial else self.filled

    def rows(self) -> list[tuple[str, int, int, str]]:
        """The rows of the table `places`: name, epoch, serial and digest of each."""
        return [
            ("begin", self.trimmed_upto.epoch, self.trimmed_upto.serial, self.trimmed_upto.digest),
            ("filled", self.filled.epoch, self.filled.serial, self.filled.digest),
            ("indexed", 0, self.indexed, ""),
        ]


def load_bounds(rows: Iterable[tuple[str, int, int, str]]) -> LogBounds:
    """Read the rows that `LogBounds.rows` gave."""
    by_name = {name: LogPosition(epoch, serial, digest) for name, epoch, serial, digest in rows}
    return LogBounds(
        trimmed_upto=by_name.get("begin", BEGINNING),
        filled=by_name.get("filled", BEGINNING),
        indexed=by_name["indexed"].serial if "indexed" in by_name else 0,
    )
