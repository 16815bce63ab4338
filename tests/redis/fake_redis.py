"""A Redis in memory on a fake clock, with the commands that replication uses.

It speaks RESP to the real `RedisLink`, over a `Network` whose links can also be cut and stopped.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import hiredis
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from synrepl.testing.network import MemoryEndpoint, Network

__all__ = ["FakeRedis"]

PIECE_BYTES: Final = 64 * 1024
"""What is read and written at once, as on a socket. The reader is slow with much more."""


class FakeRedis(Factory):
    """Listens at an address of a network until `kill`. Clients must send the `password`, if there is one.

    `published` counts the published messages. `is_master` decides the answer to ROLE, which nobody may ask if
    it is None. As a Sentinel it knows `masters`: the host and port of the master of each service.
    """

    noisy = False

    def __init__(
        self,
        network: Network,
        address: str = "redis",
        *,
        password: str | None = None,
        masters: Mapping[str, tuple[str, int]] = MappingProxyType({}),
    ) -> None:
        self.network = network
        self.address = address
        self.password = password
        self.masters = dict(masters)
        self.is_master: bool | None = True
        self.is_cluster = False
        self.max_clients = 10_000
        self.published = 0
        self.stalled: set[str] = set()
        self.connections: list[_Client] = []
        self.watchers: list[Callable[[bytes, bytes], None]] = []
        self.start()

    def endpoint(self, client: str) -> MemoryEndpoint:
        """The endpoint for the process `client`."""
        return MemoryEndpoint(self.network, client, self.address)

    def watch(self, callback: Callable[[bytes, bytes], None]) -> None:
        """Call this with the channel and payload of each published message, in order."""
        self.watchers.append(callback)

    def start(self) -> None:
        """Accept connections."""
        self.network.listen(self.address, self)

    def kill(self) -> None:
        """Crash: cut every connection, and refuse new ones until `start`."""
        self.network.stop_listening(self.address)
        self.stalled.clear()
        self.cut()

    def cut(self, role: str = "") -> int:
        """Cut the connections of a role (``subscriber`` or ``publisher``, or the whole name that a client
        gave itself), or all of them. Gives how many there were."""
        found = self.of(role)
        for connection in found:
            connection.transport.abortConnection()
        return len(found)

    def stall(self, role: str = "") -> None:
        """Answer nothing to those of a role, or to anybody, until `go_on`; their connections stay open."""
        self.stalled.add(role)

    def go_on(self) -> None:
        """Answer again, the waiting requests first."""
        self.stalled.clear()
        for connection in list(self.connections):
            connection.work()

    def of(self, role: str = "") -> "list[_Client]":
        """The connections of a role, or all of them."""
        return [one for one in self.connections if one.is_of(role)]

    def publish(self, channel: str | bytes, payload: bytes) -> int:
        """PUBLISH: returns the number of subscribers that received the message."""
        channel = channel.encode() if isinstance(channel, str) else channel
        self.published += 1
        hearing = [one for one in self.connections if channel in one.channels]
        for one in hearing:
            one.say([b"message", channel, payload])
        for watcher in list(self.watchers):
            watcher(channel, payload)
        return len(hearing)

    def buildProtocol(self, addr: IAddress | None) -> "_Client":
        client = _Client(self)
        client.factory = self
        return client


class _Client(Protocol):
    """The server side of a connection."""

    transport: Any

    def __init__(self, redis: FakeRedis) -> None:
        self.name = ""
        self.channels: list[bytes] = []
        self._redis = redis
        self._reader = hiredis.Reader()
        self._is_known = redis.password is None
        self._unread: list[bytes] = []
        self._unsaid: list[bytes] = []

    def connectionMade(self) -> None:
        if len(self._redis.connections) >= self._redis.max_clients:
            self.transport.write(b"-ERR max number of clients reached\r\n")
            self.transport.loseConnection()
            return
        self._redis.connections.append(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self in self._redis.connections:
            self._redis.connections.remove(self)
        self.channels = []

    def dataReceived(self, data: bytes) -> None:
        self._unread += [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
        self.work()

    def is_of(self, role: str) -> bool:
        """Whether the name that it gave itself is this, or ends in this."""
        return not role or self.name == role or self.name.endswith(f":{role}")

    def work(self) -> None:
        """Answer the requests, unless stalled."""
        if any(self.is_of(role) for role in self._redis.stalled):
            return
        unread, self._unread = self._unread, []
        for piece in unread:
            self._reader.feed(piece)
            while (words := self._reader.gets()) is not False:
                self._unsaid.append(self._answer(words[0].upper(), words[1:]))
        unsaid, self._unsaid = b"".join(self._unsaid), []
        for start in range(0, len(unsaid), PIECE_BYTES):
            self.transport.write(unsaid[start : start + PIECE_BYTES])

    def say(self, answer: Any) -> None:
        """Push a message to this client."""
        self._unsaid.append(_encoded(answer))
        # Messages of one reactor turn go out in one write, as with a real Redis.
        if len(self._unsaid) == 1:
            self._redis.network.clock.callLater(0, self.work)

    def _answer(self, command: bytes, words: list[bytes]) -> bytes:
        if command == b"AUTH":
            return self._log_in(words)
        if not self._is_known:
            return b"-NOAUTH Authentication required.\r\n"
        if self.channels and command not in _WHILE_SUBSCRIBED:
            return b"-ERR Can't execute '%b' in this context\r\n" % command.lower()
        match command:
            case b"SUBSCRIBE":
                return self._subscribe(words)
            case b"PUBLISH":
                return _encoded(self._redis.publish(*words))
            case b"PING":
                return _encoded([b"pong", b""]) if self.channels else b"+PONG\r\n"
            case b"CLIENT" if words[0].upper() == b"SETNAME":
                self.name = words[1].decode()
                return b"+OK\r\n"
            case b"ROLE" if self._redis.is_master is None:
                return b"-NOPERM this user has no permissions to run the 'role' command\r\n"
            case b"ROLE":
                return _encoded(
                    [b"master", 0, []]
                    if self._redis.is_master
                    else [b"slave", b"primary", 6379, b"connected", 0]
                )
            case b"CLUSTER" if self._redis.is_cluster:
                return _encoded(b"cluster_state:ok\r\n")
            case b"CLUSTER":
                return b"-ERR This instance has cluster support disabled\r\n"
            case b"SENTINEL":
                found = self._redis.masters.get(words[1].decode())
                return b"*-1\r\n" if found is None else _encoded([found[0].encode(), b"%d" % found[1]])
        return b"-ERR unknown command '%b'\r\n" % command

    def _log_in(self, words: list[bytes]) -> bytes:
        if self._redis.password is None:
            return b"-ERR AUTH <password> called without any password configured for the default user.\r\n"
        if words[-1].decode() != self._redis.password:
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        self._is_known = True
        return b"+OK\r\n"

    def _subscribe(self, channels: list[bytes]) -> bytes:
        answers = []
        for channel in channels:
            if channel not in self.channels:
                self.channels.append(channel)
            answers.append(_encoded([b"subscribe", channel, len(self.channels)]))
        return b"".join(answers)


_WHILE_SUBSCRIBED: Final = frozenset({b"SUBSCRIBE", b"PING", b"QUIT"})


def _encoded(answer: Any) -> bytes:
    if isinstance(answer, list):
        return b"*%d\r\n" % len(answer) + b"".join(map(_encoded, answer))
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    return b"$%d\r\n%b\r\n" % (len(answer), answer)
