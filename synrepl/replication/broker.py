"""This process among its peers on a shared channel, as every process of today's Synapse is.

There is no server: each hears all that the others say, tells the streams that it writes, and answers
REPLICATE with their positions.
"""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

import msgspec
from twisted.logger import Logger

from synrepl.errors import LocalProtocolError, NotConnected
from synrepl.ports.interfaces import IClock
from synrepl.replication.echoes import Echoes
from synrepl.replication.follower.follower import Follower
from synrepl.replication.follower.strategy import SHARED
from synrepl.replication.publisher import Publisher
from synrepl.replication.reader import Reader
from synrepl.wire.commands import Position, Rdata, Replicate
from synrepl.wire.dialect import NEWEST, Dialect
from synrepl.wire.grammar import Command
from synrepl.wire.rdata_runs import RdataRun

__all__ = ["PROBE_SECONDS", "Broker", "BrokerPeer", "NameConflict"]

PROBE_SECONDS: Final = 1.0
"""How long it is listened whether anybody else has our name, before anything is told under it."""

CLASH_SECONDS: Final = 30.0
"""After somebody else was heard under our name: how long it must have been quiet before we go on."""

ASK_AGAIN_SECONDS: Final = (5.0, 30.0, 300.0)
"""The seconds after which a known writer that has not said where it stands is asked again, and again. An
answer is lost with the connection of the process that gives it; a writer that is gone never answers."""

MAX_NAME: Final = 255
MAX_WRITERS: Final = 10_000
"""Names of writers come from the channel."""


class Broker(Protocol):
    """What this process needs of its connections to the broker."""

    def write(self, data: bytes) -> None:
        """Put each of these lines on the channel."""

    def send(self, command: Command) -> None:
        """Put one command on its channel. Raises LocalProtocolError."""

    def fail(self, why: str) -> None:
        """Open the connections anew, and say why."""

    def established(self) -> None:
        """They have proved good."""

    def pause_reading(self) -> None:
        """Hear nothing more for now."""

    def resume_reading(self) -> None:
        """Go on."""


class NameConflict(msgspec.Struct, frozen=True):
    """Somebody else writes `stream` under the name `writer`, which is ours."""

    stream: str
    writer: str

    def __str__(self) -> str:
        return (
            f"another process on the channel writes {self.stream} as {self.writer}: give this one a name of"
            " its own (--instance-name)"
        )


