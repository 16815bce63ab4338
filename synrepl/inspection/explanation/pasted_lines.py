"""Pasted text: its lines, and what is inside quotes, JSON and escapes.

People paste from terminals, from issues (with ``> `` and backticks), from Docker and Loki (JSON), from Python
(``b'...'``) and from browsers (percent-encoded). `unwrapped` yields a line as it is, then what is inside it.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from synrepl.inspection.explanation.log_messages import CONTINUES

_QUOTED: Final = re.compile(r"""\A(?:b?(?P<quote>["'`])(?P<inner>.*)(?P=quote))[,;.]?\Z""", re.DOTALL)
_OPENING: Final = re.compile(r"""(?<!\w)b?(["'])(?=[A-Z_]{4,40} )""")
_ESCAPE: Final = re.compile(r"""\\(["'\\/])""")
_MARKS: Final = re.compile(r"\A[>\s]+")
_TEXT_KEYS: Final = ("log", "message", "msg", "MESSAGE", "line")
_MAX_STRINGS: Final = 20
"""The most strings of a JSON document that are looked at."""


def split_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with their numbers from 1; a message over two lines is one."""
    found: list[tuple[int, str]] = []
    continues = False
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if not line.strip():
            continue
        if continues:
            before, start = found[-1]
            found[-1] = before, f"{start} {line.strip()}"
        else:
            found.append((number, line))
        continues = not continues and CONTINUES.search(line) is not None
    return found


def unwrapped(line: str) -> Iterator[str]:
    """Yield a line, and then the texts inside it, each once."""
    seen: set[str] = set()
    for text in _unwrapped(line):
        if text and text not in seen:
            seen.add(text)
            yield text


def _unwrapped(line: str, *, depth: int = 2) -> Iterator[str]:
    text = _MARKS.sub("", line.strip()).strip("`").strip()
    yield text
    for inner in _strings(text):
        for _, one in split_lines(inner):
            if depth:
                yield from _unwrapped(one, depth=depth - 1)
    if found := _QUOTED.match(text):
        yield found["inner"]
        yield _ESCAPE.sub(r"\1", found["inner"])
    if quoted := _quoted_command(text):
        yield quoted
        yield _ESCAPE.sub(r"\1", quoted)
    yield _ESCAPE.sub(r"\1", text)
    if "%" in text:
        yield unquote(text)


def _quoted_command(text: str) -> str:
    """Return the command in quotes at the end of a text, as in ``cannot parse b'RDATA ...'``, or ""."""
    end = text.rstrip(")] \t\n")
    found = _OPENING.search(end)
    if found is None or not end.endswith(found[1]) or found.end() >= len(end):
        return ""
    return end[found.end() : -1]


def _strings(text: str) -> list[str]:
    """Return the strings in a JSON document, the text of a log entry first; none if it is no JSON."""
    if text[:1] not in ("{", "[", '"'):
        return []
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
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
