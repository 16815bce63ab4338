"""What followers send up and this daemon cannot act on, for the homeserver to read."""

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
"""Of lines. Beyond either bound the oldest command falls out, and is counted."""


class FeedEntry(msgspec.Struct, frozen=True):
    """A command: its dense number in this life of the daemon, its name and line, and when it came."""

    number: int
    command: str
    line: str
    at_ms: int


class CommandFeed:
    """The newest commands, in memory, until somebody acknowledges them.

    `life` tells one life of the daemon from another: numbers begin at 1 in each. What falls out without being
    acknowledged is told to `unread`, by name; `fallen` is the number of the last such command.
    """

    def __init__(self, clock: IClock, unread: Callable[[str], None] = lambda name: None) -> None:
        self.life = secrets.token_hex(4)
        self.head = 0
        self.trimmed_upto = 0
        self.fallen = 0
        self._clock = clock
        self._unread = unread
        self._entries: deque[FeedEntry] = deque()
        self._bytes = 0
        self._waiters: list[Deferred[None]] = []

    def add(self, command: Command) -> None:
        """Offer this command."""
        try:
            line = line_of(command).decode()
        except LocalProtocolError:
            self._unread(command.NAME)
            return
        self.head += 1
        at_ms = int(self._clock.seconds() * 1000)
        self._entries.append(FeedEntry(self.head, command.NAME, line, at_ms))
        self._bytes += len(line)
        while len(self._entries) > MAX_COMMANDS or self._bytes > MAX_BYTES:
            lost = self._drop()
            self.fallen = lost.number
            self._unread(lost.command)
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(None)

    def after(self, number: int, limit: int) -> list[FeedEntry]:
        """The first commands after this number, so many at most."""
        start = max(0, number - self.trimmed_upto)
        return list(islice(self._entries, start, start + limit))

    def acknowledge(self, number: int) -> None:
        """Everything up to this number was acted on: it is not offered any more."""
        while self._entries and self._entries[0].number <= number:
            self._drop()

    async def news(self, timeout: float) -> None:
        """Returns when there is another command, or after so many seconds."""
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        timer = self._clock.callLater(timeout, waiter.callback, None)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if timer.active():
                timer.cancel()

    @property
    def waiting(self) -> int:
        """How many readers wait for a command."""
        return len(self._waiters)

    def _drop(self) -> FeedEntry:
        entry = self._entries.popleft()
        self._bytes -= len(entry.line)
        self.trimmed_upto = entry.number
        return entry
