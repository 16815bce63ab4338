"""What the parts of `Files` share: the store and the queue, the thread they are used in, and the time."""

from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from synrepl.errors import ReplicationError
from synrepl.ports.files import IFileQueue, IFileStore
from synrepl.ports.interfaces import IClock, IThread
from synrepl.ports.tasks import Tasks

__all__ = ["STEP", "Wakeup", "FilesContext", "Rule"]

T = TypeVar("T")

Rule = Literal["eager", "lazy", "none"]

STEP: Final = 8 * 1024 * 1024
"""Bytes that are hashed in one go, so that other work for the thread waits some hundredths of a second."""


class Wakeup:
    """Lets one coroutine wait until there is something to do. A ring that nobody waits for is not lost."""

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._has_rung = False
        self._waiter: Deferred[None] | None = None

    def ring(self) -> None:
        """There is something to do."""
        self._has_rung = True
        waiter = self._waiter
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    async def rung(self, seconds: float | None = None) -> None:
        """Returns once it has rung since the last time, or after so many seconds."""
        if not self._has_rung:
            waiter = self._waiter = Deferred()
            timer = None if seconds is None else self._clock.callLater(max(0.0, seconds), self.ring)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None and timer.active():
                    timer.cancel()
        self._has_rung = False


class FilesContext:
    """Runs what blocks in the thread, and remembers what does not work there.

    `rule` says which of the missing files are fetched; ``none`` on a primary. `loops` begin `tasks`, and end
    before them. `troubles` holds, by the part
    that has it, a text and since when it is so.
    """

    def __init__(
        self, store: IFileStore, queue: IFileQueue, thread: IThread, clock: IClock, rule: Rule, logger: Logger
    ) -> None:
        self.store = store
        self.queue = queue
        self.thread = thread
        self.clock = clock
        self.rule: Rule = rule
        self.logger = logger
        self.loops = Tasks(logger, "files")
        self.tasks = Tasks(logger, "files")
        self.troubles: dict[str, tuple[str, float]] = {}

    @property
    def fetches(self) -> bool:
        """Whether all that is missing is fetched without being asked for."""
        return self.rule == "eager"

    def now_ms(self) -> int:
        """The time in milliseconds."""
        return int(self.clock.seconds() * 1000)

    async def run(self, work: Callable[[], T]) -> T:
        """Do this in the thread."""
        return await self.thread.run(work)

    async def obtain(self, work: Callable[[], T], release: Callable[[T], object]) -> T:
        """What `work` gives, which is released if by then nobody wants it any more."""
        got: list[T] = []
        try:
            await self.thread.run(lambda: got.append(work()))
        except CancelledError:
            self.later(lambda: [release(one) for one in got])
            raise
        return got[0]

    def later(self, work: Callable[[], object]) -> None:
        """Do this in the thread, after all that was asked before; nobody waits for it."""
        self.tasks.start(self._later(work), "letting go")

    async def _later(self, work: Callable[[], object]) -> None:
        try:
            await self.thread.run(work)
        except ReplicationError as error:
            self.logger.warn("files: {why}", why=error)

    async def steadily(self, part: str, step: Callable[[], Awaitable[None]]) -> None:
        """Take one step after the other, for ever; when one fails, say so, and try again after a while."""
        delay = 1.0
        while True:
            try:
                await step()
            except CancelledError:
                raise
            except Exception as error:
                text = f"{part}: {error}"
                if self.troubles.get(part, ("",))[0] != text:
                    if isinstance(error, ReplicationError):
                        self.logger.error("files: {why}; tried again from now on", why=text)
                    else:
                        self.logger.failure("files: a fault in {part}", part=part)
                    self.troubles[part] = text, self.clock.seconds()
                await Wakeup(self.clock).rung(delay)
                delay = min(60.0, delay * 2)
            else:
                delay = 1.0
                if self.troubles.pop(part, None):
                    self.logger.info("files: {part} works again", part=part)
