"""Writer sessions: make a process the only writer of its name, and release the ids of dead writers.

At every heartbeat a session stores this process's positions and unfinished ids, and reads the positions of
other writers. It also checks for writers that are gone: the ids that a dead process reserved will never be
written, so its position advances like that of an idle writer.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, Self

from twisted.logger import Logger

from synrepl.base.interfaces import IClock, IThread
from synrepl.base.metrics import Metrics
from synrepl.base.tasks import Tasks
from synrepl.base.time import Timer, sleep
from synrepl.errors import ConfigError, StorageError
from synrepl.ids.generator import MultiWriterIdGenerator, NotAWriter
from synrepl.storage.id_tables.id_database import CHANNEL, IdDatabase
from synrepl.storage.id_tables.writer_names import FileNames, SessionNames
from synrepl.storage.id_tables.writers import (
    STUCK_SECONDS,
    Unfinished,
    create_writers,
    last_process,
    store_status,
)
from synrepl.storage.sql import Flavor
from synrepl.storage.threads import ReactorThread
from synrepl.storage.worker_database import ICursor

HEARTBEAT_SECONDS: Final = 1.0
ACQUIRE_SECONDS: Final = 15.0
"""How long a start waits for the name, in seconds: the session of a killed predecessor may linger."""
GRACE_SECONDS: Final = 5.0
"""How long a writer's session must be gone before its ids are released, in seconds."""


