"""Codecs: parse and format commands as one release writes them, and check their senders; a line buffer."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from synrepl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from synrepl.wire.commands import Rdata, declared_commands
from synrepl.wire.dialect import Dialect
from synrepl.wire.grammar import BROKER, Command, CommandForm, Side
from synrepl.wire.kinds import show
from synrepl.wire.rdata_runs import RunParser

MAX_LENGTH = 16_384
"""The most bytes in a line without its end. Peers reject longer ones (docs/reference/peers.md#tcp-limits)."""

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""The most bytes in a message to publish on Redis. Synapse has no limit; Redis itself has 512 MB."""


def _table(commands: Iterable[type[Command]]) -> dict[str, type[Command]]:
    table: dict[str, type[Command]] = {}
    for command in commands:
        if table.setdefault(command.NAME, command) is not command:
            raise ConfigError(f"two commands are called {command.NAME}")
    return table


COMMANDS: Mapping[str, type[Command]] = _table(declared_commands())


@lru_cache(maxsize=64)
def codec_of(dialect: Dialect, *, ours: Side, theirs: Side) -> "Codec":
    """Return the codec that all connections of this dialect and direction share. It has no state."""
    return Codec(dialect, ours=ours, theirs=theirs)


class Codec:
    """Parses commands that the peer's side may send, and formats those that our side may send.

    It is lenient in one way: a command that only another release has is parsed as that release wrote it, as
    a bare REPLICATE may be the only hint at a peer's release. Such commands are never formatted.
    """

    def __init__(
        self, dialect: Dialect, *, ours: Side, theirs: Side, commands: Mapping[str, type[Command]] = COMMANDS
    ) -> None:
        self.dialect = dialect
        self.max_length = MAX_MESSAGE if ours is BROKER else MAX_LENGTH
        self._forms: dict[type[Command], CommandForm] = {}
        self.parsers: dict[bytes, Callable[[bytes], Command]] = {}
        self.bare_parsers: dict[bytes, Callable[[], Command]] = {}
        self._other_side: set[bytes] = set()
        self.runs: RunParser | None = None
        for name, command in commands.items():
            form = CommandForm(command, dialect.nearest_in(command.SPAN))
            if dialect.release in command.SPAN and ours & command.SENT_BY:
                self._forms[command] = form
            if theirs & command.SENT_BY:
                self.parsers[name.encode()] = form.parse
                self.bare_parsers[name.encode()] = form.parse_bare
                if command is Rdata:
                    self.runs = RunParser(form)
            else:
                self._other_side.add(name.encode())

    def parse(self, line: bytes) -> Command:
        """Parse a line. Raises RemoteProtocolError with a message for the peer."""
        name, space, arguments = line.partition(b" ")
        parse = self.parsers.get(name)
        if parse is None:
            if name in self._other_side:
                raise RemoteProtocolError(f"invalid command: {name.decode()} is for the other direction")
            raise RemoteProtocolError(f"invalid command: {show(name)}")
        return parse(arguments) if space else self.bare_parsers[name]()

    def format(self, command: Command) -> bytes:
        """Format a command as a line without its end.

        Raises LocalProtocolError if this side must not send the command, a value is invalid, or the line is
        too long.
        """
        form = self._forms.get(type(command))
        if form is None:
            raise LocalProtocolError(f"the dialect {self.dialect} has no {command.NAME} in this direction")
        line = form.format(command)
        if len(line) > self.max_length:
            raise LocalProtocolError(
                f"{command.NAME} is {len(line)} bytes long; a line has at most {self.max_length}"
            )
        return line


class LineBuffer:
    """Splits received bytes into lines at every LF, at any chunk boundaries. Work is linear in the bytes.

    A line without an end is returned as it is once it has more than `max_length` bytes: it is too long.
    """

    def __init__(self, max_length: int = MAX_LENGTH) -> None:
        self._max_length = max_length
        # Parts of one byte each, kept as they come, would take forty times their size.
        self._rest = bytearray()

    @property
    def size(self) -> int:
        """Bytes of the line that is not complete yet."""
        return len(self._rest)

    def receive(self, data: bytes) -> list[bytes]:
        """Return the lines that are now complete."""
        lines = data.split(b"\n")
        if len(lines) > 1:
            if self._rest:
                lines[0] = bytes(self._rest + lines[0])
                self._rest = bytearray()
            data = lines.pop()
        else:
            lines = []
        self._rest += data
        if len(self._rest) > self._max_length:
            lines.append(bytes(self._rest))
            self._rest = bytearray()
        return lines

    def take_rest(self) -> bytes:
        """Return the bytes of the line that is not complete yet, and forget them."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest
