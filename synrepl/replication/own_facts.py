"""Reads the facts of the daemon's own streams, and names those that may be forged."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from twisted.logger import Logger

from synrepl.storage.log import Log
from synrepl.storage.provenance import NAMED, newest_by_writer, unproven
from synrepl.streams.atomic_appends import MAX_ATOMIC_FACTS, end_of
from synrepl.streams.catalog import ATOMIC_APPENDS
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from synrepl.wire.text import printable

PAGE_FACTS: Final = 1_000

SHOWN: Final = 10
"""The number of facts that a warning names."""


async def read_stream(log: Log, stream: str) -> AsyncIterator[Sequence[Fact]]:
    """Read all facts of a kept stream, in the order of their tokens, page by page. Raises `StorageError`."""
    after, upto, has_more = 0, log.linear_position(stream), True
    while has_more and after < upto:
        facts, has_more = await log.reads.tokens(
            stream=stream, writer=None, after=after, upto=upto, serial=log.head.serial, limit=PAGE_FACTS
        )
        yield facts
        after = facts[-1].token if facts else upto


async def warn_of_unproven(log: Log, logger: Logger, *, primary: str) -> None:
    """Name the facts that no primary may have written. `primary` as in `unproven`. Raises `StorageError`."""
    head = log.head.serial
    marks, _ = await log.reads.facts(
        after=max(0, head - MAX_ATOMIC_FACTS),
        upto=head,
        limit=MAX_ATOMIC_FACTS,
        filter=Filter.of(streams=[ATOMIC_APPENDS.name]),
    )
    if is_open := [mark for mark in marks if end_of(mark) > head]:
        logger.warn(
            "an atomic append that is not whole begins at serial {serial}: a release up to 26.11.0 stored"
            " what somebody published. Readers and replicas wait for {count} facts more",
            serial=is_open[-1].serial,
            count=max(map(end_of, is_open)) - head,
        )
    starts = log.head.epoch_starts
    newest: list[Fact] = []
    for stream in NAMED:
        async for facts in read_stream(log, stream):
            newest = newest_by_writer([*newest, *facts], starts)
    found = unproven(newest, starts, primary=primary)
    if not found:
        return
    logger.warn(
        "the log has facts of {streams} by writers that may never have been primary, stored by a release up"
        " to 26.11.0; the newest of each writer: {facts}. A promotion asks whom to believe (manual:"
        " howto/replicas)",
        streams=" and ".join(sorted({fact.stream for fact in found})),
        facts=", ".join(
            f"serial {fact.serial} of epoch {fact.epoch} by {printable(fact.writer)}"
            for fact in found[-SHOWN:]
        ),
    )
