"""Broadcasts: passes commands on to all followers and replicas, some messages in a turn of the reactor."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final

from synrepl.base.interfaces import IClock
from synrepl.base.time import Timer

MESSAGES_PER_TURN: Final = 250
"""Messages that are sent in a turn of the reactor; each takes some 15 microseconds."""

MAX_WAITING: Final = 1_000
"""Commands of one sender that wait to be passed on."""


class Broadcasts:
    """Passes commands on, those of each sender in order.

    One line of a follower becomes a message to every other one. So messages are sent a number in a turn, the
    senders take turns, and a command for which there is no space is dropped: delivery is best effort, as to a
    follower that is disconnected.
    """

    def __init__(self, clock: IClock) -> None:
        self._waiting: OrderedDict[object, deque[Iterator[None]]] = OrderedDict()
        """By sender, the next one first: for each command an iterator that sends one message in each step."""
        self._left = MESSAGES_PER_TURN
        self._timer = Timer(clock, self._begin_turn)

    def add(self, messages: Iterator[None], *, sender: object) -> bool:
        """Send these messages, one in each step, now or later. Returns False if they are dropped.

        `sender` is the peer whose command it is; None for a process that this daemon follows.
        """
        is_first = not self._waiting
        commands = self._waiting.setdefault(sender, deque())
        if len(commands) >= MAX_WAITING:
            return False
        commands.append(messages)
        if is_first:
            self._send()
        return True

    def stop(self) -> None:
        """Drop all that waits."""
        self._waiting.clear()
        self._timer.stop()

    def _begin_turn(self) -> None:
        self._left = MESSAGES_PER_TURN
        self._send()

    def _send(self) -> None:
        while self._waiting and self._left > 0:
            self._timer.start(0)
            sender, commands = next(iter(self._waiting.items()))
            for _ in commands[0]:
                self._left -= 1
                if self._left <= 0:
                    break
            else:
                commands.popleft()
                self._waiting.move_to_end(sender)
                if not commands:
                    del self._waiting[sender]
