"""What one process knows of a stream's ids: which are taken, which are done, how far everybody is.

Pure: no database, no lock, no clock. Numbers are positive and go up; who counts downwards turns them round
at the edge.

The words, after the streams document and `MultiWriterIdGenerator` of Synapse 1.163
(`docs/explanation/ids.md` has them with the example):

* *unfinished*: an id that was reserved here and neither completed nor rolled back.
* *asking*: a reservation under way in the database; its ids are above all that were known before it.
* *minimal* token: up to there this writer's facts are complete, and it wrote (or rolled back) the last one.
* *announced* token: the same, and nothing of this writer will come below it: what others may be told.
* *persisted up to*: every id up to there is complete, whoever reserved it: the linear position.
"""

from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush

__all__ = ["Tracker"]


class Tracker:
    """The positions of one stream as one process sees them.

    `writers` are the instances that may write; none at all means that whoever is heard of is one. A position
    heard of an instance that is no writer is remembered and otherwise ignored: it cannot hold up the linear
    position. `own_row` is the highest id with a row of this writer (0: none), which is complete.
    """

    def __init__(
        self,
        instance: str,
        writers: Collection[str],
        *,
        positions: Mapping[str, int],
        persisted_upto: int,
        own_row: int = 0,
    ) -> None:
        self.instance = instance
        self.writers = frozenset(writers)
        self.persisted_upto = persisted_upto
        self.allocated = max([persisted_upto, *positions.values()])
        """The highest id known to have been given to anyone."""
        self.reserved_upto = 0
        """The highest id that was given to this process."""
        self._positions = dict(positions)
        self._announced = self.allocated
        self._unfinished: set[int] = set()
        self._unfinished_heap: list[int] = []
        self._asking: list[int] = []
        self._finished: list[int] = []
        self._persisted: list[int] = [own_row] if own_row > persisted_upto else []

    @property
    def is_writer(self) -> bool:
        """Whether this process may reserve ids."""
        return not self.writers or self.instance in self.writers

    # -- what happens --------------------------------------------------------------------------------------

    def asks(self) -> int:
        """A reservation begins: until `reserved` or `gave_up` the own position stays below its ids.

        What it gives is to be handed to those.
        """
        floor = self.allocated
        self._asking.append(floor)
        return floor

    def reserved(self, asking: int, ids: Iterable[int]) -> None:
        """The database gave these ids."""
        self._asking.remove(asking)
        for taken in ids:
            self._unfinished.add(taken)
            heappush(self._unfinished_heap, taken)
            self.reserved_upto = max(self.reserved_upto, taken)
        self.allocated = max(self.allocated, self.reserved_upto)

    def gave_up(self, asking: int) -> None:
        """The database gave none."""
        self._asking.remove(asking)
        self._move_own()
        self._move_linear()
        self._move_announced()

    def finish(self, ids: Iterable[int]) -> None:
        """These are completed, or rolled back, which makes no difference here: nothing more comes of them."""
        done = [taken for taken in ids if taken in self._unfinished]
        self._unfinished.difference_update(done)
        for taken in done:
            heappush(self._finished, taken)
        self._move_own()
        for taken in done:
            self._move_linear(taken)
        self._move_announced()

    def advance(self, writer: str, token: int, *, wrote: bool = False) -> None:
        """Another writer says that it is at `token`; it `wrote` that id itself, if we know so.

        A position alone proves nothing of its last id, which may be someone else's, still unfinished.
        """
        self._positions[writer] = max(token, self._positions.get(writer, token))
        self.allocated = max(self.allocated, token)
        self._move_linear(token if wrote else None)
        self._move_announced()

    # -- what is asked -------------------------------------------------------------------------------------

    @property
    def minimal(self) -> int:
        """The minimal token; of one who cannot write, the persisted position."""
        return self._positions.get(self.instance, self.persisted_upto)

    @property
    def announced(self) -> int:
        """The announced token; of one who cannot write, the persisted position."""
        return self._announced if self.is_writer else self.persisted_upto

    @property
    def has_pending(self) -> bool:
        """Whether ids are unfinished, or being asked for, here."""
        return bool(self._unfinished or self._asking)

    def position_of(self, writer: str) -> int:
        """Up to where this writer's facts are complete: its own word, or the linear position beyond it."""
        return max(self._positions.get(writer, self.persisted_upto), self.persisted_upto)

    def positions(self) -> dict[str, int]:
        """The position of each writer heard of, as it was told."""
        return dict(self._positions)

    # -- how it moves --------------------------------------------------------------------------------------

    def _move_own(self) -> None:
        """The own position moves over finished ids, up to the first that is still pending."""
        limit = self._first_pending()
        last = None
        while self._finished and (limit is None or self._finished[0] < limit):
            last = heappop(self._finished)
        if last is not None:
            self._positions[self.instance] = max(last, self._positions.get(self.instance, last))

    def _first_pending(self) -> int | None:
        """The lowest id that may still be written here; None if there is none."""
        heap = self._unfinished_heap
        while heap and heap[0] not in self._unfinished:
            heappop(heap)
        pending = [floor + 1 for floor in self._asking]
        if heap:
            pending.append(heap[0])
        return min(pending, default=None)

    def _move_linear(self, complete: int | None = None) -> None:
        """One more id is known to be `complete`.

        The linear position is the lowest of the writers' positions, and what follows without a hole.

        The own one counts only while something is pending: what is reserved here next is above all that
        exists. With no other writer it is the only one there is.
        """
        # Real generators take the linear position into the announced token one id late. That is harmless, and
        # recordings of them replay.
        self._announced = max(self._announced, self.persisted_upto)
        if complete is not None:
            heappush(self._persisted, complete)
        others = [
            position
            for writer, position in self._positions.items()
            if writer != self.instance and (not self.writers or writer in self.writers)
        ]
        if self.is_writer and (self.has_pending or not others) and self.instance in self._positions:
            others.append(self._positions[self.instance])
        if others:
            self.persisted_upto = max(self.persisted_upto, min(others))
        while self._persisted and self._persisted[0] <= self.persisted_upto + 1:
            self.persisted_upto = max(self.persisted_upto, heappop(self._persisted))

    def _move_announced(self) -> None:
        self._announced = max(self._announced, self.minimal)
        if not self.has_pending:
            # What is reserved here next is above all that is known to exist.
            self._announced = max(self._announced, self.allocated)
