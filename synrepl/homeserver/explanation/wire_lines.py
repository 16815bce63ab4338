"""Lines of the replication protocol: which release writes them so, and what they say.

A line is parsed as every release would parse it, with the forms of `synrepl.wire.commands`.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec

from synrepl.errors import RemoteProtocolError, RowError
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import span_text
from synrepl.homeserver.streams import writers_sentence
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable
from synrepl.wire.codec import COMMANDS
from synrepl.wire.commands import Position, Rdata, Replicate, UserIp
from synrepl.wire.dialect import NEWEST, SYNAPSE, Dialect, Release, release_text
from synrepl.wire.grammar import Command, CommandForm
from synrepl.wire.text import printable

_STREAMS: Final = StreamTable.default()

_FIRST: Final = (0, 21, 0)
"""The first release with the protocol."""

_ROW_RELEASES: Final[tuple[Release, ...]] = (
    *((1, minor, 0) for minor in range(163, -1, -1)),
    *((0, 99, patch) for patch in range(5, -1, -1)),
    *((0, minor, 0) for minor in range(34, 20, -1)),
)
"""The releases whose rows are looked through, the newest first."""

UNMISTAKABLE: Final = ("RDATA", "POSITION", *(name for name in COMMANDS if "_" in name))
"""Commands that are recognized anywhere in a line. The others are common words."""

_BEGINNING: Final = re.compile(rf"(?:{'|'.join(COMMANDS)})(?: |\Z)")
_STREAM: Final = re.compile(r"[A-Za-z_][\w.-]{0,99}", re.ASCII)
_WORD: Final = re.compile(r"[^\s/]{1,255}")
_NUMBER: Final = re.compile(r"\d+")


class _Reading(msgspec.Struct, frozen=True):
    """One way to read a line: as the releases from `since` to before `until` (None: up to now) do."""

    command: Command
    form: CommandForm
    since: Release
    until: Release | None


def explain_line(text: str) -> Passage | None:
    """Explain a text that is a line of the protocol; None if it is none.

    ERROR is none: a text that begins so is one of a log. Of lines that were cut off, those are recognized
    that begin with an `UNMISTAKABLE` command, and with the name of a stream if they have one.
    """
    name, _, rest = text.partition(" ")
    if _BEGINNING.match(text) is None or not _PLAIN.get(name, _ANYTHING).fullmatch(rest):
        return None
    if readings := _readings(text):
        return _explain(name, readings)
    if name in _CUT and not (rest.partition(" ")[0] in _STREAMS and _CUT[name].fullmatch(rest)):
        return None
    return _misfit(name, text) if name in UNMISTAKABLE and rest else None


_ANYTHING: Final = re.compile(".*", re.DOTALL)
_PLAIN: Final = {
    "ERROR": re.compile(r"(?!)"),
    "NAME": re.compile(r"\S+(?: \S+)?"),
    "PING": re.compile(r"\d*"),
    "SERVER": re.compile(r"\S+"),
}
"""The arguments of commands whose names are common words: with others it is no line of the protocol."""

_CUT: Final = {
    "POSITION": re.compile(r"\S+(?: (?!\d+(?: |\Z))\S+(?: \d+)?)?"),
    "RDATA": re.compile(r"\S+(?: (?!\d+(?: |\Z))\S+)?(?: (?:\d+|batch)(?: [\[{].*)?)?", re.DOTALL),
}
"""The arguments of these commands in a line that was cut off."""


def _is_of_homeserver(command: Command) -> bool:
    """Whether its names are such as a homeserver has: what only looks like a line has others."""
    if isinstance(command, Position | Rdata):
        writer = command.instance
        return (
            _STREAM.fullmatch(command.stream) is not None
            and _WORD.fullmatch(writer) is not None
            and _NUMBER.fullmatch(writer) is None
        )
    return True


def _readings(line: str) -> list[_Reading]:
    """Return the ways to read a line; the newest first."""
    name, space, arguments = line.partition(" ")
    made = COMMANDS[name]
    found: list[_Reading] = []
    bounds = sorted(_boundaries(made))
    for since, until in zip(bounds, [*bounds[1:], None], strict=True):
        if since not in made.SPAN:
            continue
        form = CommandForm(made, Dialect(release=since, name=""))
        try:
            command = form.parse(arguments.encode()) if space else form.parse_bare()
        except (RemoteProtocolError, UnicodeEncodeError):
            continue
        if isinstance(command, Rdata) and _json(command.row) is None:
            continue
        if not _is_of_homeserver(command):
            continue
        if found and found[-1].command == command and found[-1].until == since:
            found[-1] = msgspec.structs.replace(found[-1], until=until)
        else:
            found.append(_Reading(command, form, since, until))
    return found[::-1]


def _boundaries(made: type[Command]) -> Iterator[Release]:
    """Yield the releases in which the form of a command changes."""
    yield _FIRST
    for span in (made.SPAN, *(field.span for field in made.FIELDS)):
        if span.since > _FIRST:
            yield span.since
        if span.until is not None:
            yield span.until


def _explain(name: str, readings: list[_Reading]) -> Passage:
    first = readings[0]
    if isinstance(first.command, Replicate) and len(readings) > 1:
        # Since 1.13 any text may follow. An older form that fits says more.
        readings.reverse()
        first = readings[0]
    words = _words(name, first.command)
    rows = [{"field": field, "value": value} for field, value in _values(first)]
    if isinstance(first.command, Rdata):
        more, fields = _row(first.command)
        words += more
        rows += fields
    words.append(f"This form is that of {_releases(first)}.")
    for other in readings[1:]:
        words.append(f"In {_releases(other)} it reads: {_brief(other)}.")
    return Passage(kind="protocol_line", text=_shown(name, first.command), words=words, fields=rows)


def _words(name: str, command: Command) -> list[str]:
    if isinstance(command, Position):
        stream, writer = printable(command.stream), printable(command.instance)
        said = f"{writer} has sent all rows of {stream} up to {command.token}"
        if command.prev_token == command.token:
            said += ", and nothing is new: an announcement"
        elif command.prev_token is not None:
            said += (
                f". It has none after {command.prev_token} that were not sent: a reader that is not at"
                f" {command.prev_token} yet has a gap, and must fetch"
            )
        return [f"{said}.", *_known(command.stream)]
    if isinstance(command, Rdata):
        stream, writer = printable(command.stream), printable(command.instance)
        if command.token is None:
            said = f"{writer} wrote a row of {stream}, and more with it: the last of them has the token"
        else:
            said = f"{writer} wrote a row of {stream} at {command.token}"
        return [f"{said}.", *_known(command.stream)]
    return [_first_sentences(type(command))]


def _known(stream: str) -> list[str]:
    return [writers_sentence(printable(stream))]


def _first_sentences(made: type[Any]) -> str:
    """Return the first paragraph of a docstring as one line."""
    documented = next((one.__doc__ for one in made.__mro__[:-1] if one.__doc__), "")
    paragraph = documented.strip().partition("\n\n")[0]
    return " ".join(paragraph.replace("`", "").split())


def _values(reading: _Reading) -> Iterator[tuple[str, str]]:
    """Yield the fields of a command, safe to print. An access token is not shown."""
    for field in reading.form.fields:
        if reading.command.IS_JSON:
            yield "body", _text(msgspec.to_builtins(reading.command))
            return
        value = getattr(reading.command, field.name)
        if isinstance(reading.command, Rdata):
            if field.name == "row":
                continue
            value = "batch" if value is None else value
        if isinstance(reading.command, UserIp) and field.name == "seen":
            value = ["(access token)", *value[1:]]
        yield field.name, "none" if value is None else _text(value)


def _brief(reading: _Reading) -> str:
    return ", ".join(f"{name} {value}" for name, value in _values(reading))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))


def _shown(name: str, command: Command) -> str:
    if isinstance(command, Position | Rdata):
        return f"{name} {printable(command.stream)}"
    return name


def _json(row: bytes) -> Any:
    """Return the JSON value that a row is; None if it is none that can be read."""
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        return None


def _row(command: Rdata) -> tuple[list[str], list[dict[str, Any]]]:
    """Return what a row means, and its fields."""
    values = _json(command.row)
    stream = _STREAMS.get(command.stream)
    if not isinstance(values, list):
        return ["The row is not a JSON array: no release writes it so."], [
            {"field": "row", "value": _text(values)}
        ]
    words, names, values = _named(stream, values, command.row) if stream is not None else ([], (), values)
    if stream is not None:
        try:
            said = _first_sentences(type(stream.decode(command.row, NEWEST)))
            words = [said, *words] if said else words
        except RowError as error:
            words.insert(0, f"The row does not fit: {printable(str(error))}.")
    names = (*names, *(f"item {number}" for number in range(len(names) + 1, len(values) + 1)))
    return words, [
        {"field": f"row: {name}", "value": _text(value)} for name, value in zip(names, values, strict=False)
    ]


def _named(
    stream: Stream[Any], values: list[Any], row: bytes
) -> tuple[list[str], tuple[str, ...], list[Any]]:
    """Return remarks on the form of a row, and the names of its values with the values."""
    tag = ""
    if stream.tags:
        if len(values) == 2 and values[0] in stream.tags and isinstance(values[1], list):
            tag, values = values
        else:
            tag = stream.tags[0]
    fitting = [shape for shape in _shapes(stream.name, tag) if len(shape.names) == len(values)]
    for shape in [*(one for one in fitting if _writes(stream, row, one)), *fitting]:
        return [shape.said] if shape.said else [], shape.names, values
    return [], (), values


class _Shape(msgspec.Struct, frozen=True):
    """The fields of one form of a row, a release that writes it, and a sentence if it is not the newest."""

    names: tuple[str, ...]
    dialect: Dialect
    said: str = ""


def _writes(stream: Stream[Any], row: bytes, shape: _Shape) -> bool:
    """Whether the releases of a shape write the row so."""
    try:
        written = stream.project(stream.canonical(row, shape.dialect), shape.dialect)
    except RowError:
        return False
    return written is not None and bool(_json(written) == _json(row))


@cache
def _shapes(stream: str, tag: str) -> list[_Shape]:
    """Return the forms of a row, the newest first."""
    made = _STREAMS.get(stream)
    assert made is not None
    found: list[tuple[tuple[str, ...], Release, Release | None]] = []
    after: Release | None = None
    for release in _ROW_RELEASES:
        if names := made.shape(Dialect(release=release, name=""), tag):
            if found and found[-1][0] == names:
                found[-1] = names, release, found[-1][2]
            else:
                found.append((names, release, after))
        after = release
    if not found:
        # A stream that no release has: an operator's own.
        return [_Shape(made.shape(NEWEST, tag), NEWEST)]
    return [
        _Shape(
            names,
            Dialect(release=since, name=""),
            "" if until is None else f"The row has the form of {span_text(since, until)}.",
        )
        for names, since, until in found
    ]


def _misfit(name: str, line: str) -> Passage:
    made = COMMANDS[name]
    forms = {
        CommandForm(made, Dialect(release=one, name="")).grammar()
        for one in _boundaries(made)
        if one in made.SPAN
    }
    words = [f"This begins like a {name}, but no release writes it so: is it whole?", "The forms are:"]
    words += sorted(forms)
    text = name if made is UserIp else printable(line)
    return Passage(kind="protocol_line", text=text, words=words)


def _releases(reading: _Reading) -> str:
    if reading.since not in SYNAPSE:
        return "synrepl's daemons among themselves"
    since = "" if reading.since == _FIRST else f"from {release_text(reading.since)} on"
    if reading.until is None or reading.until not in SYNAPSE:
        return f"Synapse {since}" if since else "every release of Synapse"
    before = f"before {release_text(reading.until)}"
    return f"Synapse {since}, {before}" if since else f"Synapse {before}"
