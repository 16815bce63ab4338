"""Pasted lines: the header that a logger or a container put before a message, and what is inside quotes.

People paste from terminals, from issues (with ``> `` and backticks), from Docker, journald and Loki (JSON),
from Python (``b'...'``) and from browsers (percent-encoded). `read_line` takes the header off, and yields
the texts in which something may be recognized, the whole message first.
"""

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any, Final
from urllib.parse import unquote

import msgspec

MAX_LINE: Final = 64 * 1024
"""The most characters of one line that are looked at."""

_DEFAULT: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?) - (?P<logger>[\w.]+) - \d+ - (?P<level>[A-Z]+) - "
    r"(?P<request>\S{0,200}) ?- (?P<message>.*)",
    re.DOTALL | re.ASCII,
)
"""The format of Synapse's own log: most lines of a whole log."""

_OWN: Final = re.compile(
    r"(?<!\d)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)? - [\w.]{1,100} - \d{1,6} - [A-Z]{4,8} - ", re.ASCII
)
"""The header of that format."""

REDIS: Final = "redis.own"
"""The logger of a line that a Redis server wrote into its own log."""

_OF_REDIS: Final = re.compile(
    r"(?<![\w:.])(?:(?:(?:\d{1,7}|[A-Z]{2}):){1,2}[MSCX]|\[\d{1,7}\]|\d{1,7}:signal-handler) "
    r"(?P<time>\d{1,2} [A-Z][a-z]{2} (?:\d{4} )?\d\d:\d\d:\d\d\.\d{3}(?= [.*#-] )|\(\d{9,11}\)"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(?:Z|[+-]\d\d:?\d\d)?(?= [.*#-] )|\d{13}(?= [.*#-] ))"
    r"(?: [.*#-])? (?P<message>.*)",
    re.DOTALL | re.ASCII,
)
"""A line of a Redis server: process (of KeyDB and thread) and role (master, replica, child, Sentinel), time,
mark of the level; of a signal the time is a number. Valkey writes the time as it is told to."""

_OF_VALKEY: Final = re.compile(
    r"(?<!\S)pid=\d{1,7} role=\S{1,20} timestamp=(?P<quote>\"?)(?P<time>[^\"]{8,40})(?P=quote) level=\w{1,10}"
    r" message=\"(?P<message>.*)\"",
    re.DOTALL | re.ASCII,
)
"""A line of Valkey with log-format logfmt."""

_MAX_SHIPPED: Final = 200
"""The most characters that journald, a container, a shipper of logs or grep put before a line."""

_HEADER: Final = re.compile(
    r"""(?:
      (?P<at>[A-Z][a-z]{2}\ [\ \d]\d\ \d\d:\d\d:\d\d)
          \ (?![A-Z]{4,8}\b)[\w.-]{1,80}\ [a-z][\w./@-]{1,80}:(?=\ |\Z)
    |
      (?P<time>\d{4}-\d\d-\d\d[T\ _]\d\d:\d\d:\d\d(?:[.,]\d+)?
          (?:Z|\ ?[+-]\d\d:?\d\d|\ (?:UTC|[A-Z]{1,3}T)(?=\ ))?
        | \d{4}/\d\d/\d\d\ \d\d:\d\d:\d\d
        | [A-Za-z\u00c0-\u024f]{3,9}\.?\ [\ \d]?\d\ \d\d:\d\d:\d\d(?:[.,]\d+)?
        | \d{1,2}/\d{1,2}/\d{4}\ \d{1,2}:\d\d:\d\d(?:\ [AP]M)?
        | \d\d:\d\d:\d\d(?:[.,]\d+)?)
    | [\w.-]{1,80}\ {0,40}\|
    | (?:[\w.-]{1,80}\ )?[\w./@-]{1,80}\[\d+\]:(?=\ |\Z)
    | (?P<logger>(?:synapse(?:_port_db)?|twisted|txredisapi)(?:\._?[a-z0-9]\w*|\.[A-Z]{2,8}\b)*(?=[\s:\]\-(])
        | root(?=:|\ -\ |\(\d))
    | [a-z_][\w.]{0,100}(?=\ -\ \d{1,6}\ -\ [A-Z]{4,8}\ -\ )
    | (?P<level>(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)(?=[\s:\]-]))
    | [\w./-]{1,80}\ (?=synapse\.[\w.]{1,100}\ -\ \d{1,6}\ -\ [A-Z]{4,8}\ -\ )
    | [\w.-]{1,80}\ (?:matrix|synapse|python)[\w./@-]{0,80}:(?=\ )
    | (?:stdout|stderr)\ [FP](?=\ )
    | [\w./-]{1,100}\.log(?:\.[\w-]{1,20})?(?=:\d{4}-)
    | (?:Info|Warning|Error):(?=\ [A-Z][a-z]{2}\ )
    | \[\d{1,10}(?:-\d{1,6})?\](?=\ ) | \(\d{1,6}\)(?=\ ) | @[0-9a-f]{24}(?=\ |\Z)
    | \w{1,80}@\w{1,80}(?=\ [A-Z]{3,9}:\ )
    | \d{1,6}(?=\ -\ )
    | (?P<opening>[\[(])(?=\d{4}-|\d\d:|synapse|[A-Z]{4,8}\s{0,8}[\])])
    )(?:\s*[\])]\s*[-:|]?\s*|\s*[-:|]\s+|:(?=\S)|\s+)?""",
    re.VERBOSE | re.ASCII,
)
"""One part of a header: a time, a logger, a level, a container, a program, the number of a line."""

_REQUEST: Final = re.compile(
    r"(?:(?P<name>[^\s\[\]]{0,200}) ?- |\[(?P<other>[^\]]{0,200})\] |"
    r"\((?P<third>[\w.-]{1,150}-\d{1,9}|None|main|sentinel)\):? |[\w.-]{1,100}-\d{1,9} )",
    re.ASCII,
)
"""The request on whose behalf a line was logged: between the header and the message."""

_REQUEST_ALONE: Final = re.compile(r"(?P<name>[\w./]{1,150}-\d{1,12}) ?- (?=\S)", re.ASCII)
"""The request where what Synapse writes before it was cut off."""

_NUMBER: Final = re.compile(r"\d{1,6} - (?=\S{0,200} ?- )", re.ASCII)
"""The number of the line in the module, where the level was written before the logger."""

_EXCEPTION: Final = re.compile(r"(?:\w{1,80}\.){0,10}(?P<name>[A-Z]\w{1,80}): ", re.ASCII)
_INNER_EXCEPTION: Final = re.compile(r"(?<!\w)(?P<name>\w{0,80}(?:Error|Exception|Setup)): ", re.ASCII)
_CAPTURED: Final = re.compile(
    r"(?:\d[\d.:]{0,20}\s+)?(?:\S{1,255}\t\s*)?(?:(?:\S{1,40}\s+)?[<>]\s+)?(?=[A-Z_]{4,40}(?: |\Z))", re.ASCII
)
"""A time, a channel or a direction before a line of the protocol that was recorded."""

_QUOTED: Final = re.compile(r"""\A(?:b?(?P<quote>["'`])(?P<inner>.*)(?P=quote))[,;.]?\Z""", re.DOTALL)
_OPENING: Final = re.compile(r"""(?<!\w)b?(["'])(?=[A-Z][A-Za-z_]{3,40} )""")
_ESCAPE: Final = re.compile(r"""\\(["'\\/])""")
_MARKS: Final = re.compile(r"\A[>\s]+")
_BACKTICKS: Final = re.compile(r"(?P<ticks>`{1,3})(?P<inner>[^`]*)(?P=ticks)")
_TEXT_KEYS: Final = ("log", "message", "msg", "MESSAGE", "line")
_HEADER_KEYS: Final = {
    "time": ("time", "timestamp", "@timestamp", "ts"),
    "logger": ("namespace", "logger", "logger_name", "name"),
    "level": ("level", "levelname", "severity"),
    "request": ("request",),
}
_MAX_STRINGS: Final = 20
"""The most strings of a JSON document that are looked at."""


class Header(msgspec.Struct, frozen=True):
    """What stood before a message; "" is unknown. `logger` is a module's name, `level` as ``WARNING``.

    The `request` is that on whose behalf it was logged, as ``GET-12``.
    """

    time: str = ""
    logger: str = ""
    level: str = ""
    request: str = ""

    def __bool__(self) -> bool:
        return self.logger != "" or self.level != ""


class LoggedText(msgspec.Struct, frozen=True):
    """A text of a line, without the header. The `exception` is the class named before it, or ""."""

    text: str
    header: Header
    exception: str = ""


def split_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text, whatever ends them."""
    yield from re.split(r"\r\n|\r|\n", text)


def read_line(line: str) -> tuple[Header, list[LoggedText]]:
    """Return the header of a line, and the texts in it: each once, the most likely message first."""
    line = _as_logged(line)
    if redis := _read_redis(line):
        return redis.header, [redis]
    if found := _DEFAULT.fullmatch(line):
        header = Header(found["time"], found["logger"], found["level"], found["request"])
        message = found["message"].strip()
        texts = [LoggedText(message, header)]
        if " " in message and not _may_wrap(message):
            return header, texts
    seen: dict[LoggedText, None] = {}
    for text in _unwrapped(line, Header()):
        if text.text:
            seen.setdefault(text)
    texts = list(seen)
    return (texts[0].header if texts else Header()), texts


def _read_redis(line: str) -> LoggedText | None:
    """Return what a Redis server wrote into its own log, if the line is of one."""
    found = _OF_REDIS.search(line, 0, MAX_LINE) if ":" in line[: _MAX_SHIPPED * 2] else None
    found = found or (_OF_VALKEY.search(line, 0, MAX_LINE) if "pid=" in line[:_MAX_SHIPPED] else None)
    if found is None or found.start() > _MAX_SHIPPED:
        return None
    message = found["message"].strip()
    return LoggedText(message, Header(found["time"].strip("()"), REDIS))


def strings_of_document(line: str) -> list[str]:
    """Return the strings of the JSON document that a line is, the text of a log entry first."""
    document = _document(line[:MAX_LINE].strip())
    if not isinstance(document, dict):
        return []
    raised = [str(document.get(key, "")) for key in ("exc_type", "exc_value")]
    return [*([": ".join(raised)] if raised[1] else []), *_strings(document)]


def spread(line: str) -> list[str]:
    """Return the lines in a line: those of an answer of Loki, or a logged document without its prefix."""
    place = line.find('{"', 0, _MAX_SHIPPED)
    if place < 0 or not line.rstrip().endswith("}"):
        return [line]
    document = _document(line[place:MAX_LINE].strip())
    if not isinstance(document, dict):
        return [line]
    found = [text for stream in _streams(document) for text in stream]
    # A row of the protocol ends with a document too.
    is_logged_so = any(isinstance(document.get(key), str) for key in _TEXT_KEYS[:4]) and (
        document.keys() & {"namespace", "level", "severity", "stream", "time", "log"}
    )
    return found or [line[place:] if is_logged_so else line]


def _streams(document: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the lines of each stream in an answer of Loki."""
    data = document.get("data")
    document = data if isinstance(data, dict) else document
    for key in ("streams", "result"):
        streams = document.get(key)
        for stream in streams if isinstance(streams, list) else ():
            values = stream.get("values") if isinstance(stream, dict) and "stream" in stream else None
            if isinstance(values, list):
                pairs = [one for one in values if isinstance(one, list) and len(one) >= 2]
                times = [str(one[0]) for one in pairs]
                if times and (len(times[0]), times[0]) > (len(times[-1]), times[-1]):
                    # Loki answers with the newest first, unless it is asked for the other direction.
                    pairs.reverse()
                yield [one[1] for one in pairs if isinstance(one[1], str)]


_CUT: Final = re.compile(r"\s?(?:>|\u2026[\"']?|\.{3}[\"']?)\s*\Z")
"""The mark with which a pager (>) or a table of Docker or systemd says that a line goes on."""


def without_cut(text: str) -> str | None:
    """Return a text without the mark at which a window cut it off; None if it has none."""
    found = _CUT.search(text, max(0, len(text) - 10))
    if found is None or (">" in found[0] and text.count("<") >= text.count(">") - text.count("->")):
        return None
    return text[: found.start()]


def is_logged(line: str) -> bool:
    """Whether a line has the header of Synapse's own log, or of Redis'."""
    return _read_redis(line) is not None or _OWN.search(line, 0, _MAX_SHIPPED + 200) is not None


_COMPOSED: Final = re.compile(r"(?P<name>[\w.@/-]{1,120}) {0,80}\|(?= |\Z)", re.ASCII)
"""What Docker Compose puts before a line: the name of the container, up to one column in all lines."""
_WRITTEN_BY: Final = re.compile(
    r"\[(?P<pod>pod/[\w./-]{1,200})\](?= |\Z)"
    r"|(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d)) (?P<unit>[\w.-]{1,80} [\w./@-]{1,100}\[\d{1,9}\]):(?= |\Z)",
    re.ASCII,
)
"""What kubectl (--prefix) and a journal put before a line: the pod, or the host, the unit and its process."""


class LineWriters:
    """Tells whose lines a text has, where a name stands before each."""

    def __init__(self) -> None:
        self._columns: set[int] = set()

    def of(self, line: str) -> tuple[str | None, str]:
        """The container, pod or unit that wrote a line, or None; and the line, without the name of a pod."""
        if found := _WRITTEN_BY.match(line):
            pod = found["pod"]
            return pod or found["unit"], line[found.end() + 1 :] if pod else line
        found = _COMPOSED.match(line) if "|" in line[:_MAX_SHIPPED] else None
        if found is None:
            return None, line
        # A row of a table has such a beginning too.
        if found.end() not in self._columns and is_logged(line):
            self._columns.add(found.end())
        return (found["name"] if found.end() in self._columns else None), line


def logged_message(line: str) -> tuple[Header, str]:
    """Return the header of a line, and its message."""
    line = _as_logged(line)
    if found := _DEFAULT.fullmatch(line):
        return Header(found["time"], found["logger"], found["level"]), found["message"].strip()
    if redis := _read_redis(line):
        return redis.header, redis.text
    header, text = _beheaded(_MARKS.sub("", line.strip()), Header())
    # Old releases log no request of what is of none.
    return header, text.removeprefix("- ") if header.logger and header.level else text


def _as_logged(line: str) -> str:
    """Return a line as Synapse logged it, without what was put before it."""
    line = line[:MAX_LINE].rstrip("\r\n")
    own = _OWN.search(line, 0, _MAX_SHIPPED + 200)
    return line if own is None or set("\"'`{\\") & set(line[: own.start()]) else line[own.start() :]


def _may_wrap(text: str) -> bool:
    return (
        "Error: " in text
        or "Exception: " in text
        or "%" in text
        or "\\" in text
        or "b'" in text
        or "'" in text[:1]
        or '"' in text
    )


def _unwrapped(line: str, outer: Header, *, depth: int = 2) -> Iterator[LoggedText]:
    text = _MARKS.sub("", line.strip())
    if found := _BACKTICKS.fullmatch(text):
        text = found["inner"].strip()
    document = _document(text)
    if isinstance(document, dict):
        outer = _header_of(document, outer)
    else:
        yield from _messages(text, outer)
    if depth and document is not None:
        for inner in _strings(document):
            for one in split_lines(inner):
                yield from _unwrapped(one, outer, depth=depth - 1)
    header, _ = _beheaded(text, outer)
    for one in _inside(text):
        yield LoggedText(one, header)


def _inside(text: str) -> Iterator[str]:
    """Yield what is in quotes in a text, and the text without its escapes and percent-encoding."""
    if found := _QUOTED.match(text):
        yield from _unescaped(found["inner"])
    if quoted := _quoted_end(text):
        yield from _unescaped(quoted)
    if "\\" in text:
        yield _ESCAPE.sub(r"\1", text)
    if "%" in text:
        yield unquote(text)
    if "&" in text and ";" in text:
        yield unescape(text)


def _unescaped(quoted: str) -> Iterator[str]:
    """Yield what is in quotes without its escapes, and then as it is."""
    if "\\" in quoted:
        yield _ESCAPE.sub(r"\1", quoted)
    yield quoted


def _messages(text: str, outer: Header) -> Iterator[LoggedText]:
    """Yield what may be the message of a line: without the header, the request, the class of an error."""
    header, rest = _beheaded(text, outer)
    if header or rest != text:
        if (found := _REQUEST.match(rest)) and header:
            named = msgspec.structs.replace(
                header, request=found["name"] or found["other"] or found["third"] or ""
            )
            yield LoggedText(rest[found.end() :].strip(), named)
        yield LoggedText(rest, header)
    if not header and (found := _REQUEST_ALONE.match(rest)):
        named = msgspec.structs.replace(header, request=found["name"])
        yield LoggedText(rest[found.end() :].strip(), named)
    if found := _EXCEPTION.match(rest) or _INNER_EXCEPTION.search(rest[:500]):
        yield LoggedText(rest[found.end() :].strip(), header, found["name"])
    elif not header and (found := _CAPTURED.match(text)) and found.end():
        yield LoggedText(text[found.end() :], header)
    yield LoggedText(text, header)


def _beheaded(text: str, outer: Header) -> tuple[Header, str]:
    """Return the header of a text, and the rest."""
    found = {"time": outer.time, "logger": outer.logger, "level": outer.level}
    place = 0
    for _ in range(10):
        part = _HEADER.match(text, place)
        if part is None or part.end() == place:
            break
        place = part.end()
        # No logger is named so: it is the name of a container.
        found |= {name: part[name] for name in found if part[name] and part[name] != "synapse"}
        found["time"] = part["at"] or found["time"]
        if found["logger"] and found["level"]:
            # What follows may be the message.
            number = _NUMBER.match(text, place) if part["logger"] else None
            place = number.end() if number else place
            break
    return Header(**found, request=outer.request), text[place:].strip()


def _header_of(document: dict[str, Any], outer: Header) -> Header:
    """Return the header that the keys of a structured line are."""
    found = {
        name: next((str(document[key])[:100] for key in keys if isinstance(document.get(key), str)), "")
        for name, keys in _HEADER_KEYS.items()
    }
    if not found["logger"].startswith("synapse"):
        found["logger"] = ""
    return Header(
        found["time"] or outer.time,
        found["logger"] or outer.logger,
        found["level"].upper() or outer.level,
        found["request"] or outer.request,
    )


def _quoted_end(text: str) -> str:
    """Return the words in quotes at the end of a text, as in ``3) "RDATA ..."`` of redis-cli, or ""."""
    end = text.rstrip(")] \t\n")
    found = _OPENING.search(end)
    if found is None or not end.endswith(found[1]) or found.end() >= len(end):
        return ""
    return end[found.end() : -1]


def _document(text: str) -> Any:
    """Return the JSON document that a text is; None if it is none."""
    if text[:1] not in ("{", "[", '"'):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _strings(document: Any) -> list[str]:
    """Return the strings in a JSON document, the text of a log entry first."""
    if isinstance(document, dict):
        ordered = [document[key] for key in _TEXT_KEYS if key in document]
        document = [*ordered, *(value for key, value in document.items() if key not in _TEXT_KEYS)]
    found: list[str] = []
    _collect(document, found, depth=4)
    return found


def _collect(value: Any, found: list[str], *, depth: int) -> None:
    if isinstance(value, str):
        if len(found) < _MAX_STRINGS:
            found.append(value)
    elif depth:
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for member in members:
            _collect(member, found, depth=depth - 1)
