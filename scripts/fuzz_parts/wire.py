"""Targets of the wire: line connections, and the Redis channel of a homeserver."""

from collections.abc import Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from scripts.fuzz_parts.target import MAX_ANSWER, BadAnswer, Target, conversed, words
from synrepl.base.metrics import Metrics
from synrepl.replication.follower.follower import Follower
from synrepl.streams.table import StreamTable
from synrepl.testing import Cluster
from synrepl.transports.tcp import FollowerFactory
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect
from synrepl.wire.grammar import BROKER
from synrepl.wire.session import Close, Deliver, Session, Warn
from tests.captures import GOLDEN, said
from tests.replication.test_daemon_member import Setup

__all__ = ["DIALECTS", "TABLE", "RedisTarget", "SessionTarget"]

TABLE: Final = StreamTable.default()
DIALECTS: Final[Sequence[Dialect]] = (LEGACY, MIDDLE, CURRENT, NEWEST, NATIVE)


class SessionTarget(Target):
    """A line connection, on either side, in each dialect.

    The first byte of the input is the side and the dialect, the second the seed by which the rest is split.
    """

    def seeds(self) -> list[bytes]:
        spoken: dict[tuple[int, bool], list[bytes]] = {}
        for one in said():
            key = (DIALECTS.index(one.dialect), one.by_server)
            if len(lines := spoken.setdefault(key, [])) < 400:
                lines.append(one.line)
        found = []
        for (dialect, by_server), lines in spoken.items():
            for start in range(0, len(lines), 40):
                text = b"\n".join(lines[start : start + 40]) + b"\n"
                found.append(bytes([2 * dialect + by_server, 3]) + text)
                found.append(bytes([10, 3]) + text)
        return found

    def run(self, data: bytes) -> object:
        how, seed, text = (*data[:1], 0)[0], (*data[1:2], 0)[0], data[2:]
        whole = self._converse(how, text, 0)
        if seed and (parts := self._converse(how, text, seed)) and parts[1] != whole[1]:
            raise BadAnswer(f"closed in one piece: {whole[1]}, in pieces: {parts[1]}; {whole[0]!r}")
        return how % 11, words(whole[0]), whole[1]

    def _converse(self, how: int, text: bytes, seed: int) -> tuple[bytes, bool]:
        if how % 11 == 10:
            return self._heard(text)
        if how % 2:
            return self._followed(DIALECTS[how // 2 % 4], text, seed)
        return self._served(how, text, seed)

    @staticmethod
    def _served(how: int, text: bytes, seed: int) -> tuple[bytes, bool]:
        """Send the text to a server, which detects the dialect or is configured for it."""
        one = Cluster()
        one.daemon.append("to_device", [[["@a:hs"]]])
        one.settle(0.01)
        factory = one.daemon._factories[how // 2 % len(one.daemon._factories)]
        protocol: Any = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        return conversed(protocol, one.clock, text, seed)

    @staticmethod
    def _followed(dialect: Dialect, text: bytes, seed: int) -> tuple[bytes, bool]:
        """Send the text to a client."""
        clock = Clock()
        metrics = Metrics(CollectorRegistry())
        follower = Follower(instance="worker", clock=clock, streams=TABLE, metrics=metrics)
        follower.on_everything(lambda updates: None)
        factory = FollowerFactory(
            follower, dialect=dialect, expected_server=None, clock=clock, metrics=metrics
        )
        protocol: Any = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        return conversed(protocol, clock, text, seed)

    @staticmethod
    def _heard(text: bytes) -> tuple[bytes, bool]:
        """Send messages of a shared channel, one a line; they are never split."""
        session = Session(BROKER, NEWEST, name="us", seconds=lambda: 0.0)
        kinds = [type(action).__name__ for action in session.receive(text.split(b"\n"))]
        return "\n".join(sorted(set(kinds))).encode(), False


class RedisTarget(Target):
    """Messages on the Redis channel of a homeserver, to one of its processes; a line is a message."""

    def seeds(self) -> list[bytes]:
        spoken = [one.line for one in said() if one.dialect is CURRENT]
        rows = [
            line.strip().encode() for line in (GOLDEN / "redis" / "rows.txt").read_text("utf-8").splitlines()
        ]
        spoken += [b'RDATA caches w1 5 ["get_user",["@a:hs"],1]', b"POSITION to_device us 3 3", *rows]
        return [b"\n".join(spoken[start : start + 30]) for start in range(0, min(len(spoken), 1500), 30)]

    def run(self, data: bytes) -> object:
        setup = Setup()
        session = Session(BROKER, NEWEST, name="us", seconds=setup.clock.seconds)
        kinds = set()
        for action in session.receive(data.split(b"\n")):
            kinds.add(type(action).__name__)
            if isinstance(action, Deliver):
                setup.member.received(action.commands)
            else:
                assert isinstance(action, Warn | Close)
        setup.wait(2)
        told = setup.told()
        setup.member.stop()
        if sum(map(len, told)) > MAX_ANSWER:
            raise BadAnswer(f"{len(told)} lines were published, with more than {MAX_ANSWER} bytes")
        return sorted(kinds), sorted({line.split(" ")[0] for line in told}), bool(setup.applied)
