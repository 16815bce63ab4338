"""What a reader is sent next, decided without I/O: each test is a table of events and steps."""

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from synrepl.base.history import BEGINNING, EpochStart
from synrepl.replication.serving.feed import (
    EphemeralMode,
    EphemeralStep,
    Feed,
    FeedPosition,
    PageStep,
    Step,
    Stop,
)
from synrepl.replication.serving.ring import WRITE_BYTES, Ring, RingGroup
from synrepl.streams.facts import Fact
from synrepl.wire.filter import Filter
from synrepl.wire.position import LogPosition

WAIT, DONE, TRIMMED, REPLACED = Stop.WAIT, Stop.DONE, Stop.TRIMMED, Stop.REPLACED


def fact(serial: int, stream: str = "receipts", *, token: int = 0, size: int = 2) -> Fact:
    """A kept fact, or with serial 0 an ephemeral one."""
    return Fact(serial, 1, stream, "master", 0, token or serial, b"x" * size, 0, f"d{serial}")


class FakeLog:
    """A log of kept facts in `receipts` and ephemeral ones in `typing`, and the ring before it.

    Its head is itself.
    """

    def __init__(self, *, ring_bytes: int = 10**6) -> None:
        self.head = self
        self.position = BEGINNING
        self.boots = 1
        self.trimmed_upto = BEGINNING
        self.epoch_starts: list[EpochStart] = []
        self.receipts_upto = 0
        self.typing: list[Fact] = []
        self.token = 0
        self.ephemeral = SimpleNamespace(snapshot=lambda: list(self.typing), after=self._typing_after)
        self.ring = Ring(ring_bytes, serial=0, tokens={"typing": 0})

    @property
    def serial(self) -> int:
        return self.position.serial

    def _typing_after(self, stream: str, after: int) -> list[Fact]:
        return [one for one in self.typing if one.token > after]

    def commit(self, count: int = 1, *, size: int = 2, hidden: bool = False) -> None:
        """Commit a group of facts; a `hidden` one is not shown to the ring."""
        facts = [fact(self.serial + 1 + n, size=size) for n in range(count)]
        self.move(count)
        if not hidden:
            self.ring.add(facts)

    def type(self) -> None:
        """Commit an ephemeral fact."""
        self.token += 1
        self.typing.append(fact(0, "typing", token=self.token))
        self.ring.add(self.typing[-1:])

    def reset(self) -> None:
        """Restart the writer of the ephemeral stream."""
        self.typing, self.token = [], 0
        self.ring.add([Fact(0, 1, "typing", "master", 0, 0, b"[]", 0, "")])

    def move(self, count: int = 1) -> None:
        """Move the position without facts, as a filtered copy does."""
        serial = self.serial + count
        self.position = LogPosition(self.position.epoch, serial, f"d{serial}")

    def begin(self) -> None:
        """Begin an epoch."""
        at = self.position
        self.epoch_starts.append(EpochStart(at.epoch + 1, at.serial, at.digest, 0, "promoted"))
        self.position = LogPosition(at.epoch + 1, at.serial, at.digest)

    def trim(self, upto: int) -> None:
        self.trimmed_upto = LogPosition(1, upto, f"d{upto}")

    def feed(self, after: int = 0, **options: object) -> Feed:
        return Feed(self, self.ring, after=after, **options)  # type: ignore[arg-type]


class Numbers:
    """Encodes facts as their serials, ephemeral ones as t and their token."""

    def lines(self, facts: Iterable[Fact]) -> bytes:
        return b" ".join(b"%d" % one.serial if one.serial else b"t%d" % one.token for one in facts)


NUMBERS = Numbers()


def told(feed: Feed, step: Step) -> str:
    """Carry this step out; what was sent, in a word or two."""
    match step:
        case RingGroup():
            data, last = feed.lines(step, NUMBERS)
            feed.sent(last)
            return f"ring {data.decode()}".strip()
        case PageStep(after=after, upto=upto):
            feed.advance(upto, upto - after)
            return f"page {after}-{upto}"
        case EpochStart() as epoch_start:
            return f"epoch {epoch_start.epoch}"
        case EphemeralStep(facts, resets):
            tokens = [f"t{one.token}" for one in facts]
            return " ".join(["held", *(f"reset:{name}" for name in resets), *tokens])
        case Stop():
            return step.name
        case _:
            raise AssertionError(step)


