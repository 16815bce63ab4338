"""Forks: where the log that a follower has followed and this log diverged, in tokens.

A follower knows tokens, not serials. After a promotion it may have facts that the promoted copy never had,
and the new primary may have given their tokens to other facts: only the epochs tell them apart.
"""

from typing import TYPE_CHECKING

from synrepl.streams.writer import Writer
from synrepl.wire.extension import MAX_STARTS, EpochMark

if TYPE_CHECKING:
    from synrepl.storage.log import Log


def epoch_mark(log: "Log") -> EpochMark:
    """Return the epochs of the log."""
    starts = log.head.epoch_starts[-MAX_STARTS:]
    return EpochMark(log.history, tuple((start.epoch, start.serial, start.at_ms) for start in starts))


def is_later(log: "Log", theirs: EpochMark) -> bool:
    """Whether a follower of this epoch has followed a later primary of the same history."""
    return theirs.history == log.history and theirs.epoch > log.head.epoch


def is_behind(log: "Log", theirs: EpochMark) -> bool:
    """Whether a follower of this epoch may have facts that this log lacks: the log began another epoch."""
    return theirs.history == log.history and theirs != epoch_mark(log)


async def tokens_at(log: "Log", serial: int) -> dict[Writer, int]:
    """Return the last token of each stream and writer up to this serial. Raises `StorageError`."""
    found = {}
    for stream, writers in log.positions_by_stream().items():
        if stream in log.ephemeral.names:
            continue
        for writer, position in writers.items():
            found[Writer(stream, writer)] = await _token_at(log, stream, writer, serial, position)
    return found


def fork_serial(log: "Log", theirs: EpochMark) -> int:
    """Return the last serial up to which this log certainly has the facts of the log with these epochs."""
    ours = epoch_mark(log).starts
    common = max((number for number, start in enumerate(ours) if start in theirs.starts), default=-1)
    last = ours[common] if common >= 0 else None
    serials = [log.head.serial]
    for starts in (ours, theirs.starts):
        after = starts.index(last) + 1 if last is not None else 0
        serials += [serial for _, serial, _ in starts[after : after + 1]]
    return min(serials)


async def _token_at(log: "Log", stream: str, writer: str, serial: int, position: int) -> int:
    """Return the writer's token at this serial, by bisection: serials rise with the tokens."""
    if serial >= log.head.serial:
        return position
    low, high, token = 0, position, position
    while low < high:
        middle = (low + high) // 2
        facts, _ = await log.reads.tokens(
            stream=stream, writer=writer, after=middle, upto=high, serial=log.head.serial, limit=1
        )
        if facts and facts[0].serial <= serial:
            low = facts[0].token
            continue
        if facts:
            token = facts[0].prev_token
        high = middle
    return token
