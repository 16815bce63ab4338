"""Databases to be examined: with a log, with a stream's ids, or with what a homeserver has."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from synrepl.homeserver.doctor.complaints import Diagnosis
from synrepl.homeserver.doctor.examination import Doctor
from synrepl.storage.databases import Database, engine_for
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from synrepl.storage.id_tables.writers import Unfinished, create_writers, store_status
from synrepl.storage.sql import execute
from synrepl.streams.facts import Fact
from tests.postgres import new_database
from tests.resealing import reseal
from tests.storage.builders import NOW, facts_after

__all__ = ["FLAVORS", "Place", "things"]

FLAVORS = ["sqlite", "postgresql"]


def things(
    *writers: str, negative: bool = False, name: str = "things", sequence: str = "things_sequence"
) -> IdStream:
    """A stream with one table."""
    return IdStream(
        name=name,
        sequence=sequence,
        tables=(IdTable(name="facts_of_things"),),
        writers=writers,
        negative=negative,
    )


class Place:
    """An empty database, and what is put there as others would."""

    def __init__(self, flavor: str, folder: Path) -> None:
        self.url = f"sqlite:{folder / 'a.db'}" if flavor == "sqlite" else new_database()
        if flavor == "sqlite":
            (folder / "a.db").touch()
        self.database = Database(self.url)
        self.schema = "" if flavor == "sqlite" else "synrepl."

    @property
    def flavor(self) -> str:
        """Which database it is."""
        return self.database.flavor

    def do(self, *statements: str) -> list[Any]:
        """These, in one transaction; the rows of the last."""

        def work(cursor: Any) -> list[Any]:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

        return self.database.write_transaction("do", work)

    def make_homeserver(self) -> None:
        """The tables by which a homeserver's database is known, empty."""
        self.do(
            "CREATE TABLE schema_version (version INTEGER)",
            "CREATE TABLE applied_schema_deltas (version INTEGER)",
            "CREATE TABLE stream_positions (stream_name TEXT, instance_name TEXT, stream_id BIGINT)",
        )

    # -- ids -----------------------------------------------------------------------------------------------

    def make_ids(self) -> None:
        """The table of `things`, its sequence, the positions."""
        self.do("CREATE TABLE facts_of_things (stream_id BIGINT NOT NULL, instance_name TEXT)")
        self.database.write_transaction("make", IdDatabase(things(), self.database.flavor).create)

    def row(self, token: int, writer: str = "A") -> None:
        """A fact of things."""
        self.do(f"INSERT INTO facts_of_things VALUES ({token}, '{writer}')")

    def position(self, token: int, writer: str = "A", stream: str = "things") -> None:
        """A stored position."""
        self.do(f"INSERT INTO stream_positions VALUES ('{stream}', {_quoted(writer)}, {token})")

    def set_sequence(self, value: int, *, is_called: bool = True) -> None:
        """As an operator, a dump or a lost crash would."""
        if self.flavor == "postgresql":
            self.do(f"SELECT setval('things_sequence', {value}, {is_called})")
        else:
            self.do(f"UPDATE synrepl_sequences SET value = {value if is_called else value - 1}")

    def next_id(self) -> int:
        """The next id that a generator would get."""
        ids = IdDatabase(things(), self.database.flavor)
        found: int = self.database.write_transaction("next", lambda cursor: ids.allocate(cursor, 1, 0))[0][0]
        return found

    def told(
        self,
        writer: str,
        position: int,
        *,
        silent: float = 0.0,
        unfinished: Iterable[int] = (),
        age: float = 0.0,
        process: str = "host:7:cafe",
    ) -> None:
        """What a writer told of itself, `silent` seconds before the examination."""
        tokens = tuple(unfinished)
        held = [
            Unfinished(stream="things", writer=writer, tokens=tokens, age_seconds=age - silent, owner="send")
        ]

        def work(cursor: Any) -> None:
            create_writers(cursor)
            store_status(
                cursor,
                IdDatabase(things(), self.database.flavor),
                writer=writer,
                process=process,
                position=position,
                unfinished=held if tokens else [],
                now=NOW - silent,
            )

        self.database.write_transaction("tell", work)

    # -- the log -------------------------------------------------------------------------------------------

    def make_log(self, *told: tuple[str, str, int, int]) -> list[Fact]:
        """A log with these facts."""
        facts = facts_after(None, *told)
        engine = engine_for(self.url)
        engine.open()
        try:
            if facts:
                engine.commit(facts, [])
        finally:
            engine.close()
        return facts

    def change(self, *statements: str) -> None:
        """Change the log, whose rows then get the checksums that they would have had."""
        self.do(*(statement.format(self.schema) for statement in statements))

        def work(cursor: Any) -> None:
            if self.flavor == "postgresql":
                cursor.execute("SET LOCAL search_path = synrepl")

            def execute_in(statement: str, values: Sequence[object] = ()) -> Any:
                execute(cursor, self.database.flavor, statement, values)
                return cursor

            reseal(execute_in)

        self.database.write_transaction("reseal", work)

    # -- examining -----------------------------------------------------------------------------------------

    def doctor(self, *streams: IdStream, **options: Any) -> Doctor:
        """As the command line makes it."""
        return Doctor(self.database, streams, now=lambda: NOW, **options)

    def examine(self, *streams: IdStream, **options: Any) -> Diagnosis:
        """Look."""
        return self.doctor(*streams).examine(**options)

    def tables(self) -> dict[str, list[Any]]:
        """Everything that is in the tables that a doctor could change."""
        found = {}
        with closing(self.database.connect(read_only=True)) as connection:
            for name in ("stream_positions", "facts_of_things", f"{self.schema}positions"):
                cursor = connection.cursor()
                try:
                    cursor.execute(f"SELECT * FROM {name}")
                    found[name] = sorted(cursor.fetchall())
                except Exception:  # it is not there
                    connection.rollback()
        return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
