"""What every transport promises to a reader of the log, with each of them: lines, native blocks and HTTP."""

import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from synrepl.base.history import BEGINNING
from synrepl.base.limited_logger import LimitedLogger
from synrepl.replicas.relay.relay import attach
from synrepl.replicas.relay.replica_registry import ReplicaRegistry
from synrepl.replicas.settings import RelaySettings
from synrepl.replicas.wire.blocks import Payload
from synrepl.replicas.wire.native import (
    VERSION,
    Hello,
    Refused,
    Subscribe,
)
from synrepl.wire.grammar import Command
from synrepl.wire.position import LogPosition
from tests.http.builders import SiteCase, Talk, receipt, typing
from tests.replicas.wire.block_buffer import BlockBuffer

if TYPE_CHECKING:
    Case = SiteCase
else:
    # Not a test itself: the class with the transport brings that.
    Case = object

BLOCKS = {
    "facts": lambda line: line,
    "ephemeral": lambda line: {"ephemeral": line},
    "meta": lambda line: line,
}


class Peer:
    """A reader behind one transport: what it was sent, in order, and where it is."""

    def __init__(self, at: LogPosition, *, is_slow: bool) -> None:
        self.at = at
        self.is_slow = is_slow
        self.sent: list[str | int] = []
        self.typing: list[int] = []
        self.is_refused = False

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cut(self) -> None:
        """The connection is lost."""

    def look(self) -> None:
        """Take up what has come."""

    def take(self, lines: Iterable[dict[str, Any]]) -> None:
        """Take up these JSON lines."""
        for line in lines:
            if line.get("epoch_start"):
                start = line["epoch_start"]
                self.sent.append(f"epoch {start['epoch']}")
                self.at = LogPosition(start["epoch"], start["serial"], start["digest"])
            elif "held" in line:
                self.typing = [fact["token"] for fact in line["held"] if fact["rows"]]
            elif "ephemeral" in line:
                self.type(line["ephemeral"]["token"])
            elif "serial" in line:
                self.sent.append(line["serial"])
                self.at = LogPosition(line["epoch"], line["serial"], line["digest"])

    def type(self, token: int) -> None:
        """An ephemeral fact has come; token 0 is that its writer was reset."""
        self.typing = [*self.typing, token] if token else []


class LinesPeer(Peer):
    """Processes on a shared channel, which are sent the lines that followers are sent."""

    def __init__(self, case: SiteCase, at: LogPosition, *, is_slow: bool) -> None:
        super().__init__(at, is_slow=is_slow)
        self.publisher = case.publisher
        writes = [("receipts", "master"), ("typing", "master")]
        self.reader = case.publisher.join_channel(self, writes)  # type: ignore[arg-type]
        self.reader.push_since(at.serial)

    def write(self, data: bytes) -> None:
        """Take up these lines."""
        for line in data.decode().splitlines():
            word, stream, _, *rest = line.split(" ", 4)
            if stream == "receipts" and word == "RDATA":
                self.sent.append(int(rest[0]))
                self.at = LogPosition(1, int(rest[0]), "")
            elif stream == "typing" and (word == "RDATA" or rest == ["0", "0"]):
                self.type(int(rest[0]))
        if self.is_slow:
            self.pause()

    def fail(self, why: str) -> None:
        self.is_refused = True

    def pause(self) -> None:
        self.reader.pause()

    def resume(self) -> None:
        self.reader.resume()

    def cut(self) -> None:
        self.reader.close()
        self.publisher.channel_senders.remove(self.reader)


class RelayPeer(Peer):
    """A replica on the native wire."""

    certified_name = None
    is_local = True

    def __init__(self, case: "RelayTests", at: LogPosition, *, is_slow: bool) -> None:
        super().__init__(at, is_slow=is_slow)
        self.logger = LimitedLogger(Logger(), case.clock)
        self.blocks = BlockBuffer()
        self.relay = attach(case.registry, self)  # type: ignore[arg-type]
        subscription = Subscribe(
            history=case.log.history, position=LogPosition(at.epoch, at.serial, at.digest)
        )
        self.relay.received(
            [
                Hello(uuid="u", name="n", version=VERSION),
                subscription,
            ]
        )

    def write(self, data: bytes) -> None:
        """Take up these blocks."""
        for block in self.blocks.runs(data):
            assert isinstance(block, Payload)
            lines = [json.loads(line) for line in bytes(block.data).splitlines()]
            if block.kind == "held":
                self.take([{"held": lines}])
            else:
                self.take(map(BLOCKS[block.kind], lines))
        if self.is_slow:
            self.pause()

    def send(self, command: Command) -> None:
        self.is_refused |= isinstance(command, Refused)

    def authenticated(self) -> None: ...

    def close(self) -> None: ...

    def pause(self) -> None:
        self.relay.pause()

    def resume(self) -> None:
        self.relay.resume()

    def cut(self) -> None:
        self.relay.closed("cut")


class HttpPeer(Peer):
    """A reader of the changelog that follows."""

    def __init__(self, case: SiteCase, at: LogPosition, *, is_slow: bool) -> None:
        super().__init__(at, is_slow=is_slow)
        self.talk: Talk = case.talk()
        self.talk.transport.is_slow = is_slow
        self.talk.transport.full_at = 0
        self.talk.say(
            case.request(
                "GET",
                "/v1/changelog?follow=true&ephemeral=true&epoch_starts=true"
                f"&since={at.serial}&epoch={at.epoch}&digest={at.digest}",
            )
        )
        self.seen = 0

    def look(self) -> None:
        lines = self.talk.answer().body.splitlines()
        self.is_refused = self.talk.transport.is_aborted
        self.take(json.loads(line) for line in lines[self.seen :])
        self.seen = len(lines)

    def pause(self) -> None:
        if self.talk.transport.producer is not None:
            self.talk.transport.producer.pauseProducing()

    def resume(self) -> None:
        if self.talk.transport.producer is not None:
            self.talk.transport.producer.resumeProducing()

    def cut(self) -> None:
        self.look()
        self.talk.leave()


