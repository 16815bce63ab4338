"""DeclaredStreams: the streams that operators declared, stored in the log and kept in the daemon's table."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from synrepl.errors import ConfigError, RowError
from synrepl.storage.log import Log
from synrepl.streams.catalog import DECLARATIONS
from synrepl.streams.declaration import Declaration, difference, stream_of
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.facts import Fact
from synrepl.streams.origin import Origin
from synrepl.streams.stream import Stream
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST

MAX_STREAMS: Final = 100
"""Maximum number of declared streams."""

MAX_EPHEMERAL: Final = 4
"""Maximum number of declared ephemeral streams: the held facts of all must fit `wire.sizes.MAX_HELD`."""


class DeclaredStreams:
    """Follows the stream ``declarations`` of the log, and adds the declared streams to the table.

    A name is declared once. Should two declarations of it have come into the log, as after an append with an
    uncertain outcome, the newest counts, on every replica: it is the one that trimming keeps. `subscribers`
    are called with each added stream. `instance` is the writer of declarations made here. `committed` is for
    `Log.subscribe`.
    """

    _logger = Logger()

    def __init__(self, log: Log, table: DaemonStreams, *, instance: str) -> None:
        self.declared: dict[str, Declaration] = {}
        self.subscribers: list[Callable[[Stream[Any]], None]] = []
        self._log = log
        self._table = table
        self._instance = instance
        self._lock = DeferredLock()

    async def load(self) -> None:
        """Read the log's declarations into the table; remove streams that differ or are missing there."""
        log, name = self._log, DECLARATIONS.name
        facts: list[Fact] = []
        if upto := max(log.positions(name).values(), default=0):
            # Read without pages: declarations are few.
            facts, _ = await log.reads.tokens(
                stream=name, writer=None, after=0, upto=upto, serial=log.head.serial, limit=upto
            )
        found: dict[str, Declaration] = {}
        for declared in self._read(facts):
            found[declared.name] = declared
        for name, known in list(self.declared.items()):
            if name not in found or difference(known, found[name]):
                del self.declared[name]
                self._table.remove(name)
        for declared in found.values():
            self._add(declared)

    async def declare(self, wanted: Declaration) -> bool:
        """Store a declaration. Returns whether it is new; an equal one is stored only once.

        Raises `ConfigError` if the name is taken, the stream is declared otherwise, or there are too many;
        and `StorageError`.
        """
        # One by one: of equal declarations at the same time, only one is stored.
        async with self._lock:
            return await self._declare(wanted)

    async def _declare(self, wanted: Declaration) -> bool:
        name, known = wanted.name, self.declared
        if name in known:
            if why := difference(known[name], wanted):
                raise ConfigError(f"stream {name} is declared already, with {why}")
            return False
        if name in self._table:
            raise ConfigError(f"there is a stream {name} already: choose another name")
        alike = sum(one.kind == wanted.kind for one in known.values())
        if len(known) >= MAX_STREAMS or (wanted.kind == "ephemeral" and alike >= MAX_EPHEMERAL):
            limits = f"at most {MAX_STREAMS} streams can be declared, {MAX_EPHEMERAL} of them ephemeral"
            raise ConfigError(f"stream {name} would be one too many: {limits}")
        fact = DECLARATIONS.canonical_fact([wanted])  # type: ignore[list-item]  # `row` makes a struct
        # With a key: after an append with an uncertain outcome, an equal one is not stored again.
        key = f"declaration {sha256(fact).hexdigest()}"
        await self._log.append(DECLARATIONS.name, self._instance, [fact], key=key, origin=Origin.DAEMON)
        return True

    def refusal(self, stream: str, writer: str) -> str:
        """Why this writer cannot append to this stream; empty if it can."""
        declared = self.declared.get(stream)
        if declared is None or not declared.writers or writer in declared.writers:
            return ""
        return f"only {', '.join(declared.writers)} may write it, by its declaration"

    def committed(self, facts: Sequence[Fact]) -> None:
        """Add the streams that these facts of the log declare."""
        found = [fact for fact in facts if fact.stream == DECLARATIONS.name]
        for declared in self._read(found):
            self._add(declared)

    def _read(self, facts: Sequence[Fact]) -> list[Declaration]:
        """The declarations in these facts; those that this release cannot read are reported."""
        found: list[Declaration] = []
        for text in (text for fact in facts for text in jsontext.split(fact.rows)):
            try:
                found.append(DECLARATIONS.decode(text, NEWEST))
            except RowError as error:
                self._logger.error("cannot read a declaration: a stream is not available: {why}", why=error)
        return found

    def _add(self, declared: Declaration) -> None:
        if (known := self.declared.get(declared.name)) is not None:
            if not difference(known, declared):
                return
            del self.declared[declared.name]
            self._table.remove(declared.name)
        try:
            stream = stream_of(declared)
            self._table.add(stream)
        except ConfigError as error:
            # This release of synrepl has a stream of this name itself.
            why = "the declared stream {name} is not available: {why}"
            self._logger.error(why, name=declared.name, why=error)
            return
        self.declared[declared.name] = declared
        if stream.ephemeral:
            self._log.ephemeral.add(stream.name)
        for subscriber in self.subscribers:
            subscriber(stream)
