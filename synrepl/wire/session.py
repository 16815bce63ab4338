"""One connection's side of the conversation, without input or output.

A session takes lines and the time, and answers with actions: bytes to send, commands to deliver, close.
Whoever drives it (TCP, Redis, a test, the simulator) performs them in order. Nothing that a peer sends
makes a session raise: it answers with one ERROR line and the close.

On a shared channel (the side is BROKER) there is no peer to greet, to PING or to close on: a message is a
line without its end, and one that makes no sense is complained of and passed over, as Synapse's own processes
do.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire.codec import MAX_LENGTH, Codec, codec_of
from synrepl.wire.commands import Error, Name, Ping, Server
from synrepl.wire.dialect import CURRENT, LEGACY, NATIVE, NEWEST, Dialect
from synrepl.wire.grammar import BOTH, BROKER, SERVER, Command, Side, exists
from synrepl.wire.native import NATIVE_COMMANDS, Hello
from synrepl.wire.rdata_runs import RdataRun
from synrepl.wire.text import printable

__all__ = [
    "AUTO",
    "KEEPALIVE",
    "MAX_TEXT",
    "Action",
    "Close",
    "Warn",
    "Deliver",
    "Keepalive",
    "Send",
    "Session",
]

AUTO: Final = None
"""In place of a dialect: take the one that the peer's first decisive command belongs to."""

MAX_TEXT: Final = 1_000
"""Characters of an ERROR that are said, or shown."""

# Asked in this order; the first that can mean a command has it.
_GUESSES: Final = (LEGACY, CURRENT, NEWEST, NATIVE)


class Send(msgspec.Struct, frozen=True):
    """Write these bytes."""

    data: bytes


class Deliver(msgspec.Struct, frozen=True):
    """Hand on these commands, in order. RDATA that came in a run stays together."""

    commands: list[Command | RdataRun]


class Close(msgspec.Struct, frozen=True):
    """Close the connection, after what was sent before. Nothing follows. `ours`: we found fault with the
    peer."""

    why: str
    ours: bool = True


class Warn(msgspec.Struct, frozen=True):
    """Tell whoever reads logs of this message on a shared channel: nobody can make sense of it."""

    why: str


Action = Send | Deliver | Close | Warn


class Keepalive(msgspec.Struct, frozen=True):
    """PING when nothing was sent for `ping_seconds`; a peer that ever sent PING and is then silent for
    `timeout_seconds` is gone. The defaults are those of every release.

    A server closes a connection that has asked for nothing for `handshake_seconds`; a peer that sends PING
    is timed out instead, and one that asked for something and never sends PING is never timed out. A replica
    has so long to finish HELLO and AUTH.
    """

    ping_seconds: float = 5.0
    timeout_seconds: float = 25.0
    handshake_seconds: float = 30.0


KEEPALIVE: Final = Keepalive()


