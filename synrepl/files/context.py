"""State that the parts of `Files` share: the store, the queue, their thread and the clock."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Literal, ParamSpec, TypeVar

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from synrepl.errors import ReplicationError
from synrepl.files.queue import FileQueue
from synrepl.files.store import FileStore
from synrepl.ports.gate import Gate
from synrepl.ports.interfaces import IClock, IThread
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import Backoff, Timer, doubling, sleep

P = ParamSpec("P")
T = TypeVar("T")

Rule = Literal["eager", "lazy", "none"]

STEP: Final = 8 * 1024 * 1024
"""How many bytes are hashed in one step. This delays other work of the thread some hundredths of a second."""


class Wakeup(Gate):
    """A gate for one coroutine; it closes when the coroutine has passed."""

    def __init__(self, clock: IClock) -> None:
        super().__init__()
        self.close()
        self._timer = Timer(clock, self.open)

    async def wait(self, seconds: float | None = None) -> None:
        """Return once `open` was called since the last wait, or after this many seconds (None: no limit)."""
        if seconds is not None and not self.is_open:
            self._timer.start(max(0.0, seconds))
        try:
            await self.wait_open()
        finally:
            self._timer.stop()
        self.close()


class FilesContext:
    """Runs blocking work in the thread, and background loops, with a record of failing ones.

    `rule` says which missing files are fetched: all (``eager``), the requested ones (``lazy``), or, without
    a source, ``none``. `loops` start `tasks`, and are cancelled before them. `troubles` maps the name of each
    failing loop to its error and when that error began (Unix seconds).
    """

    def __init__(
        self, store: FileStore, queue: FileQueue, thread: IThread, clock: IClock, rule: Rule, logger: Logger
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

    def now_ms(self) -> int:
        """The Unix time in milliseconds."""
        return int(self.clock.seconds() * 1000)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the thread, and return its result."""
        return await self.thread.run(partial(work, *args, **kwargs))

    async def acquire(self, work: Callable[[], T], release: Callable[[T], object]) -> T:
        """Like `run`; but if the caller is cancelled, the result of `work` is passed to `release`."""
        results: list[T] = []
        try:
            await self.thread.run(lambda: results.append(work()))
        except CancelledError:
            self.run_later(lambda: [release(one) for one in results])
            raise
        return results[0]

    def run_later(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `work` in the thread after all earlier work; do not wait for the result. Logs failures."""
        self.tasks.start(self._run_later(partial(work, *args, **kwargs)), "releasing")

    async def _run_later(self, work: Callable[[], object]) -> None:
        try:
            await self.thread.run(work)
        except ReplicationError as error:
            self.logger.warn("files: {why}", why=error)

    async def run_loop(self, part: str, step: Callable[[], Awaitable[None]]) -> None:
        """Run `step` until cancelled. When it fails, log and record the error, and retry with backoff."""
        backoff = Backoff(doubling(1.0, 60.0))
        while True:
            try:
                await step()
            except CancelledError:
                raise
            except Exception as error:
                text = f"{part}: {error}"
                if self.troubles.get(part, ("",))[0] != text:
                    if isinstance(error, ReplicationError):
                        self.logger.error("files: {why}; will retry", why=text)
                    else:
                        self.logger.failure("files: internal error in {part}", part=part)
                    self.troubles[part] = text, self.clock.seconds()
                await sleep(self.clock, backoff.next())
            else:
                backoff.reset()
                if self.troubles.pop(part, None):
                    self.logger.info("files: {part} works again", part=part)