def run(feed: Feed) -> list[str]:
    """All steps up to the one at which there is nothing to send."""
    steps: list[str] = []
    while not steps or steps[-1] not in Stop.__members__:
        steps.append(told(feed, feed.next()))
        assert len(steps) < 20
    return steps


def test_a_reader_at_the_head_takes_each_group_from_the_ring() -> None:
    log = FakeLog()
    feed = log.feed()
    seen = [run(feed)]
    for count in (1, 2):
        log.commit(count)
        seen.append(run(feed))

    assert [["WAIT"], ["ring 1", "WAIT"], ["ring 2 3", "WAIT"]] == seen
    assert FeedPosition(1, 3, "d3") == feed.position


def test_groups_go_together_up_to_one_write() -> None:
    log = FakeLog()
    for _ in range(3):
        log.commit(size=WRITE_BYTES // 2 - 300)

    assert ["ring 1 2", "ring 3", "WAIT"] == run(log.feed())


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (0, ["page 0-5", "WAIT"]),  # the ring begins after 3, and the page goes to the head
        (1, ["page 1-5", "WAIT"]),
        (3, ["ring 4 5", "WAIT"]),
        (4, ["page 4-5", "WAIT"]),  # in the middle of a group: its rest is read
        (5, ["WAIT"]),
    ],
)
def test_a_reader_that_is_behind_reads_what_has_left_the_ring(after: int, expected: list[str]) -> None:
    log = FakeLog(ring_bytes=1)
    for count in (2, 1, 2):
        log.commit(count)

    assert expected == run(log.feed(after))


def test_the_ring_knows_what_has_left_it() -> None:
    log = FakeLog(ring_bytes=1)
    for _ in range(3):
        log.commit()

    assert [None, None, 3, 4] == [log.ring.first_after(serial) for serial in range(4)]


def test_the_ring_holds_as_much_after_a_jump_of_the_log_as_before() -> None:
    """What left it at a jump does not count any more: readers would go to the disk."""
    log = FakeLog(ring_bytes=1_000)
    log.commit(size=600)
    log.move(10)
    for _ in range(4):
        log.commit()

    assert 2 == log.ring.first_after(11)


def test_a_slow_reader_goes_on_from_the_log_and_then_from_the_ring() -> None:
    log = FakeLog(ring_bytes=1)
    feed = log.feed()
    run(feed)
    for _ in range(3):
        log.commit()
    step = feed.next()
    assert isinstance(step, PageStep)
    log.commit()  # while the page is read
    feed.advance(step.upto, 3)

    assert ["ring 4", "WAIT"] == run(feed)


def test_a_page_that_was_cut_is_gone_on_with() -> None:
    log = FakeLog(ring_bytes=1)
    log.commit(3)
    log.commit(3)
    feed = log.feed()
    assert PageStep(0, 6, feed.filter, False) == feed.next()
    assert feed.advance(4, 4, "d4")

    assert FeedPosition(1, 4, "d4") == feed.position
    assert ["page 4-6", "WAIT"] == run(feed)


def test_a_large_group_is_read_by_pages_unless_whole_groups_are_sent() -> None:
    log = FakeLog()
    log.commit(2, size=WRITE_BYTES)
    log.commit()

    assert ["page 0-2", "ring 3", "WAIT"] == run(log.feed(whole_groups=False))
    assert ["ring 1 2", "ring 3", "WAIT"] == run(log.feed())


def test_facts_committed_without_notice_are_looked_for() -> None:
    log = FakeLog()
    log.commit()
    feed = log.feed()
    run(feed)
    log.commit(hidden=True)
    log.commit()

    assert ["page 1-3", "WAIT"] == run(feed)
    assert ["page 0-3", "WAIT"] == run(log.feed())


def test_a_log_with_some_facts_only_has_no_holes() -> None:
    log = FakeLog()
    feed = log.feed()
    run(feed)
    log.move(9)
    log.ring.add([fact(7)], upto=9)

    assert ["ring 7", "WAIT"] == run(feed)
    assert FeedPosition(1, 9, "d9") == feed.position