class Session:
    """One side of one connection.

    `side` is ours. `name` is who we are: the server's name on the server's side, the client's on the
    client's. A client closes on a server that is not `expected_server` (None: takes any).
    `seconds` tells the time.
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
    ) -> None:
        if dialect is AUTO and side is not SERVER:
            raise LocalProtocolError("only a server can find out which dialect its peer speaks")
        self.side = side
        self.dialect = dialect
        self.peer_name = ""
        self.closed = False
        self._name = name
        self._seconds = seconds
        self._expected_server = expected_server
        self._keepalive = keepalive
        self._peer_pings = False
        self._is_introduced = side is not SERVER
        self._must_authenticate = side is SERVER and dialect is not AUTO and _is_for_replicas(dialect)
        self._last_sent = self._last_received = self._started = seconds()
        self._theirs = side if side is BROKER else BOTH & ~side
        self._codec = codec_of(_GUESSES[0] if dialect is AUTO else dialect, ours=side, theirs=self._theirs)

    # -- what happens --------------------------------------------------------------------------------------

    def connected(self) -> list[Action]:
        """The greeting; on a shared channel nobody is greeted."""
        if self.side is BROKER:
            return []
        hello = Server(server_name=self._name) if self.side is SERVER else Name(name=self._name)
        return [Send(self.lines([hello, self._ping()]))]

    def receive(self, lines: Sequence[bytes], *, clean: bool = False) -> list[Action]:
        """What these lines mean. `clean`: they are known to be ASCII without CR, so that nobody need look
        again."""
        if self.closed or not lines:
            return []
        self._last_received = self._seconds()
        if self.side is BROKER:
            return self._hear(lines, clean=clean)
        commands: list[Command | RdataRun] = []
        good, why = (len(lines), "") if clean else _good_lines(lines)
        try:
            self._read(lines[:good], commands)
            if why:
                raise RemoteProtocolError(why)
        except RemoteProtocolError as error:
            return [Deliver(commands), *self.fail(error.why)]
        return [Deliver(commands)] if commands else []

    def line_too_long(self) -> list[Action]:
        """The peer sent more bytes without a line end than a line may hold."""
        return self.fail(f"Line length exceeded: a line holds {MAX_LENGTH} bytes")

    def tick(self) -> list[Action]:
        """Whatever the time demands: call it at `deadline()` or later, as often as you like."""
        if self.closed or self.side is BROKER:
            return []
        now = self._seconds()
        if self._peer_pings and now >= self._times_out_at:
            return self.fail("ping timeout")
        if now >= self._introduced_by:
            seconds = self._keepalive.handshake_seconds
            if self._must_authenticate:
                return self.fail(f"HELLO and AUTH were not finished within {seconds:g} seconds")
            return self.fail(f"nothing was asked for within {seconds:g} seconds: say REPLICATE to follow")
        if now >= self._pings_at:
            return [Send(self.lines([self._ping()]))]
        return []

    def not_listening(self) -> None:
        """We have stopped reading, so the peer's silence is our own doing."""
        self._last_received = self._seconds()

    def deadline(self) -> float:
        """When `tick` may next have something to do, in seconds on our clock."""
        if self.side is BROKER:
            return math.inf
        deadline = min(self._pings_at, self._introduced_by)
        return min(deadline, self._times_out_at) if self._peer_pings else deadline

    def authenticated(self) -> None:
        """The peer is a replica, and HELLO and AUTH are done."""
        self._is_introduced = True

    # One sum for `tick` and `deadline`: a rounding error between them would make a driver spin.

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
        return self._started + self._keepalive.handshake_seconds

    def fail(self, why: str) -> list[Action]:
        """Tell the peer what is wrong, and close. Once only."""
        if self.closed:
            return []
        text = _one_line(why)
        data = self.lines([Error(text=text)])
        self.closed = True
        return [Send(data), Close(text)]

    # -- what we say ---------------------------------------------------------------------------------------

    def lines(self, commands: Sequence[Command]) -> bytes:
        """The bytes of these commands. Raises LocalProtocolError if one is not ours to send, or too long."""
        self.sent()
        format_line = self._codec.format
        return b"".join([format_line(command) + b"\n" for command in commands])

    def sent(self) -> None:
        """Bytes were sent on this connection just now (for those who write ready-made ones)."""
        self._last_sent = self._seconds()

    # -- reading -------------------------------------------------------------------------------------------

    def _hear(self, messages: Sequence[bytes], *, clean: bool) -> list[Action]:
        """Messages of a shared channel: a bad one harms no other."""
        commands: list[Command | RdataRun] = []
        if clean:
            try:
                self._read(messages, commands)
            except RemoteProtocolError:
                commands = []  # which one it was, and what the others say, is found out one by one
            else:
                return [Deliver(commands)] if commands else []
        actions: list[Action] = []
        for message in messages:
            # An end of line can only be white space in JSON here; let through, it could end a line of ours.
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

    def _read(self, lines: Sequence[bytes], commands: list[Command | RdataRun]) -> None:
        deliver = commands.append
        position = 0
        while self.dialect is AUTO and position < len(lines):
            if lines[position]:
                deliver(self._note(self._guess(lines[position])))
            position += 1
        parse = self._codec.parse
        runs = self._codec.runs
        while position < len(lines):
            line = lines[position]
            if runs is not None and line.startswith(b"RDATA ") and (run := runs.read(lines, position)):
                deliver(run)
                position += len(run.rows)
                continue
            if line:
                deliver(self._note(parse(line)))
            position += 1

    def _guess(self, line: bytes) -> Command:
        """A command from a peer of unknown dialect, which is then known if only one can mean it."""
        meanings: list[tuple[Codec, Command]] = []
        complaints: list[str] = []
        for guess in _GUESSES:
            codec = codec_of(guess, ours=self.side, theirs=self._theirs)
            try:
                command = codec.parse(line)
            except RemoteProtocolError as error:
                if error.why not in complaints:
                    complaints.append(error.why)
                continue
            if type(command) in NATIVE_COMMANDS and not exists(type(command), guess.release):
                continue  # nobody who does not speak so says it by chance
            if not self._is_ignored(command):
                meanings.append((codec, command))
        if not meanings:
            raise RemoteProtocolError("; or ".join(complaints))
        codec, command = meanings[0]
        if len(meanings) < len(_GUESSES) or any(other != command for _, other in meanings):
            self.dialect = codec.dialect
            self._codec = codec
            self._must_authenticate = _is_for_replicas(codec.dialect)
        return command

    @staticmethod
    def _is_ignored(command: Command) -> bool:
        """Whether it holds text that its release ignores, so that it says nothing about the release."""
        return bool(getattr(command, "ignored", None))

    def _note(self, command: Command) -> Command:
        """Some commands concern the session itself. Gives the command, with text for people made printable.
        Raises RemoteProtocolError."""
        if isinstance(command, Ping):
            self._peer_pings = True
        elif isinstance(command, Name):
            self.peer_name = printable(command.name)
            return Name(name=self.peer_name)
        elif isinstance(command, Error):
            return Error(text=_one_line(command.text))
        elif isinstance(command, Server):
            self.peer_name = printable(command.server_name)
            if self._expected_server is not None and command.server_name != self._expected_server:
                raise RemoteProtocolError(
                    f"Wrong remote: this is {self.peer_name}, expected {self._expected_server}"
                )
        elif not self._is_introduced and not self._must_authenticate:
            self._is_introduced = True
        return command

    def _ping(self) -> Ping:
        return Ping(text=str(int(self._seconds() * 1000)))


def _is_for_replicas(dialect: Dialect) -> bool:
    """Whether who speaks this dialect to a server is a replica, and must say HELLO and AUTH."""
    return exists(Hello, dialect.release)


def _one_line(text: str) -> str:
    """`text` as one line that is safe to show: it may quote what a peer said."""
    return printable(" ".join(text.split()), limit=MAX_TEXT)


def _good_lines(lines: Sequence[bytes]) -> tuple[int, str]:
    """How many of these lines are text as it should be, and what is wrong with the one after them."""
    for position, line in enumerate(lines):
        if line.endswith(b"\r"):
            return position, "a line ends with LF alone, not with CR LF"
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            return position, "a line is not UTF-8"
    return len(lines), ""
