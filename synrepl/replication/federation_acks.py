"""How far all federation senders have the federation stream."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from synrepl.errors import RemoteProtocolError
from synrepl.ports.interfaces import IClock
from synrepl.replication.command_forwarder import REMIND_SECONDS, CommandOrigin

__all__ = [
    "MAX_NAME",
    "MAX_SENDERS",
    "MAX_WAITING",
    "PRESENT_SECONDS",
    "RECONNECT_SECONDS",
    "REMINDED_SECONDS",
    "FederationAcks",
]

RECONNECT_SECONDS: Final = 300.0
"""How long the ack of a lost connection still counts. A sender that reconnects asks for what comes after its
last ack, so that must be here; Synapse's own workers reconnect within 30 s, a restart takes a minute or two.
A sender that was renamed or retired counts no longer after this."""

REMINDED_SECONDS: Final = RECONNECT_SECONDS + REMIND_SECONDS
"""How long an ack counts that a replica passed on, from when the replica last named the sender as connected.
It does so every `REMIND_SECONDS`, so that the sender has `RECONNECT_SECONDS` to come back here too."""

PRESENT_SECONDS: Final = 1.5 * REMIND_SECONDS
"""A sender behind a replica is named to the upstream while the replica named it as recently as that."""

MAX_SENDERS: Final = 100
"""Senders that one connection may speak for. A worker speaks for one; a bridge for all senders behind it, and
large deployments have a dozen."""

MAX_WAITING: Final = 1_000
"""Acks of lost connections that are kept, the newest."""

MAX_NAME: Final = 512
"""Characters in the name of a sender."""


class _Ack:
    """What one sender said last, and on which connection. `seen_at` is when that connection was lost, or when
    the replica last named the sender."""

    __slots__ = ("connection", "name", "seen_at", "token")

    def __init__(self, name: str, connection: object) -> None:
        self.name = name
        self.token = 0
        self.connection = connection
        self.seen_at = 0.0


class FederationAcks:
    """The last FEDERATION_ACK of each sender, and the lowest of them.

    An ack belongs to the connection on which it was said last. When that is lost, the ack counts for
    `RECONNECT_SECONDS` more, then it is dropped. A replica (`forwarding.Origin`) has connections that are not
    seen here: it names the senders that are connected to it (`remind`), and one that it names no more is
    dropped after `REMINDED_SECONDS`. One ack costs logarithmic work.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._acks: dict[str, _Ack] = {}
        self._spoken_for: dict[object, set[str]] = {}
        self._waiting: dict[str, _Ack] = {}
        """Acks of lost connections, the one lost first first."""
        self._reminded: dict[str, _Ack] = {}
        """Acks that replicas passed on, the one named first first."""
        self._heap: list[tuple[int, str]] = []
        """Holds every ack, and older ones of the same senders, which are passed over."""

    def acknowledge(self, connection: object, name: str, token: int) -> None:
        """A sender has everything up to `token`. Raises RemoteProtocolError if this connection names more
        senders than it may; all that it said is dropped then."""
        ack = self._acks.get(name)
        if ack is None or ack.connection is not connection:
            if why := self._excess(connection, name):
                self._drop_all(connection)
                raise RemoteProtocolError(why)
            if ack is not None:
                self._detach(ack)
            ack = self._acks[name] = _Ack(name, connection)
            self._spoken_for.setdefault(connection, set()).add(name)
        self._see(ack)
        ack.token = token
        heappush(self._heap, (token, name))
        if len(self._heap) > 2 * len(self._acks) + 16:
            self._heap = [(ack.token, ack.name) for ack in self._acks.values()]
            heapify(self._heap)

    def lowest(self) -> int | None:
        """The token up to which every sender has the stream; None if there is no sender."""
        self._expire()
        while self._heap:
            token, name = self._heap[0]
            ack = self._acks.get(name)
            if ack is not None and ack.token == token:
                return token
            heappop(self._heap)
        return None

    def remind(self, connection: object, name: str) -> None:
        """The replica says that this sender is still connected to it."""
        ack = self._acks.get(name)
        if ack is not None and ack.connection is connection:
            self._see(ack)

    def present(self) -> Iterator[tuple[str, int]]:
        """The senders that are connected, here or to replicas, with their tokens."""
        limit = self._clock.seconds() - PRESENT_SECONDS
        for ack in self._acks.values():
            is_named = isinstance(ack.connection, CommandOrigin) and ack.seen_at > limit
            if is_named or not isinstance(ack.connection, CommandOrigin | None):
                yield ack.name, ack.token

    def connection_lost(self, connection: object) -> None:
        """The connection is gone; its senders may come back."""
        self._expire()
        for name in sorted(self._spoken_for.pop(connection, ())):
            ack = self._acks[name]
            ack.connection, ack.seen_at = None, self._clock.seconds()
            self._reminded.pop(name, None)
            self._waiting[name] = ack
        while len(self._waiting) > MAX_WAITING:
            self._drop(next(iter(self._waiting)))

    def _see(self, ack: _Ack) -> None:
        """A sender behind a replica is there now."""
        if isinstance(ack.connection, CommandOrigin):
            ack.seen_at = self._clock.seconds()
            self._reminded.pop(ack.name, None)
            self._reminded[ack.name] = ack

    def _excess(self, connection: object, name: str) -> str:
        """Which bound the connection would pass by naming this sender; empty if none."""
        if len(name) > MAX_NAME:
            return f"a name in FEDERATION_ACK holds up to {MAX_NAME} characters"
        if len(self._spoken_for.get(connection, ())) >= MAX_SENDERS:
            return f"one connection speaks for up to {MAX_SENDERS} senders in FEDERATION_ACK"
        return ""

    def _drop_all(self, connection: object) -> None:
        """Forget all that this connection said."""
        for name in list(self._spoken_for.get(connection, ())):
            self._drop(name)

    def _expire(self) -> None:
        now = self._clock.seconds()
        for acks, seconds in ((self._waiting, RECONNECT_SECONDS), (self._reminded, REMINDED_SECONDS)):
            while acks:
                ack = next(iter(acks.values()))
                if ack.seen_at > now - seconds:
                    break
                self._drop(ack.name)

    def _drop(self, name: str) -> None:
        self._detach(self._acks.pop(name))

    def _detach(self, ack: _Ack) -> None:
        self._waiting.pop(ack.name, None)
        self._reminded.pop(ack.name, None)
        names = self._spoken_for.get(ack.connection)
        if names is not None:
            names.discard(ack.name)
            if not names:
                del self._spoken_for[ack.connection]
