"""FederationAcks: how far all federation senders have received the federation stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from synrepl.base.interfaces import IClock
from synrepl.errors import RemoteProtocolError
from synrepl.replication.serving.command_lines import REMIND_SECONDS, CommandOrigin

RECONNECT_SECONDS: Final = 300.0
"""How long the ack of a lost connection still counts. A sender that reconnects requests the facts after its
last ack, so those must be kept. Synapse's own workers reconnect within 30 s
(docs/reference/peers.md#tcp-reconnecting); a restart takes a minute or two. A renamed or retired sender stops
counting after this time.
"""

REMINDED_SECONDS: Final = RECONNECT_SECONDS + REMIND_SECONDS
"""How long an ack forwarded by a replica counts after the replica last named its sender as connected. The
replica does so every `REMIND_SECONDS`, which leaves the sender `RECONNECT_SECONDS` to come back.
"""

PRESENT_SECONDS: Final = 1.5 * REMIND_SECONDS
"""A sender behind a replica counts as connected for this long after the replica last named it."""

MAX_SENDERS: Final = 100
"""Senders that one connection may speak for. A worker speaks for one; a bridge for all senders behind it, and
large deployments have a dozen.
"""

MAX_DETACHED: Final = 1_000
"""Acks of lost connections that are kept; the oldest are dropped."""

MAX_NAME: Final = 512
"""The most characters in the name of a sender."""


@dataclass(eq=False, repr=False, slots=True)
class _Ack:
    """The last ack of one sender, and its connection.

    `seen_at` is when that connection was lost, or when the replica last named the sender.
    """

    name: str
    connection: object
    token: int = 0
    seen_at: float = 0.0


class FederationAcks:
    """The last FEDERATION_ACK of each sender, and the lowest of them.

    An ack belongs to the connection that sent it last. Once that connection is lost, the ack counts for
    `RECONNECT_SECONDS` and is then dropped. Senders' connections to a replica (`CommandOrigin`) are not seen
    from here: the replica names the senders connected to it (`refresh`), and a sender that it stops naming is
    dropped after `REMINDED_SECONDS`. One ack costs logarithmic time.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._acks: dict[str, _Ack] = {}
        self._senders: dict[object, set[str]] = {}
        self._detached: dict[str, _Ack] = {}
        """Acks of lost connections, in the order in which they were lost."""
        self._reminded: dict[str, _Ack] = {}
        """Acks forwarded by replicas, the least recently named first."""
        self._heap: list[tuple[int, str]] = []
        """Every ack, and outdated acks of the same senders, which are skipped."""

    def acknowledge(self, connection: object, name: str, token: int) -> None:
        """Record that a sender has everything up to `token`.

        Raises RemoteProtocolError, and drops all acks of this connection, if it names too many senders, or
        one with too long a name.
        """
        ack = self._acks.get(name)
        if ack is None or ack.connection is not connection:
            if why := self._limit_exceeded(connection, name):
                for each in list(self._senders.get(connection, ())):
                    self._drop(each)
                raise RemoteProtocolError(why)
            if ack is not None:
                self._detach(ack)
            ack = self._acks[name] = _Ack(name, connection)
            self._senders.setdefault(connection, set()).add(name)
        self._touch(ack)
        ack.token = token
        heappush(self._heap, (token, name))
        if len(self._heap) > 2 * len(self._acks) + 16:
            self._heap = [(ack.token, ack.name) for ack in self._acks.values()]
            heapify(self._heap)

    def token_of(self, name: str) -> int:
        """The last ack of this sender; 0 without one."""
        ack = self._acks.get(name)
        return 0 if ack is None else ack.token

    def restart(self) -> None:
        """Drop all acks: the stream has restarted, and its tokens mean other facts."""
        for name in list(self._acks):
            self._drop(name)

    def lowest(self) -> int | None:
        """The token up to which every sender has the stream; None without senders."""
        self._expire()
        while self._heap:
            token, name = self._heap[0]
            ack = self._acks.get(name)
            if ack is not None and ack.token == token:
                return token
            heappop(self._heap)
        return None

    def refresh(self, connection: object, name: str) -> None:
        """The replica reports that this sender is still connected to it."""
        ack = self._acks.get(name)
        if ack is not None and ack.connection is connection:
            self._touch(ack)

    def present(self) -> Iterator[tuple[str, int]]:
        """The connected senders, here or at replicas, with their tokens."""
        limit = self._clock.seconds() - PRESENT_SECONDS
        for ack in self._acks.values():
            is_named = isinstance(ack.connection, CommandOrigin) and ack.seen_at > limit
            if is_named or not isinstance(ack.connection, CommandOrigin | None):
                yield ack.name, ack.token

    def connection_lost(self, connection: object) -> None:
        """Keep the connection's acks for a while: its senders may come back."""
        self._expire()
        for name in sorted(self._senders.pop(connection, ())):
            ack = self._acks[name]
            ack.connection, ack.seen_at = None, self._clock.seconds()
            self._reminded.pop(name, None)
            self._detached[name] = ack
        while len(self._detached) > MAX_DETACHED:
            self._drop(next(iter(self._detached)))

    def _touch(self, ack: _Ack) -> None:
        if isinstance(ack.connection, CommandOrigin):
            ack.seen_at = self._clock.seconds()
            self._reminded.pop(ack.name, None)
            self._reminded[ack.name] = ack

    def _limit_exceeded(self, connection: object, name: str) -> str:
        if len(name) > MAX_NAME:
            return f"a name in FEDERATION_ACK exceeds {MAX_NAME} characters"
        if len(self._senders.get(connection, ())) >= MAX_SENDERS:
            return f"FEDERATION_ACK names more than {MAX_SENDERS} senders on one connection"
        return ""

    def _expire(self) -> None:
        now = self._clock.seconds()
        for acks, seconds in ((self._detached, RECONNECT_SECONDS), (self._reminded, REMINDED_SECONDS)):
            while acks:
                ack = next(iter(acks.values()))
                if ack.seen_at > now - seconds:
                    break
                self._drop(ack.name)

    def _drop(self, name: str) -> None:
        self._detach(self._acks.pop(name))

    def _detach(self, ack: _Ack) -> None:
        self._detached.pop(ack.name, None)
        self._reminded.pop(ack.name, None)
        names = self._senders.get(ack.connection)
        if names is not None:
            names.discard(ack.name)
            if not names:
                del self._senders[ack.connection]
