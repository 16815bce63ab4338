"""This process as a writer: the only one of its name, seen to be alive, and its ids released when it is not.

Once a second it tells the database where its streams stand and what is unfinished, hears where the others
stand, and looks after writers that are gone: what a dead process had reserved will never be written, so its
position moves on, as that of an idle one does.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import StorageError
from synrepl.ports.interfaces import IClock, IThread
from synrepl.ports.metrics import Metrics
from synrepl.ports.tasks import Tasks
from synrepl.storage.ids.database import Flavor, IdDatabase
from synrepl.storage.ids.generator import CHANNEL, MultiWriterIdGenerator
from synrepl.storage.ids.names import FileNames, INames, SessionNames
from synrepl.storage.ids.reservation import Unfinished
from synrepl.storage.ids.transactions import ICursor
from synrepl.storage.ids.writers import create_writers, holder, tell

__all__ = ["WriterSession"]

BEAT_SECONDS: Final = 1.0
TAKE_SECONDS: Final = 15.0
"""How long a start waits for a predecessor of the same name to be gone: a killed process's session may last.
"""
GRACE_SECONDS: Final = 5.0
"""How long a writer's session must be gone before its ids are released."""
STUCK_SECONDS: Final = 30.0
"""The age at which an unfinished id is warned of."""


