"""Sessions: one side of a connection, sans I/O.

A session receives lines and the time, and returns actions: bytes to send, commands to deliver, close. The
driver (TCP, HTTP, Redis, a test, the simulator) moves the bytes, and performs the actions in order. Because
it neither reads a clock nor owns a socket, a test can say at which microsecond a peer falls silent, and the
simulator can let an hour pass in milliseconds, through the same code that runs in production.

No input from a peer makes a session raise: it returns one ERROR line and the close, after the commands that
came before the error, as these were valid when they were sent. Errors of real peers:
docs/reference/peers.md#tcp-errors

Time is what peers disagree about. A release that sends PING may be held to it, since it promises one every
five seconds; one that never did so must be left alone, however long it says nothing. So the session watches
whether the peer has ever sent PING, and not which release it claims to be. A peer of unknown dialect is taken
as any that its lines fit, until one line fits only some of them.

A shared channel (side BROKER) has no peer to greet, to PING or to close on. A message is a line without its
end. Invalid messages are logged and skipped, as Synapse's own processes do
(docs/reference/peers.md#redis-unknown).
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import msgspec

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire.codec import MAX_LENGTH, Codec, LineBuffer, codec_of
from synrepl.wire.commands import Error, Name, Ping, Replicate, Server
from synrepl.wire.dialect import CURRENT, LEGACY, NEWEST, SYNAPSE, Dialect
from synrepl.wire.extension import FollowerName
from synrepl.wire.grammar import BOTH, BROKER, SERVER, Command, Side
from synrepl.wire.keepalive import KEEPALIVE, Keepalive
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import printable

AUTO: Final = None
"""Detect the dialect by the peer's first command that not all dialects parse alike.

