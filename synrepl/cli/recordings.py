"""Parser of recorded sessions: the facts that a master sent.

A line is ``<seconds> <mark> <line>``, with ``>`` for lines to the master, ``<`` for lines from it, ``*`` for
a comment. A proxy's recording has the connection, such as ``c3``, before the mark. A collection of samples
has a count in place of the seconds. A Redis recording has a time and a channel, separated by tabs. Bare
protocol lines and the JSON lines of a changelog are accepted too.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from synrepl.cli.command import CliError
from synrepl.errors import ConfigError, RowError
from synrepl.streams.catalog import DECLARATIONS, OWN_STREAMS
from synrepl.streams.declaration import Declaration, stream_of
from synrepl.streams.declared import DaemonStreams
from synrepl.streams.table import StreamTable
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NEWEST, Dialect, span

_MARKED: Final = re.compile(rb"\s*(\d+(?:\.\d+)?) (?:(c\d+) )?([<>*]) (.*)", re.DOTALL)
_PUBLISHED: Final = re.compile(rb"\d+\t[^\t]*\t(.*)", re.DOTALL)
_TOKEN: Final = re.compile(rb"-?\d+|batch")

_WITH_INSTANCE: Final = span(since="1.13")


class RecordedFacts(msgspec.Struct, frozen=True):
    """A fact of a recording, with its rows in canonical form.

    `at` is the time in seconds of arrival, or of the commit in a changelog, if known. `writer` is set if the
    writer is to be kept. `number` is that of the line with its last row.
    """

    stream: str
    rows: list[bytes]
    at: float | None
    writer: str | None = None
    number: int = 0


class BadLine(msgspec.Struct, frozen=True):
    """A skipped row or line, with its line number."""

    number: int
    stream: str
    why: str


class Recording(msgspec.Struct, frozen=True):
    """The content of a recorded session.

    Facts of `OWN_STREAMS` are not among `facts`: `own` has their numbers by stream, and `declarations` the
    newest declaration of each stream, by name.
    """

    dialect: Dialect
    facts: list[RecordedFacts]
    bad: list[BadLine]
    own: Counter[str] = msgspec.field(default_factory=Counter)
    declarations: dict[str, Declaration] = {}


class _Entry(msgspec.Struct, frozen=True):
    """A line of the changelog; a line without a stream is not a fact."""

    stream: str = ""
    writer: str = ""
    rows: list[msgspec.Raw] = []
    committed_at_ms: Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)] = 0


class _Line(msgspec.Struct, frozen=True):
    number: int
    at: float | None
    connection: str
    text: bytes


def read(
    data: bytes, table: StreamTable, *, dialect: Dialect | None = None, connection: str | None = None
) -> Recording:
    """Return the facts of a recording, in order, and the rows that were skipped because they do not parse.

    Streams that the recording itself declares are read too. The `dialect` is detected from the lines by
    default. Of several recorded connections only `connection` is read; the default is the first with rows.
    Both are ignored for a changelog.
    """
    if data.lstrip()[:1] == b"{":
        return _FactCollector(table, NEWEST).changelog(data)
    lines = list(_lines_from_master(data))
    if connection is None:
        connection = next((line.connection for line in lines if line.text.startswith(b"RDATA ")), "")
    lines = [line for line in lines if line.connection == connection]
    if dialect is None:
        dialect = _detect_dialect(line.text for line in lines)
    return _FactCollector(table, dialect).all(lines)


def read_file(path: Path, *, dialect: Dialect | None = None, connection: str | None = None) -> Recording:
    """Read a recording from a file, or from standard input for ``-``. Raises `CliError`."""
    return read(read_bytes(path), StreamTable.default(), dialect=dialect, connection=connection)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or of standard input for ``-``. Raises `CliError`."""
    try:
        return sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error


def _lines_from_master(data: bytes) -> Iterable[_Line]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if found := _MARKED.fullmatch(line):
            seconds, connection, mark, text = found.groups()
            if mark == b"<":
                at = float(seconds) if b"." in seconds else None
                yield _Line(number, at, (connection or b"").decode(), text)
        elif found := _PUBLISHED.fullmatch(line):
            yield _Line(number, None, "", found[1])
        else:
            yield _Line(number, None, "", line)