class WriterSession:
    """The life of the writer `instance` over one database.

    `connect` gives a DB-API connection of the session's own, made and used in `thread` only. Generators that
    belong to it are started by `start`, one after the other. Of a stream without writers nobody can know who
    else has ids unfinished, so only one process may have a session with it.
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
        thread: IThread,
        metrics: Metrics | None = None,
        beat_seconds: float = BEAT_SECONDS,
        take_seconds: float = TAKE_SECONDS,
    ) -> None:
        self.instance = instance
        self.is_held = False
        """Whether this process is the writer of its name now. While it is not, its generators give no ids."""
        self.refusal = ""
        """Who is, if that is why."""
        self._connect = connect
        self._generators = sorted(generators, key=lambda one: one.stream.name)
        self._flavor: Flavor = flavor
        self._clock = clock
        self._thread = thread
        self._metrics = metrics
        self._beat_seconds = beat_seconds
        self._take_seconds = take_seconds
        self._names: INames = SessionNames() if flavor == "postgresql" else FileNames()
        self._connection: Any = None
        self._tasks = Tasks(self._logger, "writer session")
        self._gone: dict[str, tuple[float, int]] = {}
        self._warned: set[tuple[str, int]] = set()
        self._timer: Any = None
        self._is_stopped = False
        self._refused_stream = ""
        self._process = f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self._has_told = False
        self._is_last_beat = False
        self._predecessor_mark: int | None = None

    # -- its life ------------------------------------------------------------------------------------------

    async def start(self, *, seen: Mapping[str, int] = MappingProxyType({})) -> None:
        """Become the writer of this name, then start the generators.

        `seen`: per stream the highest token that a reader is known to have. Raises `StorageError` if another
        process has the name, and goes on having it for `take_seconds`.
        """
        until = self._clock.seconds() + self._take_seconds
        if not await self._becomes(self._take, until):
            raise self._refused()
        if not await self._becomes(self._is_settled, until):
            raise StorageError(
                op="start",
                why=f"transactions have not ended that were under way when the last {self.instance} did, and"
                " any of them may be its own",
                hint="wait, or end those that pg_stat_activity shows to be the oldest",
                retryable=True,
            )
        self.is_held = True
        for generator in self._generators:
            generator.session = self
            await generator.start(seen=seen.get(generator.stream.name, 0))
        await self._beat()
        self._beat_later()

    def _refused(self) -> StorageError:
        if self._refused_stream:
            return StorageError(
                op="start",
                why=f"another process gives the ids of {self._refused_stream}, which names no writers, so"
                f" that only one process may: {self.refusal}",
                hint="end it, or name its writers",
            )
        return StorageError(
            op="start",
            why=f"another process writes as {self.instance}: {self.refusal}",
            hint="end it, or give this one another name",
        )

    async def _becomes(self, is_so: Callable[[], bool], until: float) -> bool:
        """Ask in the thread until it is so, or it is late; then nothing is left of the attempt."""
        while not await self._thread.run(is_so):
            if self._clock.seconds() >= until:
                await self._thread.run(self._close)
                return False
            await deferLater(self._clock, self._beat_seconds / 4)  # type: ignore[arg-type]  # an IReactorTime
        return True

    async def stop(self) -> None:
        """Tell where it stands a last time, let the name go, and end the thread."""
        self._is_stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._tasks.cancel_all()
        if self.is_held:
            self._is_last_beat = not any(one.unfinished() for one in self._generators)
            await self._beat()
        self.is_held = False
        await self._thread.run(self._close)
        # Its own, and a thread that is left would keep the process alive.
        await self._thread.stop()

    # -- beating -------------------------------------------------------------------------------------------

    def _beat_later(self) -> None:
        if not self._is_stopped:
            self._timer = self._clock.callLater(
                self._beat_seconds, lambda: self._tasks.start(self._beat_and_again(), "beat")
            )

    async def _beat_and_again(self) -> None:
        await self._beat()
        self._beat_later()

    async def _beat(self) -> None:
        self._tell_of_unfinished()
        try:
            self.is_held = await self._thread.run(self._talk)
        except Exception as error:
            if self.is_held:
                self._logger.warn(
                    "the session of writer {instance} is lost, and will be taken again: {error}",
                    instance=self.instance,
                    error=error,
                )
            self.is_held = False

    def _tell_of_unfinished(self) -> None:
        for generator in self._generators:
            unfinished = generator.unfinished()
            if self._metrics is not None:
                age = self._metrics.oldest_unfinished_id_age.labels(generator.stream.name, self.instance)
                age.set(unfinished[0].age_seconds if unfinished else 0.0)
            for one in unfinished:
                if one.age_seconds >= STUCK_SECONDS and (one.stream, one.tokens[0]) not in self._warned:
                    self._warned.add((one.stream, one.tokens[0]))
                    self._logger.warn(
                        "{stream} cannot move on: {writer} has {tokens} unfinished since {age:.0f} s,"
                        " reserved by {owner}",
                        stream=one.stream,
                        writer=one.writer,
                        tokens=_range(one),
                        age=one.age_seconds,
                        owner=one.owner,
                    )

    # -- in the thread -------------------------------------------------------------------------------------

    def _take(self) -> bool:
        """Connect if need be, and take the name."""
        if self._connection is None:
            self._connection = self._connect()
            # Who was missing before may have come back while we could not look.
            self._gone.clear()
        try:
            cursor = self._connection.cursor()
            self.refusal = self._take_names(cursor)
            if not self.refusal:
                create_writers(cursor, self._flavor)
            self._connection.commit()
        except BaseException:
            self._close()
            raise
        return not self.refusal

    def _take_names(self, cursor: ICursor) -> str:
        """Take the name of this writer, and those of the streams that only one process may write. The empty
        string, or who has one of them.
        """
        self._refused_stream = ""
        refusal = self._names.take(cursor, self.instance)
        for generator in self._generators:
            if not refusal and not generator.stream.writers:
                # No writer's name has a space in it.
                refusal = self._names.take(cursor, f"stream {generator.stream.name}")
                self._refused_stream = generator.stream.name if refusal else ""
        return refusal

    def _is_settled(self) -> bool:
        """Whether nothing more can come of the ids of the last process of this name.

        What it was told to commit may yet be committed after its death. One that ended well left nothing.
        """
        try:
            cursor = self._connection.cursor()
            if self._predecessor_mark is None:
                found = [holder(cursor, one.database, self.instance) for one in self._generators]
                self._predecessor_mark = self._names.mark(cursor) if any(found) else 0
                self._connection.commit()
            is_settled = self._names.has_settled(cursor, self._predecessor_mark)
            self._connection.commit()
        except BaseException:
            self._close()
            raise
        return is_settled

    def _talk(self) -> bool:
        """One beat. False: this process is the writer no more."""
        if not self.is_held and not self._take():
            return False
        try:
            cursor = self._connection.cursor()
            is_ours = self._is_ours(cursor)
            if is_ours:
                self._beat_in(cursor)
            self._connection.commit()
        except BaseException:
            self._close()
            raise
        finally:
            self._names.end_transaction()
        self._has_told = True
        return is_ours

    def _is_ours(self, cursor: ICursor) -> bool:
        """Whether the database still knows this process as the writer.

        It does not if the connection was lost for so long that others took us for dead, and passed what we
        had unfinished: nothing of that may be written any more, which only a new start can make sure of.
        """
        for generator in self._generators:
            found = holder(cursor, generator.database, self.instance)
            if self._has_told and found != self._process:
                self.refusal = (
                    f"{f'{found} was it' if found else 'it was taken for dead'} meanwhile;"
                    " start this process again"
                )
                return False
        return True

    def _beat_in(self, cursor: ICursor) -> None:
        """Look after who is gone, hear, tell."""
        now = self._clock.seconds()
        gone = self._gone_for_good(cursor, now)
        moved = False
        for generator in self._generators:
            database = generator.database
            positions = database.positions(cursor)
            for writer in gone:
                moved |= self._release(cursor, database, positions, writer, now)
            generator.hear(positions)
            moved |= generator.tell_position(cursor)
            tell(
                cursor,
                database,
                writer=self.instance,
                process="" if self._is_last_beat else self._process,
                position=abs(generator.announced_token),
                unfinished=generator.unfinished(),
                now=now,
            )
        if moved:
            self._generators[0].database.notify(cursor, CHANNEL)

    def _gone_for_good(self, cursor: ICursor, now: float) -> list[str]:
        """Writers whose session is gone, and everything that they had begun with it.

        Until this transaction ends nobody can start under these names.
        """
        writers = {writer for one in self._generators for writer in one.stream.writers} - {self.instance}
        gone = []
        for writer in sorted(writers):
            if not self._names.is_free(cursor, writer):
                self._gone.pop(writer, None)
                continue
            since, mark = self._gone.setdefault(writer, (now, self._names.mark(cursor)))
            if now - since >= GRACE_SECONDS and self._names.has_settled(cursor, mark):
                gone.append(writer)
        return gone

    def _release(
        self, cursor: ICursor, database: IdDatabase, positions: dict[str, int], writer: str, now: float
    ) -> bool:
        """Move on the position of a writer that is gone to where the sequence stands: its ids were all given
        by now. One that never told of itself may be some other program, of which we know nothing.
        """
        found = holder(cursor, database, writer)
        reached = database.allocated(cursor)
        if writer not in positions or found is None or (not found and reached <= positions[writer]):
            return False
        database.save_position(cursor, writer, reached)
        positions[writer] = max(reached, positions[writer])
        tell(cursor, database, writer=writer, process="", position=reached, unfinished=(), now=now)
        if found:
            self._logger.warn(
                "writer {writer} of {stream} is gone ({process}); what it had reserved up to {token} is"
                " released",
                writer=writer,
                stream=database.stream.name,
                process=found,
                token=reached,
            )
        return True

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._names.give_back()
        if connection is not None:
            try:
                connection.close()
            except Exception as error:  # whatever the driver raises for a connection that is gone
                self._logger.debug("closing: {error}", error=error)


def _range(one: Unfinished) -> str:
    first, last = one.tokens[0], one.tokens[-1]
    return str(first) if first == last else f"{first} to {last}"