The first dialect that can parse the command wins.
"""

LINE_TOO_LONG: Final = f"Line length exceeded: a line has at most {MAX_LENGTH} bytes"

MAX_TEXT: Final = 1_000
"""The most characters of an ERROR that are sent or shown."""

# The dialects to detect, in order; the first that can parse a command wins
# (docs/reference/peers.md#tcp-dialect).
_GUESSES: Final = (LEGACY, CURRENT, NEWEST)


class Send(msgspec.Struct, frozen=True):
    """Write these bytes."""

    data: bytes


class Deliver(msgspec.Struct, frozen=True):
    """Deliver these commands, in order. RDATA that arrived in a run stays together."""

    commands: list[Command | RdataRun]


class Upgrade(msgspec.Struct, frozen=True):
    """Hand the peer, which is no follower, over to another owner, with these lines and all that follow.

    The session goes on once it speaks the owner's dialect (`Session.speak`).
    """

    lines: Sequence[bytes]


class Close(msgspec.Struct, frozen=True):
    """Close the connection after all bytes are sent. No action follows."""

    why: str


class Warn(msgspec.Struct, frozen=True):
    """Log that a message on a shared channel is invalid."""

    why: str


Action = Send | Deliver | Upgrade | Close | Warn


class Session:
    """One side of one connection.

    `side` is the local side. `name` is its own name: the server's on the server's side, the client's on the
    client's. A client closes the connection if the server's name is not `expected_server` (None: any).
    `seconds` returns the time. A peer of unknown dialect whose command has one of the names `opening` is
    handed over.
    """

    def __init__(
        self,
        side: Side,
        dialect: Dialect | None,
        *,
        name: str,
        seconds: Callable[[], float],
        expected_server: str | None = None,
        keepalive: Keepalive = KEEPALIVE,
        opening: Collection[bytes] = (),
    ) -> None:
        if dialect is AUTO and side is not SERVER:
            raise LocalProtocolError("only a server can detect its peer's dialect")
        self.side = side
        self.dialect = dialect
        self.peer_name = ""
        self.closed = False
        self.is_wrong_server = False
        """Whether the server is not the expected one."""
        self._name = name
        self._seconds = seconds
        self._expected_server = expected_server
        self._keepalive = keepalive
        self._opening = opening
        # Every upstream of a replica sends PING; whether another peer does, its first PING shows.
        self._peer_pings = side is not SERVER and dialect is not AUTO and _is_for_replicas(dialect)
        self._is_introduced = side is not SERVER
        self._must_authenticate = side is SERVER and dialect is not AUTO and _is_for_replicas(dialect)
        self._last_sent = self._last_received = self._started = seconds()
        self._theirs = side if side is BROKER else BOTH & ~side
        self._codec = codec_of(_GUESSES[0] if dialect is AUTO else dialect, ours=side, theirs=self._theirs)
        self._buffer = LineBuffer()

    def connected(self) -> list[Action]:
        """Greet the peer. A shared channel has no greeting."""
        if self.side is BROKER:
            return []
        hello = Server(server_name=self._name) if self.side is SERVER else Name(name=self._name)
        return [Send(self.encode([hello, self._ping()]))]

    def speak(self, codec: Codec) -> None:
        """Speak the dialect of this codec from now on. A client must still say who it is."""
        self.dialect, self._codec = codec.dialect, codec
        self._must_authenticate = self.side is SERVER

    def split(self, data: bytes) -> list[bytes]:
        """Split received bytes, which may end anywhere, into lines for `receive`."""
        if self.closed:
            return []
        self._last_received = self._seconds()
        return self._buffer.receive(data)

    def take_rest(self) -> bytes:
        """Return the bytes that were received and are no line yet, and forget them: they are handed over."""
        return self._buffer.take_rest()

    def end(self) -> None:
        """Process nothing more: the connection is closed, or about to be. Idempotent."""
        self.closed = True

    def receive(self, lines: Sequence[bytes]) -> Iterator[Action]:
        """Process received lines; on a shared channel, messages.

        Each action must be performed before the next one is requested. Otherwise a bad line would close the
        session before the commands in front of it are carried out.
        """
        if self.closed or not lines:
            return
        self._last_received = self._seconds()
        if self.side is BROKER:
            yield from self._receive_shared(lines)
            return
        commands: list[Command | RdataRun] = []
        good, why = _good_lines(lines)
        opened_at = None
        try:
            opened_at = self._read(lines[:good], commands)
        except RemoteProtocolError as error:
            why = error.why
        # Also without commands: the lines may have shown the peer's dialect.
        if commands or why:
            yield Deliver(commands)
        if opened_at is not None:
            yield Upgrade(lines[opened_at:])
        elif why:
            yield from self.fail(why)

    def tick(self) -> list[Action]:
        """Do what is due: PING, or time out. Call it at `deadline()` or later, at any frequency."""
        if self.closed or self.side is BROKER:
            return []
        now = self._seconds()
        if self._peer_pings and now >= self._times_out_at:
            return self.fail("ping timeout")
        if now >= self._introduced_by:
            keepalive = self._keepalive
            if self._must_authenticate:
                why = f"no valid HELLO came within {keepalive.handshake_seconds:g} seconds"
                return self.fail(why)
            return self.fail(
                f"no request within {keepalive.request_seconds:g} seconds: send REPLICATE to follow"
            )
        if now >= self._pings_at:
            return [Send(self.encode([self._ping()]))]
        return []

    def restart_timeout(self) -> None:
        """Restart the timeout: the driver has paused reading."""
        self._last_received = self._seconds()

    def deadline(self) -> float:
        """When `tick` may next have something to do, in seconds of the session's clock."""
        if self.side is BROKER:
            return math.inf
        deadline = min(self._pings_at, self._introduced_by)
        return min(deadline, self._times_out_at) if self._peer_pings else deadline

    def authenticated(self) -> None:
        """Note that the peer, a replica, was accepted."""
        self._is_introduced = True
        # Every replica sends PING or ACK, so its silence is a failure.
        self._peer_pings = True

    # `tick` and `deadline` share these sums: a rounding error between them would make a driver spin.

    @property
    def _pings_at(self) -> float:
        return self._last_sent + self._keepalive.ping_seconds

    @property
    def _times_out_at(self) -> float:
        return self._last_received + self._keepalive.timeout_seconds

    @property
    def _introduced_by(self) -> float:
        if self._is_introduced or (self._peer_pings and not self._must_authenticate):
            return math.inf
        keepalive = self._keepalive
        if self._must_authenticate:
            return self._started + keepalive.handshake_seconds
        return self._started + (keepalive.request_seconds or math.inf)

    def fail(self, why: str) -> list[Action]:
        """Send ERROR and close. Does nothing if the session is already closed."""
        if self.closed:
            return []
        text = _one_line(why)
        data = self.encode([Error(text=text)])
        self.end()
        return [Send(data), Close(text)]

    def encode(self, commands: Sequence[Command]) -> bytes:
        """Format commands. Raises LocalProtocolError if one is invalid, too long, or not for this side."""
        self.sent()
        format_line = self._codec.format
        return b"".join([format_line(command) + b"\n" for command in commands])

    def sent(self) -> None:
        """Restart the PING interval, for a driver that sent bytes of its own."""
        self._last_sent = self._seconds()

    def _receive_shared(self, messages: Sequence[bytes]) -> list[Action]:
        """Process messages of a shared channel. An invalid one does not affect the others."""
        commands: list[Command | RdataRun] = []
        joined = b"".join(messages)
        if _is_clean(joined) and b"\n" not in joined:
            try:
                self._read(messages, commands)
            except RemoteProtocolError:
                commands = []  # One is invalid: parse them one by one below.
            else:
                return [Deliver(commands)] if commands else []
        actions: list[Action] = []
        for message in messages:
            # A line end is only white space in JSON. Left as it is, it would end the line that we send on.
            line = message.replace(b"\n", b" ").replace(b"\r", b" ")
            try:
                line.decode("utf-8")
                self._read([line], commands)
            except (RemoteProtocolError, UnicodeDecodeError) as error:
                why = error.why if isinstance(error, RemoteProtocolError) else "a message is not UTF-8"
                if commands:
                    actions.append(Deliver(commands))
                    commands = []
                actions.append(Warn(_one_line(why)))
        if commands:
            actions.append(Deliver(commands))
        return actions

    def _read(self, lines: Sequence[bytes], commands: list[Command | RdataRun]) -> int | None:
        """Append the commands of these lines; return the index of the first one that hands the peer over."""
        deliver = commands.append
        index = 0
        while self.dialect is AUTO and index < len(lines):
            if lines[index]:
                if lines[index].partition(b" ")[0] in self._opening:
                    return index
                deliver(self._note(self._guess(lines[index])))
            index += 1
        parse = self._codec.parse
        runs = self._codec.runs
        while index < len(lines):
            line = lines[index]
            if runs is not None and line.startswith(b"RDATA ") and (found := runs.read(lines, index)):
                deliver(found)
                index += len(found.rows) if isinstance(found, RdataRun) else 1
                continue
            if line:
                deliver(self._note(parse(line)))
            index += 1
        return None

    def _guess(self, line: bytes) -> Command:
        """Parse a command from a peer of unknown dialect. Sets the dialect if the command shows it."""
        meanings: list[tuple[Codec, Command]] = []
        errors: list[str] = []
        for guess in _GUESSES:
            codec = codec_of(guess, ours=self.side, theirs=self._theirs)
            try:
                command = codec.parse(line)
            except RemoteProtocolError as error:
                if error.why not in errors:
                    errors.append(error.why)
                continue
            # From 1.13 on, servers ignore the text after REPLICATE: it does not show the release.
            if not isinstance(command, Replicate) or not command.text or command.named:
                meanings.append((codec, command))
        if not meanings:
            raise RemoteProtocolError("; or ".join(errors))
        codec, command = meanings[0]
        if len(meanings) < len(_GUESSES) or any(other != command for _, other in meanings):
            self.dialect = codec.dialect
            self._codec = codec
        return command

    def _note(self, command: Command) -> Command:
        """Update the session; return the command with printable text. Raises RemoteProtocolError."""
        if isinstance(command, Ping):
            self._peer_pings = True
        elif isinstance(command, Name):
            given = FollowerName.parse(command.name)
            self.peer_name = printable(given.name)
            return Name(name=str(msgspec.structs.replace(given, name=self.peer_name)))
        elif isinstance(command, Error):
            return Error(text=_one_line(command.text))
        elif isinstance(command, Server):
            self.peer_name = printable(command.server_name)
            if self._expected_server is not None and command.server_name != self._expected_server:
                self.is_wrong_server = True
                raise RemoteProtocolError(
                    f"wrong server_name: the server is {self.peer_name}, expected {self._expected_server}"
                )
        elif not self._is_introduced and not self._must_authenticate:
            self._is_introduced = True
        return command

    def _ping(self) -> Ping:
        return Ping(text=str(int(self._seconds() * 1000)))


