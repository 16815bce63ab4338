"""What a listener bears: many connections, many bad lines, and text that is not for terminals."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from twisted.internet.error import ConnectionAborted
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from synrepl.base.access import ALL_RIGHTS, Key, Keyring, Right
from synrepl.base.limited_logger import MAX_LINES, WINDOW_SECONDS
from synrepl.base.turn_queue import TurnQueue
from synrepl.testing import Cluster
from synrepl.transports.connection import ReplicationProtocol
from synrepl.transports.tcp import PublisherFactory
from synrepl.wire.commands import FORWARDED
from synrepl.wire.dialect import CURRENT, LEGACY
from synrepl.wire.grammar import Command
from tests.raw_peer import RawPeer, raw_client
from tests.replication.listeners import listener

READER = Key(name="reader", secret=None, rights=frozenset({Right.READ}))
WRITER = Key(name="writer", secret=None, rights=frozenset({Right.WRITE}))


class CertifiedProtocol(ReplicationProtocol):
    """Its peer has shown a certificate with the name under which it connects."""

    @property
    def certified_name(self) -> str:
        """That name."""
        name: bytes = self.transport.getPeer().name
        return name.decode()


class CertifiedFactory(PublisherFactory):
    """A listener that wants certificates, as one with TLS does."""

    protocol = CertifiedProtocol


@contextmanager
def logged() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    lines: list[str] = []
    with capturedLogs() as events:
        yield lines
    lines += [formatEvent(event) for event in events]


def connect(one: Cluster, address: str = "daemon", name: str = "raw") -> RawPeer:
    peer = raw_client(one.network, address, name)
    one.settle(0.05)
    return peer


def test_beyond_its_bound_a_listener_turns_connections_away() -> None:
    """They are told why, those that are there notice nothing, and a place that is free is given again."""
    one = Cluster()
    listener(one, "small", max_connections=3)
    peers = [connect(one, "small") for _ in range(3)]

    with logged() as lines:
        more = [connect(one, "small") for _ in range(50)]

    assert all(peer.is_connected for peer in peers)
    assert not any(peer.is_connected for peer in more)
    why = "this listener has 3 connections, its limit: try again later"
    assert [f"ERROR {why}"] == more[0].hears()
    assert MAX_LINES == len(lines)
    assert lines[0].startswith("rejecting ")
    assert lines[0].endswith(why)

    peers[0].drop()
    one.settle(0.1)
    again = connect(one, "small")
    again.says("REPLICATE")
    one.settle(0.1)
    assert "POSITION" in again.hears()[-1]


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "in a later turn"])
def test_a_connection_in_which_a_bug_raises_is_lost_as_any_other(*, is_late: bool) -> None:
    """Not kept for ever, with its place, for the rest of what it sent; of that nothing is handled."""
    one = Cluster()
    queue = TurnQueue(one.clock)
    factory = listener(one, "queued", queue=queue)
    protocol, transport = factory.buildProtocol(None), StringTransport()
    protocol.makeConnection(transport)
    seen: list[Command] = []

    def fail(command: Command) -> None:
        seen.append(command)
        raise ValueError("a bug")

    one.daemon.publisher.follower_commands.process_subscribers.append(fail)
    data = b"NAME w\nREPLICATE\n" + b"REMOTE_SERVER_UP a.example\n" * 1_000
    if is_late:
        queue.run_later(lambda: None)
        protocol.dataReceived(data)
        with logged() as lines:
            one.settle(0.1)
        assert ["the connection of w at 192.168.1.1:54321 failed"] == lines
        assert transport.disconnected
        protocol.connectionLost(Failure(ConnectionAborted()))
    else:
        with pytest.raises(ValueError, match="a bug") as raised:
            protocol.dataReceived(data)
        protocol.connectionLost(Failure(raised.value))  # as the reactor does
    one.settle(1)

    assert len(seen) == 1
    assert not factory.protocols
    assert not one.daemon.publisher.followers


def test_bad_lines_of_many_connections_are_few_lines_of_the_log() -> None:
    """15,425 of them were 15,425: a peer wrote the log at will."""
    one = Cluster()
    with logged() as lines:
        for number in range(200):
            peer = connect(one, name=f"raw{number}")
            peer.says(*["FOO bar"] * 5)
            one.settle(0.01)
        one.clock.pump([1] * int(WINDOW_SECONDS))

    assert len(lines) <= 2 * (MAX_LINES + 1)
    assert "; the last one: closing raw" in lines[-1]


def test_the_farewell_says_how_many_were_closed() -> None:
    """A shutdown with thousands of workers is no reason for thousands of lines."""
    one = Cluster()
    factory = listener(one, "many")
    for _ in range(30):
        connect(one, "many")
    with logged() as lines:
        factory.close("server shutting down")

    assert MAX_LINES + 1 == len(lines)
    assert lines[-1].startswith(f"similar lines dropped in the last minute: {30 - MAX_LINES};")


@pytest.mark.parametrize(
    "line",
    [
        "NAME \x1b]0;pwn\x07",
        "NAME a\u202eb",
        "ERROR \x1b[2J",
        "ERROR \x9b2J",
        "FOO\x1b[2J x",
        "REPLICATE \x1b[2J 5",
        "USER_SYNC i @a:hs \x1b[2J 1",
        "NAME " + "x" * 16_000,
        "ERROR " + "x" * 16_000,
    ],
    ids=lambda line: ascii(line[:30]),
)
def test_nothing_that_a_peer_says_reaches_log_or_terminal_raw(line: str) -> None:
    """An escape sequence in a log moves the cursor of who reads it, and may do worse."""
    one = Cluster()
    peer = connect(one)
    with logged() as lines:
        peer.says("NAME w", line, "FOO")
        one.settle(0.1)

    names = [follower.name for follower in one.daemon.publisher.followers]
    assert lines
    assert all(text.isprintable() and len(text) < 1_500 for text in [*lines, *names, *peer.hears()])


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((b"NAME worker\r", b"\n"), "a line must end with LF alone, not with CR LF"),
        ((b"ERROR \xff", b" x\n"), "a line is not UTF-8"),
        ((b"NAME worker\nNAME \xff", b"", b"x\n"), "a line is not UTF-8"),
    ],
)
def test_a_line_is_judged_as_a_whole_however_it_arrives(parts: tuple[bytes, ...], why: str) -> None:
    """What came last of it was plain ASCII, and the rest of it was not looked at again."""
    one = Cluster()
    peer = connect(one)
    peer.hears()

    for part in parts:
        peer.transport.write(part)
        one.settle(0.05)

    assert [f"ERROR {why}"] == peer.hears()
    assert not peer.is_connected


@pytest.mark.parametrize(
    "kept",
    [[READER], [READER, Key(name="other", secret=None, rights=READER.rights)]],
    ids=["removed", "fewer-rights"],
)
def test_a_certificate_that_was_revoked_ends_its_connections_alone(kept: list[Key]) -> None:
    """A follower stays connected for months: removing its key must not wait until it connects again."""
    one = Cluster()
    keys = Keyring(keys=[READER, Key(name="other", secret=None)])
    factory = listener(one, "tls", CertifiedFactory, keys=keys)
    follower, revoked = connect(one, "tls", "reader"), connect(one, "tls", "other")
    for peer in (follower, revoked):
        peer.says("REPLICATE push_rules 0")
        one.settle(0.1)
        assert "POSITION" in peer.hears()[-1]

    keys.replace(Keyring(keys=kept))
    factory.recheck()
    one.settle(0.1)

    assert (["ERROR your key was revoked or changed"], False) == (revoked.hears(), revoked.is_connected)
    assert ([], True) == (follower.hears(), follower.is_connected)


@pytest.mark.parametrize("name", ["stranger", "replica"])
def test_a_greeting_alone_is_not_refused(name: str) -> None:
    """A replica greets as a follower does. It proves its key later, and its certificate need not be one."""
    one = Cluster()
    keys = Keyring(keys=[Key(name="replica", secret=None, rights=frozenset({Right.REPLICATE}))])
    listener(one, "tls", CertifiedFactory, keys=keys)

    peer = connect(one, "tls", name)
    peer.says("NAME paris", "PING 5")
    one.settle(0.1)

    assert (["SERVER hs"], True) == (peer.hears(), peer.is_connected)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("stranger", "the certificate of stranger is not in keys_file, or was revoked"),
        ("writer", "the key writer lacks the right read: add it in keys_file"),
    ],
    ids=["stranger", "writer"],
)
@pytest.mark.parametrize(
    "line",
    [
        "REPLICATE push_rules 0",
        "USER_SYNC w1 @a:hs start 1",
        "REMOTE_SERVER_UP b.example",
        'INVALIDATE_CACHE get_user ["@a:hs"]',
        "REMOVE_PUSHER app key @a:hs",
    ],
    ids=lambda line: line.partition(" ")[0],
)
def test_who_may_not_read_is_told_nothing_and_not_heard(line: str, name: str, why: str) -> None:
    """The CA may have signed certificates for other ends. Some lines look the same in every release: what
    they say is not taken before it is known whether the peer may follow."""
    one = Cluster()
    listener(one, "tls", CertifiedFactory, keys=Keyring(keys=[READER, WRITER]))
    follower = connect(one)
    follower.says("REPLICATE push_rules 0", "REPLICATE caches 0")
    one.settle(0.1)
    follower.hears()

    peer = connect(one, "tls", name)
    peer.says(line, 'INVALIDATE_CACHE get_user ["@b:hs"]', "REMOTE_SERVER_UP c.example")
    one.settle(0.5)

    assert (["SERVER hs", f"ERROR {why}"], False) == (peer.hears(), peer.is_connected)
    assert [] == follower.hears()
    assert 0 == one.daemon.log.head.serial


LIMITED = Key(name="limited", secret=None, rights=ALL_RIGHTS, streams=frozenset({"push_rules"}))


@pytest.mark.parametrize("command", FORWARDED)
def test_a_command_that_concerns_other_streams_is_refused(command: type[Command]) -> None:
    """Before it changes anything. A key without a limit may send it."""
    examples = command.EXAMPLES
    dialect = CURRENT if CURRENT in examples else next(reversed(examples))
    for name in ("limited", "whole"):
        one = Cluster()
        whole = Key(name="whole", secret=None, rights=ALL_RIGHTS)
        listener(one, "certified", CertifiedFactory, keys=Keyring(None, [LIMITED, whole]))
        peer = connect(one, "certified", name)

        peer.says("REPLICATE push_rules NOW" if dialect is LEGACY else "REPLICATE", examples[dialect])
        one.settle(0.05)

        refused = [text for text in peer.hears() if text.startswith("ERROR the key limited may not see")]
        assert (name == "limited") == bool(refused) != peer.is_connected
        if refused:
            commands = one.daemon.publisher.follower_commands.buffer
            assert (0, 0) == (commands.head, one.daemon.publisher.log.head.serial)
