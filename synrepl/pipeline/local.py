"""LocalDriver: the tasks of a job in threads of this process, without Spark and Java.

What tasks give to each other goes through files, so that memory does not grow with the archive.
"""

import fcntl
import gc
import os
import re
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Full, Queue
from typing import Any, Final, Self

import pyarrow as pa

from synrepl.errors import ConfigError
from synrepl.pipeline.driver import TASK, Work
from synrepl.pipeline.exchange import split
from synrepl.pipeline.store import BadArchive

Partition = Callable[[], Iterable[Any]]
"""Returns the record batches of a partition; called again, the same ones."""

AHEAD: Final = 4
"""The record batches that a task may be ahead of their reader."""

LOOK_SECONDS: Final = 0.1
"""How often a task that waits for its reader looks whether there is one."""

PREFIX: Final = "synrepl-local-"
LOCK: Final = "lock"
"""A file that is locked as long as the process lives that has the folder."""

COLLECTOR_THRESHOLDS: Final = (50_000, 10, 100)
"""Made objects until a collection of the youngest; of those until one of the next; and until one of all."""

TASK_BYTES: Final = 256 << 20
"""What a task needs at most, as a rule."""

UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

FUNCTIONS: Final = {
    "get_json_object(text, path)": "json_extract_string(text, path)",
    # Those of DuckDB leave out nulls.
    "min_by(value, place)": "arg_min_null(value, place)",
    "max_by(value, place)": "arg_max_null(value, place)",
    "regexp_like(text, pattern)": "regexp_matches(text, pattern)",
    "struct(first, second)": "row(first, second)",
    "timestamp_millis(ms)": "make_timestamptz(ms * 1000)",
}
"""The functions of Spark's SQL that the statements of jobs use, for DuckDB."""


def memory_bytes(text: str) -> int:
    """Return the bytes of a size as Spark has it, such as 512m or 4g. Raises `ConfigError`."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise ConfigError(f"the memory must be a size such as 512m or 4g, not {text[:40]!r}")
    return int(found[1]) * UNITS[found[2]]


def prepare_process() -> None:
    """Let the garbage collector run rarely, in a process that only runs jobs.

    It would look again and again through all that imports have made: a tenth of the time of a small job.
    """
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


class LocalDriver:
    """Runs tasks in `threads` threads, until the end of its context.

    By default there is a thread for each core, and fewer in less `memory` (bytes) than `TASK_BYTES` for each.
    The files between tasks are in a new folder in `folder` (default: that of the system for such files). The
    folders that killed processes have left there are removed.
    """

    def __init__(
        self, *, threads: int | None = None, memory: int = 1 << 30, folder: Path | None = None
    ) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._memory = memory
        self._threads = threads or max(1, min(cores, memory // TASK_BYTES))
        _remove_abandoned(Path(folder or tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=folder)
        self._lock = _locked(Path(self._folder.name))
        self._pool = _started_pool(self._threads)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end_tasks()
        self._folder.cleanup()
        os.close(self._lock)

    def end_tasks(self) -> None:
        """Wait for the tasks that have begun; no others begin. If a signal ends the wait, call it again."""
        self._pool.shutdown(cancel_futures=True)

    def remove_files(self) -> None:
        """Remove the files between tasks, even while there are tasks: for a process that ends now."""
        shutil.rmtree(self._folder.name, ignore_errors=True)

    @property
    def parallelism(self) -> int:
        """The number of tasks that keep the cores busy, also while the last ones end."""
        return 2 * self._threads

    def spread(self, rows: Any, count: int) -> "LocalPartitions":
        """Return the rows of a small table in partitions, as `Driver` says."""
        found = dict(split(rows, rows[TASK].to_numpy()))
        some = [found[number].to_batches() if number in found else [] for number in range(count)]
        return LocalPartitions(self, [partial(iter, batches) for batches in some], rows.schema)

    def query(self, statement: str, rows: Any) -> Any:
        """Return the result of a SQL statement, as `Driver` says. What memory cannot hold goes to files."""
        # An extra: only some jobs have statements.
        import duckdb

        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": self._threads,
            # The tasks that read for it, and what it takes beside its limit, need the rest.
            "memory_limit": f"{self._memory // 4 >> 20}MiB",
            "temp_directory": str(self.new_folder()),
            "autoinstall_known_extensions": False,
        }
        connection = duckdb.connect(config=settings)
        connection.execute("SET TimeZone = 'UTC'")
        # Where Python runs no file, DuckDB shows a bar on standard output, before the result of a job.
        connection.execute("SET enable_progress_bar = false")
        for name, meaning in FUNCTIONS.items():
            connection.execute(f"CREATE MACRO {name} AS {meaning}")
        errors: list[BadArchive] = []
        given = pa.RecordBatchReader.from_batches(rows.schema, _noting(rows, errors))
        connection.register("rows", given)
        try:
            return pa.RecordBatchReader.from_stream(connection.sql(statement.format(rows="rows")))
        except duckdb.Error:
            # Of its error DuckDB keeps the text alone.
            if errors:
                raise errors[0] from None
            raise

    def new_folder(self) -> Path:
        """Make a folder for the files of some partitions."""
        self._count += 1
        made = Path(self._folder.name, str(self._count))
        made.mkdir()
        return made

    def run(self, work: Callable[[int], None], count: int) -> None:
        """Call `work` with the numbers below `count` in the threads. After an error no more calls begin."""
        running: set[Future[None]] = set()
        try:
            for number in range(count):
                running.add(self._pool.submit(work, number))
                # One more than there are threads, so that none waits.
                if len(running) > self._threads:
                    _take_done(running)
            while running:
                _take_done(running)
        finally:
            # A task that went on would write into the work of the next attempt.
            _end(running)

    def stream(self, parts: Sequence[Partition]) -> Iterator[Any]:
        """Yield the batches of these partitions, which threads compute a little ahead of the reader."""
        is_over = threading.Event()

        def compute(part: Partition, queue: "Queue[Any]") -> None:
            try:
                for batch in part():
                    if not _put(queue, batch, is_over):
                        return
                _put(queue, None, is_over)
            except BaseException as error:
                _put(queue, error, is_over)

        running: deque[tuple[Future[None], Queue[Any]]] = deque()
        left = iter(parts)
        try:
            while True:
                for part in islice(left, self.parallelism - len(running)):
                    queue: Queue[Any] = Queue(AHEAD)
                    running.append((self._pool.submit(compute, part, queue), queue))
                if not running:
                    return
                while (batch := running[0][1].get()) is not None:
                    if isinstance(batch, BaseException):
                        raise batch
                    yield batch
                running.popleft()
        finally:
            is_over.set()
            _end([future for future, _ in running])


def _noting(rows: Iterable[Any], errors: list[BadArchive]) -> Iterator[Any]:
    """Yield these batches, and keep the error."""
    try:
        yield from rows
    except BadArchive as error:
        errors.append(error)
        raise


def _started_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool with all of its threads.

    A pool that starts its threads with its tasks does not know the thread of which a signal interrupts the
    start, and so does not wait for the task that it runs.
    """
    pool = ThreadPoolExecutor(threads, "synrepl-task")
    are_there = threading.Event()
    try:
        for _ in range(threads):
            pool.submit(are_there.wait)
    finally:
        are_there.set()
    return pool


