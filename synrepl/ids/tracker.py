"""The state of one stream's ids in one process: which are reserved, which are complete, all positions.

Pure: no database, no lock, no clock. Numbers are positive and ascend; the generator converts negative ids.

The terms are those of the documentation of streams and `MultiWriterIdGenerator` in Synapse 1.163
(docs/reference/peers.md#ids; docs/explanation/ids.md has an example):

* *unfinished*: an id reserved by this process and neither completed nor rolled back.
* *pending floor*: the highest known id at the start of a running reservation, whose ids will be above it.
* *minimal* token: the last id that this writer finished before its first unfinished one (at first its start).
* *announced* token: this writer will write no more facts up to it; it is announced to others.
* *persisted up to*: every id of every writer up to it is complete: the linear position.
"""

from collections.abc import Collection, Iterable
from heapq import heappop, heappush

from synrepl.storage.id_tables.id_start import IdStart


class Tracker:
    """The positions of one stream, as one process knows them.

    `writers` are the instances that may write; if there are none, every known instance is one. The position
    of an instance that is no writer is kept, but cannot hold up the linear position.
    """

    def __init__(self, instance: str, writers: Collection[str], start: IdStart) -> None:
        self.instance = instance
        self.writers = frozenset(writers)
        self.persisted_upto = start.persisted_upto
        self.allocated = max([start.persisted_upto, *start.positions.values()])
        """The highest id known to be reserved by any process."""
        self.reserved_upto = 0
        """The highest id reserved by this process."""
        self._positions = dict(start.positions)
        self._announced = self.allocated
        self._unfinished: set[int] = set()
        self._unfinished_heap: list[int] = []
        self._pending_floors: list[int] = []
        self._finished: list[int] = []
        self._persisted: list[int] = [start.own_row] if start.own_row > start.persisted_upto else []

    @property
    def is_writer(self) -> bool:
        """Whether this process may reserve ids."""
        return not self.writers or self.instance in self.writers

    def begin_reservation(self) -> int:
        """Start a reservation. Returns its floor, to be passed to `end_reservation` or `cancel_reservation`.

        Until one of these calls the own position stays below the new ids.
        """
        floor = self.allocated
        self._pending_floors.append(floor)
        return floor

    def end_reservation(self, floor: int, ids: Iterable[int]) -> None:
        """Record the ids that the database gave."""
        self._pending_floors.remove(floor)
        for id_ in ids:
            self._unfinished.add(id_)
            heappush(self._unfinished_heap, id_)
            self.reserved_upto = max(self.reserved_upto, id_)
        self.allocated = max(self.allocated, self.reserved_upto)

    def cancel_reservation(self, floor: int) -> None:
        """Record that the database gave no ids."""
        self._pending_floors.remove(floor)
        self._advance_own()
        self._advance_linear()
        self._advance_announced()

    def finish(self, ids: Iterable[int]) -> None:
        """Record that these ids are completed or rolled back: either way no more facts come with them."""
        done = [id_ for id_ in ids if id_ in self._unfinished]
        self._unfinished.difference_update(done)
        for id_ in done:
            heappush(self._finished, id_)
        self._advance_own()
        for id_ in done:
            self._advance_linear(id_)
        self._advance_announced()

    def forget(self, ids: Iterable[int]) -> None:
        """Record that these ids are those of others: they were given anew after a rollback."""
        self._unfinished.difference_update(ids)
        self._advance_own()
        self._advance_linear()
        self._advance_announced()

    def advance(self, writer: str, token: int, *, wrote: bool = False) -> None:
        """Record that another writer is at `token`; `wrote` if it is known to have written this id itself.

        A position alone proves nothing about its last id, which may be another writer's unfinished one.
        """
        self._positions[writer] = max(token, self._positions.get(writer, token))
        self.allocated = max(self.allocated, token)
        self._advance_linear(token if wrote else None)
        self._advance_announced()

    @property
    def minimal(self) -> int:
        """The minimal token; for a process that cannot write, the persisted position."""
        return self._positions.get(self.instance, self.persisted_upto)

    @property
    def announced(self) -> int:
        """The announced token; for a process that cannot write, the persisted position."""
        return self._announced if self.is_writer else self.persisted_upto

    @property
    def has_pending(self) -> bool:
        """Whether ids of this process are unfinished or being reserved."""
        return bool(self._unfinished or self._pending_floors)

    def position_of(self, writer: str) -> int:
        """The token up to which this writer is complete: the higher of its own and the linear position."""
        return max(self._positions.get(writer, self.persisted_upto), self.persisted_upto)

    def positions(self) -> dict[str, int]:
        """The last known position of each instance; that of this process is its minimal token."""
        return dict(self._positions)

    def _advance_own(self) -> None:
        limit = self._first_pending()
        last = None
        while self._finished and (limit is None or self._finished[0] < limit):
            last = heappop(self._finished)
        if last is not None:
            self._positions[self.instance] = max(last, self._positions.get(self.instance, last))

    def _first_pending(self) -> int | None:
        """The lowest id that this process may still write; None if there is none."""
        heap = self._unfinished_heap
        while heap and heap[0] not in self._unfinished:
            heappop(heap)
        pending = [floor + 1 for floor in self._pending_floors]
        if heap:
            pending.append(heap[0])
        return min(pending, default=None)

    def _advance_linear(self, complete: int | None = None) -> None:
        """Advance the linear position; one more id may be known to be `complete`.

        The linear position is the lowest of the writers' positions, extended over complete ids without a gap.

        The own position counts only while something is pending, since the next reservation will be above all
        known ids. Without other writers it is the only position.
        """
        # Before the linear position advances: the announced token follows it one id late, as in Synapse.
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

    def _advance_announced(self) -> None:
        self._announced = max(self._announced, self.minimal)
        if not self.has_pending:
            # The next reservation of this process will be above all known ids.
            self._announced = max(self._announced, self.allocated)
