"""The order of pasted lines: views of a journal or of a dashboard show the newest first.

A short text of which the times only go back, or the lines of a traceback or of a banner stand upside down, is
read from its end. Of a longer one nothing is held back, so it is read as it stands.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import Final

from synrepl.homeserver.explanation.pasted_lines import logged_message

MAX_TURNED: Final = 1000
"""A text of more lines is never turned round."""

_MIN_TIMES: Final = 3
"""So many lines with a time tell the order by their times."""

_TIME: Final = re.compile(
    r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ]"
    r"(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"|(?P<name>[A-Z][a-z]{2}) (?P<date>[ \d]\d) (?P<at>\d\d:\d\d:\d\d) \S{1,100} \S{1,100}:(?= |\Z)",
    re.ASCII,
)
"""The time at the beginning of a line: of a log, or of a journal."""

_MAX_BEFORE_TIME: Final = 100
_LONGEST: Final = 500
"""The most characters of a line that are looked at."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EXCEPTION: Final = re.compile(r"(?:[a-z_]\w{0,80}\.){0,10}[A-Z]\w{2,80}(?:: |\Z)", re.ASCII)
_KINDS: Final = (
    ("traceback", re.compile(r"Traceback \(most recent call last\):\Z")),
    ("file", re.compile(r'File "[^"]{1,300}", line \d')),
    ("marks", re.compile(r"[\^~][\s\^~]{2,}\Z")),
    ("stars", re.compile(r"\*{20,}\Z")),
    ("rest", re.compile(r"There may be more information in the logs")),
    ("headline", re.compile(r"Error during initialisation:")),
)
_UPRIGHT: Final = frozenset(
    (("traceback", "file"), ("rest", "stars"), ("stars", "headline"), ("marks", "file"))
)
"""Kinds of lines that stand below each other so in a text that is in order."""
_UPSIDE_DOWN: Final = frozenset(
    (("file", "traceback"), ("stars", "rest"), ("headline", "stars"), ("exception", "marks"))
)

_Key = tuple[str, str]


def in_order(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers from 1 on, those of a text with the newest first from its end."""
    numbered = enumerate(lines, 1)
    first = list(islice(numbered, MAX_TURNED + 1))
    yield from chain(first if len(first) > MAX_TURNED else _turned(first), numbered)


def _turned(numbered: list[tuple[int, str]]) -> list[tuple[int, str]]:
    times = [_time_of(line) for _, line in numbered]
    known = [time for time in times if time is not None]
    if len({kind for kind, _ in known}) > 1 or any(after > before for before, after in pairwise(known)):
        return numbered
    kinds = [kind for _, line in numbered if line.strip() and (kind := _kind_of(line))]
    pairs = set(pairwise(kinds))
    if pairs & _UPSIDE_DOWN and not pairs & _UPRIGHT:
        return numbered[::-1]
    if len(known) < _MIN_TIMES or len(set(known)) == 1:
        return numbered
    # Lines without a time are of the one before; upright ones with the same time were logged as one.
    blocks: list[list[tuple[int, str]]] = [[]]
    last: _Key | None = None
    for one, time in zip(numbered, times, strict=True):
        if time is not None and not (time == last and pairs & _UPRIGHT):
            blocks.append([])
        last = time or last
        blocks[-1].append(one)
    return [one for block in reversed(blocks) for one in block]


def _time_of(line: str) -> _Key | None:
    """Return the time of a line that was logged, so that it can be compared; None if there is none."""
    found = _TIME.search(line, 0, _MAX_BEFORE_TIME)
    if found is None:
        return None
    if found["name"] is not None:
        if found["name"] not in _MONTHS:
            return None
        return "journal", f"{_MONTHS.index(found['name']):02} {found['date']} {found['at']}"
    if not logged_message(line[:_LONGEST])[0]:
        return None
    day = f"{found['year']}-{found['month']}-{found['day']}"
    return "log", f"{day} {found['time']}.{found['part'] or '':<09}"


def _kind_of(line: str) -> str:
    """Return what a line is of a traceback or a banner; "-" for any other line, "" for an empty one."""
    text = logged_message(line[:_LONGEST])[1].strip()
    if not text:
        return ""
    kind = next((name for name, pattern in _KINDS if pattern.match(text) is not None), "")
    return kind or ("exception" if _EXCEPTION.match(text) is not None else "-")
