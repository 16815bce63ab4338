"""ChannelWriters: who writes what on a shared channel, and who must not."""

from collections.abc import Collection
from typing import Final

from twisted.logger import Logger

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer
from synrepl.replication.membership.echoes import Echoes
from synrepl.replication.membership.name_claim import CONFLICT_SECONDS, NameClaim
from synrepl.replication.serving.publisher import Publisher
from synrepl.streams.writer import Writer
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import printable

MAX_NAME: Final = 255
MAX_WRITERS: Final = 1_000
"""The most names of writers, those in the log included: any process on the channel can choose one."""
MAX_TOKEN: Final = 2**53
"""The highest token that is believed. No sequence comes this far, and appends after it still find tokens."""


class ChannelWriters:
    """Tells messages of other writers from echoes of ours, and from conflicts.

    `writes`, `exclusive` and `instance` are those of the `DaemonMember`. `claim` hears of messages that
    another process sent under a name of ours. `position_echoes` are the positions that this process sent.
    """

    _logger = Logger()

    def __init__(
        self,
        clock: IClock,
        publisher: Publisher | None,
        *,
        writes: Collection[Writer],
        exclusive: Collection[str],
        instance: str,
        claim: NameClaim,
        position_echoes: Echoes,
    ) -> None:
        self.seen: set[str] = set()
        """Names of other writers that were seen on the channel."""
        self.stream_conflict: str | None = None
        """Which other process writes a stream of `exclusive`, and what to do."""
        self.overflow: str | None = None
        """The message that facts of further writers are ignored; None until there are too many writers."""
        self.has_own_echo = False
        """Whether our own REPLICATE came back: earlier messages may be from our previous run."""
        self._publisher = publisher
        self._writes = frozenset(writes)
        self._exclusive = frozenset(exclusive)
        self._instance = instance
        self._claim = claim
        self._position_echoes = position_echoes
        self._names: set[str] = set()
        """Names of writers in the log and on the channel."""
        if publisher is not None:
            self._names.update(*publisher.log.positions_by_stream().values())
        self._stream_conflict_timer = Timer(clock, self._end_stream_conflict)

    def accepts(self, command: Rdata | RdataRun | Position) -> bool:
        """Whether this message is from another process, and its writer's name can be stored."""
        writer = command.instance
        if (command.stream, writer) in self._writes or writer == self._instance != "":
            if self._is_conflict(command):
                self._count_conflict()
                self._claim.contest(command.stream, writer)
            return False
        if len(writer) > MAX_NAME or not writer.isprintable() or _highest_token(command) > MAX_TOKEN:
            return False
        if command.stream in self._exclusive:
            # A process that wrote nothing announces token 0 or, as Synapse's do, 1.
            if _highest_token(command) > 1:
                self._on_stream_conflict(command.stream, writer)
            return False
        if writer not in self._names and len(self._names) >= MAX_WRITERS:
            if self.overflow is None:
                self.overflow = (
                    f"more than {MAX_WRITERS} writers on the channel: facts of further ones, such as"
                    f" {printable(writer)}, are ignored; a process that makes up names must be stopped"
                )
                self._logger.error("{why}", why=self.overflow)
            return False
        self._names.add(writer)
        self.seen.add(writer)
        return True

    def stop(self) -> None:
        """Stop the timer."""
        self._stream_conflict_timer.stop()

    def _is_conflict(self, command: Rdata | RdataRun | Position) -> bool:
        """Whether a message under our name was sent by another process."""
        if isinstance(command, Position) and self._position_echoes.match_and_remove(command):
            return False
        if not self.has_own_echo or self._publisher is None:
            return False
        if isinstance(command, Position):
            return True
        published = self._publisher.positions(command.stream).get(command.instance, 0)
        tokens = command.tokens if isinstance(command, RdataRun) else [command.token]
        return any(token is not None and token > published for token in tokens)

    def _on_stream_conflict(self, stream: str, writer: str) -> None:
        self._count_conflict()
        conflict = (
            f"another process on the channel writes {stream} as {writer}, and its facts are ignored: this"
            f" process gives the ids of {stream}. Stop the other one, or take {stream} out of redis_writes,"
            " or describe its table in table_streams"
        )
        if self.stream_conflict is None:
            self._logger.critical("{conflict}", conflict=conflict)
        self.stream_conflict = conflict
        self._stream_conflict_timer.restart(CONFLICT_SECONDS)

    def _end_stream_conflict(self) -> None:
        self.stream_conflict = None

    def _count_conflict(self) -> None:
        if self._publisher is not None:
            self._publisher.metrics.channel_conflicts.inc()


def _highest_token(command: Rdata | RdataRun | Position) -> int:
    tokens = command.tokens if isinstance(command, RdataRun) else [command.token]
    return max((token for token in tokens if token is not None), default=0)
