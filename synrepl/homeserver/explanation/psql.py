"""Tables of a homeserver's database as psql prints them, and the statements before them.

Docs: docs/howto/explain.md.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from synrepl.caches.names import NEWEST_KNOWN
from synrepl.caches.relations import find_columns, said_of
from synrepl.homeserver.explanation.relations import SEQUENCE, KnownRelation, known_relations
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.server_statements import PLAN
from synrepl.homeserver.explanation.server_views import explain_view, has_words
from synrepl.homeserver.streams import WIRE, written_by
from synrepl.wire.text import printable

MAX_ROWS: Final = 200
"""The most rows of a table that are read."""
MAX_TEXT: Final = 2000
"""The most characters of a value that are read from several lines."""

_RULE: Final = re.compile(r"[\s>|]*[-─]{2,}(?:[-─+|┼\s:]*[-─])?[\s|]*", re.ASCII)
_RECORD: Final = re.compile(r"[\s>]*[-─]\[ RECORD \d{1,9} \][-─+┼]*\s*")
"""What stands before each row where psql prints a column a line (``\\x``)."""
_COLUMN: Final = re.compile(r'["\w*?().]{1,64}(?: \w{1,40})?', re.ASCII)
_FOOTER: Final = re.compile(r"\(\d{1,9} \w{1,20}\)|(?:UPDATE|DELETE|INSERT 0|SELECT|COPY) \d{1,12}|VACUUM")
_STATEMENT: Final = re.compile(
    r"\b(?:(?P<verb>select|delete|insert)\b(?P<what>(?:(?!\b(?:from|into)\b).){0,500}?)\b(?:from|into)"
    r"|(?P<other>update|truncate)(?: table)?)"
    r"\s{1,20}(?:public\.)?\"?(?P<table>[a-z]\w{2,63})\b",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_SET: Final = re.compile(
    r"\bset\b(?P<columns>.{0,2000}?)(?:\bwhere\b|\bfrom\b|;|\Z)", re.IGNORECASE | re.DOTALL
)
_ASSIGNED: Final = re.compile(r"(?:\A|,)\s{0,20}\"?(\w{1,63})\"?\s{0,20}=", re.ASCII)
"""The columns that a statement sets, if the texts in it are out of the way."""
_TEXT: Final = re.compile(r"'[^']{0,2000}'")
_LOGGED: Final = re.compile(r"\bSTATEMENT:\s", re.ASCII)
"""What PostgreSQL's log has before the statement of the line before."""
_SETVAL: Final = re.compile(r"\bsetval\s?\(\s?'(?P<sequence>\w{1,63})'", re.ASCII | re.IGNORECASE)
_NUMBER: Final = re.compile(r"-?\d{1,19}", re.ASCII)


class Statement(msgspec.Struct, frozen=True):
    """A statement about a table that is known, or about a sequence."""

    verb: str
    what: str
    table: KnownRelation


class PsqlOutput(msgspec.Struct):
    """A table in a text: its columns, and its rows so far. `is_expanded`: each line is a column of a row."""

    columns: list[str]
    rows: list[list[str]] = []
    lines: int = 2
    is_closed: bool = False
    is_expanded: bool = False

    @classmethod
    def begin(cls, header: str, rule: str) -> "PsqlOutput | None":
        """Return the table that begins with this header, if this is the line below it."""
        if _RECORD.fullmatch(header[:2000]) is not None:
            table = cls([], [[]], lines=1, is_expanded=True)
            return table if table.takes(rule) else None
        if columns := _columns_of_sizes(header[:2000], rule[:2000]):
            return cls(columns, [_cells(header[:2000]), _cells(rule[:2000])])
        if ("--" not in rule and "──" not in rule) or _RULE.fullmatch(rule[:2000]) is None:
            return None
        columns = _cells(header[:2000])
        if len(columns) != len(_cells(rule)) or not all(_COLUMN.fullmatch(one) for one in columns):
            return None
        return cls([one.strip('"') for one in columns])

    def takes(self, line: str) -> bool:
        """Whether a line is of this table."""
        if self.is_closed:
            return False
        if self.is_expanded:
            return self._takes_column(line[:2000])
        cells = _cells(line[:2000])
        self.is_closed = is_footer(line)
        if not self.is_closed:
            if len(cells) == len(self.columns) - 1:
                # The last cell, or the first one, is empty.
                shown = line.strip()
                cells = [*cells, ""] if shown.endswith("|") else ["", *cells] if shown[:1] == "|" else cells
            is_text = len(cells) == 1 and " " in cells[0] and not has_words(self.columns[0])
            if len(cells) != len(self.columns) or is_text:
                return False
            if len(self.rows) < MAX_ROWS:
                self.rows = [*self.rows, cells]
        self.lines += 1
        return True

    def _takes_column(self, line: str) -> bool:
        """Whether a line is a column of a row, goes on with its text, or begins a row."""
        if _RECORD.fullmatch(line) is None:
            name, bar, text = line.strip().removeprefix("> ").replace("│", "|").partition("|")
            name, text, row = name.strip(), text.strip().removesuffix("+").strip(), self.rows[-1]
            if not bar or (name and _COLUMN.fullmatch(name) is None) or (not name and not row):
                self.is_closed = True
                return is_footer(line)
            if name:
                self.columns = [*self.columns, name] if len(self.rows) == 1 else self.columns
                row.append(text)
            elif len(row[-1]) < MAX_TEXT:
                row[-1] = f"{row[-1]} {text}"
        elif len(self.rows) < MAX_ROWS:
            self.rows = [*self.rows, []]
        else:
            self.rows[-1] = []
        self.lines += 1
        return True


