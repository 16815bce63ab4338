"""What is damaged in a log is served by no way out of it."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from synrepl.base.history import Appended, AppendKey, AppendReceipt, EpochStart
from synrepl.errors import StorageError
from synrepl.storage import checked_rows
from synrepl.storage.checked_rows import CheckedRows, LogDamage, row_of_fact
from synrepl.storage.engine import SQLEngine
from synrepl.storage.schema import RECEIPTS, TABLES, VERSION, migrate, migrations
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from tests.storage.builders import NOW, LogCase, facts_after
from tests.storage.engines import OverMemory, OverPostgres, OverSQLite
from tests.storage.test_engine_trimming import keys_of, made

if TYPE_CHECKING:
    Case = LogCase
else:
    # Not a test itself: the engines' own cases bring that.
    Case = object

FACTS: Final = facts_after(
    None,
    *((stream, "w1", token - 1, token) for token in range(1, 6) for stream in ("events", "tags")),
    ("events", "w3", 0, 6),
)
HEAD: Final = len(FACTS)
EVENTS: Final = Filter.of(streams=["events"])
OF_W3: Final = Filter.of(writers=["w3"])

Read = Callable[[SQLEngine], Any]


def reads(stream: str = "events") -> dict[str, Read]:
    """Every way to read facts."""

    def of_pages(name: str, **options: Any) -> Read:
        return lambda engine: getattr(engine.pages, name)(after=0, upto=HEAD, limit=1000, **options)

    return {
        "facts": of_pages("facts"),
        "facts of a stream": of_pages("facts", filter=EVENTS),
        "lines": of_pages("text"),
        "lines of a writer": of_pages("text", filter=OF_W3),
        "fields": of_pages("text", form="fields"),
        "extent": of_pages("extent"),
        "extent of a writer": of_pages("extent", filter=OF_W3),
        "tokens": lambda engine: engine.pages.tokens(
            stream=stream, writer=None, after=0, upto=99, serial=HEAD, limit=1000
        ),
    }


class Contract(Case):
    """What every engine keeps to."""

    def again(self) -> SQLEngine:
        raise NotImplementedError

    def filled(self, facts: list[Fact] = FACTS) -> SQLEngine:
        engine = self.again()
        engine.open()
        engine.commit(facts, [])
        return engine

    def change(self, engine: SQLEngine, statement: str, *values: object) -> None:
        """Change the log behind the engine's back."""
        engine.database.writer("test").execute(statement, values)

    def check_refused(self, engine: SQLEngine, told: str, **by: Read) -> None:
        for name, read in by.items():
            with self.subTest(name), self.assertRaises(StorageError) as caught:
                read(engine)
            self.assertIn(told, str(caught.exception))
            self.assertIn("is damaged; restore it", caught.exception.hint)
            self.assertFalse(caught.exception.retryable)

    def test_a_sound_log_is_read(self) -> None:
        """Or all the rest would say nothing."""
        engine = self.filled()

        for read in reads().values():
            read(engine)

        self.assertEqual(FACTS, engine.pages.facts(after=0, upto=HEAD, limit=1000)[0])

    def test_a_changed_column_is_found_by_each_read(self) -> None:
        """Whichever it is: a bit may flip in any of them."""
        engine = self.filled()
        for column, value in (
            ("epoch", 3),
            ("stream", "evants"),
            ("writer", "w3"),
            ("prev_token", 7),
            ("token", 7),
            ("rows", b'[["events 9"]]'),
            ("committed_at_ms", 1),
            ("digest", "0" * 64),
            ("crc", row_of_fact(FACTS[0])[-1]),
        ):
            self.change(engine, f"UPDATE facts SET {column} = ? WHERE serial = 5", value)
            by = reads()
            if column == "stream":
                # The statement changes the index as well, as a bit that flips does not.
                by.pop("tokens")
            if column not in ("stream", "writer"):
                # It is left out by its names, which are right.
                by = {name: read for name, read in by.items() if not name.endswith("a writer")}

            self.check_refused(engine, "serial 5 is damaged", **by)

            # For the next one.
            old = getattr(FACTS[4], column, row_of_fact(FACTS[4])[-1])
            self.change(engine, f"UPDATE facts SET {column} = ? WHERE serial = 5", old)

    def test_a_fact_that_is_missing_is_found_by_each_read(self) -> None:
        """A page that leaves one out looks like a page."""
        engine = self.filled()
        self.change(engine, "DELETE FROM facts WHERE serial = 5")
        by = reads()
        # The next fact of its writer follows one that is in no table: only the serials tell.
        by.pop("tokens")

        self.check_refused(engine, "a fact from serial 1 to 11 is missing", **by)

    def test_the_last_fact_is_missed(self) -> None:
        """The log is not shorter than this process left it."""
        engine = self.filled()
        self.change(engine, "DELETE FROM facts WHERE serial = ?", HEAD)
        by = reads()
        by.pop("tokens")

        self.check_refused(engine, "the facts from serial 11 to 11 are missing", **by)

    def test_a_fact_of_the_trimmed_part_is_missed(self) -> None:
        """Serials have gaps there. Who is the newest with a key must be there."""
        facts = made([("devices", [key]) for key in (1, 2, 1, 3, 2, 4)])
        engine = self.filled(facts)
        engine.trim(6, keys_of, 100)
        read = partial(engine.pages.facts, after=0, upto=6, limit=1000)
        self.assertEqual([3, 4, 5, 6], [fact.serial for fact in read()[0]])

        self.change(engine, "DELETE FROM facts WHERE serial = 4")

        self.check_refused(engine, "serial 4 is missing", facts=lambda _: read())

    def test_a_damaged_entry_of_the_index_of_keys_deletes_nothing(self) -> None:
        """The newest fact with a key is the last word on it."""
        facts = made([("devices", [1]), ("devices", [2]), ("devices", [3]), ("devices", [1])])
        engine = self.filled(facts)
        engine.trim(3, keys_of, 100)
        self.change(engine, "UPDATE newest_by_key SET serial = 2 WHERE serial = 1")

        engine.trim(4, keys_of, 100)

        left = [row[0] for row in engine.database.writer("test").execute("SELECT serial FROM facts")]
        self.assertEqual([2, 3, 4], sorted(left)[-3:])

    def test_a_read_up_to_an_earlier_serial_is_whole(self) -> None:
        """Positions are newer than what it may see."""
        engine = self.filled()

        found = [
            engine.pages.tokens(stream="events", writer=None, after=0, upto=99, serial=serial, limit=99)
            for serial in range(HEAD + 1)
        ]

        self.assertEqual(
            [[fact for fact in FACTS[:serial] if fact.stream == "events"] for serial in range(HEAD + 1)],
            [facts for facts, _ in found],
        )

    def test_rows_of_a_large_table_get_their_checksums_some_at_a_time(self) -> None:
        """A migration must not need memory for all receipts."""
        engine = self.again()
        engine.open()
        receipts = [
            AppendReceipt(AppendKey("events", f"key {serial}"), "", Appended(1, serial, [serial]), NOW)
            for serial in range(1, 6)
        ]
        engine.commit(FACTS[:5], receipts)
        self.change(engine, "UPDATE receipts SET crc = NULL")
        self.patch(checked_rows, "SEALED_AT_ONCE", 2)

        RECEIPTS.seal(engine.database.writer("test").execute)

        self.assertEqual(receipts, engine.receipts.between(0, 5))

    def test_a_receipt_that_the_index_alone_has_is_missed(self) -> None:
        """Without it a retry would be stored twice, at the replica that gets the receipts."""
        engine = self.again()
        engine.open()
        receipts = [
            AppendReceipt(AppendKey("events", f"key {serial}"), "", Appended(1, serial, [serial]), NOW)
            for serial in (1, 2, 3)
        ]
        engine.commit(FACTS[:3], receipts)
        self.assertEqual(receipts, engine.receipts.between(0, 3))

        real = CheckedRows.rows
        self.patch(CheckedRows, "rows", lambda *given: list(real(*given))[1:])

        self.check_refused(
            engine, "a row of receipts is missing", receipts=lambda engine: engine.receipts.between(0, 3)
        )

    def test_a_row_beside_the_facts_is_refused(self) -> None:
        """Where each is read."""
        engine = self.filled()
        start = EpochStart(2, HEAD, FACTS[-1].digest, NOW * 1000, "lost", "tags", 2)
        engine.begin_epoch(start)
        engine.trim(3, lambda stream, rows: None, 100)
        for table, change in (
            ("positions", "token = token + 1"),
            ("epoch_starts", "token = token + 1"),
            ("discarded_ranges", "token = token + 1"),
            ("log_bounds", "serial = serial + 1"),
            ("log_header", "epoch = epoch + 1"),
        ):
            self.change(engine, f"UPDATE {table} SET {change}")
            self.check_refused(engine, f"a row of {table} is damaged", head=SQLEngine.head)
            self.change(engine, f"UPDATE {table} SET {change.replace('+', '-')}")
        self.change(engine, "UPDATE notes SET value = 'x' WHERE name = 'uuid'")
        self.check_refused(engine, "a row of notes is damaged", notes=lambda engine: engine.notes.all())

    def test_a_damaged_schema_version_is_not_that_of_another_release(self) -> None:
        """Nobody is told to run a newer release, and nothing is migrated."""
        engine = self.filled()
        connection, flavor = engine.database.writer("test"), engine.database.syntax.flavor
        for bit in range(8):
            self.change(engine, "UPDATE log_header SET schema_version = ?", VERSION ^ 1 << bit)

            with self.assertRaisesRegex(LogDamage, "a row of log_header is damaged"):
                migrate(connection.execute, TABLES, migrations(flavor), "the log")

    def test_a_damaged_last_fact_is_not_that_of_another_process(self) -> None:
        """Nobody is told to look for a program that writes to the log."""
        further = facts_after(FACTS[-1], ("tags", "w1", 5, 6))
        for damage in ("digest = substr(digest, 1, 63) || 'g'", "serial = serial + 64"):
            engine = self.filled()
            self.change(engine, f"UPDATE facts SET {damage} WHERE serial = {HEAD}")
            self.check_refused(
                engine,
                " is damaged",
                commit=lambda engine: engine.commit(further, []),
                try_write=SQLEngine.try_write,
            )
            self.assertIsNone(engine.database.ownership.not_ours)
            self.setUp()

    def test_facts_without_checksums_are_proved_by_the_digests_before_them(self) -> None:
        """A release up to 26.11.1 stored them."""
        engine = self.filled()
        self.change(engine, "UPDATE facts SET crc = NULL")
        self.assertEqual(FACTS, engine.pages.facts(after=0, upto=HEAD, limit=1000)[0])
        for read in reads().values():
            read(engine)

        self.change(engine, "UPDATE facts SET writer = 'w5' WHERE serial = 5")

        self.check_refused(engine, "serial 5 is damaged", **reads())


