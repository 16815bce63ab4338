"""FollowerSender: sends one follower its streams, as lines of its release."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from twisted.logger import Logger

from synrepl.base.metrics import Metrics
from synrepl.errors import StorageError
from synrepl.replication.connection import Connection
from synrepl.replication.serving.encoder import Encoder, LogEncoder
from synrepl.replication.serving.feed import (
    EphemeralStep,
    Feed,
    PageStep,
    PositionsStep,
    TokenPage,
    read_page,
)
from synrepl.replication.serving.follower_feed import FollowerFeed
from synrepl.replication.serving.ring import Ring
from synrepl.replication.serving.sender import Sender
from synrepl.storage.log import Log
from synrepl.streams.facts import Fact
from synrepl.streams.stream import Stream
from synrepl.wire.commands import Position, Replicate
from synrepl.wire.grammar import Command

MAX_COMMANDS: Final = 1_000
"""Broadcast commands buffered for a follower whose transport is full; the oldest are dropped."""

_logger = Logger(namespace="synrepl.replication")


class FollowerEncoder(LogEncoder):
    """One follower's lines: those of its release (`release_encoder`), with its positions and restarts.

    `positions` returns the position of each writer of a stream to announce.
    """

    def __init__(
        self, log: Log, feed: FollowerFeed, encoder: Encoder, positions: Callable[[str], dict[str, int]]
    ) -> None:
        self.release_encoder = encoder
        self._log = log
        self._feed = feed
        self._positions = positions

    @property
    def shared(self) -> Encoder:
        return self.release_encoder

    def lines(self, facts: Iterable[Fact]) -> bytes:
        return self.release_encoder.lines(facts)

    def ephemeral(self, step: EphemeralStep) -> bytes:
        return b"".join(map(self._reset_lines, step.resets)) + self.lines(step.facts)

    def positions(self, step: PositionsStep) -> bytes:
        """A POSITION for each stream, and for each of its writers if the release knows writers."""
        lines: list[bytes] = []
        for stream in self.release_encoder.streams():
            if step.streams is not None and stream.name not in step.streams:
                continue
            if self.release_encoder.strategy.pulls:
                commands = [
                    Position(stream=stream.name, instance=writer, prev_token=token, token=token)
                    for writer, token in sorted(self._positions(stream.name).items())
                ]
            else:
                token = self._log.linear_position(stream.name)
                commands = [Position(stream=stream.name, token=token)]
            lines += map(self.release_encoder.command, commands)
        return b"".join(lines)

    async def page(self, log: Log, feed: Feed, step: PageStep) -> bytes | None:
        page = await read_page(log, feed, step)
        return None if page is None else self._lines_of(feed, page.facts)

    async def token_page(self, feed: Feed, step: TokenPage) -> bytes | None:
        return self._lines_of(feed, await self._feed.read_tokens(feed, step))

    def _lines_of(self, feed: Feed, facts: Iterable[Fact]) -> bytes | None:
        # Meanwhile the follower may have asked anew for some of the streams.
        streams = feed.filter.streams
        if not self._feed.has(feed) or streams is None:
            return None
        return self.lines(fact for fact in facts if fact.stream in streams)

    def _reset_lines(self, stream: str) -> bytes:
        """POSITION lines that announce a restart of an ephemeral stream; empty if the release has none."""
        if not self.release_encoder.strategy.pulls:
            return b""
        return b"".join(
            self.release_encoder.command(Position(stream=stream, instance=writer, prev_token=0, token=0))
            for writer in sorted(self._positions(stream))
        )


class FollowerSender(Sender):
    """Sends a follower (or a shared channel) its streams as fast as it takes them, without a queue of facts.

    Commands go at once, or first when the transport has space again; facts and positions in the order of the
    `feed`. `scope` describes what the daemon holds, if not everything. `positions` returns the position of
    each writer of a stream to announce. The owner calls `pump` after each commit.
    """

    feed: FollowerFeed
    encoder: FollowerEncoder

    def __init__(
        self,
        log: Log,
        ring: Ring,
        connection: Connection,
        encoder: Encoder,
        *,
        metrics: Metrics,
        positions: Callable[[str], dict[str, int]],
        scope: str = "",
    ) -> None:
        self.connection = connection
        self._scope = scope
        self._metrics = metrics
        feed = FollowerFeed(
            log,
            ring,
            streams=[stream.name for stream in encoder.streams()],
            is_linear=not encoder.strategy.pulls,
            positions=positions,
            metrics=metrics,
        )
        own = FollowerEncoder(log, feed, encoder, positions)
        super().__init__(log, feed, own, connection, on_head=self._reached_head)
        self._commands: deque[Command] = deque(maxlen=MAX_COMMANDS)
        self._at_head: Callable[[], object] | None = None
        self.run().addErrback(self._cannot_go_on)

    def replicate(self, command: Replicate) -> None:
        """Answer REPLICATE. Before 1.13, a request for an unknown stream ends the connection."""
        release = self.encoder.release_encoder
        if release.strategy.pulls:
            self.send_positions()
            return
        asked = [stream for stream in release.streams() if command.stream in ("ALL", stream.name)]
        for stream in asked:
            self._send_from(stream, command.token)
        if not asked:
            hint = f": {self._scope}" if self._scope else ""
            self.connection.fail(f"unknown stream {command.stream or ''}{hint}")

    def _send_from(self, stream: Stream[Any], token: int | None) -> None:
        self.feed.stream_from(stream, token)
        self.pump()

    def serve(self, encoder: Encoder) -> None:
        """Serve the streams of this encoder from now on: the follower has named more."""
        self.encoder.release_encoder = encoder
        self.feed.serve([stream.name for stream in encoder.streams()])

    def push_everything(self) -> None:
        """Send every row from now on."""
        self.feed.everything()

    def push_since(self, serial: int) -> None:
        """Send every row after this serial of the log, then go live."""
        self.feed.since(serial)
        self.pump()

    def send_positions(self) -> None:
        """Send all positions after the facts that come before them."""
        self.feed.ask_positions()
        self.pump()

    def send_command(self, command: Command) -> None:
        """Send a broadcast command. A follower that does not read loses the oldest ones; each is counted."""
        if len(self._commands) == MAX_COMMANDS:
            self._metrics.commands_dropped.labels(self._commands[0].NAME).inc()
        self._commands.append(command)
        self._send_commands()

    def call_at_head(self, called: Callable[[], object]) -> None:
        """Call this once, when nothing is left to send."""
        self._at_head = called
        self.pump()

    def resume(self) -> None:
        """Go on: first the commands."""
        self.is_paused = False
        self._send_commands()
        if not self.is_paused:
            super().resume()

    def close(self) -> None:
        """Send nothing more, and forget what the follower has asked for: the connection was lost."""
        self.stop()
        self.feed.clear()
        self._commands.clear()

    def _send_commands(self) -> None:
        while self._commands and not self.is_paused and not self.is_stopped:
            self.connection.send(self._commands.popleft())

    def _reached_head(self) -> bool:
        if self._at_head is not None and self.feed.is_at_head:
            called, self._at_head = self._at_head, None
            called()
        return True

    def _cannot_go_on(self, failure: Any) -> None:
        if failure.check(StorageError) is None:
            _logger.failure("cannot send a follower what it asked for", failure)
        self.connection.fail("the log cannot be read at the moment; reconnect later")