def _is_for_replicas(dialect: Dialect) -> bool:
    """Whether a client of this dialect is a replica, which must say who it is."""
    return dialect.release not in SYNAPSE


def _one_line(text: str) -> str:
    """Return `text` as one line that is safe to show, as it may quote a peer."""
    return printable(" ".join(text.split()), limit=MAX_TEXT)


def _is_clean(text: bytes) -> bool:
    """Whether this is ASCII without CR, as rows nearly always are: none of its lines need be checked."""
    return text.isascii() and b"\r" not in text


def _has_short_lines(text: bytes) -> bool:
    """Whether no line of this text is too long. It does not look at each line."""
    start = 0
    while len(text) - start > MAX_LENGTH:
        start = text.rfind(b"\n", start, start + MAX_LENGTH + 1) + 1
        if start == 0:
            return False
    return True


def _good_lines(lines: Sequence[bytes]) -> tuple[int, str]:
    """Count the valid lines at the start, and explain what is wrong with the next one."""
    joined = b"\n".join(lines)
    if _is_clean(joined) and _has_short_lines(joined):
        return len(lines), ""
    for index, line in enumerate(lines):
        if len(line) > MAX_LENGTH:
            return index, LINE_TOO_LONG
        if line.endswith(b"\r"):
            return index, "a line must end with LF alone, not with CR LF"
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            return index, "a line is not UTF-8"
    return len(lines), ""
