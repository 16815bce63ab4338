"""Which engine keeps the log: the database's URL says."""

from synrepl.errors import ConfigError
from synrepl.ports.interfaces import IEngine
from synrepl.storage.sqlite import SQLiteEngine

__all__ = ["engine_for"]


def engine_for(url: str) -> IEngine:
    """The engine for ``sqlite:PATH`` or ``postgresql://...``, not open yet."""
    kind, _, rest = url.partition(":")
    if kind == "sqlite":
        return SQLiteEngine(rest)
    if kind in ("postgresql", "postgres"):
        # Here, so that who has the log in a file need not have this in memory.
        from synrepl.storage.postgres import PostgresEngine

        return PostgresEngine(url)
    # Not the whole of it: there may be a password in it.
    raise ConfigError(f"a database is sqlite:PATH or postgresql://..., not {kind}:")
