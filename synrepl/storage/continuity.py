"""Checks that facts and epochs continue a log, and the positions they lead to."""

from collections.abc import Iterable, Sequence

from synrepl.errors import StorageError
from synrepl.ports.history import EpochStart, LogPosition
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["advance", "check_ascend", "check_follow", "check_epoch_start"]


def check_follow(facts: Sequence[Fact], serial: int, digest: str) -> None:
    """Raise `StorageError` unless these facts continue a log that ends at this serial and digest."""
    for expected, fact in enumerate(facts, serial + 1):
        if fact.serial != expected:
            raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {expected - 1}")
    # The digests of the rest were chained to the first when they were made.
    if verify(facts[:1], digest) is not None:
        raise StorageError(op="commit", why=f"these facts do not follow serial {serial}")


def check_ascend(facts: Sequence[Fact], serial: int, upto: int) -> None:
    """Raise `StorageError` unless the serials of these facts ascend from above `serial` to at most `upto`."""
    last = serial
    for fact in facts:
        if fact.serial <= last:
            raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {last}")
        last = fact.serial
    if last > upto:
        raise StorageError(op="commit", why=f"serial {last} is beyond {upto}, the new end of the log")


def check_epoch_start(epoch_start: EpochStart, position: LogPosition) -> None:
    """Raise `StorageError` unless this epoch is above the current one and starts at the end of the log."""
    if epoch_start.epoch <= position.epoch:
        raise StorageError(
            op="begin_epoch", why=f"epoch {epoch_start.epoch} cannot follow epoch {position.epoch}"
        )
    if (epoch_start.serial, epoch_start.digest) != (position.serial, position.digest):
        raise StorageError(
            op="begin_epoch",
            why=f"it starts after serial {epoch_start.serial}, the log ends at {position.serial}",
        )


def advance(positions: dict[tuple[str, str], int], facts: Iterable[Fact]) -> None:
    """Raise the position of each (stream, writer) to the highest of its tokens: the last fact may be late."""
    for fact in facts:
        pair = (fact.stream, fact.writer)
        positions[pair] = max(fact.token, positions.get(pair, fact.token))
