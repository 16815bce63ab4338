"""Sessions of replicas, without a connection: when they must have said who they are, and what blocks do."""

import pytest

from synrepl.errors import RemoteProtocolError
from synrepl.replicas.native_receiver import NativeReceiver
from synrepl.replicas.relay.hello import OPENING
from synrepl.replicas.wire.blocks import Payload, encode_block
from synrepl.replicas.wire.native_codec import native_codec
from synrepl.wire.commands import Ping
from synrepl.wire.dialect import NATIVE, Dialect
from synrepl.wire.grammar import CLIENT, SERVER
from synrepl.wire.keepalive import KEEPALIVE, Keepalive
from synrepl.wire.session import AUTO, Action, Close, Send, Session, Upgrade
from tests.wire.test_session import Time, delivered, error_text

NOT_AUTHENTICATED = "no valid HELLO came within 30 seconds"
WELCOME = (
    b'WELCOME {"history":"h","uuid":"u","instance":"i","server_name":"hs","role":"primary",'
    b'"position":{"epoch":1,"serial":0,"digest":"e"},"trimmed_upto":0}\n'
)
HELLO = b'HELLO {"uuid":"u","name":"n","version":3}'
SPOKEN = native_codec(ours=SERVER, theirs=CLIENT)


def server(
    dialect: Dialect | None = AUTO, time: Time | None = None, keepalive: Keepalive = KEEPALIVE
) -> Session:
    session = Session(
        SERVER, dialect, name="hs", seconds=time or Time(), keepalive=keepalive, opening=OPENING
    )
    if dialect is not AUTO:
        session.speak(SPOKEN)
    return session


def receive(session: Session, lines: list[bytes]) -> list[Action]:
    """What the session makes of these lines; a replica is served in its own dialect."""
    actions: list[Action] = []
    for action in session.receive(lines):
        if isinstance(action, Upgrade):
            session.speak(SPOKEN)
            actions += receive(session, list(action.lines))
        else:
            actions.append(action)
    return actions


class Driver:
    """What moves the bytes of a replica's session."""

    def __init__(self) -> None:
        self.session = Session(CLIENT, NATIVE, name="replica", seconds=Time())
        self.session.speak(native_codec(ours=CLIENT, theirs=SERVER))
        self.found: list[Action | Payload] = []
        self._receiver = NativeReceiver(self, self.found.append)

    @property
    def is_closed(self) -> bool:
        return self.session.closed

    def take_lines(self, lines: list[bytes]) -> None:
        self.found += self.session.receive(lines)

    def fail(self, why: str) -> None:
        self.found += self.session.fail(why)

    def read(self, data: bytes) -> list[Action | Payload]:
        """What the session makes of these bytes."""
        self.found.clear()
        try:
            self._receiver.dataReceived(data)
        except RemoteProtocolError as error:
            self.fail(error.why)
        return list(self.found)


class EndsAtOnce(list[Action | Payload]):
    """An owner that closes at what it gets first."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def append(self, found: Action | Payload) -> None:
        super().append(found)
        self._driver.session.end()


class TestBytes:
    """A driver only moves bytes."""

    @pytest.mark.parametrize("size", [1, 2, 7, 1_000])
    def test_they_may_end_anywhere(self, size: int) -> None:
        """A network cuts where it likes, also in the middle of a block."""
        data = b"PING 1\n" + WELCOME
        data += encode_block("facts", 1, b"{}\nPING 2\n") + b"PING 3\n"
        driver = Driver()
        actions: list[Action | Payload] = [
            action for at in range(0, len(data), size) for action in driver.read(data[at : at + size])
        ]

        blocks = [action.data for action in actions if isinstance(action, Payload)]
        sent = [action for action in actions if not isinstance(action, Payload)]
        assert [b"{}\nPING 2\n"] == blocks
        assert [Ping(text="1"), Ping(text="3")] == [one for one in delivered(sent) if isinstance(one, Ping)]
        assert not driver.session.closed

    def test_a_wrong_block_closes_after_what_came_before(self) -> None:
        """What came before was valid."""
        driver = Driver()
        data = WELCOME + b"BLOCK facts 1 3 00\n{}\n"
        *before, send, close = driver.read(data)

        assert ["WELCOME"] == [
            command.NAME for command in delivered([one for one in before if not isinstance(one, Payload)])
        ]
        assert isinstance(send, Send)
        assert isinstance(close, Close)
        assert driver.session.closed
        assert [] == driver.read(b"PING 2\n")

    def test_nothing_is_read_after_the_end_even_of_the_same_bytes(self) -> None:
        """The owner closes while it handles the first of two blocks."""
        driver = Driver()
        block = encode_block("facts", 1, b"{}\n")
        driver.found = EndsAtOnce(driver)
        driver._receiver._on_block = driver.found.append
        driver.read(block + b"PING 1\n" + block)

        assert [Payload("facts", 1, b"{}\n")] == list(driver.found)


class TestKeepalive:
    """A replica must say who it is, and then not fall silent."""

    @pytest.mark.parametrize(
        ("dialect", "received", "closed_at", "why"),
        [
            (NATIVE, [], 30, NOT_AUTHENTICATED),
            (NATIVE, [(0, b"NAME x"), (0, HELLO)], 30, NOT_AUTHENTICATED),
            (NATIVE, [(0, HELLO), (1, b"REMOTE_SERVER_UP far")], 30, NOT_AUTHENTICATED),
            (AUTO, [(0, HELLO)], 30, NOT_AUTHENTICATED),
            (AUTO, [(t, b"PING 1") for t in range(0, 100, 10)] + [(25, HELLO)], 30, NOT_AUTHENTICATED),
            (NATIVE, [(t, b"PING 1") for t in range(0, 100, 10)], 30, NOT_AUTHENTICATED),
        ],
    )
    def test_a_connection_without_a_request_is_closed(
        self, dialect: Dialect | None, received: list[tuple[int, bytes]], closed_at: int | None, why: str
    ) -> None:
        """5,000 of them stayed open forever."""
        time = Time()
        session = server(dialect, time=time)
        start = time.now
        actions: list[Action] = []
        while time.now < start + 1000 and not session.closed:
            receive(session, [line for at, line in received if start + at == time.now])
            if time.now >= session.deadline():
                actions = session.tick()
            if not session.closed:
                time.now += 1

        if closed_at is None:
            assert not session.closed
        else:
            assert (closed_at, why) == (time.now - start, error_text(actions))

    def test_the_time_for_a_request_is_not_that_of_a_replica(self) -> None:
        """A replica must authenticate although a person with netcat may think for a day."""
        time = Time()
        replica = server(time=time, keepalive=Keepalive(request_seconds=0))
        receive(replica, [HELLO])
        time.now += 30

        assert "no valid HELLO came within 30 seconds" in error_text(replica.tick())

    def test_a_silent_replica_times_out(self) -> None:
        """It sends PING and ACK. One that never sent either was still listed as idle after a minute."""
        time = Time()
        session = server(time=time)
        receive(session, [HELLO])
        session.authenticated()
        time.now += 25

        assert session.deadline() <= time.now
        assert "ping timeout" == error_text(session.tick())
