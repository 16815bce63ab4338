"""SQL in a worker's own database, beside its tables: cursors, names, and the creation of tables."""

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from synrepl.errors import ConfigError
from synrepl.storage.sql import Flavor

IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?")

CREATE_LOCK: Final = 0x5359_4E4D
"""The advisory lock that serializes table creation: concurrent IF NOT EXISTS can fail."""


class ICursor(Protocol):
    """The part of a DB-API cursor that synrepl uses."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


def identifier(name: str) -> str:
    """Check the name of a table, column or sequence, which becomes part of SQL. Raises `ConfigError`."""
    if not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not the name of a table, column or sequence: use letters, digits and _, no digit"
            " first, and at most one dot"
        )
    return name


def lock_table_creation(cursor: ICursor, flavor: Flavor) -> None:
    """On PostgreSQL, exclude other creators of synrepl's tables until the transaction ends."""
    if flavor == "postgresql":
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
        cursor.fetchone()
