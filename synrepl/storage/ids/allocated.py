"""How far a stream can be waited for, as the sequence knows it that gives out its ids."""

from collections.abc import Mapping

from synrepl.storage.ids.generator import MultiWriterIdGenerator
from synrepl.storage.ids.transactions import transact

__all__ = ["AllocatedIds"]


class AllocatedIds:
    """Tells a follower which tokens exist (`Follower(allocated=...)`), from the generators of this process.

    `generators` are by the names that streams have on the wire. For streams that are read from tables only
    this can tell: the daemon sees an id when its fact is complete, others hear of it before.
    """

    def __init__(self, generators: Mapping[str, MultiWriterIdGenerator]) -> None:
        self._generators = dict(generators)

    async def highest(self, stream: str) -> int | None:
        """The highest id that anybody was given, without sign; None for a stream of somebody else."""
        generator = self._generators.get(stream)
        if generator is None:
            return None
        return await transact(generator.pool, generator.database.allocated)
