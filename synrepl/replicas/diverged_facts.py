"""Diverged facts: facts that only this copy has, saved to a file before another history replaces them."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from synrepl.base.interfaces import IThread
from synrepl.storage.private_files import create_private, map_path_errors, sync_directory
from synrepl.streams.facts import Fact, encode_facts

T = TypeVar("T")


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