class WriterSession:
    """Makes this process the writer `instance` in one database, and starts its generators.

    `connect` makes a DB-API connection for the session alone; it is called and used only in `thread`, which
    the session owns and stops: by default a new thread, for which `clock` must be the reactor. `generators`
    are those of this process, with the same `instance` and `flavor`. Heartbeats come every
    `heartbeat_seconds`; a start waits up to `acquire_seconds` for the name. Only one process can have a
    session with a stream that names no writers, since unfinished ids of others would be unknown::

        connect = partial(sqlite3.connect, "hs.db", check_same_thread=False)
        async with synrepl.WriterSession(connect, [ids], instance="w1", flavor="sqlite", clock=reactor):
            ...

    The block runs between `start` and `stop`, which can also be called directly. While `is_held` is False the
    generators refuse to reserve ids (`StorageError`).

    Raises `NotAWriter` if `instance` is none of the writers of a stream, and `ConfigError` if there is no
    generator, if one is of another instance or flavor, or if a stream has two or names no sequence.
    """

    _logger = Logger()

    def __init__(
        self,
        connect: Callable[[], Any],
        generators: Sequence[MultiWriterIdGenerator],
        *,
        instance: str,
        flavor: Flavor,
        clock: IClock,
        thread: IThread | None = None,
        metrics: Metrics | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        acquire_seconds: float = ACQUIRE_SECONDS,
    ) -> None:
        self.instance = instance
        self.is_held = False
        """Whether this process is the writer of its name now."""
        self.refusal = ""
        """Who has the name instead, or why it is lost until a restart; empty if neither is so."""
        self._connect = connect
        self._generators = sorted(generators, key=lambda one: one.stream.name)
        self._flavor: Flavor = flavor
        self._clock = clock
        self._thread = thread or ReactorThread(clock, f"writer {instance}")
        self._metrics = metrics
        self._heartbeat_seconds = heartbeat_seconds
        self._acquire_seconds = acquire_seconds
        self._names: SessionNames | FileNames = SessionNames() if flavor == "postgresql" else FileNames()
        self._connection: Any = None
        self._tasks = Tasks(self._logger, "writer session")
        self._gone: dict[str, tuple[float, int]] = {}
        self._warned: set[tuple[str, int]] = set()
        self._timer = Timer(clock, lambda: self._tasks.start(self._heartbeat_and_reschedule(), "beat"))
        self._is_stopped = False
        self._refused_stream = ""
        self._process = f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self._has_reported = False
        self._is_final_heartbeat = False
        self._predecessor_mark: int | None = None
        self._check_generators()

    def _check_generators(self) -> None:
        if not self._generators:
            raise ConfigError("a writer session needs at least one id generator")
        names = set()
        for generator in self._generators:
            stream = generator.stream
            theirs, ours = (generator.instance, generator.database.flavor), (self.instance, self._flavor)
            if theirs != ours:
                raise ConfigError(
                    f"the id generator of {stream.name} is for {' on '.join(theirs)}, but the writer session"
                    f" for {' on '.join(ours)}: give both the same instance and flavor"
                )
            if not stream.is_writer(self.instance):
                raise NotAWriter(stream=stream.name, instance=self.instance, writers=stream.writers)
            if not stream.sequence:
                raise ConfigError(f"stream {stream.name} names no sequence, so it has no ids to reserve")
            if stream.name in names:
                raise ConfigError(f"there are two id generators for stream {stream.name}")
            names.add(stream.name)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    async def start(self, *, seen: Mapping[str, int] = MappingProxyType({})) -> None:
        """Become the writer of this name, then start the generators one by one.

        `seen` has, by stream, the highest token without sign that any reader is known to have. Raises
        `StorageError` if after `acquire_seconds` another process has this name, or the ids of a stream that
        names no writers, if transactions of the last writer of this name may still be running, or if a
        sequence is missing.
        """
        until = self._clock.seconds() + self._acquire_seconds
        if not await self._wait_until(self._acquire, until):
            raise self._refused()
        if not await self._wait_until(self._has_predecessor_ended, until):
            raise StorageError(
                op="start",
                why=f"transactions that began before this start are still running; some may be those of the"
                f" previous {self.instance}, which may still commit facts",
                hint="wait, or end them with pg_terminate_backend; pg_stat_activity lists them",
                retryable=True,
            )
        self.is_held = True
        for generator in self._generators:
            generator.session = self
            await generator.start(seen=seen.get(generator.stream.name, 0))
        await self._heartbeat_and_reschedule()

    def _refused(self) -> StorageError:
        if self._refused_stream:
            return StorageError(
                op="start",
                why=f"another process generates the ids of {self._refused_stream}, which names no writers, so"
                f" only one process can: {self.refusal}",
                hint="stop it, or name the stream's writers",
            )
        return StorageError(
            op="start",
            why=f"another process writes as {self.instance}: {self.refusal}",
            hint="stop it, or give this process another name",
        )

    async def _wait_until(self, is_so: Callable[[], bool], until: float) -> bool:
        """Poll `is_so` until it holds, and return True; at `until` close the connection and return False."""
        while not await self._thread.run(is_so):
            if self._clock.seconds() >= until:
                await self._thread.run(self._close)
                return False
            await sleep(self._clock, self._heartbeat_seconds / 4)
        return True

    async def stop(self) -> None:
        """Store the final status, release the name, and stop the thread."""
        self._is_stopped = True
        self._timer.stop()
        self._tasks.cancel_all()
        if self.is_held:
            self._is_final_heartbeat = not any(one.unfinished() for one in self._generators)
            await self._heartbeat()
        self.is_held = False
        await self._thread.run(self._close)
        # The session owns the thread, and nothing else would stop it.
        await self._thread.stop()

    def _schedule_heartbeat(self) -> None:
        if not self._is_stopped:
            self._timer.start(self._heartbeat_seconds)

    async def _heartbeat_and_reschedule(self) -> None:
        await self._heartbeat()
        self._schedule_heartbeat()

    async def _heartbeat(self) -> None:
        self._report_unfinished()
        try:
            self.is_held = await self._thread.run(self._heartbeat_in_thread)
        except Exception as error:
            if self.is_held:
                self._logger.warn(
                    "lost the session of writer {instance}; reconnecting: {error}",
                    instance=self.instance,
                    error=error,
                )
            self.is_held = False

    def _report_unfinished(self) -> None:
        for generator in self._generators:
            unfinished = generator.unfinished()
            if self._metrics is not None:
                age = self._metrics.oldest_unfinished_id_age.labels(generator.stream.name, self.instance)
                age.set(unfinished[0].age_seconds if unfinished else 0.0)
            for one in unfinished:
                if one.age_seconds >= STUCK_SECONDS and (one.stream, one.tokens[0]) not in self._warned:
                    self._warned.add((one.stream, one.tokens[0]))
                    self._logger.warn(
                        "{stream} is stuck: {writer} has ids {tokens} unfinished for {age:.0f} s,"
                        " reserved by {owner}",
                        stream=one.stream,
                        writer=one.writer,
                        tokens=_range(one),
                        age=one.age_seconds,
                        owner=one.owner,
                    )

    def _acquire(self) -> bool:
        if self._connection is None:
            self._connection = self._connect()
            # A writer that was gone may have come back unnoticed.
            self._gone.clear()
        with self._transaction() as cursor:
            self.refusal = self._acquire_names(cursor)
            if not self.refusal:
                create_writers(cursor, self._flavor)
        return not self.refusal

    @contextmanager
    def _transaction(self) -> Iterator[ICursor]:
        """A cursor, whose transaction is committed after the block. An error closes the connection."""
        try:
            yield self._connection.cursor()
            self._connection.commit()
        except BaseException:
            self._close()
            raise

    def _acquire_names(self, cursor: ICursor) -> str:
        """Acquire the writer's name and those of the streams without writers.

        Returns the holder of a name that is taken, or "".
        """
        self._refused_stream = ""
        refusal = self._names.acquire(cursor, self.instance)
        for generator in self._generators:
            if not refusal and not generator.stream.writers:
                # Unambiguous: writers' names contain no space.
                refusal = self._names.acquire(cursor, f"stream {generator.stream.name}")
                self._refused_stream = generator.stream.name if refusal else ""
        return refusal

    def _has_predecessor_ended(self) -> bool:
        """Whether no more facts can come from the last process of this name.

        Commits that it had sent may finish after its death. A process that stopped normally left none.
        """
        if self._predecessor_mark is None:
            with self._transaction() as cursor:
                found = [last_process(cursor, one.database, self.instance) for one in self._generators]
                self._predecessor_mark = self._names.mark(cursor) if any(found) else 0
        with self._transaction() as cursor:
            return self._names.have_ended(cursor, self._predecessor_mark)

    def _heartbeat_in_thread(self) -> bool:
        if not self.is_held and not self._acquire():
            return False
        try:
            with self._transaction() as cursor:
                is_still_writer = self._is_still_writer(cursor)
                if is_still_writer:
                    self._exchange_status(cursor)
        finally:
            self._names.end_transaction()
        self._has_reported = True
        return is_still_writer

    def _is_still_writer(self, cursor: ICursor) -> bool:
        """Whether the database still has this process as the writer.

        After a long connection loss, others may have declared this process dead and moved past its unfinished
        ids. Only a restart guarantees that it does not write those ids.
        """
        for generator in self._generators:
            found = last_process(cursor, generator.database, self.instance)
            if self._has_reported and found != self._process:
                self.refusal = (
                    f"{f'{found} was the writer' if found else 'this process was declared dead'} meanwhile;"
                    " restart this process"
                )
                return False
        return True

    def _exchange_status(self, cursor: ICursor) -> None:
        now = self._clock.seconds()
        gone = self._dead_writers(cursor, now)
        has_advanced = False
        for generator in self._generators:
            database = generator.database
            positions = database.positions(cursor)
            for writer in gone:
                has_advanced |= self._release_ids(cursor, database, positions, writer, now)
            generator.merge_positions(positions)
            has_advanced |= generator.store_position(cursor)
            store_status(
                cursor,
                database,
                writer=self.instance,
                process="" if self._is_final_heartbeat else self._process,
                position=abs(generator.announced_token),
                unfinished=generator.unfinished(),
                now=now,
            )
        if has_advanced:
            self._generators[0].database.notify(cursor, CHANNEL)

    def _dead_writers(self, cursor: ICursor, now: float) -> list[str]:
        """Writers whose session is gone and whose transactions have all ended.

        No process can start under these names until this transaction ends.
        """
        writers = {writer for one in self._generators for writer in one.stream.writers} - {self.instance}
        gone = []
        for writer in sorted(writers):
            if not self._names.is_free(cursor, writer):
                self._gone.pop(writer, None)
                continue
            since, mark = self._gone.setdefault(writer, (now, self._names.mark(cursor)))
            if now - since >= GRACE_SECONDS and self._names.have_ended(cursor, mark):
                gone.append(writer)
        return gone

    def _release_ids(
        self, cursor: ICursor, database: IdDatabase, positions: dict[str, int], writer: str, now: float
    ) -> bool:
        """Advance the position of a dead writer to the last allocated id. Returns whether it did so.

        A writer that never stored a status or a position may be another program, and is left alone.
        """
        found = last_process(cursor, database, writer)
        last_id = database.allocated(cursor)
        if writer not in positions or found is None or (not found and last_id <= positions[writer]):
            return False
        database.save_position(cursor, writer, last_id)
        positions[writer] = max(last_id, positions[writer])
        store_status(cursor, database, writer=writer, process="", position=last_id, unfinished=(), now=now)
        if found:
            self._logger.warn(
                "writer {writer} of {stream} is gone ({process}): released the ids it had reserved up to"
                " {token}",
                writer=writer,
                stream=database.stream.name,
                process=found,
                token=last_id,
            )
        return True

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._names.release_all()
        if connection is not None:
            try:
                connection.close()
            except Exception as error:  # whatever the driver raises for a connection that is gone
                self._logger.debug("cannot close the session's connection: {error}", error=error)


def _range(one: Unfinished) -> str:
    first, last = one.tokens[0], one.tokens[-1]
    return str(first) if first == last else f"{first} to {last}"