_BYTES: Final = re.compile(r"\d{1,9}(?:\.\d{1,6})? ?(?:bytes|[kMGT]B)", re.ASCII)
_TABLE: Final = re.compile(r"(?:[a-z]\w{1,62}\.)?[a-z_]\w{2,62}", re.ASCII)
_KINDS: Final = ("table", "partitioned table", "index", "sequence")
"""What ``\\dt+`` and ``\\di+`` have in the third column."""


def _columns_of_sizes(first: str, second: str) -> list[str]:
    """Return the columns of two rows with the sizes of tables, pasted without their head; none for others."""
    if "B" not in first and "bytes" not in first:
        return []
    rows = [_cells(first), _cells(second)]
    sized = [{at for at, cell in enumerate(row) if _BYTES.fullmatch(cell)} for row in rows]
    if len(rows[0]) != len(rows[1]) or not sized[0] or sized[0] != sized[1]:
        return []
    place = 1 if len(rows[0]) > 3 and all(row[2] in _KINDS for row in rows) else 0
    if not all(_TABLE.fullmatch(row[place]) for row in rows):
        return []
    names = {place: "name", max(sized[0]): "size"}
    return [names.get(at, f"column{at}") for at in range(len(rows[0]))]


def _cells(line: str) -> list[str]:
    line = line.strip().removeprefix("> ").strip()
    if "-" in line and _RULE.fullmatch(line):
        line = line.replace("+", "|").replace("┼", "|")
    return [cell.strip() for cell in line.strip("|").replace("│", "|").split("|")]


def find_statement(text: str) -> Statement | None:
    """Return the statement in a text, if it is about a table that is known."""
    for found in _STATEMENT.finditer(text[:4000]):
        name = found["table"].lower()
        table = SEQUENCE if name.endswith(("_seq", "_sequence")) else known_relations().get(name)
        if table is not None:
            verb, what = found["verb"] or found["other"], found["what"] or ""
            return Statement(verb.lower(), " ".join(what.split()), table)
    return None


def is_footer(text: str) -> bool:
    """Whether a line is what psql says of the end of a statement."""
    return _FOOTER.fullmatch(text.strip("> \t\r\n")) is not None


def explain_statement(text: str) -> Passage | None:
    """Explain a statement that changes a table of streams, or a sequence."""
    if is_logged_statement(text):
        return _explain_logged(text)
    if found := _SETVAL.search(text[:4000]):
        told = (
            f"A statement that sets the sequence {found['sequence']}: the next id comes after the number that"
            " it is set to. It must be no less than any id in use, in tables and in stream_positions."
        )
        advice = [
            "run it only while no process of Synapse runs",
            "then see whether all sequences fit: synrepl doctor --homeserver HOMESERVER.YAML",
        ]
        return Passage(kind="statement", text="a statement", words=[told], advice=advice)
    statement = find_statement(text)
    if statement is None:
        return _explain_change(text)
    if statement.verb == "select":
        return None
    table = statement.table
    words = [f"A statement that changes {table.table}. {table.about}"]
    advice = [] if statement.verb == "insert" else [table.by_hand]
    return Passage(kind="statement", text="a statement", words=words, advice=advice)


