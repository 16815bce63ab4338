"""Maintenance of files in the background: counting, comparing names with the disk, deleting, scrubbing."""

from collections.abc import Callable
from typing import Final

from synrepl.files.context import STEP, FilesContext, Wakeup
from synrepl.files.file_check import Scrub

PAGE: Final = 1_000
"""How many names or files are processed in one step."""
HOUR: Final = 3_600.0
SLICE_SECONDS: Final = 1.0
ROUND_SECONDS: Final = 86_400.0
SAVE_EVERY: Final = 60
"""After how many slices the position of a scrub is saved."""


class FileMaintenance:
    """Counts the files and compares them with the names; then deletes files hourly, and scrubs all in slices.

    A slice is scrubbed each `SLICE_SECONDS`; after a round of all files the next one begins after
    `ROUND_SECONDS`. Files without a name are deleted after `grace_seconds`, if `are_names_known()`. `on_loss`
    gets the checksum of each file that is damaged, or has a name and has gone missing, and the reason.
    """

    def __init__(
        self,
        context: FilesContext,
        on_loss: Callable[[str, str], None],
        are_names_known: Callable[[], bool],
        *,
        grace_seconds: float,
    ) -> None:
        self._context = context
        self._on_loss = on_loss
        self._are_names_known = are_names_known
        self._grace_seconds = grace_seconds
        self._wakeup = Wakeup(context.clock)
        self._is_counted = False
        self._scrub: Scrub | None = None
        self._slices = 0
        self._next_round = 0.0
        self._next_deletion = 0.0

    def recount(self) -> None:
        """Count and compare again: the names have changed."""
        self._is_counted = False
        self._wakeup.open()

    async def step(self) -> None:
        """Do the work that is due, then wait until more is due."""
        now = self._context.clock.seconds()
        if not self._is_counted:
            await self._count()
            await self.compare()
            self._is_counted = True
            self._next_round = now + SLICE_SECONDS
        elif now >= self._next_deletion:
            await self.delete_unreferenced()
            self._next_deletion = now + HOUR
        elif now >= self._next_round:
            await self._scrub_slice(now)
        else:
            await self._wakeup.wait(min(self._next_deletion, self._next_round) - now)

    async def compare(self) -> None:
        """Find files that have a name and have gone missing from the disk, and report them as lost."""
        context = self._context
        last: str | None = ""
        while last is not None:
            last, lost = await context.run(self._compare_page, last)
            for sha256 in lost:
                self._on_loss(sha256, "the file is missing from the disk")

    async def delete_unreferenced(self) -> int:
        """If all names are known, delete files that had none for the grace period. Returns their number.

        Interrupted downloads of files that are not missing any more are deleted too.
        """
        context = self._context
        if not self._are_names_known():
            return 0
        before_ms = context.now_ms() - int(self._grace_seconds * 1000)
        # Interrupted downloads of files whose last name was deleted, or whose bytes came by an upload.
        await context.run(context.store.sweep_downloads, context.queue.is_missing)
        count = 0
        while deleted := await context.run(self._delete_page, before_ms):
            count += deleted
        if count:
            context.logger.info("files: deleted {count} files without a name", count=count)
        return count

    def close(self) -> None:
        """Close the scrub, and save its position. Call in the thread."""
        if self._scrub is not None:
            self._scrub.close()
            self._context.queue.remember("scrub", self._scrub.position)
            self._scrub = None

    async def _count(self) -> None:
        context = self._context
        await context.run(context.store.restart_count)
        while (stored := await context.run(context.store.count)) is not None:
            if stored:
                await context.run(context.queue.mark_stored, stored, context.now_ms())

    def _compare_page(self, after: str) -> tuple[str | None, list[str]]:
        context = self._context
        names = context.queue.references_after(after, PAGE)
        lost = []
        for row in names:
            assert row.sha256 is not None
            if not context.store.has(row.sha256) and not context.queue.is_missing(row.sha256):
                context.queue.mark_lost(row.sha256, context.now_ms(), fetches=context.rule != "none")
                lost.append(row.sha256)
        return names[-1].name if len(names) == PAGE else None, lost

    def _delete_page(self, before_ms: int) -> int:
        context = self._context
        garbage = context.queue.garbage(before_ms, PAGE)
        for sha256 in garbage:
            context.store.remove(sha256)
            context.queue.mark_removed(sha256)
        return len(garbage)

    async def _scrub_slice(self, now: float) -> None:
        context = self._context
        if self._scrub is None:
            position = await context.run(context.queue.recall, "scrub")
            self._scrub = context.store.scrub(position)
        scrub = self._scrub
        self._next_round = now + SLICE_SECONDS
        bad, is_done = await context.run(scrub.step, STEP)
        for sha256 in bad:
            self._on_loss(sha256, "the file was damaged on disk, and is now in quarantine")
        self._slices += 1
        if is_done or self._slices % SAVE_EVERY == 0:
            await context.run(context.queue.remember, "scrub", scrub.position)
        if is_done:
            self._next_round = now + ROUND_SECONDS
            await self.compare()