class BrokerPeer:
    """Follows what the others tell, and tells what this process writes.

    `follower` hears everything but our own echoes. `writes` are the streams and writers whose facts are put
    on the channel, from the `publisher`'s log: no others ever are, so that nothing heard is told again. What
    the publisher's followers send up goes on the channel; what is heard for them goes down to them.

    It is a member of the broker's channel (`hearing`, `deaf`, `speaking`, `mute`, `received` ...), and both
    the follower's and a reader's connection. `broker` is set before the first of these calls. `chance` is for
    what should not happen to two processes at the same time.
    """

    broker: Broker
    _logger = Logger()

    def __init__(
        self,
        *,
        clock: IClock,
        follower: Follower | None = None,
        publisher: Publisher | None = None,
        writes: Collection[tuple[str, str]] = (),
        dialect: Dialect = NEWEST,
        probe_seconds: float = PROBE_SECONDS,
        chance: random.Random | None = None,
    ) -> None:
        self.is_hearing = False
        self.is_speaking = False
        self.clash: NameConflict | None = None
        self.writers: set[str] = set()
        self._clock = clock
        self._follower = follower
        self._publisher = publisher
        self._writes = frozenset(writes)
        self._dialect = dialect
        self._probe_seconds = probe_seconds
        self._chance = chance or random.Random()
        self._has_probed = False
        self._is_joined = False
        # Whether our question was heard here: what came before it may be of our own former life.
        self._has_come_round = False
        self._echoes = Echoes(clock)  # of positions: whose they are matters even if they come late
        self._said = Echoes(clock)  # of commands
        self._reader: Reader | None = None
        self._is_paused = False
        self._is_full = False
        self._trouble = ""
        self._timer: Any = None
        self._silent: set[tuple[str, str]] = set()
        """The streams and writers whose position is not known since we joined."""
        self._asking: Any = None
        # Where it stood when nothing of it had been told yet: the first to hear of it must hear of all.
        self._untold: tuple[int, dict[tuple[str, str], int]] | None = None
        if publisher is not None:
            publisher.follower_commands.on_process_command(self.tell)
            reached = {
                log_position: publisher.log.positions(log_position[0]).get(log_position[1], 0)
                for log_position in self._writes
            }
            self._untold = (publisher.log.serial, reached)

    @property
    def is_writing(self) -> bool:
        """Whether it tells what is written here now."""
        return self._reader is not None

    # -- the broker's side ---------------------------------------------------------------------------------

    def hearing(self) -> None:
        """Every subscription is confirmed: from here on nothing is missed."""
        self.is_hearing = True
        self._join()

    def deaf(self, why: str) -> None:
        """What is told from now on is missed."""
        self.is_hearing = False
        self._logger.warn("off the channel: {why}", why=why)
        # What was told last, and has not come back, never does.
        self._said.clear()
        self._leave(why)

    def speaking(self) -> None:
        """What is told from now on goes out."""
        self.is_speaking = True
        if self._is_joined:
            self.send(Replicate())  # what was said last may not have gone out, that question among it
        self._join()
        self._publish()

    def mute(self, why: str) -> None:
        """Nothing goes out; what was told last may not have."""
        self.is_speaking = False
        self._is_paused = False
        self._logger.warn("nothing can be told on the channel: {why}", why=why)
        self._stop_publishing()

    def unreachable(self, why: str) -> None:
        """A connection could not be made; it will be tried again."""
        if why != self._trouble:
            # Once: it is tried every few seconds, for ever.
            self._trouble = why
            self._logger.warn("not on the channel, and tried again: {why}", why=why)
        if self._follower is not None:
            self._follower.unreachable(why)

    def received(self, commands: Sequence[Command | RdataRun]) -> None:
        """The others said these, and this process itself, whose words come back to it."""
        heard: list[Command | RdataRun] = []
        for command in commands:
            if isinstance(command, (Rdata, RdataRun, Position)):
                if self._is_of_others(command):
                    heard.append(command)
                    if self._silent and isinstance(command, Position):
                        self._silent.discard((command.stream, command.instance))
            elif isinstance(command, Replicate):
                self._has_come_round = True
                if self._reader is not None:
                    self._reader.send_positions()
            elif not self._said.take(command):
                heard.append(command)
                if self._publisher is not None:
                    self._publisher.on_channel_command(command)
        if heard and self._follower is not None and self._is_joined:
            self._follower.received(heard)

    def pause(self) -> None:
        """The broker's transport has enough for now."""
        self._is_paused = True
        if self._reader is not None:
            self._reader.pause()

    def resume(self) -> None:
        """It can take more."""
        self._is_paused = False
        if self._reader is not None:
            self._reader.resume()

    def stop(self) -> None:
        """Tell and ask nothing more."""
        self._stop_publishing()
        self._leave("stopped here")
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    # -- the follower's and the reader's connection --------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Tell these lines."""
        if self.is_speaking:
            for line in data.split(b"\n") if b"POSITION " in data else ():
                if line.startswith(b"POSITION "):
                    self._echoes.sent_line(line)
            self.broker.write(data)

    def send(self, command: Command) -> None:
        """Tell this command. Raises NotConnected."""
        if not self.is_speaking:
            raise NotConnected(f"not connected: {command.NAME} was not sent")
        if self.is_hearing and not command.CHANNEL and not isinstance(command, Replicate):
            self._said.sent(command)
        self.broker.send(command)

    def tell_position(self, position: Position) -> None:
        """Tell where a writer of ours stands."""
        self._echoes.sent(position)
        self.broker.send(position)

    def tell(self, command: Command) -> None:
        """Pass on what one of our followers sent up. These are fire and forget: without a connection they are
        lost, as they are between Synapse's own processes."""
        if self.is_speaking and self._dialect.release in command.SPAN:
            try:
                self.send(command)
            except LocalProtocolError as error:
                self._logger.warn("{name} cannot be passed on: {why}", name=command.NAME, why=error.why)
            else:
                return
        if self._publisher is not None:
            self._publisher.metrics.commands_dropped.labels(command.NAME).inc()

    def fail(self, why: str) -> None:
        """Open the connections anew."""
        self.broker.fail(why)

    def established(self) -> None:
        """The first POSITION was applied."""
        self.broker.established()

    def pause_reading(self) -> None:
        """Hear nothing more for now."""
        self.broker.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        self.broker.resume_reading()

    # -- joining -------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Ask everybody where they stand, once we can hear the answers."""
        if self._is_joined or not (self.is_hearing and self.is_speaking):
            return
        self._is_joined = True
        self._has_come_round = False
        self._trouble = ""
        self._logger.info("on the channel")
        if self._follower is not None:
            positions = self._follower.positions()
            self._silent = {(stream, writer) for stream in positions for writer in positions[stream]}
            self._silent -= self._writes
            self._follower.connected(self, self._dialect, SHARED)
            self._ask_again(ASK_AGAIN_SECONDS)
        else:
            self.send(Replicate())
        if self._writes and not self._has_probed and self.clash is None:
            self._later(self._probe_seconds, self._probed)

    def _ask_again(self, seconds: Sequence[float]) -> None:
        """Ask once more after each of these delays, until every known writer has said where it stands."""

        def ask() -> None:
            if self._silent:
                if self.is_speaking:
                    self.send(Replicate())
                self._ask_again(seconds[1:])

        if seconds and self._silent:
            self._asking = self._clock.callLater(seconds[0], ask)

    def _leave(self, why: str) -> None:
        if self._asking is not None and self._asking.active():
            self._asking.cancel()
        if self._is_joined:
            self._is_joined = False
            if self._follower is not None:
                self._follower.disconnected(why)

    # -- telling -------------------------------------------------------------------------------------------

    def _probed(self) -> None:
        """It was quiet under our names for long enough."""
        if self._is_joined:
            if self.clash is not None:
                self._logger.info("nobody else is heard under our name any more")
            self.clash = None
            self._has_probed = True
            self._publish()

    def _publish(self) -> None:
        """Tell what is written from now on, and where it stands."""
        if self._publisher is None or self._reader is not None or not (self.is_speaking and self._has_probed):
            return
        self._reader = self._publisher.join_broker(self, self._writes, self._dialect)
        if self._is_paused:
            self._reader.pause()
        untold, self._untold = self._untold, None
        if untold is None:
            self._reader.push_everything()
        else:
            serial, reached = untold
            for (stream, writer), token in sorted(reached.items()):
                self.tell_position(Position(stream=stream, instance=writer, prev_token=token, token=token))
            self._reader.push_since(serial)
        self._reader.send_positions()

    def _stop_publishing(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()
            assert self._publisher is not None
            self._publisher.leave_broker(reader)

    def _is_of_others(self, command: Rdata | RdataRun | Position) -> bool:
        """Whether it is news from somebody else, whose name can be kept."""
        writer = command.instance
        if (command.stream, writer) in self._writes:
            if self._is_foreign(command):
                self._clashes(NameConflict(stream=command.stream, writer=writer))
            return False
        if writer in self.writers:
            return True
        if len(writer) > MAX_NAME or not writer.isprintable():
            return False
        if len(self.writers) >= MAX_WRITERS:
            if not self._is_full:
                self._is_full = True
                self._logger.error("over {count} names of writers: others are not heard", count=MAX_WRITERS)
            return False
        self.writers.add(writer)
        return True

    def _is_foreign(self, command: Rdata | RdataRun | Position) -> bool:
        """Whether something under our name cannot have come from here."""
        if isinstance(command, Position) and self._echoes.take(command):
            return False
        if not self._has_come_round or self._publisher is None:
            return False
        if isinstance(command, Position):
            return True
        told = self._publisher.positions(command.stream).get(command.instance, 0)
        tokens = command.tokens if isinstance(command, RdataRun) else [command.token]
        return any(token is not None and token > told for token in tokens)

    def _clashes(self, clash: NameConflict) -> None:
        """Two processes under one name would make the others drop facts of both: be the one that stops."""
        if self.clash is None:
            self._logger.critical("{clash}; nothing is told under it", clash=clash)
        self.clash = clash
        self._has_probed = False
        self._stop_publishing()
        # Not at the same time as the other, who may be doing the same.
        self._later(CLASH_SECONDS * self._chance.uniform(1.0, 1.1), self._probe_again)

    def _probe_again(self) -> None:
        """The other may only be quiet: it is there no more if it does not answer either."""
        if self._is_joined and self.is_speaking:
            self.send(Replicate())
            self._later(self._probe_seconds, self._probed)
        else:
            self._later(CLASH_SECONDS, self._probe_again)

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._clock.callLater(seconds, work)
