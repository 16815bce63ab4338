"""A homeserver's database, as its URL names it: how to connect, and what to call it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from synrepl.errors import ConfigError, StorageError
from synrepl.storage.ids.database import Flavor
from synrepl.storage.postgres_connection import PostgresAddress

__all__ = ["Database"]

T = TypeVar("T")


class Database:
    """``sqlite:PATH`` or ``postgresql://...``. `name` is safe to show; `flavor` says what SQL it takes."""

    def __init__(self, url: str, *, what: str = "synrepl") -> None:
        kind, _, rest = url.partition(":")
        self.flavor: Flavor
        self._address: PostgresAddress | None = None
        if kind == "sqlite" and rest:
            self.flavor = "sqlite"
            self.path = Path(rest)
            self.name = str(self.path)
        elif kind in ("postgresql", "postgres"):
            self.flavor = "postgresql"
            self._address = PostgresAddress(url, what=what)
            self.name = self._address.name
        else:
            # Not the whole of it: there may be a password in it.
            raise ConfigError(f"a database is sqlite:PATH or postgresql://..., not {kind}:")

    def connect(self, *, read_only: bool = False) -> Any:
        """A DB-API connection with transactions, usable in any thread, one at a time.

        Raises `StorageError`; a file that is not there is not made.
        """
        if self._address is not None:
            connection: Any = self._address.connect("connect")
            connection.autocommit = False
            connection.read_only = read_only
            return connection
        if not self.path.exists():
            raise StorageError(op="connect", why=f"there is no file {self.path}", tried=False)
        mode = "ro" if read_only else "rw"
        with self.telling("connect"):
            connection = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?mode={mode}",
                uri=True,
                timeout=5,
                check_same_thread=False,
            )
            # What is acknowledged survives a power cut.
            connection.execute("PRAGMA synchronous = FULL")
        return connection

    def telling(self, op: str) -> AbstractContextManager[None]:
        """Say `StorageError` where the driver says something of its own."""
        if self._address is not None:
            return self._address.telling(op)
        return _telling_sqlite(op, self.name)

    def ask(self, op: str, work: Callable[[Any], T]) -> T:
        """Run `work` with a cursor in one read-only transaction of a connection of its own."""
        with closing(self.connect(read_only=True)) as connection, self.telling(op):
            try:
                return work(connection.cursor())
            finally:
                connection.rollback()

    def change(self, op: str, work: Callable[[Any], T]) -> T:
        """Run `work` with a cursor in one transaction of a connection of its own."""
        with closing(self.connect()) as connection, self.telling(op):
            try:
                result = work(connection.cursor())
                connection.commit()
            except BaseException:
                connection.rollback()
                raise
        return result


@contextmanager
def _telling_sqlite(op: str, name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(op=op, why=f"{name}: {error}") from error
