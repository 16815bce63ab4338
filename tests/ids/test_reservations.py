"""Ids whose reservation was rolled back, on both databases."""

from collections.abc import Callable
from typing import Any

from synrepl.ids.generator import MultiWriterIdGenerator
from tests.ids.databases import IdCase
from tests.storage.id_tables.databases import DirectPool


class _DiskFull(Exception):
    """What a commit raises."""


class Reservations(IdCase):
    """A reservation is a transaction of its own, and its commit may fail."""

    def fail_a_reservation(self, generator: MultiWriterIdGenerator) -> None:
        """Its commit fails: the disk is full, or locked for too long."""
        pool = generator.pool
        assert isinstance(pool, DirectPool)

        def fail() -> None:
            pool.before_commit = lambda: None
            raise _DiskFull

        pool.before_commit = fail
        with self.assertRaises(_DiskFull):
            self.wait(generator.next().__aenter__())

    def test_an_id_whose_reservation_was_not_committed_is_given_to_nobody(self) -> None:
        """SQLite gave it to the next process, whose fact with it the first one had already passed."""
        a, b = self.started("A", ["A", "B"]), self.started("B", ["A", "B"])
        self.fail_a_reservation(a)

        token = self.wait(b.next().__aenter__())
        a.advance("B", b.announced_token)

        self.assertEqual(3, token)
        self.assertLess(a.persisted_upto, token)
        self.assertEqual([], a.unfinished())

    def test_an_id_that_another_process_got_meanwhile_is_left_to_it(self) -> None:
        """Between the rollback, and the look at what became of the id."""
        a, b = self.started("A", ["A", "B"]), self.started("B", ["A", "B"])
        b.pool = self.new_pool()
        reserved = b.next()
        tokens = self.before_the_look(a, lambda: self.wait(reserved.__aenter__()))
        self.fail_a_reservation(a)
        a.advance("B", b.announced_token)

        self.assertEqual([3 if self.flavor == "postgresql" else 2], tokens)
        self.assertLess(a.persisted_upto, tokens[0])
        self.wait(reserved.__aexit__(None, None, None))
        a.advance("B", tokens[0], wrote=True)
        self.assertEqual(tokens[0], a.persisted_upto)

    def test_an_id_that_this_process_got_again_meanwhile_is_unfinished(self) -> None:
        """Two threads reserve: the second one waits for the first, whose commit fails."""
        if self.flavor == "postgresql":
            return  # its sequence gives no number twice
        a = self.started("A", ["A", "B"])
        allocate = a.database.allocate
        a.database.allocate = lambda cursor, count, above: allocate(cursor, count, 0)  # type: ignore[method-assign]
        reserved = a.next()
        tokens = self.before_the_look(a, lambda: self.wait(reserved.__aenter__()))
        self.fail_a_reservation(a)

        self.assertEqual([2], tokens)
        self.assertEqual((1, 1), (a.announced_token, a.persisted_upto))
        self.wait(reserved.__aexit__(None, None, None))
        self.assertEqual(2, a.announced_token)

    def before_the_look(self, generator: MultiWriterIdGenerator, happen: Callable[[], int]) -> list[int]:
        """What comes of it will be in the list."""
        database, results = generator.database, list[int]()
        look = database.given_anew

        def late(cursor: Any, ids: Any) -> list[int]:
            database.given_anew = look  # type: ignore[method-assign]
            results.append(happen())
            return look(cursor, ids)

        database.given_anew = late  # type: ignore[method-assign]
        return results


class SQLiteReservationTests(Reservations):
    """On SQLite a rollback undoes the allocation."""


class PostgreSQLReservationTests(Reservations):
    """On PostgreSQL it does not."""

    flavor = "postgresql"


del Reservations, IdCase
