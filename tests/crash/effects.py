"""Effects: what a process does to databases and files. Each is counted, and one of them may be the last."""

import builtins
import io
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeVar

__all__ = ["DIED", "SIDES", "Effects", "Side", "changes"]

T = TypeVar("T")

Side = Literal["before", "half", "after"]
SIDES: Final[tuple[Side, ...]] = ("before", "half", "after")
"""Where in an effect the process dies. Only what writes bytes has a half."""

DIED: Final = 9
"""The exit code of a process that died at its effect."""

PATHS: Final = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate")
DESCRIPTORS: Final = ("fsync", "fdatasync", "ftruncate")


READS: Final = re.compile(
    r"\s*(SELECT(?!.*(nextval|setval|advisory))|PRAGMA [a-z_.]+$|SET |BEGIN|connect$|fsync$|fdatasync$)",
    re.DOTALL,
)


def changes(name: str) -> bool:
    """Whether an effect of this name may change something. A death before one that does not is a death
    before the next one that does."""
    return READS.match(name) is None


class Effects:
    """Counts the effects of this process from `install` on, and ends it at number `at`, on that `side`.

    A process that ends so flushes nothing, rolls nothing back and closes nothing: `os._exit`.
    """

    def __init__(self, at: int = 0, side: Side = "before") -> None:
        self.names: list[str] = []
        self._at = at
        self._side = side

    def do(self, name: str, work: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        """One effect. `half` does a part of it."""
        self.names.append(name)
        is_last = len(self.names) == self._at
        if is_last and self._side != "after":
            if self._side == "half" and half is not None:
                half()
            os._exit(DIED)
        try:
            return work()
        finally:
            if is_last:
                os._exit(DIED)

    def install(self) -> None:
        """From here on everything counts. There is no way back: for processes that end soon."""
        for name in (*PATHS, *DESCRIPTORS):
            setattr(os, name, self._counted(name, getattr(os, name)))
        self._install_writes()
        self._install_files()
        self._install_sqlite()
        self._install_postgres()
        self._install_arrow()

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: self.do(name, lambda: real(*args, **options))

    def _install_writes(self) -> None:
        write, pwrite, open_ = os.write, os.pwrite, os.open

        def counted_write(fd: int, data: Any) -> int:
            part = bytes(data)[: len(data) // 2]
            return self.do("write", lambda: write(fd, data), lambda: write(fd, part))

        def counted_pwrite(fd: int, data: Any, offset: int) -> int:
            part = bytes(data)[: len(data) // 2]
            return self.do("pwrite", lambda: pwrite(fd, data, offset), lambda: pwrite(fd, part, offset))

        def counted_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if not flags & (os.O_CREAT | os.O_TRUNC):
                return open_(path, flags, *args, **options)
            return self.do("create", lambda: open_(path, flags, *args, **options))

        os.write, os.pwrite, os.open = counted_write, counted_pwrite, counted_open

    def _install_files(self) -> None:
        """Files of Python's own: unbuffered ones that count, behind its buffers."""
        effects, open_ = self, io.open

        class CountedFile(io.FileIO):
            def write(self, data: Any) -> int:
                view = bytes(data)
                whole = super().write
                return effects.do("file write", lambda: whole(view), lambda: whole(view[: len(view) // 2]))

        def counted_open(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+"):
                return open_(file, mode, *args, **options)
            assert "b" in mode, f"{file}: files are written as bytes"
            make = lambda: CountedFile(file, mode.replace("b", ""))  # noqa: E731  # it is an effect
            raw = make() if isinstance(file, int) else effects.do("file create", make)
            return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

        io.open = builtins.open = counted_open

    def _install_sqlite(self) -> None:
        effects, connect = self, sqlite3.connect

        class CountedCursor(sqlite3.Cursor):
            def execute(self, sql: str, *args: Any) -> Any:
                whole = super().execute
                return effects.do(sql, lambda: whole(sql, *args))

            def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
                whole, given = super().executemany, list(rows)
                return effects.do(
                    sql, lambda: whole(sql, given), lambda: whole(sql, given[: len(given) // 2])
                )

            def executescript(self, sql: str) -> Any:
                whole = super().executescript
                return effects.do(sql, lambda: whole(sql))

        class Counted(sqlite3.Connection):
            def cursor(self, factory: Any = CountedCursor) -> Any:
                return super().cursor(factory)

            def execute(self, sql: str, *args: Any) -> Any:
                return self.cursor().execute(sql, *args)

            def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
                return self.cursor().executemany(sql, rows)

            def executescript(self, sql: str) -> Any:
                return self.cursor().executescript(sql)

            def commit(self) -> None:
                effects.do("commit", super().commit)

            def rollback(self) -> None:
                effects.do("rollback", super().rollback)

            def close(self) -> None:
                effects.do("close", super().close)

        def counted_connect(*args: Any, factory: Any = sqlite3.Connection, **options: Any) -> Any:
            bases = (Counted,) if factory is sqlite3.Connection else (Counted, factory)
            counted: Any = type(f"Counted{factory.__name__}", bases, {})
            return effects.do("connect", lambda: connect(*args, factory=counted, **options))

        sqlite3.connect = counted_connect

    def _install_postgres(self) -> None:
        """All that goes to the server waits for its answer in one place."""
        import psycopg

        wait, close = psycopg.Connection.wait, psycopg.Connection.close
        execute = psycopg.Cursor.execute
        statements: list[str] = []

        def named_execute(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
            statements[:] = [query.decode() if isinstance(query, bytes) else str(query)]
            return execute(cursor, query, *args, **options)

        def named(cls: Any, method: str, name: str) -> None:
            real = getattr(cls, method)

            def call(transaction: Any, *args: Any) -> Any:
                statements[:] = [name]
                return real(transaction, *args)

            setattr(cls, method, call)

        named(psycopg.Transaction, "__enter__", "BEGIN")
        named(psycopg.Transaction, "__exit__", "COMMIT or ROLLBACK")

        def counted_wait(connection: Any, *args: Any, **options: Any) -> Any:
            name = statements.pop() if statements else "PostgreSQL"
            return self.do(name, lambda: wait(connection, *args, **options))

        def counted_close(connection: Any) -> None:
            self.do("close", lambda: close(connection))

        psycopg.Cursor.execute = named_execute  # type: ignore[assignment, method-assign]
        psycopg.Connection.wait = counted_wait  # type: ignore[assignment, method-assign]
        psycopg.Connection.close = counted_close  # type: ignore[assignment, method-assign]

    def _install_arrow(self) -> None:
        """What an archive has pyarrow delete; nothing where there is no archive."""
        module = sys.modules.get("synrepl.pipeline.store")
        if module is not None:
            for name in ("remove", "remove_folder"):
                setattr(module.Store, name, self._counted(f"store {name}", getattr(module.Store, name)))
