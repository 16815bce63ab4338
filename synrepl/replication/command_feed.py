"""CommandFeed: followers' commands that this daemon cannot handle, for the homeserver to read."""

import secrets
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec
from twisted.internet.defer import Deferred

from synrepl.errors import LocalProtocolError
from synrepl.ports.interfaces import IClock
from synrepl.replication.command_forwarder import line_of
from synrepl.wire.grammar import Command

__all__ = ["MAX_BYTES", "MAX_COMMANDS", "CommandFeed", "FeedEntry"]

MAX_COMMANDS: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
"""Of lines. Beyond either limit the oldest command is dropped and counted."""


class FeedEntry(msgspec.Struct, frozen=True):
    """A command: its number in this life of the daemon (without gaps), its name, line and arrival time."""

    number: int
    command: str
    line: str
    at_ms: int


class CommandFeed:
    """A bounded buffer of the newest commands, kept in memory until the homeserver acknowledges them.

    `life` identifies this run of the daemon: numbers start at 1 in each run. `on_dropped` is called with the
    name of each command that is dropped unacknowledged; `fallen` is the number of the last such command.
    """

    def __init__(self, clock: IClock, on_dropped: Callable[[str], None] = lambda name: None) -> None:
        self.life = secrets.token_hex(4)
        self.head = 0
        self.trimmed_upto = 0
        self.fallen = 0
        self._clock = clock
        self._on_dropped = on_dropped
        self._entries: deque[FeedEntry] = deque()
        self._bytes = 0
        self._waiters: list[Deferred[None]] = []

    def add(self, command: Command) -> None:
        """Append this command."""
        try:
            line = line_of(command).decode()
        except LocalProtocolError:
            self._on_dropped(command.NAME)
            return
        self.head += 1
        at_ms = int(self._clock.seconds() * 1000)
        self._entries.append(FeedEntry(self.head, command.NAME, line, at_ms))
        self._bytes += len(line)
        while len(self._entries) > MAX_COMMANDS or self._bytes > MAX_BYTES:
            lost = self._drop()
            self.fallen = lost.number
            self._on_dropped(lost.command)
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(None)

    def after(self, number: int, limit: int) -> list[FeedEntry]:
        """The first commands after this number, at most `limit`."""
        start = max(0, number - self.trimmed_upto)
        return list(islice(self._entries, start, start + limit))

    def acknowledge(self, number: int) -> None:
        """Remove every command up to this number: the reader has handled them."""
        while self._entries and self._entries[0].number <= number:
            self._drop()

    async def wait(self, timeout: float) -> None:
        """Return when a new command arrives, or after `timeout` seconds."""
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        try:
            await waiter.addTimeout(timeout, self._clock, lambda *_: None)  # type: ignore[arg-type]
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    @property
    def waiting(self) -> int:
        """How many readers wait for a command."""
        return len(self._waiters)

    def _drop(self) -> FeedEntry:
        entry = self._entries.popleft()
        self._bytes -= len(entry.line)
        self.trimmed_upto = entry.number
        return entry