def test_a_position_that_moved_without_facts_is_reached() -> None:
    log = FakeLog()
    feed = log.feed()
    run(feed)
    log.move(3)

    assert ["page 0-3", "WAIT"] == run(feed)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"upto": 3}, ["ring 1 2", "page 2-3", "DONE"]),
        ({"upto": 2}, ["ring 1 2", "DONE"]),
        ({"upto": 0}, ["DONE"]),
        ({"upto": 9}, ["ring 1 2 3 4", "WAIT"]),
        ({"limit": 4}, ["page 0-4", "DONE"]),
        ({"filter": Filter.of(streams=["caches"])}, ["ring 1 2 3 4", "WAIT"]),  # left to the encoder
    ],
)
def test_a_query_ends_where_it_says(options: dict[str, object], expected: list[str]) -> None:
    log = FakeLog()
    log.commit(2)
    log.commit(2)

    assert expected == run(log.feed(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "options", "expected", "epoch"),
    [
        (0, {"epochs": True}, ["ring 1 2", "epoch 2", "epoch 3", "ring 3", "WAIT"], 3),
        (0, {}, ["ring 1 2", "ring 3", "WAIT"], 3),
        (2, {"epochs": True, "epoch": 1}, ["epoch 2", "epoch 3", "ring 3", "WAIT"], 3),
        (2, {"epochs": True, "epoch": 2}, ["epoch 3", "ring 3", "WAIT"], 3),
        (3, {"epochs": True, "epoch": 1}, ["WAIT"], 3),
        (0, {"epochs": True, "upto": 2}, ["ring 1 2", "epoch 2", "epoch 3", "DONE"], 3),
        (0, {"epochs": True, "upto": 1}, ["page 0-1", "DONE"], 1),
    ],
)
def test_an_epoch_starts_between_its_facts(
    after: int, options: dict[str, object], expected: list[str], epoch: int
) -> None:
    log = FakeLog()
    log.commit(2)
    log.begin()
    log.begin()
    log.commit()
    feed = log.feed(after, **options)

    assert expected == run(feed)
    assert epoch == feed.position.epoch


def test_an_epoch_that_starts_between_pages_ends_a_page() -> None:
    log = FakeLog(ring_bytes=1)
    log.commit(2)
    log.begin()
    log.commit()
    log.commit()

    assert ["page 0-2", "epoch 2", "page 2-4", "WAIT"] == run(log.feed(epochs=True))


def test_a_reader_is_refused_once_the_log_was_trimmed_under_it() -> None:
    log = FakeLog(ring_bytes=1)
    for _ in range(3):
        log.commit()
    feed, patient = log.feed(1), log.feed(1, compacted=True)
    step = feed.next()
    assert isinstance(step, PageStep)
    log.trim(2)

    assert not feed.advance(step.upto, 2)
    assert 1 == feed.serial
    assert ["TRIMMED"] == run(feed)
    assert ["page 1-3", "WAIT"] == run(patient)
    assert ["WAIT"] == run(log.feed(3))


def test_a_reader_is_refused_once_the_log_was_replaced() -> None:
    log = FakeLog(ring_bytes=1)
    log.commit()
    log.commit()
    feed = log.feed()
    step = feed.next()
    assert isinstance(step, PageStep)
    log.boots += 1

    assert not feed.advance(step.upto, 2)
    assert ["REPLACED"] == run(feed)
    assert ["REPLACED"] == run(log.feed(9))


def test_receipts_are_read_only_where_there_can_be_some() -> None:
    log = FakeLog(ring_bytes=1)
    log.commit()
    log.receipts_upto = 1
    log.commit()
    first, second, without = log.feed(receipts=True), log.feed(1, receipts=True), log.feed()

    assert [True, False, False] == [feed.needs_receipts for feed in (first, second, without)]
    step = first.next()
    assert isinstance(step, PageStep)
    assert step.receipts


