"""The highest allocated id of a stream, from its sequence: a follower can wait for no higher token."""

from collections.abc import Mapping

from synrepl.storage.ids.generator import MultiWriterIdGenerator
from synrepl.storage.ids.transactions import transact

__all__ = ["AllocatedIds"]


class AllocatedIds:
    """Tells a follower which tokens exist (`Follower(allocated=...)`), from the generators of this process.

    `generators` are by the streams' names on the wire. For streams that the daemon reads from tables there is
    no other source: the daemon sees an id only when its fact is complete, other processes know it before.
    """

    def __init__(self, generators: Mapping[str, MultiWriterIdGenerator]) -> None:
        self._generators = dict(generators)

    async def highest(self, stream: str) -> int | None:
        """The highest allocated id, without sign; None for a stream without a generator."""
        generator = self._generators.get(stream)
        if generator is None:
            return None
        return await transact(generator.pool, generator.database.allocated)
