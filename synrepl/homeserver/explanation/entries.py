"""The entries of pasted lines: a line, with what belongs to it in the next ones.

A traceback of Python is one entry with the line that logged it, and so is a message over several lines.
"""

import re
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final

import msgspec

from synrepl.homeserver.explanation.order import in_order
from synrepl.homeserver.explanation.pasted_lines import (
    LineWriters,
    is_logged,
    logged_message,
    split_lines,
    spread,
    strings_of_document,
)
from synrepl.homeserver.explanation.psql import PsqlOutput

_BEGINS: Final = re.compile(
    r'(?:\A|\s)(?:File "[^"]{1,300}", line \d+|(?:Traceback|Capture point|Stack) \(most recent call last\):'
    r"|[\^~]{3,}\s*\Z|(?:/[\w.~-]{1,60}){1,20}\.py:\d{1,6}:[\w<>]{1,80}\s*\Z)"
)
_FIRST: Final = "Traceback (most recent call last):"
_STACK: Final = "Stack (most recent call last):"
"""Before the callers of a line that asked for them to be logged."""
_PART: Final = re.compile(
    r"(?:The above exception was|During handling of|--- <exception caught here>|[\^~][\s\^~]*\Z)"
)
_MARKED: Final = re.compile(r"[\^~]{3}")
_EXCEPTION: Final = re.compile(
    r"(?:(?:[A-Za-z_]\w{0,80}\.){0,10}[A-Z]\w{1,80}|(?:socket|select|struct|zlib)\.[a-z]{4,8})(?:: .*|:?\Z)",
    re.ASCII | re.DOTALL,
)
_PLAIN: Final = re.compile(
    r"(?:\w{1,80}\.){0,10}(?:_?[A-Z][a-z]\w{1,80}: |\w{0,80}(?:Error|Exception|Failed|Failure):?(?: |\Z))",
    re.ASCII,
)
"""An exception where a line of the source might stand."""

_CONTINUED: Final = re.compile(
    r"(?:\[[^\]\s]{1,80}(?: [^\]\s]{1,80})?\] )?(?:DETAIL|HINT|CONTEXT|QUERY|LINE \d+):"
    r"|\^|\d/\d\Z|This probably means the server|before or while proc"
    r'|in "[^"]{0,200}", line \d'
    r"|<\w{1,40}Request at|expected <block end>|could not find expected"
    r"|Process \d+ waits for \w+"
    r"|Is the server running|TCP/IP connections on port"
)
"""Lines that continue an entry: details of an error of PostgreSQL, or a request."""
_ADDRESS: Final = re.compile(r"connection to server (?:at|on) |could not connect to server: ", re.ASCII)
"""What libpq writes of each address that it tried."""
_END_OF_START: Final = re.compile(r"There may be more information in the logs", re.ASCII)
"""What Synapse prints below the reason why it does not start, before the edge of the banner."""

_UNFINISHED: Final = re.compile(
    r"(?:is inconsistent with associated(?: stream position)?|to given token:|current token to reach"
    r"|\[(?:error|crit|warn)\] .{1,300}, client: [\da-f.:]{2,45},)\s*\Z",
    re.ASCII,
)
"""The end of a line whose message goes on in the next line."""

_STATEMENT: Final = re.compile(r"\bSTATEMENT:(?:\s|\Z)", re.ASCII)
"""What PostgreSQL logs before a statement, which may go on in the next lines."""
_HEADLINE: Final = re.compile(r"Error in configuration(?: at '[^']{1,200}')?:", re.ASCII)
"""What Synapse prints before the lines that tell what is wrong in its configuration."""
_START: Final = re.compile(r"Error during initialisation:", re.ASCII)
"""What Synapse prints before the traceback of a start that failed."""
_INDENTED: Final = re.compile(r"(?:\A|[|:])(?: {2,}|\t+ *)\S", re.ASCII)
"""A line that is set in, below the one to which it belongs."""

_UNTOLD: Final = re.compile(r"(?:\w{1,80}\.){0,10}[A-Z]\w{1,80}:", re.ASCII)
"""An exception whose text begins in the next line."""

