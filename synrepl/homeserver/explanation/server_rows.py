"""Rows of a view of PostgreSQL or PgBouncer as psql prints them, and what is said of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from synrepl.homeserver.explanation.relations import known_relations

MAX_CELL: Final = 100
"""The most characters of a value that are shown."""

Rows: TypeAlias = Sequence[Mapping[str, str]]


class Said(NamedTuple):
    """What is said of a view: words, what to do, and the severity, "" for none."""

    words: list[str]
    advice: list[str]
    severity: str = ""


_LASTED: Final = re.compile(
    r"(?:(?P<days>\d{1,5}) days? ?)?(?P<hours>\d{1,4}):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.\d{1,9})?",
    re.ASCII,
)


def seconds_of(text: str) -> int:
    """How many seconds an interval has, as PostgreSQL prints it; -1: it is none."""
    if (found := _LASTED.fullmatch(text)) is None:
        return -1
    days, hours, minutes, seconds = (int(one or 0) for one in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


_NAMES: Final = ("relation", "table_name", "tablename", "relname", "table", "name")
_UNITS: Final = {"bytes": 1, "": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s?(bytes|[kMGT]B|)", re.ASCII)
"""A size as PostgreSQL prints it, or a number."""
SIZED: Final = re.compile(
    r"(?:pg_)?(?:(?:total|table|data|index|relation)[ _])*size(?:[ _]pretty)?|size_bytes|total"
)
"""The name of a column of sizes."""


def bytes_of(text: str) -> float:
    """How many bytes a size has; -1: it is none."""
    found = SIZE.fullmatch(text)
    return float(found[1]) * _UNITS[found[2].lower()] if found else -1.0


def sizes_in(rows: Rows) -> dict[str, float]:
    """The sizes of tables in rows: of the last column of sizes, which is mostly that of all together."""
    if not rows:
        return {}
    names = next((one for one in _NAMES if one in rows[0]), "")
    sized = next((one for one in reversed([*rows[0]]) if SIZED.fullmatch(one)), "")
    if not names or not sized:
        return {}
    found: dict[str, float] = {}
    for row in rows:
        name = row[names].strip('"').rpartition(".")[2]
        if (many := bytes_of(row[sized])) >= 0:
            found[name] = max(many, found.get(name, 0.0))
    return found


def steps_of(names: Iterable[str]) -> list[str]:
    """What else helps with these tables of Synapse."""
    known = known_relations()
    return [f"{name}: {known[name].do}" for name in names if name in known and known[name].do]


def is_count(text: str) -> bool:
    """Whether a value is a number of something."""
    return text.isascii() and text.isdecimal() and len(text) < 16