class FeedContract(Case):
    """The ring holds the newest group alone, so that all else comes from the log."""

    ring_bytes = 1
    has_epochs = True
    refuses_trimmed = True

    def connect(self, at: LogPosition, *, is_slow: bool = False) -> Peer:
        """A reader that goes on here; a slow one takes one write, and then no more until it resumes."""
        raise NotImplementedError

    def write(self, count: int, *, groups: int = 1) -> None:
        """Commit so many facts in each of some groups."""
        for _ in range(groups):
            self.assertEqual(200, self.post("receipts", *[[receipt()]] * count).status)
            self.clock.advance(0.01)

    def type(self, count: int = 1) -> None:
        """Commit ephemeral facts, each in a group."""
        for _ in range(count):
            self.assertEqual(200, self.post("typing", [typing()]).status)
            self.clock.advance(0.01)

    def seen(self, peer: Peer) -> list[str | int]:
        """What it was sent, once it has read everything."""
        peer.is_slow = False
        for _ in range(100):
            peer.resume()
        peer.look()
        return peer.sent

    def test_a_reader_gets_what_there_is_and_what_comes(self) -> None:
        self.write(2, groups=2)
        peer = self.connect(BEGINNING)
        self.write(1, groups=2)

        self.assertEqual([1, 2, 3, 4, 5, 6], self.seen(peer))

    def test_a_slow_reader_gets_everything_once_and_costs_one_page(self) -> None:
        self.write(500, groups=4)
        peer = self.connect(BEGINNING, is_slow=True)
        self.write(500, groups=4)
        peer.look()
        self.assertLessEqual(len(peer.sent), 2_000)

        self.assertEqual([*range(1, 4_001)], self.seen(peer))

    def test_a_reader_under_which_the_log_is_trimmed_misses_nothing_unnoticed(self) -> None:
        peer = self.connect(BEGINNING)
        self.write(1)
        peer.pause()
        self.write(1, groups=5)
        self.wait(self.log.trim(4, lambda *_: None, 10))
        sent = self.seen(peer)

        self.assertEqual(self.refuses_trimmed, peer.is_refused)
        self.assertEqual([1] if self.refuses_trimmed else [1, 5, 6], sent)

    def test_a_reader_knows_what_is_held_after_its_writer_was_reset(self) -> None:
        peer = self.connect(BEGINNING)
        self.type(3)
        peer.look()
        self.assertEqual([1, 2, 3], peer.typing)
        peer.pause()
        self.log.reset_writer("typing", "master")
        self.type(2)
        self.write(1)
        sent = self.seen(peer)

        self.assertEqual(([1], [1, 2]), (sent, peer.typing))
        self.type()
        peer.look()
        self.assertEqual([1, 2, 3], peer.typing)

    def test_an_epoch_starts_between_pages(self) -> None:
        self.write(2)
        self.wait(self.log.epochs.begin_next("promoted"))
        self.write(2)
        peer = self.connect(BEGINNING)
        self.wait(self.log.epochs.begin_next("promoted"))
        self.write(1)

        epochs = [f"epoch {epoch}" for epoch in (2, 3)] if self.has_epochs else []
        sent = self.seen(peer)
        self.assertEqual([1, 2, *epochs[:1], 3, 4, *epochs[1:], 5], sent)

    def test_a_reader_that_is_cut_anywhere_goes_on_where_it_was(self) -> None:
        """Behind the first write, the second, and so on, and between the commits."""
        sent: list[str | int] = []
        at = BEGINNING
        for step in range(12):
            peer = self.connect(at, is_slow=True)
            self.write(1 + step % 3, groups=2)
            if step == 5:
                self.wait(self.log.epochs.begin_next("promoted"))
            for _ in range(step % 4):
                peer.resume()
            peer.cut()
            sent += peer.sent
            at = peer.at
        peer = self.connect(at)
        sent += self.seen(peer)

        serials = [one for one in sent if isinstance(one, int)]
        self.assertEqual([*range(1, self.log.head.serial + 1)], serials)
        self.assertEqual(["epoch 2"] * self.has_epochs, [one for one in sent if isinstance(one, str)])


class LinesTests(FeedContract, SiteCase):
    """Followers, which are sent what is left of a trimmed log."""

    has_epochs = False
    refuses_trimmed = False

    def connect(self, at: LogPosition, *, is_slow: bool = False) -> Peer:
        return LinesPeer(self, at, is_slow=is_slow)


class RelayTests(FeedContract, SiteCase):
    """Replicas on the native wire."""

    def setUp(self) -> None:
        super().setUp()
        roles: Any = SimpleNamespace(
            role="primary", is_whole=True, address=str, primary="", replica=None, is_linked=True
        )
        self.registry = ReplicaRegistry(
            self.log,
            self.publisher,
            self.clock,
            RelaySettings(server_name="hs.example"),
            roles,
        )
        self.registry.subscribe()
        self.addCleanup(self.registry.halt)

    def connect(self, at: LogPosition, *, is_slow: bool = False) -> Peer:
        return RelayPeer(self, at, is_slow=is_slow)


class HttpTests(FeedContract, SiteCase):
    """Readers of the changelog."""

    def connect(self, at: LogPosition, *, is_slow: bool = False) -> Peer:
        return HttpPeer(self, at, is_slow=is_slow)
