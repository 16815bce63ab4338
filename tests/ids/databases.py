"""The databases of `tests.storage.id_tables`, with generators over them."""

from typing import Any

from synrepl.ids.generator import MultiWriterIdGenerator
from synrepl.ids.transactions import transact
from tests.storage.id_tables.databases import DirectPool, IdTablesCase


class IdCase(IdTablesCase):
    """A test of generators over a new database with one table of facts."""

    def generator(
        self, instance: str, writers: list[str], *, negative: bool = False, pool: DirectPool | None = None
    ) -> MultiWriterIdGenerator:
        """Not started yet."""
        return MultiWriterIdGenerator(
            pool or self.pool,
            self.stream(writers, negative=negative),
            instance=instance,
            flavor=self.flavor,
            clock=self.clock,
        )

    def started(
        self, instance: str, writers: list[str], *, negative: bool = False, seen: int = 0
    ) -> MultiWriterIdGenerator:
        generator = self.generator(instance, writers, negative=negative)
        self.wait(generator.start(seen=seen))
        return generator

    def write_facts(self, generator: MultiWriterIdGenerator, count: int = 1) -> list[int]:
        """A transaction of facts; its ids."""

        def work(transaction: Any) -> list[int]:
            with generator.within(transaction, count) as tokens:
                self.insert(transaction, tokens, generator.instance)
                return list(tokens)

        ids: list[int] = self.wait(transact(self.pool, work))
        return ids