def _take_done(running: set["Future[None]"]) -> None:
    """Wait for one of these tasks at least, and remove those that are done. Raises the error of one."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    running -= done
    for one in done:
        one.result()


def _end(tasks: Iterable["Future[None]"]) -> None:
    """Cancel the tasks that have not begun, and wait for the others."""
    for one in tasks:
        one.cancel()
    for one in tasks:
        with suppress(BaseException):
            one.result()


def _put(queue: "Queue[Any]", item: Any, is_over: threading.Event) -> bool:
    """Put this in a queue as soon as there is space; False if nobody reads it any more."""
    while not is_over.is_set():
        try:
            queue.put(item, timeout=LOOK_SECONDS)
        except Full:
            continue
        return True
    return False


@dataclass(frozen=True, eq=False)
class LocalPartitions:
    """Partitions that are computed in threads, as `Partitions` says."""

    driver: LocalDriver
    parts: Sequence[Partition]
    schema: Any

    def map(self, work: Work, schema: Any) -> "LocalPartitions":
        parts = [partial(_mapped, part, work) for part in self.parts]
        return LocalPartitions(self.driver, parts, schema)

    def repartition(self, count: int, column: str = TASK) -> "LocalPartitions":
        """Compute the rows at once: whoever reads them may be a task, which must not wait for other tasks."""
        with self._spills(count) as spills:

            def distribute(number: int) -> None:
                for batch in self.parts[number]():
                    for task, rows in split(batch, batch[column].to_numpy()):
                        spills[task].write(rows)

            self.driver.run(distribute, len(self.parts))
        return self._of(spills)

    def union(self, other: Any) -> "LocalPartitions":
        return LocalPartitions(self.driver, [*self.parts, *other.parts], self.schema)

    @contextmanager
    def kept(self) -> "Iterator[LocalPartitions]":
        with self._spills(len(self.parts)) as spills:

            def store(number: int) -> None:
                for batch in self.parts[number]():
                    spills[number].write(batch)

            self.driver.run(store, len(self.parts))
        try:
            yield self._of(spills)
        finally:
            for spill in spills:
                spill.remove()

    @contextmanager
    def _spills(self, count: int) -> "Iterator[list[_Spill]]":
        folder = self.driver.new_folder()
        spills = [_Spill(folder / str(number), self.schema) for number in range(count)]
        try:
            yield spills
        finally:
            for spill in spills:
                spill.close()

    def _of(self, spills: "Iterable[_Spill]") -> "LocalPartitions":
        return LocalPartitions(self.driver, [spill.read for spill in spills], self.schema)

    def collect(self) -> Any:
        return pa.Table.from_batches(self, self.schema)

    def __iter__(self) -> Iterator[Any]:
        return self.driver.stream(self.parts)


class _Spill:
    """A file of record batches, which several threads write. Without a batch there is no file."""

    def __init__(self, name: Path, schema: Any) -> None:
        self._name = name
        self._schema = schema
        self._lock = threading.Lock()
        self._writer: Any = None

    def write(self, batch: Any) -> None:
        """Add a batch."""
        with self._lock:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(str(self._name), self._schema)
            self._writer.write_batch(batch.cast(self._schema))

    def close(self) -> None:
        """Write the end."""
        if self._writer is not None:
            self._writer.close()

    def read(self) -> Iterator[Any]:
        """Yield the batches."""
        if self._writer is not None:
            with pa.OSFile(str(self._name)) as source, pa.ipc.open_stream(source) as stream:
                yield from stream

    def remove(self) -> None:
        """Remove the file."""
        self._name.unlink(missing_ok=True)


def _locked(folder: Path) -> int:
    """Lock a new folder. Returns the handle of the lock."""
    handle = os.open(folder / f".{LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    # Under this name it is locked.
    (folder / f".{LOCK}").rename(folder / LOCK)
    return handle


def _remove_abandoned(folder: Path) -> None:
    """Remove the folders whose processes have ended; others cannot be locked, or belong to other users."""
    for lock in folder.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)


def _mapped(part: Partition, work: Work) -> Iterator[Any]:
    return work(iter(part()))
