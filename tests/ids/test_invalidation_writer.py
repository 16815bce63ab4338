"""Invalidations are committed with what they follow from, or not at all."""

from typing import Any

from synrepl.caches.registry import CacheRegistry
from synrepl.ids.invalidation_writer import InvalidationWriter
from synrepl.ids.transactions import transact
from synrepl.storage.id_tables.id_database import IdDatabase
from synrepl.storage.id_tables.layout import IdStream, IdTable
from tests.ids.databases import IdCase


class Invalidations(IdCase):
    """Written once, run on each database."""

    def setUp(self) -> None:
        super().setUp()
        ids = self.generator("A", ["A", "B"])
        ids.stream = IdStream(
            name="caches",
            sequence=self.sequence,
            tables=(IdTable(name="cache_invalidation_stream_by_instance"),),
            writers=("A", "B"),
        )
        ids.database = IdDatabase(ids.stream, self.flavor)
        self.caches = CacheRegistry(waiter=self.fail)  # nobody waits here
        self.writer = InvalidationWriter(ids, seconds=self.clock.seconds, caches=self.caches)
        self.interact(self.writer.create)
        self.wait(ids.start())
        self.ids = ids

    def rows(self) -> list[tuple[Any, ...]]:
        return self.do(
            "SELECT stream_id, instance_name, cache_func, keys, invalidation_ts"
            " FROM cache_invalidation_stream_by_instance ORDER BY stream_id"
        )

    def keys(self, *keys: str) -> Any:
        if self.flavor == "postgresql":
            return list(keys)
        return "[" + ",".join(f'"{key}"' for key in keys) + "]"

    def test_rows_are_written_with_the_transaction(self) -> None:
        """The fewest of them, each with an id of its own, and the time in milliseconds."""

        def work(transaction: Any) -> None:
            with self.writer.within(transaction) as changes:
                changes.invalidate("get_user", ("@a:hs",))
                changes.invalidate("get_user", ("@a:hs",))
                changes.invalidate_all("get_rooms")

        self.wait(transact(self.pool, work))

        self.assertEqual(
            [
                (2, "A", "get_user", self.keys("@a:hs"), 1_000_000),
                (3, "A", "get_rooms", None, 1_000_000),
            ],
            self.rows(),
        )
        self.assertEqual(3, self.ids.persisted_upto)

    def test_ten_thousand_members_are_two_hundred_rows(self) -> None:
        """Fifty users a row, as real writers send them, and no more."""

        def work(transaction: Any) -> None:
            with self.writer.within(transaction) as changes:
                changes.state_changed("!r:hs", [f"@u{number}:hs" for number in range(10_000)])

        self.wait(transact(self.pool, work))

        self.assertEqual(200, len(self.rows()))
        self.assertEqual(201, self.ids.persisted_upto)

    def test_a_rollback_says_nothing(self) -> None:
        """Neither to others, nor to the own caches."""
        forgotten: list[Any] = []
        self.caches.on_invalidation.append(forgotten.append)

        def work(transaction: Any) -> None:
            with self.writer.within(transaction) as changes:
                changes.invalidate("get_user", ("@a:hs",))
            raise KeyError

        with self.assertRaises(KeyError):
            self.wait(transact(self.pool, work))

        self.assertEqual(([], []), (self.rows(), forgotten))

    def test_the_own_caches_forget_before_the_id_is_complete(self) -> None:
        """Whoever hears of the position, this process among them, finds nothing older than it."""
        seen: list[tuple[str, int]] = []
        self.caches.on_invalidation.append(lambda one: seen.append((one.cache, self.ids.announced_token)))

        def work(transaction: Any) -> None:
            with self.writer.within(transaction) as changes:
                changes.invalidate("get_user", ("@a:hs",))
            seen.append(("in the transaction", self.ids.announced_token))

        self.wait(transact(self.pool, work))

        self.assertEqual([("in the transaction", 1), ("get_user", 1)], seen)
        self.assertEqual(2, self.ids.announced_token)

    def test_nothing_changed_costs_no_id(self) -> None:
        """Most transactions change nothing that anybody remembers."""

        def work(transaction: Any) -> None:
            with self.writer.within(transaction):
                pass

        self.wait(transact(self.pool, work))

        self.assertEqual((1, []), (self.ids.announced_token, self.rows()))


class SQLiteInvalidationTests(Invalidations):
    """On SQLite."""


class PostgreSQLInvalidationTests(Invalidations):
    """On PostgreSQL."""

    flavor = "postgresql"


del Invalidations