_CUT_IN_HEADER: Final = re.compile(r" - [\w.]{1,100} - \d{1,6} - [A-Z]{4,8} - [\w@.:/-]{0,100}\w\Z", re.ASCII)
"""The end of a line that a terminal broke before its message."""
_REST_OF_HEADER: Final = re.compile(r"[\w@.:/-]{0,100} ?- \S", re.ASCII)

_PACKAGE: Final = re.compile(
    r'File "[^"]{0,250}?/(?:site|dist)-packages/(?P<name>\w{1,80})[/.]|File "(?P<other>[^"]{1,250})", line',
    re.ASCII,
)
"""The package of a file in a traceback, or a file that is of none."""

_FRAME: Final = re.compile(
    r'File "[^"]{0,250}?(?P<file>synapse/(?!synapse/|src/)[\w/]{1,120}\.py)"'
    r"|/(?P<short>synapse/(?!synapse/|src/)[\w/]{1,120}\.py):\d",
    re.ASCII,
)

_REQUEST_CUT: Final = re.compile(r"Processed request: (?!.{0,3000} dbevts\])", re.ASCII)
"""A request as Synapse logs it, of which a terminal broke the line."""

_GLUED: Final = re.compile(
    r"\A(\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d\d:\d\d [AP]M"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\+00:00)(?=[^\s,])",
    re.ASCII,
)
"""The time that Rancher, or TrueNAS, puts before a line, without a space."""

_FILE_OF_TAIL: Final = re.compile(r"==> \S.{0,300} <==")
"""What tail prints before the lines of each file."""

_MAX_EXCEPTIONS: Final = 4
_MAX_JOINED: Final = 2000
"""The most characters to which a line that goes on in the next ones is joined."""

_STARS: Final = re.compile(r"[*=#-]{20,}")
"""The edge of a banner, which Synapse puts around why it does not start."""

