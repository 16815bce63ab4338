"""What comes from an upstream is kept in groups: an append whole, or not at all."""

from collections.abc import Coroutine, Sequence
from typing import Any, cast

from synrepl.base.history import BEGINNING, Appended, AppendKey, AppendReceipt, EpochStart
from synrepl.replicas.replica.conversation import Facts, SnapshotMeta
from synrepl.replicas.replica.fact_batcher import FactBatcher
from synrepl.replicas.wire.native import Heartbeat
from synrepl.storage.log_copies import LogCopies
from synrepl.streams.facts import Fact
from synrepl.wire.position import LogPosition


class Kept:
    """A log that notes what it was given, and when an epoch began."""

    def __init__(self) -> None:
        self.position: LogPosition = BEGINNING
        self.told: list[Any] = []

    async def follow(
        self, facts: Sequence[Fact], receipts: Sequence[AppendReceipt], *, upto: LogPosition | None = None
    ) -> None:
        self.told.append(([fact.serial for fact in facts], [receipt.key.text for receipt in receipts]))
        if facts:
            self.position = LogPosition(1, facts[-1].serial, "")
        self.position = upto or self.position

    async def begin_epoch(self, epoch_start: EpochStart) -> None:
        self.told.append(f"epoch {epoch_start.epoch}")
        self.position = LogPosition(epoch_start.epoch, epoch_start.serial, epoch_start.digest)


def facts(*serials: int) -> Facts:
    """Facts with these serials."""
    return Facts([Fact(n, 1, "events", "w", n - 1, n, b"[]", 0, "") for n in serials])


def receipt(key: str, first: int, count: int) -> AppendReceipt:
    """The answer to an append of so many facts."""
    return AppendReceipt(AppendKey("s", key), "", Appended(1, first, list(range(first, first + count))), 0)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Nothing of it waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def taken(*events: Facts | SnapshotMeta | Heartbeat | None, is_filtered: bool = False) -> list[Any]:
    """What is kept when these come; None is a flush."""
    kept = Kept()
    batcher = FactBatcher(cast(LogCopies, kept), is_filtered=is_filtered)
    for event in events:
        run(batcher.flush() if event is None else batcher.add(event))
    return kept.told


def test_an_append_is_kept_with_its_receipt_and_whole() -> None:
    """Who is promoted between the two halves would store it again when it is asked again."""
    meta = SnapshotMeta([], [receipt("k", 2, 3)])

    assert [([1], []), ([2, 3, 4, 5], ["k"])] == taken(meta, facts(1, 2, 3), None, facts(4, 5), None)


def test_an_atomic_append_is_kept_whole_without_its_receipt() -> None:
    """The receipt of an old append is forgotten, and a replica may be promoted at any moment."""
    opening = Facts([Fact(2, 1, "atomic_appends", "w", 0, 1, b"[[3]]", 0, "")])

    assert [([1], []), ([2, 3, 4, 5, 6], []), ([7], [])] == taken(
        facts(1), opening, None, facts(3, 4), None, facts(5, 6), None, facts(7), None
    )


def test_facts_that_the_copy_has_are_dropped() -> None:
    """After a cut some of it comes again."""
    assert [([1, 2], []), ([3], [])] == taken(facts(1, 2), None, facts(1, 2, 3), facts(3), None)


def test_an_epoch_begins_after_what_came_before_it() -> None:
    """Its facts would be of the wrong epoch."""
    epoch_start = EpochStart(epoch=2, serial=2, digest="d", at_ms=0, why="promoted")

    assert [([1, 2], []), "epoch 2", ([3], [])] == taken(
        facts(1, 2), SnapshotMeta([epoch_start], []), facts(3), None
    )


def test_of_a_filtered_feed_nothing_is_kept_before_a_place_is_reported() -> None:
    """Up to there that is all; what comes beyond it waits for the next."""
    beat = Heartbeat(epoch=1, serial=5, digest="d", head=9, at_ms=0, check="")
    meta = SnapshotMeta([], [receipt("k", 2, 1)])

    found = taken(meta, facts(2, 4), None, beat, facts(7), None, None, is_filtered=True)

    assert [([2, 4], ["k"])] == found
