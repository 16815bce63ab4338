"""The choice of the log's engine by the URL of its database."""

from synrepl.errors import ConfigError
from synrepl.ports.interfaces import IEngine
from synrepl.storage.sqlite import SQLiteEngine

__all__ = ["engine_for"]


def engine_for(url: str) -> IEngine:
    """The engine for ``sqlite:PATH`` or ``postgresql://...``, not opened yet."""
    kind, _, rest = url.partition(":")
    if kind == "sqlite":
        return SQLiteEngine(rest)
    if kind in ("postgresql", "postgres"):
        # Imported only when used, so that SQLite logs do not load it.
        from synrepl.storage.postgres import PostgresEngine

        return PostgresEngine(url)
    # Without the rest of the URL, which may contain a password.
    raise ConfigError(f"a database is sqlite:PATH or postgresql://..., not {kind}:")
