"""All commands as one release writes them: lines to commands and back, directions checked."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from synrepl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from synrepl.wire.commands import Rdata, declared_commands
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect, nearest
from synrepl.wire.grammar import BROKER, Command, CommandForm, Side, exists
from synrepl.wire.kinds import show
from synrepl.wire.rdata_runs import RunReader

__all__ = ["MAX_LENGTH", "MAX_MESSAGE", "Codec", "codec_of"]

MAX_LENGTH = 16_384
"""Bytes in a line, its end not counted; peers of every release refuse longer ones."""

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""Bytes in a message on a broker. Its peers have no bound; this one is below that of Redis (512 MB)."""

_KNOWN_POINTS = (LEGACY, MIDDLE, CURRENT, NEWEST, NATIVE)


def _table(commands: Iterable[type[Command]]) -> dict[str, type[Command]]:
    table: dict[str, type[Command]] = {}
    for command in commands:
        if table.setdefault(command.NAME, command) is not command:
            raise ConfigError(f"two commands are called {command.NAME}")
    return table


COMMANDS: Mapping[str, type[Command]] = _table(declared_commands())


@lru_cache(maxsize=64)
def codec_of(dialect: Dialect, *, ours: Side, theirs: Side) -> "Codec":
    """The codec of all connections that speak so; it holds nothing of any of them."""
    return Codec(dialect, ours=ours, theirs=theirs)


class Codec:
    """Reads what the peer's side may send, and writes what ours may, as one release does it.

    Lenient in one thing: a command that the release does not have, but another has, is read as that one
    wrote it (a bare REPLICATE is all we know of a peer's release). Nothing of that kind is ever written.
    """

    def __init__(self, dialect: Dialect, *, ours: Side, theirs: Side) -> None:
        self.dialect = dialect
        self.max_length = MAX_MESSAGE if ours is BROKER else MAX_LENGTH
        self._forms: dict[type[Command], CommandForm] = {}
        self.parsers: dict[bytes, Callable[[bytes], Command]] = {}
        self.bare_parsers: dict[bytes, Callable[[], Command]] = {}
        self._other_side: set[bytes] = set()
        self.runs: RunReader | None = None
        for name, command in COMMANDS.items():
            form = CommandForm(command, self._reading_dialect(command))
            if exists(command, dialect.release) and ours & command.SENT_BY:
                self._forms[command] = form
            if theirs & command.SENT_BY:
                self.parsers[name.encode()] = form.parse
                self.bare_parsers[name.encode()] = form.parse_bare
                if command is Rdata:
                    self.runs = RunReader(form)
            else:
                self._other_side.add(name.encode())

    def _reading_dialect(self, command: type[Command]) -> Dialect:
        if exists(command, self.dialect.release):
            return self.dialect
        return nearest(self.dialect, [point for point in _KNOWN_POINTS if exists(command, point.release)])

    def parse(self, line: bytes) -> Command:
        """The command in this line. Raises RemoteProtocolError with words for the peer."""
        name, space, arguments = line.partition(b" ")
        parse = self.parsers.get(name)
        if parse is None:
            if name in self._other_side:
                raise RemoteProtocolError(f"invalid command: {name.decode()} is not for this side to send")
            raise RemoteProtocolError(f"invalid command: {show(name)}")
        return parse(arguments) if space else self.bare_parsers[name]()

    def format(self, command: Command) -> bytes:
        """The line, without its end. Raises LocalProtocolError if it is not ours to send, or too long."""
        form = self._forms.get(type(command))
        if form is None:
            raise LocalProtocolError(f"{command.NAME} cannot be sent in {self.dialect} by this side")
        line = form.format(command)
        if len(line) > self.max_length:
            raise LocalProtocolError(
                f"{command.NAME} is {len(line)} bytes long; a line holds {self.max_length}"
            )
        return line
