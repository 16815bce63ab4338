"""The ends of a served channel: who publishes, who subscribes, and what is passed between them."""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from synrepl.streams.writer import Writer

MAX_WAITING: Final = 8 * 1024 * 1024
"""The bytes that wait for a subscriber that does not read. Beyond it they are dropped, and it is told later
up to where it lacks facts."""


class Unit(msgspec.Struct):
    """Lines that are passed together, a batch or one alone, encoded as messages.

    `writer` is None for commands without a stream; else `token` is that of the fact or position. `since` is
    when they came, in clock seconds. `before` is the token that was passed last of this writer, once this one
    is passed. With `is_refused` they are not passed, and no more of this writer before its POSITION.
    """

    data: bytes
    since: float
    publisher: "ChannelPublisher"
    writer: Writer | None = None
    token: int = 0
    is_position: bool = False
    is_refused: bool = False
    before: int = 0


class Passed(msgspec.Struct):
    """What was passed of a writer: the last token, and who published it."""

    publisher: "ChannelPublisher"
    token: int


class ChannelPublisher:
    """A connection that publishes: the lines of incomplete batches, and the writers that it published.

    `link` is the connection between daemons over which it publishes here; None for a client of this daemon.
    `name` is what other daemons call it. `owner` is the name of its key (empty: it has none, or the shared
    secret), for whom its writers count; None for this daemon itself and its upstream. `is_own`: it is this
    daemon itself, which asks and tells positions.
    """

    def __init__(
        self, link: object = None, name: str = "", owner: str | None = None, *, is_own: bool = False
    ) -> None:
        self.link = link
        self.name = name
        self.owner = owner
        self.is_own = is_own
        self.held: dict[Writer, list[bytes]] = {}
        self.held_bytes = 0
        self.refused: dict[Writer, None] = {}
        """The writers of which a batch is refused, up to its end."""
        self.waiting: deque[Unit] = deque()
        """Units that wait to be passed until they are on disk, in order, with those behind them."""
        self.writers: dict[tuple[str, str], Writer] = {}
        """The writers that it has named, by stream and name; `PublisherLimits` counts them."""

    def drop_held(self) -> None:
        """Forget the lines of batches that are not complete."""
        self.held, self.held_bytes = {}, 0

    def reset(self) -> None:
        """Forget all lines that it published: its last ones may be lost."""
        self.drop_held()
        self.waiting = deque()
        self.refused = {}


class ChannelSubscriber:
    """A connection that subscribes. `write` sends bytes; between `pause` and `resume` they wait here.

    With a `link`, which is a connection between daemons, it is not sent what was published over that link.
    """

    def __init__(self, write: Callable[[bytes], object], link: object = None) -> None:
        self.link = link
        self.encode: Callable[[bytes], bytes] | None = None
        """Changes messages into the form that this connection is sent; None: as `message` encodes them."""
        self.lacks: dict[Writer, None] = {}
        """The writers of which it is to be told a position first."""
        self.is_demoted = False
        """Whether it is sent nothing, since too much was waiting for it."""
        self.is_paused = False
        self._write = write
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def send(self, data: bytes) -> bool:
        """Send this, or let it wait. False if too much waits: then all of that is dropped."""
        if self.encode is not None:
            data = self.encode(data)
        if not self.is_paused:
            self._write(data)
            return True
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes <= MAX_WAITING:
            return True
        self._drop()
        self.is_demoted = True
        return False

    def pause(self) -> None:
        """The transport's buffer is full."""
        self.is_paused = True

    def resume(self) -> None:
        """The transport's buffer has room."""
        self.is_paused = False
        data = b"".join(self._waiting)
        self._drop()
        if data:
            self._write(data)

    def _drop(self) -> None:
        self._waiting, self._waiting_bytes = [], 0
