"""What is done in the background: counting, comparing names and disk, clearing away, and scrubbing."""

from collections.abc import Callable
from functools import partial
from typing import Final

from synrepl.ports.files import IScrub
from synrepl.replication.files.context import STEP, FilesContext, Wakeup

__all__ = ["FileMaintenance"]

PAGE: Final = 1_000
"""Names, or files, that are looked at in one go."""
HOUR: Final = 3_600.0
PLACE_EVERY: Final = 60
"""Slices of a scrub after which its place is kept."""


class FileMaintenance:
    """Begins with a count and a comparison, then clears away hourly and scrubs, a slice each
    `slice_seconds`, a round each `round_seconds`.

    Files that no name refers to are deleted after `grace_seconds`. `gone` is called with each file that is
    named and was found missing or bad, and with why. Nothing is deleted unless `knows_names`.
    """

    def __init__(
        self,
        desk: FilesContext,
        gone: Callable[[str, str], None],
        knows_names: Callable[[], bool],
        *,
        grace_seconds: float,
        slice_seconds: float,
        round_seconds: float,
    ) -> None:
        self._desk = desk
        self._gone = gone
        self._knows_names = knows_names
        self._grace_seconds = grace_seconds
        self._slice_seconds = slice_seconds
        self._round_seconds = round_seconds
        self._bell = Wakeup(desk.clock)
        self._is_counted = False
        self._scrub: IScrub | None = None
        self._slices = 0
        self._next_round = 0.0
        self._next_clearing = 0.0

    def recount(self) -> None:
        """The names are others than they were: compare again."""
        self._is_counted = False
        self._bell.ring()

    async def step(self) -> None:
        """Do what is due, then wait for what is due next."""
        now = self._desk.clock.seconds()
        if not self._is_counted:
            await self._count()
            await self.compare()
            self._is_counted = True
            self._next_round = now + self._slice_seconds
        elif now >= self._next_clearing:
            await self.clear()
            self._next_clearing = now + HOUR
        elif now >= self._next_round:
            await self._scrub_on(now)
        else:
            await self._bell.rung(min(self._next_clearing, self._next_round) - now)

    async def compare(self) -> None:
        """Find the names whose files are gone."""
        desk = self._desk
        last: str | None = ""
        while last is not None:
            last, gone = await desk.run(partial(self._compare_page, last))
            for sha256 in gone:
                self._gone(sha256, "it is not there any more")

    async def clear(self) -> int:
        """Delete the files that no name has referred to for the time of grace; how many they were."""
        desk = self._desk
        if not self._knows_names():
            return 0
        before_ms = desk.now_ms() - int(self._grace_seconds * 1000)
        count = 0
        while cleared := await desk.run(partial(self._clear_page, before_ms)):
            count += cleared
        if count:
            desk.logger.info("files: deleted {count} that no name refers to any more", count=count)
        return count

    def close(self) -> None:
        """Let go of what is being scrubbed, and keep the place. In the thread."""
        if self._scrub is not None:
            self._scrub.close()
            self._desk.queue.remember("scrub", self._scrub.position)
            self._scrub = None

    async def _count(self) -> None:
        desk = self._desk
        await desk.run(desk.store.count_anew)
        while (stored := await desk.run(desk.store.count)) is not None:
            if stored:
                await desk.run(partial(desk.queue.found, stored, desk.now_ms()))

    def _compare_page(self, after: str) -> tuple[str | None, list[str]]:
        desk = self._desk
        names = desk.queue.names_after(after, PAGE)
        gone = []
        for row in names:
            assert row.sha256 is not None
            if not desk.store.has(row.sha256) and not desk.queue.is_missing(row.sha256):
                desk.queue.lost(row.sha256, desk.now_ms(), fetches=desk.rule != "none")
                gone.append(row.sha256)
        return names[-1].name if len(names) == PAGE else None, gone

    def _clear_page(self, before_ms: int) -> int:
        desk = self._desk
        garbage = desk.queue.garbage(before_ms, PAGE)
        for sha256 in garbage:
            desk.store.remove(sha256)
            desk.queue.removed(sha256)
        return len(garbage)

    async def _scrub_on(self, now: float) -> None:
        desk = self._desk
        if self._scrub is None:
            position = await desk.run(partial(desk.queue.recall, "scrub"))
            self._scrub = desk.store.scrub(position)
        scrub = self._scrub
        self._next_round = now + self._slice_seconds
        bad, is_done = await desk.run(partial(scrub.step, STEP))
        for sha256 in bad:
            self._gone(sha256, "it was damaged on the disk, and is in quarantine now")
        self._slices += 1
        if is_done or self._slices % PLACE_EVERY == 0:
            await desk.run(partial(desk.queue.remember, "scrub", scrub.position))
        if is_done:
            self._next_round = now + self._round_seconds
            await self.compare()
