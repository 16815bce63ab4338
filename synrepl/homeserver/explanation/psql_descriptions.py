"""Tables of a homeserver's database as psql describes them (``\\d TABLE``): which unique indexes they lack.

Docs: docs/howto/explain.md.
"""

import re
from typing import Final

import msgspec

from synrepl.homeserver.explanation.psql import PsqlOutput
from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage
from synrepl.homeserver.unique_indexes import (
    RELEASES,
    UniqueIndex,
    follows,
    is_of_locks,
    known_unique_indexes,
    of_restores,
)
from synrepl.html.humanize import counted, listed
from synrepl.wire.text import printable

KIND: Final = "described_table"

MAX_TABLES: Final = 100
"""So many tables of a text are looked at: the first ones."""

_TITLE: Final = re.compile(
    r"\s*(?:Unlogged |Partitioned )?[Tt]able \"(?:\w{1,63}\.)?(?P<table>\w{1,63})\"\s*", re.ASCII
)
_ASKED: Final = re.compile(r"(?:\S{1,100}[=-][#>*] ?)?\\d\+? (?:\w{1,63}\.)?\w{1,63};?\s*", re.ASCII)
_SECTION: Final = re.compile(
    r"(?:Indexes|Check constraints|Foreign-key constraints|Referenced by|Triggers|Rules|Policies"
    r"|Publications|Not-null constraints|Statistics objects|Replica Identity|Access method|Inherits):.*",
    re.ASCII,
)
_INDEX: Final = re.compile(
    r"\s+\"(?P<name>\w{1,63})\" (?P<kind>PRIMARY KEY|UNIQUE CONSTRAINT|UNIQUE)?,? ?btree"
    r" \((?P<columns>[^()]{1,1000})\)(?: INCLUDE \([^()]{1,1000}\))?(?: WHERE (?P<condition>.{1,500}?))?"
    r"(?P<odd> INVALID)?(?: DEFERRABLE.*)?(?: REPLICA IDENTITY)?\s*",
    re.ASCII,
)


class _Description(msgspec.Struct):
    """A table so far: its unique indexes, and its primary key if it has one."""

    name: str
    lines: list[int]
    has_columns: bool = False
    has_indexes: bool = False
    is_index: bool = False
    unique: list[UniqueIndex] = []
    primary: tuple[str, UniqueIndex] | None = None

    def add_index(self, line: str) -> None:
        found = _INDEX.fullmatch(line[:3000])
        if found is None or not found["kind"] or found["odd"]:
            return
        columns = (one.strip(' "') for one in found["columns"].split(","))
        index = UniqueIndex(frozenset(columns), (found["condition"] or "").strip(" ()"))
        self.unique = [*self.unique, index]
        if found["kind"] == "PRIMARY KEY":
            self.primary = (found["name"], index)


class Descriptions:
    """The tables that are described in a text."""

    def __init__(self) -> None:
        self._tables: list[_Description] = []
        self._open: _Description | None = None

    def takes_columns(self, table: PsqlOutput) -> bool:
        """Whether an output is the list of columns below the name of a table."""
        if self._open is None or table.columns[:2] != ["Column", "Type"]:
            return False
        self._open.has_columns = True
        return True

    def takes(self, line: str, number: int) -> bool:
        """Whether a line is part of the description of a table."""
        if (title := _TITLE.fullmatch(line[:300])) is not None:
            self._open = _Description(title["table"], [])
            if len(self._tables) < MAX_TABLES:
                self._tables.append(self._open)
        elif _ASKED.fullmatch(line[:300]) is not None:
            return True
        elif self._open is None or not self._open.has_columns:
            return False
        elif _SECTION.fullmatch(line[:300]) is not None:
            self._open.is_index = line.startswith("Indexes:")
            self._open.has_indexes |= self._open.is_index
        elif line[:4].isspace() and line.strip():
            if self._open.is_index:
                self._open.add_index(line)
        else:
            self._open = None
            return False
        if len(self._open.lines) < MAX_NUMBERS:
            self._open.lines = [*self._open.lines, number]
        return True

    def passages(self) -> list[Passage]:
        """What is said of each table."""
        return [_told(one) for one in self._tables if one.has_columns]


def _told(table: _Description) -> Passage:
    name = printable(table.name)
    known = known_unique_indexes().get(table.name, ())
    lacking = [one for one in known if one not in table.unique]
    of = f"Synapse ({RELEASES}, if it has the table)"
    if not known:
        words = [f"The table {name}. Which unique indexes it must have is not known here."]
        return _passage(table, words, [], "")
    if not lacking:
        words = [f"The table {name} has the unique indexes that {of} makes in each database."]
        return _passage(table, words, [], "normal")
    words = [
        (
            f"The table {name} lacks {counted(len(lacking), 'unique index', 'unique indexes')} that"
            f" {of} makes: {listed([one.told() for one in lacking])}; {of_restores(table.name)}."
        ),
        f"{follows(table.name)}.",
    ]
    advice = []
    if not table.has_indexes:
        words.append("The text lists no index of it at all: that is so if nothing was cut off below it.")
    clear = f"DELETE FROM {name}, " if is_of_locks(table.name) else ""
    other = ""
    if table.primary is not None and table.primary[1] not in known:
        key, index = table.primary
        words.append(
            f"Its primary key {printable(key)} {printable(index.told())} is none that is known of Synapse's:"
            " it may refuse rows that Synapse is to write."
        )
        other = f"ALTER TABLE {name} DROP CONSTRAINT {printable(key)}, "
    made = listed([f"CREATE UNIQUE INDEX ON {name} {one.told()}" for one in lacking])
    if clear:
        words.append("Its rows are locks of the moment, and no data: nothing is lost with them.")
    else:
        advice.append("keep a copy, and delete all but one row of each that is there twice")
    advice += [
        f"stop all processes of Synapse; {clear}{other}{made}; start them",
        "see what else lacks: synrepl doctor --homeserver HOMESERVER.YAML",
    ]
    return _passage(table, words, advice, "error")


def _passage(table: _Description, words: list[str], advice: list[str], severity: str) -> Passage:
    return Passage(
        kind=KIND,
        text=f"\\d {printable(table.name)}",
        words=words,
        advice=advice,
        severity=severity,
        lines=table.lines,
        count=1,
    )
