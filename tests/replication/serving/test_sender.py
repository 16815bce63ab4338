"""A sender sends what its feed selects to any sink, in any form, and stops when it is told to."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.base.history import EpochStart
from synrepl.replication.serving import feed as feed_module
from synrepl.replication.serving.encoder import LogEncoder
from synrepl.replication.serving.feed import Feed, Stop
from synrepl.replication.serving.sender import Sender
from synrepl.streams.facts import Fact
from synrepl.testing import Cluster, FakeDaemon


class Numbers(LogEncoder):
    """A form of our own: the serials."""

    def lines(self, facts: Iterable[Fact]) -> bytes:
        return b"".join(b"%d " % fact.serial for fact in facts)

    def epoch_start(self, start: EpochStart) -> bytes:
        return b"epoch %d " % start.epoch


class Sink:
    """Remembers what was written, and does what a test asks for at each write."""

    def __init__(self) -> None:
        self.data = b""
        self.writes = 0
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        self.data += data
        self.writes += 1
        self.on_write()


NUMBERS = Numbers()


class World(Cluster):
    """A daemon whose facts have numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._written = 0

    def wrote(self, node: FakeDaemon, count: int) -> None:
        """Commit facts that nobody has said before."""
        facts = [[[f"@u{self._written + number}"]] for number in range(1, count + 1)]
        self._written += count
        self.done(node.append("to_device", facts))

    def done(self, asked: "Deferred[Any]") -> Any:
        """What it gives."""
        return self._run(asked)

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.settle(seconds)


class Setup:
    """A log with facts, and a sender of it."""

    def __init__(self, facts: int = 10, *, from_ring: bool = False, **options: Any) -> None:
        self.cluster = World()
        self.node = self.cluster.daemon
        if facts:
            self.cluster.wrote(self.node, facts)
        self.sink = Sink()
        ring = self.node.publisher.ring if from_ring else None
        bounds = {name: options.pop(name) for name in ("upto", "epochs") if name in options}
        self.feed = Feed(self.node.log, ring, after=0, **bounds)
        self.sender = Sender(self.node.log, self.feed, NUMBERS, self.sink, **options)
        self.ended: list[Any] = []
        self.running: Deferred[Stop]

    def run(self) -> None:
        """Send, and go as far as that goes."""
        self.running = self.sender.run()
        self.running.addBoth(self.ended.append)
        self.cluster.pass_(0.2)


def numbers(upto: int, first: int = 1) -> bytes:
    return b"".join(b"%d " % serial for serial in range(first, upto + 1))


@pytest.mark.parametrize("from_ring", [False, True])
def test_it_sends_all_and_ends_at_the_head(from_ring: bool) -> None:
    """A sink and an encoder are all that it needs."""
    setup = Setup(from_ring=from_ring, on_head=lambda: False)
    setup.run()

    assert (numbers(10), [Stop.WAIT]) == (setup.sink.data, setup.ended)
    assert 10 == setup.sender.position.serial


def test_it_goes_on_with_the_next_commit() -> None:
    """It waits at the head, and costs nothing there."""
    setup = Setup(from_ring=True)
    setup.sender = Sender(
        setup.node.log, setup.feed, NUMBERS, setup.sink, waiters=setup.node.publisher.waiters
    )
    setup.run()
    assert setup.sender.is_waiting
    setup.cluster.wrote(setup.node, 2)

    assert (numbers(12), []) == (setup.sink.data, setup.ended)


def test_it_ends_at_the_end_of_the_query() -> None:
    """There are more facts."""
    setup = Setup(upto=7)
    setup.run()

    assert (numbers(7), [Stop.DONE]) == (setup.sink.data, setup.ended)


def test_it_sends_no_more_than_the_sink_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page for each time that there is room."""
    monkeypatch.setattr(feed_module, "PAGE_ROWS", 2)
    setup = Setup(on_head=lambda: False)
    setup.sink.on_write = setup.sender.pause
    setup.run()
    pages = [setup.sink.data]
    while not setup.ended:
        setup.sender.resume()
        setup.cluster.pass_(0.1)
        pages.append(setup.sink.data)

    assert [2, 4, 6, 8, 10, 10] == [len(page.split()) for page in pages]


def test_its_position_is_right_when_the_reader_answers_at_once() -> None:
    """An acknowledgement can come before the write returns."""
    setup = Setup(on_head=lambda: False)
    seen: list[int] = []
    setup.sink.on_write = lambda: seen.append(setup.sender.position.serial)
    setup.run()

    assert [10] == seen


def test_the_position_of_a_sender_is_that_of_the_last_written_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the cursor, while the digest is looked up."""
    digest: Deferred[str] = Deferred()
    setup = Setup(upto=5, needs_digests=True)
    monkeypatch.setattr(setup.node.log.reads, "digest", lambda serial: digest)
    monkeypatch.setattr(Feed, "digest", None)
    setup.run()

    assert (5, 0, b"") == (setup.feed.serial, setup.sender.position.serial, setup.sink.data)
    digest.callback("d5")
    assert (5, "d5", numbers(5)) == (
        setup.sender.position.serial,
        setup.sender.position.digest,
        setup.sink.data,
    )


def test_epoch_starts_are_sent_between_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the facts before and after."""
    setup = Setup(facts=2, epochs=True, on_head=lambda: False)
    setup.cluster.done(Deferred.fromCoroutine(setup.node.log.epochs.begin_next("promoted")))
    setup.cluster.wrote(setup.node, 1)
    setup.run()

    assert b"1 2 epoch 2 3 " == setup.sink.data
    assert (2, 3) == (setup.sender.position.epoch, setup.sender.position.serial)


def test_a_sink_can_finish_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of what it has just read."""
    setup = Setup()
    read, gate = setup.node.log.reads.facts, Deferred[None]()

    async def read_later(**options: Any) -> Any:
        await gate
        return await read(**options)

    monkeypatch.setattr(setup.node.log.reads, "facts", read_later)
    setup.sink.on_write = setup.sender.finish
    setup.run()
    gate.callback(None)
    setup.cluster.pass_(0.1)

    assert (1, [Stop.WAIT]) == (setup.sink.writes, setup.ended)


def test_an_ended_sender_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection was lost while a page was read."""
    setup = Setup()
    read: Deferred[Any] = Deferred()
    monkeypatch.setattr(setup.node.log.reads, "facts", lambda **_: read)
    setup.run()
    setup.running.cancel()

    assert (b"", 1) == (setup.sink.data, len(setup.ended))
    setup.sender.pump()
    setup.sender.resume()
    assert b"" == setup.sink.data


@pytest.mark.parametrize("failing", ["the log", "the sink", "the owner"])
def test_an_error_ends_it(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it is told."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(failing)

    options: dict[str, Any] = {"on_head": fail} if failing == "the owner" else {}
    setup = Setup(from_ring=failing == "the sink", **options)
    if failing == "the log":
        monkeypatch.setattr(setup.node.log.reads, "facts", fail)
    elif failing == "the sink":
        setup.sink.on_write = fail
    setup.run()

    (error,) = setup.ended
    assert isinstance(error, Failure)
    assert failing == str(error.value)


def test_a_replaced_log_ends_it() -> None:
    """What follows would be of another history."""
    setup = Setup(from_ring=True)
    setup.feed._boots = "another"  # type: ignore[assignment]
    setup.run()

    assert (b"", [Stop.REPLACED]) == (setup.sink.data, setup.ended)
