"""Whether the database gives back what the log writes, before anything is acknowledged."""

from typing import Final

import msgspec

from synrepl.errors import StorageError
from synrepl.storage.checked_rows import FACT_COLUMNS, STORED_FACT, row_of_fact
from synrepl.storage.sql import SQLConnection, SQLSyntax
from synrepl.streams.digest import EMPTY
from synrepl.streams.facts import Fact

PROBE: Final = Fact(
    serial=-1,
    epoch=1,
    stream="write_check",
    writer="w'1\\x41\"é\t",
    prev_token=0,
    token=2**63 - 1,
    rows='[["\\\\x5b\\u0000\\n\\"","it\'s é 🙂 $1 ?"]]'.encode(),
    committed_at_ms=1,
    digest=EMPTY,
)
"""A fact with what settings of servers, drivers and poolers are known to change. No log has its serial."""


def check_writes(connection: SQLConnection, syntax: SQLSyntax, name: str) -> None:
    """Write a fact, read it back in each form, and delete it, in the transaction that is open.

    It goes through the statements of appends and reads. A PostgreSQL with standard_conforming_strings off
    stored the rows of acknowledged facts as the text of an escape (psycopg 3 with COPY; pgjdbc issue 4404).

    Raises `StorageError` if the database, called `name`, gives back something else.
    """
    connection.insert("facts", STORED_FACT, [row_of_fact(PROBE)])
    where = (PROBE.serial,)
    with connection.stream(f"SELECT {FACT_COLUMNS} FROM facts WHERE serial = ?", where) as rows:
        found = [Fact(*row) for row in rows]
    line = f"SELECT {syntax.joined} FROM (SELECT serial, {syntax.lines['json']} AS line"
    (text,) = connection.execute(f"{line} FROM facts WHERE serial = ?) AS lines", where).fetchone()
    connection.execute("DELETE FROM facts WHERE serial = ?", where)
    if why := _difference(found, bytes(text or b"")):
        raise StorageError(
            op="open",
            why=f"{name} gives back another fact than was written ({why})",
            hint="look for settings of the server, the database, the role or a pooler that change values",
        )


def _difference(found: list[Fact], text: bytes) -> str:
    if len(found) != 1:
        return f"{len(found)} facts were read"
    for field in PROBE.__struct_fields__:
        if getattr(found[0], field) != getattr(PROBE, field):
            return f"its {field} differs" if field != "rows" else "its rows differ"
    try:
        line = msgspec.json.decode(text)
    except ValueError:
        return "its line is not JSON"
    written = msgspec.json.decode(PROBE.rows)
    return "" if (line["writer"], line["rows"]) == (PROBE.writer, written) else "its line differs"
