"""What the tests of the log are told with."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.logger import LogEvent, Logger
from twisted.trial.unittest import SynchronousTestCase

from synrepl.base.history import Appended
from synrepl.errors import StorageError
from synrepl.storage.engine import SQLEngine
from synrepl.storage.log import Log
from synrepl.storage.threads import ImmediateThread
from synrepl.streams.digest import EMPTY, chain
from synrepl.streams.facts import Fact
from synrepl.testing.heap_clock import HeapClock
from synrepl.testing.memory_engine import DelayedThread
from tests.storage.thread_table import ThreadGuard

NOW = 1_700_000_000
"""When every test begins, in seconds."""

DISK_FULL = StorageError(op="commit", why="the disk is full", retryable=True)


def rows(*texts: object) -> bytes:
    """The rows of one fact."""
    return ("[" + ",".join(f'["{text}"]' for text in texts) + "]").encode()


def facts_after(last: Fact | None, *told: tuple[str, str, int, int], epoch: int = 1) -> list[Fact]:
    """Facts that follow `last` as they must, from (stream, writer, prev_token, token) each."""
    serial, digest = (last.serial, last.digest) if last else (0, EMPTY)
    made = []
    for stream, writer, prev_token, token in told:
        serial += 1
        content = rows(f"{stream} {token}")
        digest = chain(
            digest,
            serial=serial,
            epoch=epoch,
            stream=stream,
            writer=writer,
            prev_token=prev_token,
            token=token,
            committed_at_ms=NOW * 1000,
            rows=content,
        )
        made.append(Fact(serial, epoch, stream, writer, prev_token, token, content, NOW * 1000, digest))
    return made


class LogCase(SynchronousTestCase):
    """A test with a log, a fake clock, and a record of what the log told its operator."""

    def setUp(self) -> None:
        self.clock = HeapClock()
        self.clock.advance(NOW)
        self.told: list[LogEvent] = []

    def directory(self) -> Path:
        """An empty directory, gone after the test."""
        made = tempfile.mkdtemp(prefix="synrepl-storage-")
        self.addCleanup(shutil.rmtree, made, ignore_errors=True)
        return Path(made)

    def log(self, engine: SQLEngine, *, delay: Callable[[], float] | None = None, **options: Any) -> Log:
        """A log on one thread for everything: at once, or with a delay on the fake clock.

        Its calls of the engine keep to the table of threads.
        """
        self.thread = ImmediateThread() if delay is None else DelayedThread(self.clock, delay)
        options.setdefault("ephemeral", ["typing"])
        guard = ThreadGuard(self.thread)
        self.addCleanup(lambda: self.assertEqual([], guard.violations))
        return Log(
            guard.engine(engine),
            guard.writing,
            guard.reading,
            self.clock,
            logger=Logger(observer=self.told.append),  # type: ignore[arg-type]
            **options,
        )

    def started(self, engine: SQLEngine, **options: Any) -> Log:
        """As `log`, and started."""
        log = self.log(engine, **options)
        self.wait(log.start())
        return log

    def wait(self, awaitable: Any) -> Any:
        """The result of what is done already, or gets done while ten seconds pass."""
        done = ensureDeferred(awaitable)
        self.clock.pump([0.01] * 1000 if not done.called else [])
        return self.successResultOf(done)

    def append(self, log: Log, stream: str, writer: str, *facts: bytes, key: str | None = None) -> Appended:
        """Append, and what it became."""
        appended: Appended = self.wait(log.append(stream, writer, facts, key=key))
        return appended


def tokens(facts: Sequence[Fact]) -> list[tuple[int, str, str, int, int]]:
    """The places of facts: (serial, stream, writer, prev_token, token)."""
    return [(fact.serial, fact.stream, fact.writer, fact.prev_token, fact.token) for fact in facts]
