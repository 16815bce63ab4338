"""Rows of a view of PostgreSQL or PgBouncer as psql prints them, and what is said of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from synrepl.homeserver.explanation.relations import known_relations
from synrepl.html.humanize import several
from synrepl.wire.text import printable

MAX_CELL: Final = 100
"""The most characters of a value that are shown."""

Rows: TypeAlias = Sequence[Mapping[str, str]]


class Said(NamedTuple):
    """What is said of a view: words, what to do, and the severity, "" for none."""

    words: list[str]
    advice: list[str]
    severity: str = ""


AGES: Final = ("age", "duration", "runtime", "xact_age", "xact_start", "query_start", "state_change")
"""Columns that tell how long something has lasted, or since when."""
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


def which_of(rows: Rows) -> str:
    """The processes of rows, and the age of the first, to be put behind a word."""
    pids = pids_of(rows)
    ages = [f"{name} {printable(row[name])}" for row in rows[:1] for name in AGES if row.get(name)]
    return "".join(f", {one}" for one in [f"pid {pids}" if pids else "", *ages[:1]] if one)


def pids_of(rows: Rows) -> str:
    """The numbers of the processes of rows; "" if there are none."""
    found = list(
        dict.fromkeys(printable(row[key]) for row in rows for key in ("pid", "procpid") if row.get(key))
    )
    return several(found) if found else ""


def name_of(row: Mapping[str, str]) -> str:
    """Who is connected: its name, or else its address."""
    return printable(row.get("application_name") or row.get("client_addr") or row.get("pid", "one"))


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


def share_of(row: Mapping[str, str], done: str, of: str) -> str:
    """How much of it is done, in words; "" if that is not told."""
    counts = [row.get(done, ""), row.get(of, "")]
    if not all(map(is_count, counts)) or not int(counts[1]):
        return ""
    return f", {int(counts[0]) * 100 // int(counts[1])} % of {int(counts[1]):,}"


def steps_of(names: Iterable[str]) -> list[str]:
    """What else helps with these tables of Synapse."""
    known = known_relations()
    return [f"{name}: {known[name].do}" for name in names if name in known and known[name].do]


def is_count(text: str) -> bool:
    """Whether a value is a number of something."""
    return text.isascii() and text.isdecimal() and len(text) < 16