_RAISED: Final = re.compile(
    r"raise (?P<name>(?:[A-Za-z_]\w{0,80}\.){0,10}[A-Z]\w{1,80})\(\s*"
    r"(?:(?:\w{1,40}=)?[\w.]{1,80},\s*){0,3}(?:\w{1,40}=)?"
    r"""(?P<texts>(?:[bfrBFR]{0,2}(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*)+)(?!\.(?!format\())""",
    re.ASCII,
)
"""A line of the source that raises an exception with a text that stands there."""
_INLINE: Final = re.compile(r"\", line \d+, in [\w<>]{1,80}\s+(?P<source>(?:raise|assert) .+)", re.ASCII)
"""A line of the source that stands behind its file, in a traceback that is all in one line."""
_LITERAL: Final = re.compile(r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""")
_ESCAPED: Final = re.compile(r"\\([\"'\\])")
_ASSERTED: Final = re.compile(r"assert (?!.*\()[\w.].{0,300}", re.ASCII)
"""An assertion that calls nothing which could have failed in its place."""

_NEXT_FRAME: Final = re.compile(r'\s+(?=File "[^"]{1,300}", line \d)')
_LAST_EXCEPTION: Final = re.compile(
    r"(?<=\s)(?:\w{1,80}\.){0,10}[A-Z]\w{0,80}"
    r"(?:Error|Exception|Violation|Failure|Setup|Exit|Column|Table): ",
    re.ASCII,
)
"""Where, in a traceback that is all in one line, a file and the exception begin."""

MAX_ONE: Final = 16_000
"""The most characters of a traceback in one line."""

_BAR: Final = "\u2502\u2502"
"""What k9s puts between the lines of a log, at the edges of its window."""

MAX_BEFORE: Final = 200
"""A document begins within so many characters of a line."""

MAX_BROKEN: Final = 5
"""Into so many lines a line may be broken."""

MAX_BELOW: Final = 20
"""So many lines may be set in below one."""

_MAX_FRAMES: Final = 100
_MAX_UNKNOWN: Final = 8
"""The most lines in a row that are taken for the source in a traceback."""


class PastedEntry(msgspec.Struct, frozen=True):
    """A line and its number, or a line with the traceback after it: `lines` in all, and its `exceptions`.

    Of a traceback that no line logged, the line is the last exception, or "". The `frames` are the files of
    Synapse in it, each once, the last one last; `is_cut`: the exception is missing. Of a table
    that psql printed, the line is its first. The `package` is that of the last file in the traceback, or "".
    `is_start`: Synapse printed it as the reason why it does not start. The `writer` is the container or unit
    whose line it is, if its name stands before it.
    """

    number: int
    line: str
    lines: int = 1
    exceptions: tuple[str, ...] = ()
    is_traceback: bool = False
    frames: tuple[str, ...] = ()
    table: PsqlOutput | None = None
    is_cut: bool = False
    package: str = ""
    is_start: bool = False
    writer: str = ""


def entries(lines: Iterable[str]) -> Iterator[PastedEntry]:
    """Yield the lines that are not blank, numbered from 1, each with what belongs to it.

    Of a text of several processes, as Docker, Kubernetes and a journal put them together, what belongs to a
    line is from the same one.
    """
    numbers: dict[int, int] = {}  # of lines, by their place among those that are read, where they differ
    for one in _entries(_numbered(lines, numbers)):
        number = numbers.get(one.number, one.number)
        yield one if number == one.number else msgspec.structs.replace(one, number=number)


def _entries(lines: Iterable[tuple[int, str]]) -> Iterator[PastedEntry]:
    """Yield what `entries` does of lines with their places: each entry has that of its line as its number."""
    writers, readers = LineWriters(), {"": _LineJoiner("")}
    reader, ready = readers[""], list[tuple[int, int, PastedEntry]]()  # a heap: what is read first is first
    counted = count()
    for place, shipped in lines:
        if not shipped.strip() or (shipped.startswith("==> ") and _FILE_OF_TAIL.fullmatch(shipped.strip())):
            continue
        writer, line = writers.of(shipped)
        # What has no name before it goes on with the line above.
        if writer is not None and writer != reader.writer:
            reader = readers.setdefault(writer, _LineJoiner(writer))
        for found in reader.read(place, line):
            heappush(ready, (found.number, next(counted), found))
        if len(readers) > 1:
            for late in [one for one in readers.values() if place - one.last > MAX_APART]:
                for found in late.end():
                    heappush(ready, (found.number, next(counted), found))
                del readers[late.writer]
            begun = min((one.begun for one in readers.values() if one.begun), default=place + 1)
        else:
            begun = reader.begun or place + 1
        while ready and ready[0][0] < begun:
            yield heappop(ready)[2]
    for one in readers.values():
        for found in one.end():
            heappush(ready, (found.number, next(counted), found))
    while ready:
        yield heappop(ready)[2]


MAX_APART: Final = 200
"""What belongs to a line of a process comes within so many lines of a text of several."""


class _LineJoiner:
    """Joins the lines of one writer: each with what belongs to it in the next ones.

    `last` is the number of its last line, and `begun` that of the one which is still read, or 0.
    """

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.last = 0
        self._held: PastedEntry | None = None
        self._trace: _Traceback | None = None
        self._trace_begun = 0

    @property
    def begun(self) -> int:
        if self._held is not None:
            return self._held.number
        return self._trace_begun if self._trace is not None else 0

    def read(self, number: int, shipped: str) -> Iterator[PastedEntry]:
        """Yield what ends with this line."""
        self.last = number
        return self._named(self._read(number, shipped))

    def end(self) -> Iterator[PastedEntry]:
        """Yield what is still read."""
        return self._named(self._end())

    def _named(self, found: Iterator[PastedEntry]) -> Iterator[PastedEntry]:
        for one in found:
            yield msgspec.structs.replace(one, writer=self.writer) if self.writer else one

    def _end(self) -> Iterator[PastedEntry]:
        held, trace, self._held, self._trace = self._held, self._trace, None, None
        if trace is not None:
            yield from trace.entries(held)
        elif held is not None:
            yield held

    def _read(self, number: int, shipped: str) -> Iterator[PastedEntry]:
        held = self._held
        if held is not None and held.table is not None and held.table.takes(shipped):
            return
        line, exceptions, frames = _unpacked(shipped)
        if self._trace is not None:
            if self._trace.takes(number, line):
                return
            yield from self._end()
            held = None
        if (
            held is not None
            and _UNFINISHED.search(held.line, max(0, len(held.line) - MAX_BEFORE)) is not None
        ):
            self._join(_joined(held.line.rstrip(), logged_message(line)[1]))
            return
        if held is not None and held.table is None and (table := PsqlOutput.begin(held.line, shipped)):
            self._held = PastedEntry(held.number, held.line, table=table)
            return
        begins = not exceptions and _begins(line)
        if held is not None and held.table is None and not begins and not is_logged(line):
            if held.lines <= MAX_BROKEN and _is_cut_request(held.line):
                self._join(f"{held.line}{line}")
                return
            header, text = logged_message(line)
            if _END_OF_START.match(text) is not None:
                self._held = msgspec.structs.replace(held, lines=held.lines + 1, is_start=True)
                return
            if _continues(held.line, text) or (not header and _is_below(held, line)):
                self._join(_joined(held.line, text))
                return
            begins = not header and _is_failure(held.line) and _PLAIN.match(text) is not None
            if not begins and not header and held.lines <= MAX_BROKEN and _is_open(held.line):
                self._join(f"{held.line}{line}")
                return
            is_cut = not begins and _REST_OF_HEADER.match(line) is not None
            if is_cut and _CUT_IN_HEADER.search(held.line.rstrip(), max(0, len(held.line) - 300)):
                self._join(held.line.rstrip() + line)
                return
        if begins and (begun := _Traceback()).takes(number, line):
            self._trace, self._trace_begun = begun, number
            return
        if held is not None and _is_of_twisted(held.line) and (rest := _rest_of_twisted(line)) is not None:
            self._join(_joined(held.line, rest) if rest else held.line)
            return
        yield from self._end()
        if "****" in line and _STARS.fullmatch(logged_message(line)[1]) is not None:
            return
        # What belongs to a line of Synapse may be in further documents of Docker.
        is_document = line is not shipped and is_logged(line)
        shown = line if is_document else shipped
        self._held = PastedEntry(number, shown, exceptions=exceptions, frames=frames)

    def _join(self, line: str) -> None:
        """Make a line one with the held one."""
        assert self._held is not None
        self._held = PastedEntry(self._held.number, line, self._held.lines + 1)


def _numbered(lines: Iterable[str], numbers: dict[int, int]) -> Iterator[tuple[int, str]]:
    """Yield each line with its place, which the lines of one JSON document or viewer's row share.

    The `numbers` of those that are not read in their order are kept.
    """
    for place, (number, shipped) in enumerate(in_order(lines), 1):
        if number != place:
            numbers[place] = number
        line = _GLUED.sub(r"\1 ", shipped, count=1) if shipped[:1].isdigit() else shipped
        if '{"' in line[:MAX_BEFORE]:
            yield from ((place, one) for one in spread(line))
        else:
            for part in line.split(_BAR):
                yield from ((place, one) for one in _in_one(part.rstrip(" ") if _BAR in line else part))


def _in_one(line: str) -> list[str]:
    """Return the lines that a shipper of logs, or who pasted them, made one of."""
    if "#012" in line:
        # What rsyslog writes for the end of a line.
        return line.split("#012")
    _, begins, after = line.partition(_FIRST)
    if not begins or not after.strip():
        return [line]
    if "\\n" in after:
        return line.replace("\\n", "\n").split("\n")
    if 'File "' not in after:
        return [line]
    *frames, last = _NEXT_FRAME.split(line[:MAX_ONE])
    at = max((found.start() for found in _LAST_EXCEPTION.finditer(last)), default=len(last))
    return [*frames, last[:at], *([last[at:].strip(" `")] if last[at:].strip() else [])]


def _unpacked(line: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the line in a JSON document of Docker, or the exceptions and files in one of Synapse."""
    if not line.startswith("{") or not line.rstrip().endswith("}"):
        return line, (), ()
    strings = strings_of_document(line)
    if '"exc_value"' in line:
        return line, tuple(strings[:1]), ()
    for text in strings:
        _, begins, after = text.partition(_FIRST)
        if after.strip():
            traced = _Traceback()
            for number, one in enumerate(split_lines(f"{begins}{after}")):
                traced.takes(number, one)
            return line, traced.exceptions, traced.frames
    return (strings[0].rstrip("\n") if strings and '"stream":' in line else line), (), ()


def _is_below(held: PastedEntry, line: str) -> bool:
    """Whether a line is set in below a statement of PostgreSQL's log, or below what Synapse prints first."""
    if held.lines > MAX_BELOW or _INDENTED.search(line[: MAX_BEFORE * 2]) is None:
        return False
    return _STATEMENT.search(held.line[:400]) is not None or _HEADLINE.search(held.line[:400]) is not None


def _continues(before: str, text: str) -> bool:
    """Whether a line continues the one before: with details, or with the next address that was tried."""
    if _ADDRESS.match(text) is not None:
        return _ADDRESS.search(before[:_MAX_JOINED]) is not None
    return _CONTINUED.match(text) is not None


def _joined(before: str, text: str) -> str:
    return before if len(before) > _MAX_JOINED else f"{before} {text[:_MAX_JOINED]}"


def _begins(line: str) -> bool:
    """Whether a traceback begins, or goes on, in a line."""
    if 'File "' in line or " call last):" in line or "^^^" in line or "~~~" in line or ".py:" in line:
        return _BEGINS.search(line[:1000]) is not None
    return False


def _is_cut_request(line: str) -> bool:
    """Whether a line of a request was broken: within quotes, or before them."""
    if _REQUEST_CUT.search(line[:4000]) is None:
        return False
    quotes = line.count('"')
    return quotes % 2 == 1 or (not quotes and line.rstrip()[-1:] in ":)(")


def _tells_failure(line: str) -> bool:
    """Whether a line was logged, or is the headline of a start that failed."""
    header, text = logged_message(_unpacked(line)[0])
    return bool(header.logger) or _START.match(text) is not None


def _is_open(line: str) -> bool:
    """Whether a line that was logged, or an exception, ends within brackets: it goes on in the next."""
    text = logged_message(line)[1]
    return (is_logged(line) or _is_bare_exception(line)) and any(
        text.count(one) > text.count(other) for one, other in ("[]", "()")
    )


def _is_of_twisted(line: str) -> bool:
    is_named = "twisted" in line[:500]
    return is_named and logged_message(line)[0].logger == "twisted" and _is_failure(line)


def _rest_of_twisted(line: str) -> str | None:
    """What a line adds to the one before it, as Twisted logs each line of a text by itself.

    It may be nothing: a traceback is logged after its headline, and begins with an empty line.
    """
    header, text = logged_message(line)
    is_rest = header.logger == "twisted" and (not text or _CONTINUED.match(text) is not None)
    return text if is_rest else None


def _is_failure(line: str) -> bool:
    """Whether a line may be one after which an exception stands, with its traceback or without."""
    return " ERROR " in line[:500] or " CRITICAL " in line[:500]


def _exception_of(source: str) -> str:
    """Return the exception that a line of the source raises, with its text as it stands there, or ""."""
    if _ASSERTED.fullmatch(source) is not None:
        return f"AssertionError: {source}"
    found = _RAISED.match(source)
    if found is None:
        return ""
    texts = (one["text"] for one in _LITERAL.finditer(found["texts"]))
    text = _ESCAPED.sub(r"\1", "".join(texts))
    return f"{found['name']}: {text}"


def _is_bare_exception(line: str) -> bool:
    """Whether a line is an exception, and nothing that a logger wrote."""
    return not logged_message(line)[0] and _PLAIN.match(line.strip()) is not None


class _Traceback:
    """A traceback that is being read."""

    def __init__(self) -> None:
        self._lines = self._unknown = self._last = 0
        self._is_frame = self._is_logged = self._is_stack = self._is_headless = self.is_start = False
        self._asserted = self._source = self.package = ""
        self._exceptions: list[str] = []
        self._frames: dict[str, None] = {}

    def takes(self, number: int, line: str) -> bool:
        """Whether a line is of this traceback."""
        header, text = logged_message(line)
        if header.logger not in ("", "twisted"):
            return False
        if self._lines and not text and not header.logger:
            # An empty line, of which something wrote the beginning.
            self._lines += 1
            return True
        if not self._lines:
            # Old releases of Twisted log each line of a traceback by itself.
            self._is_logged = header.logger != ""
            self._is_stack = _STACK in line[:500]
            self._is_headless = _MARKED.match(text) is not None
        if self._lines and _END_OF_START.match(text) is not None:
            self.is_start = True
            self._lines += 1
            return True
        if not self._is_of(text, line):
            return False
        self._lines += 1
        self._last = number
        return True

    def _is_of(self, text: str, line: str) -> bool:
        if _begins(line) or _PART.match(text) is not None:
            self._is_frame = 'File "' in line
            if "^" not in text[:1] and "~" not in text[:1]:
                inline = _INLINE.search(text[:_MAX_JOINED]) if self._is_frame else None
                self._source = inline["source"] if inline else ""
            if place := _PACKAGE.search(line[:1000]):
                self.package = place["name"] or ""
            if (found := _FRAME.search(line[:1000])) and len(self._frames) < _MAX_FRAMES:
                self._frames.pop(file := found["file"] or found["short"], None)
                self._frames[file] = None
            self._unknown = 0
            return True
        is_source, self._is_frame = self._is_frame, False
        if is_source and text.startswith("assert "):
            self._asserted = text
        before, self._source = self._source, text[:_MAX_JOINED] if is_source else ""
        # The words DETAIL and HINT look like names of exceptions.
        goes_on = bool(self._exceptions) and not is_source and _continues(self._exceptions[-1], text)
        if not goes_on and (_PLAIN if is_source else _EXCEPTION).match(text) is not None:
            if text.rstrip(":") == "AssertionError" and self._asserted:
                text = f"AssertionError: {self._asserted[:_MAX_JOINED]}"
            self._exceptions = [*self._exceptions, text][-_MAX_EXCEPTIONS:]
            return True
        if self._exceptions and not is_source:
            if goes_on or self._goes_on():
                self._exceptions[-1] = _joined(self._exceptions[-1], text)
                return True
            return False
        self._unknown += 1
        if before and not is_source:
            self._source = _joined(before, text)
        return is_source or self._unknown <= _MAX_UNKNOWN

    def _goes_on(self) -> bool:
        """Whether the text of the last exception begins, or goes on, in the next line."""
        last = self._exceptions[-1].rstrip()
        return _UNTOLD.fullmatch(last) is not None or _UNFINISHED.search(last[-80:]) is not None

    @property
    def exceptions(self) -> tuple[str, ...]:
        """The last exceptions, in the order in which they were raised: those that tell something, if any.

        The last one is what the source raises there, if its own line is missing.
        """
        return self._telling or tuple(self._exceptions)

    @property
    def frames(self) -> tuple[str, ...]:
        """The files of Synapse in it, each once, the last one last."""
        return tuple(self._frames)

    @property
    def _telling(self) -> tuple[str, ...]:
        # A StopIteration is how a step of Twisted ends, and a SystemExit how a start that failed does.
        told = tuple(one for one in self._exceptions if not one.startswith(("StopIteration", "SystemExit")))
        raised = _exception_of(self._source)
        return (*told, raised)[-_MAX_EXCEPTIONS:] if raised else told

    def entries(self, held: PastedEntry | None) -> Iterator[PastedEntry]:
        """Yield the line before the traceback, with it, or each by itself."""
        found = self.exceptions
        if self._is_stack and not found:
            # Where its caller was, of a line that asked for it: nothing failed.
            if held is not None:
                yield msgspec.structs.replace(held, lines=held.lines + self._lines)
            return
        if held is not None and not self._is_logged and _tells_failure(held.line):
            yield PastedEntry(
                held.number,
                held.line,
                held.lines + self._lines,
                found,
                frames=self.frames,
                is_cut=not self._telling,
                package=self.package,
                is_start=self.is_start,
            )
            return
        if held is not None and not found and _is_bare_exception(held.line):
            # Sentry shows the exception first, and the frames below it.
            yield PastedEntry(
                held.number,
                held.line,
                held.lines + self._lines,
                (held.line,),
                is_traceback=True,
                frames=self.frames,
                package=self.package,
                is_start=self.is_start,
            )
            return
        before = 0
        if held is not None and self._is_headless and not is_logged(held.line):
            # The line above marks is the source, of which they mark a part.
            before = held.lines
        elif held is not None:
            yield held
        last = found[-1] if found else ""
        yield PastedEntry(
            self._last,
            last,
            self._lines + before,
            found,
            is_traceback=True,
            frames=self.frames,
            package=self.package,
            is_start=self.is_start,
        )
