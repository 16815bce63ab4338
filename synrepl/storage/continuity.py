"""What may come next in a log: the serial after the last one, of the same history; and where writers are."""

from collections.abc import Iterable, Sequence

from synrepl.errors import StorageError
from synrepl.ports.history import EpochStart, LogPosition
from synrepl.streams.digest import verify
from synrepl.streams.facts import Fact

__all__ = ["advance", "check_ascend", "check_follow", "check_turn"]


def check_follow(facts: Sequence[Fact], serial: int, digest: str) -> None:
    """`StorageError` unless these facts are what comes next after that serial with that digest."""
    for expected, fact in enumerate(facts, serial + 1):
        if fact.serial != expected:
            raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {expected - 1}")
    # The rest of them was chained to the first where they were made.
    if verify(facts[:1], digest) is not None:
        raise StorageError(op="commit", why=f"serial {serial} is not the one that these facts follow")


def check_ascend(facts: Sequence[Fact], serial: int, upto: int) -> None:
    """`StorageError` unless the serials of these facts ascend from above `serial` to at most `upto`."""
    last = serial
    for fact in facts:
        if fact.serial <= last:
            raise StorageError(op="commit", why=f"serial {fact.serial} cannot follow {last}")
        last = fact.serial
    if last > upto:
        raise StorageError(op="commit", why=f"serial {last} is beyond {upto}, where the log is to stand")


def check_turn(epoch_start: EpochStart, position: LogPosition) -> None:
    """`StorageError` unless this is the next epoch, and begins where the log stands."""
    if epoch_start.epoch <= position.epoch:
        raise StorageError(
            op="begin_epoch", why=f"epoch {epoch_start.epoch} cannot follow epoch {position.epoch}"
        )
    if (epoch_start.serial, epoch_start.digest) != (position.serial, position.digest):
        raise StorageError(
            op="begin_epoch",
            why=f"it begins after serial {epoch_start.serial}, the log stands at {position.serial}",
        )


def advance(positions: dict[tuple[str, str], int], facts: Iterable[Fact]) -> None:
    """Bring the position of each (stream, writer) up to the highest of its tokens: the last may be late."""
    for fact in facts:
        position = (fact.stream, fact.writer)
        positions[position] = max(fact.token, positions.get(position, fact.token))