def _detect_dialect(lines: Iterable[bytes]) -> Dialect:
    """Return the dialect of these lines, by the number of words of POSITION, or else of RDATA."""
    guess = CURRENT
    for line in lines:
        name, *words = line.split(b" ")
        if name == b"POSITION":
            return {2: LEGACY, 3: MIDDLE}.get(len(words), CURRENT)
        if name == b"RDATA" and len(words) > 2:
            guess = LEGACY if _TOKEN.fullmatch(words[1]) and not _TOKEN.fullmatch(words[2]) else CURRENT
    return guess


class _FactCollector:
    """Collects facts: joins the rows of a fact, and checks each row."""

    def __init__(self, table: StreamTable, dialect: Dialect) -> None:
        self._table = DaemonStreams(table)
        self._dialect = dialect
        self._words = 3 if dialect.release in _WITH_INSTANCE else 2
        self._incomplete: dict[tuple[bytes, ...], list[_Line]] = {}
        self._facts: list[RecordedFacts] = []
        self._bad: list[BadLine] = []
        self._own: Counter[str] = Counter()
        self._declarations: dict[str, Declaration] = {}

    def all(self, lines: Iterable[_Line]) -> Recording:
        for line in lines:
            if line.text.startswith(b"RDATA "):
                self._rdata(line)
        for (stream, *_), rows in self._incomplete.items():
            for row in rows:
                self._leave_out(row.number, stream, "the recording ends before the last row of its fact")
        self._bad.sort(key=lambda bad: bad.number)
        return self._recording()

    def changelog(self, data: bytes) -> Recording:
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                entry = msgspec.json.decode(line, type=_Entry)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._leave_out(number, b"", f"not a line of a changelog: {error}")
                continue
            if entry.stream:
                at = entry.committed_at_ms / 1000
                rows = [_Line(number, at, "", bytes(row)) for row in entry.rows]
                self._fact(entry.stream.encode(), rows, entry.writer)
        return self._recording()

    def _recording(self) -> Recording:
        return Recording(self._dialect, self._facts, self._bad, self._own, self._declarations)

    def _rdata(self, line: _Line) -> None:
        words = line.text.split(b" ", self._words + 1)[1:]
        if len(words) <= self._words or not _TOKEN.fullmatch(words[-2]):
            self._leave_out(line.number, words[0], f"not a row of the dialect {self._dialect}")
            return
        *writer, token, text = words
        row = msgspec.structs.replace(line, text=text)
        key = tuple(writer)
        if token == b"batch":
            self._incomplete.setdefault(key, []).append(row)
        else:
            self._fact(writer[0], [*self._incomplete.pop(key, []), row])

    def _fact(self, stream: bytes, rows: list[_Line], writer: str | None = None) -> None:
        name = stream.decode(errors="replace")
        if name in OWN_STREAMS:
            self._own[name] += 1
            if name == DECLARATIONS.name:
                self._declare(rows)
            return
        declared = self._table.get(name)
        texts = []
        for row in rows:
            if declared is None:
                self._leave_out(row.number, stream, "unknown stream")
                continue
            try:
                texts.append(declared.canonical(row.text, self._dialect))
            except RowError as error:
                self._leave_out(row.number, stream, error.why)
        if declared is not None and texts:
            self._facts.append(RecordedFacts(declared.name, texts, rows[-1].at, writer, rows[-1].number))

    def _declare(self, rows: Iterable[_Line]) -> None:
        """Read the facts after these rows by their declarations, of which the newest of a name counts."""
        for row in rows:
            try:
                declared = DECLARATIONS.decode(row.text, NEWEST)
                stream = stream_of(declared)
                if declared.name in StreamTable.default():
                    raise ConfigError(f"{declared.name} is a stream of Synapse or of synrepl")
            except (RowError, ConfigError) as error:
                why = error.why if isinstance(error, RowError) else str(error)
                self._leave_out(row.number, DECLARATIONS.name.encode(), why)
                continue
            if declared.name in self._table:
                self._table.remove(declared.name)
            self._table.add(stream)
            self._declarations[declared.name] = declared

    def _leave_out(self, number: int, stream: bytes, why: str) -> None:
        self._bad.append(BadLine(number, stream.decode(errors="replace"), why))
