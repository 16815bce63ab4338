"""Diverged facts: facts that only this copy has, saved to a file before another history replaces them.

They are the facts after the last serial at which this log and the upstream's are equal (`last_common`).
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

from synrepl.base.interfaces import IThread
from synrepl.storage.log import Log
from synrepl.storage.private_files import create_private, map_path_errors, sync_directory
from synrepl.streams.facts import Fact, encode_facts

if TYPE_CHECKING:
    # Imported for types only: a primary follows no upstream.
    from synrepl.replicas.replica.conversation import IConversation

T = TypeVar("T")

DIGESTS_PER_REQUEST: Final = 64
PAGE_ROWS: Final = 1_000


class DivergedFacts:
    """Files next to the log, named ``<stem>.only-here-<epoch>-<first serial>-<last serial>.ndjson``.

    Each line is a fact in the format of the changelog.
    """

    def __init__(self, stem: Path, thread: IThread) -> None:
        self._stem = stem.absolute()
        self._thread = thread

    async def stop(self) -> None:
        """Stop the thread."""
        await self._thread.stop()

    async def keep(self, pages: AsyncIterator[Sequence[Fact]]) -> Path | None:
        """Write these facts durably. Returns the path; None if there was no fact. Raises `StorageError`."""
        fresh = self._stem.with_name(f"{self._stem.name}.only-here.new")
        file: BinaryIO | None = None
        first: Fact | None = None
        last: Fact | None = None
        try:
            async for facts in pages:
                if not facts:
                    continue
                if file is None:
                    file = await self._run(fresh, partial(create_private, fresh))
                await self._run(fresh, partial(file.write, encode_facts(facts)))
                first, last = first or facts[0], facts[-1]
            if file is None or first is None or last is None:
                return None
            name = f"{self._stem.name}.only-here-{last.epoch}-{first.serial}-{last.serial}.ndjson"
            path = self._stem.with_name(name)
            await self._run(path, partial(_finish, file, fresh, path))
            return path
        finally:
            if file is not None and not file.closed:
                file.close()

    async def _run(self, path: Path, work: Callable[[], T]) -> T:
        hint = "make the directory writable"
        with map_path_errors("save the facts that only this copy has", path, hint):
            return await self._thread.run(work)


def _finish(file: BinaryIO, fresh: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    fresh.replace(path)
    sync_directory(path.parent)


async def last_common(log: Log, conversation: "IConversation") -> int:
    """Return the last serial at which this log and the upstream's are equal; 0 if there is none.

    A serial without a digest on either side (trimmed, or left out by a filter) counts as different: the
    result may be too low, but never too high.
    """
    # The logs are equal up to `low`; at `high` the digest differs or is unknown.
    low, high = 0, min(log.head.serial, conversation.welcome.position.serial) + 1
    while high - low > 1:
        step = max(1, (high - low) // (DIGESTS_PER_REQUEST + 1))
        serials = list(range(low + step, high, step))[:DIGESTS_PER_REQUEST]
        theirs = await conversation.digests(serials)
        for serial in serials:
            ours = await log.reads.digest(serial)
            if ours is not None and ours == theirs.get(serial):
                low = serial
            else:
                high = serial
                break
    return low


KeepFacts = Callable[[AsyncIterator[Sequence[Fact]]], Awaitable[Any]]
"""Writes facts to a file; returns its path, or None without facts."""


async def keep_diverged(log: Log, keep: KeepFacts, conversation: "IConversation") -> tuple[int, Any] | None:
    """Save the facts that only this log has. Returns the first serial and the path; None without any."""
    is_ours = log.history == conversation.welcome.history
    common = await last_common(log, conversation) if is_ours else 0
    path = await keep(facts_after(log, common))
    return None if path is None else (common + 1, path)


async def facts_after(log: Log, serial: int) -> AsyncIterator[Sequence[Fact]]:
    """Yield the facts of this log after a serial, up to its present end, in pages of about 1000 rows."""
    upto = log.head.serial
    while serial < upto:
        facts, serial = await log.reads.facts(after=serial, upto=upto, limit=PAGE_ROWS)
        yield facts