def is_logged_statement(text: str) -> bool:
    """Whether a line is the statement of the line before it, as PostgreSQL logs it."""
    return _LOGGED.search(text[:400]) is not None


def _explain_change(text: str) -> Passage | None:
    """Explain what is kept of the rows that a statement changes, in a table that is of no stream."""
    found = _STATEMENT.search(text[:4000])
    if found is None or (found["verb"] or "").lower() == "select":
        return None
    table = found["table"].lower()
    of_columns = _SET.search(_TEXT.sub("''", text[found.end() : 4000]))
    columns = _ASSIGNED.findall(of_columns["columns"].lower()) if of_columns else []
    if found["other"] and not columns:
        return None
    names = [f"{table}.{column}" for column in columns] or [table]
    said = [one for name in names if (one := said_of(name, NEWEST_KNOWN))]
    if len(said) < len(names) or find_columns(names[0]) != names[:1]:
        return None
    advice = [
        "change the rows first, and drop after that what is named, in every process: synrepl invalidate",
        f"for another release: synrepl invalidate --dry-run --release RELEASE {' or '.join(names)}",
    ]
    return Passage(kind="statement", text="a statement", words=[f"{one}." for one in said], advice=advice)


class ExplainedOutput(msgspec.Struct, frozen=True):
    """A table that was explained. `places` are the positions in it, of the table that it is of."""

    passage: Passage
    table: str
    places: Sequence[int] = ()


def _explain_logged(text: str) -> Passage | None:
    """Explain a statement in PostgreSQL's log: a program made it, and nobody is to be told not to."""
    if (statement := find_statement(text)) is None or statement.verb == "select":
        return None
    table = statement.table
    words = [f"The statement of which PostgreSQL's line before it tells, on {table.table}. {table.about}"]
    return Passage(kind="statement", text="a statement", words=words, advice=[])


def explain_table(table: PsqlOutput, statement: Statement | None) -> ExplainedOutput | None:
    """Explain a table that psql printed, after a statement if one is known; None if it is no known one."""
    columns = [one.lower() for one in table.columns]
    if columns in (["last_value", "is_called"], ["last_value"]):
        return _explain_sequence(table)
    named = [_DATABASE_COLUMNS.get(one, one) for one in columns]
    if {"name", "collate", "ctype"} <= {*named}:
        return _explain_databases([dict(zip(named, row, strict=False)) for row in table.rows])
    known = statement.table if statement is not None and columns != [PLAN] else None
    if known is None and (view := explain_view(columns, table.rows)) is not None:
        return ExplainedOutput(view, "")
    if known is None:
        fitting = [one for one in known_relations().values() if one.columns and {*one.columns} <= {*columns}]
        if len(columns) < 2 or not fitting:
            return None
        known = max(fitting, key=lambda one: len(one.columns))
    rows = [dict(zip(columns, row, strict=False)) for row in table.rows]
    if known.table == "stream_positions" and {"stream_name", "instance_name", "stream_id"} <= {*columns}:
        return ExplainedOutput(_explain_positions(known, rows), known.table)
    words = [f"The table {known.table}. {known.about}"]
    places = []
    for row in rows:
        for name in ("stream_ordering", "max", "stream_id"):
            is_place = known.follows or (known.table == "events" and name == "max")
            if is_place and row.get("type", "events") == "events" and _NUMBER.fullmatch(row.get(name, "")):
                places.append(int(row[name]))
    if columns == ["count"] and len(rows) == 1 and _NUMBER.fullmatch(count := rows[0]["count"]):
        words.append(f"It has {int(count):,} of them.")
    shown = [{name: printable(row[name][:100]) for name in row} for row in rows[:20]]
    advice = [known.do] if known.do else []
    passage = Passage(
        kind="sql_table",
        text=known.table,
        words=words,
        advice=advice,
        fields=shown if len({*columns}) == len(columns) else [],
    )
    return ExplainedOutput(passage, known.table, places)


def explain_count(number: str, statement: Statement) -> ExplainedOutput:
    """Explain the number that SQLite printed after a statement."""
    column = "count" if "count" in statement.what.lower() else "max"
    read = explain_table(PsqlOutput([column], [[number.strip()]]), statement)
    assert read is not None
    return read