class TestHeldEphemeral:
    """All that is held at the head, and again after a pause."""

    def test_what_is_held_comes_at_the_head_and_then_what_is_new(self) -> None:
        log = FakeLog()
        log.type()
        log.commit()
        feed = log.feed(ephemeral=EphemeralMode.HELD)
        first = run(feed)
        log.type()
        log.commit()

        assert ["ring 1", "held t1", "WAIT"] == first
        assert ["ring t2 2", "WAIT"] == run(feed)

    def test_nothing_is_repeated_after_a_pause_without_news(self) -> None:
        log = FakeLog()
        feed = log.feed(ephemeral=EphemeralMode.HELD)
        run(feed)
        log.commit()
        feed.resumed()

        assert ["ring 1", "WAIT"] == run(feed)

    def test_all_is_repeated_after_a_pause_with_news(self) -> None:
        log = FakeLog()
        feed = log.feed(ephemeral=EphemeralMode.HELD)
        run(feed)
        log.type()
        log.commit()
        log.type()
        feed.resumed()

        assert ["ring 1", "held t1 t2", "WAIT"] == run(feed)

    def test_all_is_repeated_to_a_reader_whose_group_has_left_the_ring(self) -> None:
        log = FakeLog(ring_bytes=1)
        feed = log.feed(ephemeral=EphemeralMode.HELD)
        run(feed)
        for _ in range(3):
            log.type()

        assert ["held t1 t2 t3", "WAIT"] == run(feed)

    def test_only_what_passes_the_filter_is_held(self) -> None:
        log = FakeLog()
        log.type()
        caches = Filter.of(streams=["caches"])

        assert ["held", "WAIT"] == run(log.feed(ephemeral=EphemeralMode.HELD, filter=caches))[-2:]


class TestMissedEphemeral:
    """What was not handed out before, by token."""

    def live(self, log: FakeLog) -> Feed:
        return log.feed(log.serial, ephemeral=EphemeralMode.MISSED, is_live=True)

    def test_a_live_reader_gets_nothing_of_before(self) -> None:
        log = FakeLog()
        log.type()
        feed = self.live(log)
        log.type()

        assert ["ring t2", "WAIT"] == run(feed)

    def test_a_pause_changes_nothing(self) -> None:
        log = FakeLog()
        feed = self.live(log)
        log.type()
        feed.resumed()

        assert ["ring t1", "WAIT"] == run(feed)

    def test_what_has_left_the_ring_comes_from_memory_behind_the_durable_facts(self) -> None:
        log = FakeLog(ring_bytes=1)
        feed = self.live(log)
        log.type()
        run(feed)
        log.type()
        log.commit()
        log.type()
        log.type()

        assert ["page 0-1", "held t2 t3 t4", "WAIT"] == run(feed)

    def test_all_comes_again_after_its_writer_was_reset(self) -> None:
        log = FakeLog(ring_bytes=1)
        feed = self.live(log)
        log.type()
        log.type()
        run(feed)
        log.reset()
        log.type()

        assert ["held reset:typing t1", "WAIT"] == run(feed)
        log.type()
        assert ["ring t2", "WAIT"] == run(feed)

    def test_a_reset_that_was_seen_is_not_told_again(self) -> None:
        log = FakeLog(ring_bytes=1)
        feed = self.live(log)
        log.reset()
        run(feed)
        log.type()
        log.type()

        assert ["held t1 t2", "WAIT"] == run(feed)

    def test_a_reader_that_says_what_it_has_gets_the_rest(self) -> None:
        log = FakeLog()
        log.type()
        log.type()
        tokens = {"typing": 1}

        assert ["held t2", "WAIT"] == run(log.feed(ephemeral=EphemeralMode.MISSED, tokens=tokens))[-2:]


def test_a_reader_that_was_not_woken_skips_what_was_not_for_it() -> None:
    log = FakeLog()
    feed = log.feed(ephemeral=EphemeralMode.HELD)
    run(feed)
    for _ in range(3):
        log.commit()
        log.type()
    log.commit()
    (newest,) = (log.ring.get(log.ring.newest),)
    assert newest is not None
    feed.skip(newest)

    assert ["ring 4", "WAIT"] == run(feed)
    log.commit()
    feed.skip()
    assert ["WAIT"] == run(feed)
    assert FeedPosition(1, 5, "d5") == feed.position


def test_no_fact_is_selected_beyond_the_end_of_a_query_that_skips() -> None:
    log = FakeLog()
    feed = log.feed(upto=2)
    run(feed)
    log.commit(5)
    feed.skip()

    assert (2, ["DONE"]) == (feed.serial, run(feed))


def test_without_a_ring_all_is_read() -> None:
    log = FakeLog()
    log.commit()

    assert ["page 0-1", "WAIT"] == run(Feed(log, None, after=0))  # type: ignore[arg-type]