class MemoryTests(OverMemory, Contract):
    """The engine of tests and simulator."""


class SQLiteTests(OverSQLite, Contract):
    """The embedded default."""

    def without_index_entry(self, token: int, facts: list[Fact]) -> SQLEngine:
        """A log of these facts, whose index lacks an entry, as if the page had lost it."""
        engine = self.filled(facts)
        for statement in (
            "DROP INDEX facts_by_token",
            f"CREATE INDEX facts_by_token ON facts (stream, token) WHERE token <> {token}",
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_master SET sql = replace(sql, ' WHERE token <> {token}', '')",
            "PRAGMA writable_schema = RESET",
        ):
            self.change(engine, statement)
        return engine

    def test_a_fact_that_the_index_by_token_lacks_is_missed(self) -> None:
        """In the middle, and at the end, where no fact follows it."""
        for token, serial in ((3, 5), (6, 11)):
            self.path = self.directory() / "synrepl.db"
            engine = self.without_index_entry(token, FACTS)

            told = f"serial {serial} is missing in the index of tokens"
            self.check_refused(engine, told, tokens=reads()["tokens"])

    def test_a_gap_that_is_right_is_no_damage(self) -> None:
        """Positions went back to where the source of the stream lost its facts."""
        engine = self.filled()
        engine.begin_epoch(EpochStart(2, HEAD, FACTS[-1].digest, NOW * 1000, "lost", "events", 3))
        engine.commit(facts_after(FACTS[-1], ("events", "w3", 3, 4), epoch=2), [])

        facts, is_more = engine.pages.tokens(
            stream="events", writer=None, after=0, upto=99, serial=HEAD + 1, limit=1000
        )

        self.assertEqual([1, 2, 3, 4], [fact.token for fact in facts])
        self.assertFalse(is_more)


class PostgresTests(OverPostgres, Contract):
    """For who has one already."""