def _explain_sequence(table: PsqlOutput) -> ExplainedOutput:
    rows = [row for row in table.rows if _NUMBER.fullmatch(row[0])]
    value, *called = rows[0] if rows else [""]
    if value and called and called[0].lower() in ("f", "false"):
        words = [f"A sequence from which no id was given out since it was made, or set: the next is {value}."]
        if value == "1":
            words.append("Where it is of a stream, all readers count 1 as seen, and lack the first fact.")
    else:
        is_open = value == "1" and not called
        words = [
            "A sequence: the last id that was given out"
            + (f" is {value}" if value else "")
            + (", or none was, and the next is 1 (is_called tells which)." if is_open else ".")
        ]
        words.append(
            "PostgreSQL logs 32 values ahead, so that after a crash or a switch-over up to 32 are left out."
        )
    advice = [
        (
            "it must be no less than max(id) of its table, and than stream_positions of its stream:"
            " synrepl doctor --homeserver HOMESERVER.YAML compares all"
        )
    ]
    return ExplainedOutput(Passage(kind="sql_table", text="a sequence", words=words, advice=advice), "")


_DATABASE_COLUMNS: Final = {
    "datname": "name",
    "pg_encoding_to_char": "encoding",
    "datcollate": "collate",
    "datctype": "ctype",
}
"""The columns of pg_database as psql -l names them."""
_NEEDED: Final = {"encoding": "UTF8", "collate": "C", "ctype": "C"}
"""How the database of a homeserver must be made."""


def _explain_databases(rows: list[dict[str, str]]) -> ExplainedOutput:
    """Explain the databases of a server, as psql -l lists them: which Synapse takes."""
    named = [row for row in rows if row.get("name") not in ("", "postgres", "template0", "template1")]
    others = [row for row in named if any(row.get(key, value) != value for key, value in _NEEDED.items())]
    words = ["The databases of a PostgreSQL server. That of a homeserver needs UTF8, and C for both locales."]
    advice = []
    for row in others:
        has = ", ".join(f"{key} {printable(row[key])}" for key in _NEEDED if key in row)
        words.append(f"{printable(row['name'])} has {has}: Synapse refuses to start on it.")
    if others:
        advice = [
            (
                "make a new one (createdb --encoding=UTF8 --locale=C --template=template0 --owner=USER NAME),"
                " and move the data there by pg_dump and pg_restore; or allow_unsafe_locale: true in"
                " database:, since 1.56, while the system's locale stays the same"
            )
        ]
    shown = [{key: printable(row.get(key, "")) for key in ("name", *_NEEDED)} for row in named[:20]]
    passage = Passage(kind="sql_table", text="databases", words=words, advice=advice, fields=shown)
    return ExplainedOutput(passage, "")


def _explain_positions(known: KnownRelation, rows: list[dict[str, str]]) -> Passage:
    """Explain stored positions: which writer of each stream is the last one."""
    streams: dict[str, dict[str, int]] = {}
    for row in rows:
        if _NUMBER.fullmatch(row["stream_id"]):
            streams.setdefault(row["stream_name"], {})[row["instance_name"]] = int(row["stream_id"])
    words = [known.about]
    fields: list[dict[str, Any]] = []
    for stream, writers in streams.items():
        most = max(writers.values())
        for writer, place in sorted(writers.items(), key=lambda one: one[1]):
            wire = WIRE.get(stream, "")
            fields.append(
                {
                    "stream": printable(stream),
                    "writer": printable(writer),
                    "position": place,
                    "behind": most - place,
                    "written_by": written_by(wire) if wire else "",
                }
            )
    several = [name for name, writers in streams.items() if len({*writers.values()}) > 1]
    if several:
        words.append(
            f"The writers of {printable(', '.join(several))} differ: one that has written nothing since is"
            " behind the others, and that is normal. Its position counts only while it is a writer: a row of"
            " a process that is none any more holds nothing up, and is removed when a process starts."
        )
    return Passage(
        kind="sql_table", text="stream_positions", words=words, advice=[known.do], fields=fields[:MAX_ROWS]
    )


def progress_sentence(table: str, place: int, newest: int) -> str:
    """Return a sentence that says how far a table is behind the newest event."""
    if place > newest:
        return (
            f"{table} is at {place}, {place - newest:,} above the newest event ({newest}): nothing is sent"
            " until events have passed it. That is so after a database was restored or moved without it."
        )
    if place == newest:
        return f"{table} is at the newest event ({newest}): nothing waits."
    return f"{table} is at {place}, {newest - place:,} behind the newest event ({newest})."
