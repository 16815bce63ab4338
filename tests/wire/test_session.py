"""Sessions, without a connection."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.errors import LocalProtocolError
from synrepl.wire.codec import MAX_LENGTH, LineBuffer
from synrepl.wire.commands import Error, Name, Ping, Position, Rdata, Replicate, Server, UserSync
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NEWEST, Dialect
from synrepl.wire.grammar import BROKER, CLIENT, SERVER, Command, Side
from synrepl.wire.keepalive import Keepalive
from synrepl.wire.session import AUTO, MAX_TEXT, Action, Close, Deliver, Send, Session, Warn

NO_REQUEST = "no request within 30 seconds: send REPLICATE to follow"


class Time:
    """A clock that is advanced by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def server(dialect: Dialect | None = AUTO, time: Time | None = None) -> Session:
    return Session(SERVER, dialect, name="hs", seconds=time or Time())


def client(dialect: Dialect = CURRENT, expected: str | None = "hs", time: Time | None = None) -> Session:
    return Session(CLIENT, dialect, name="worker 1", seconds=time or Time(), expected_server=expected)


def receive(session: Session, lines: list[bytes]) -> list[Action]:
    return list(session.receive(lines))


def delivered(actions: Sequence[Action]) -> list[Command]:
    commands: list[Command] = []
    for action in actions:
        if isinstance(action, Deliver):
            for command in action.commands:
                commands += [command] if isinstance(command, Command) else list(command.commands())
    return commands


def error_text(actions: list[Action]) -> str:
    """The error that the peer receives; it must be one ERROR line, followed by the close."""
    *before, send, close = actions
    assert all(isinstance(action, Deliver) for action in before)
    assert isinstance(send, Send)
    assert isinstance(close, Close)
    assert send.data.startswith(b"ERROR ")
    assert send.data.endswith(b"\n")
    assert send.data.count(b"\n") == 1
    return send.data[6:-1].decode()


class TestGreeting:
    """Both sides send a greeting at once."""

    def test_a_server_says_who_it_is_and_enables_time_outs(self) -> None:
        """The first line tells the client whether this is the right server."""
        assert [Send(b"SERVER hs\nPING 1000000\n")] == server().connected()

    def test_a_client_says_its_name_and_enables_time_outs(self) -> None:
        """It sends no request: that is the follower's task."""
        assert [Send(b"NAME worker 1\nPING 1000000\n")] == client().connected()

    def test_a_client_leaves_a_server_of_another_name(self) -> None:
        """Facts of another homeserver must never be applied."""
        session = client(expected="hs")

        assert "wrong server_name: the server is other, expected hs" == error_text(
            receive(session, [b"SERVER other"])
        )
        assert session.closed

    def test_a_client_without_an_expected_server_accepts_any(self) -> None:
        """A tool like tail may connect to any server."""
        assert delivered(receive(client(expected=None), [b"SERVER x"])) == [Server(server_name="x")]

    def test_a_client_cannot_detect_its_own_dialect(self) -> None:
        """Only a server can wait for the first command."""
        with pytest.raises(LocalProtocolError):
            Session(CLIENT, AUTO, name="x", seconds=Time())


class TestDialects:
    """A listener detects the dialect of its peer."""

    @pytest.mark.parametrize(
        ("line", "dialect"),
        [
            (b"REPLICATE", CURRENT),
            (b"REPLICATE ", CURRENT),
            (b"REPLICATE events 53", LEGACY),
            (b"REPLICATE ALL NOW", LEGACY),
            (b"REPLICATE events now", LEGACY),
            (b"USER_SYNC @a:b start 1", LEGACY),
            (b"USER_SYNC xyz @a:b start 1", CURRENT),
            (b"FEDERATION_ACK 5", LEGACY),
            (b"FEDERATION_ACK sender 5", CURRENT),
            (b"NAME x", None),
            (b"PING 1", None),
            (b"PING", None),
            (b"", None),
            (b"ERROR oh", None),
            (b"REMOTE_SERVER_UP example.org", None),
            (b'USER_IP @a:b ["t","i","u",null,1]', None),
        ],
    )
    def test_the_first_decisive_command_decides(self, line: bytes, dialect: Dialect | None) -> None:
        """One port serves old and new followers at once, and netcat."""
        session = server()

        actions = receive(session, [b"NAME n", line])

        assert not session.closed
        assert dialect == session.dialect
        assert delivered(actions)[0] == Name(name="n")

    def test_a_detected_dialect_does_not_change(self) -> None:
        """A connection has one dialect."""
        session = server()
        receive(session, [b"REPLICATE events NOW"])

        assert "token must be a 64-bit integer or NOW" in error_text(receive(session, [b"REPLICATE x y"]))

    def test_a_line_that_no_dialect_can_parse_is_rejected(self) -> None:
        """A person at netcat who mistypes a token gets an error, not another stream."""
        assert (
            error_text(receive(server(), [b"REPLICATE events abc"]))
            == "cannot parse REPLICATE: token must be a 64-bit integer or NOW, not 'abc'"
        )

    def test_naming_a_stream_shows_no_old_release(self) -> None:
        """A follower of a current release asks for streams that are sent on request."""
        for line in (b"REPLICATE +packages", b"REPLICATE +packages +seen"):
            session = server()
            [deliver] = receive(session, [line])

            assert session.dialect == CURRENT
            assert deliver.commands[0].named == line.decode().replace("+", "").split()[1:]  # type: ignore[union-attr]

    def test_middle_must_be_configured(self) -> None:
        """No command distinguishes it from current."""
        session = server(MIDDLE)

        line = session.encode([Position(stream="events", prev_token=1, token=2)])

        assert b"POSITION events master 2\n" == line


class TestKeepalive:
    """PING after 5 s without sending; time out 25 s after the last line, if the peer has ever pinged."""

    def test_an_idle_session_sends_ping(self) -> None:
        """So that the other side does not time out."""
        time = Time()
        session = server(time=time)
        session.connected()

        time.now += 4.9
        assert [] == session.tick()
        time.now += 0.1
        assert [Send(b"PING 1005000\n")] == session.tick()
        assert session.deadline() == 1010.0

    def test_sending_anything_puts_off_the_ping(self) -> None:
        """PING is rare on a busy connection."""
        time = Time()
        session = server(time=time)
        session.connected()
        time.now += 4
        session.sent()
        time.now += 4

        assert [] == session.tick()

    @pytest.mark.parametrize("ping", [b"PING 1", b"PING", b"PING "])
    def test_a_peer_that_pinged_and_fell_silent_is_timed_out(self, ping: bytes) -> None:
        """Its process or its network failed."""
        time = Time()
        session = server(time=time)
        receive(session, [ping])

        time.now += 24.9
        assert not session.closed
        session.tick()
        time.now += 0.1

        assert "ping timeout" == error_text(session.tick())

    def test_any_line_restarts_the_timeout(self) -> None:
        """A busy client need not ping."""
        time = Time()
        session = server(time=time)
        receive(session, [b"PING 1"])
        time.now += 20
        receive(session, [b"NAME x"])
        time.now += 20
        session.tick()

        assert not session.closed

    def test_a_peer_that_never_pinged_is_never_timed_out(self) -> None:
        """A person at netcat does not type PING."""
        time = Time()
        session = server(time=time)
        receive(session, [b"REPLICATE"])
        time.now += 100_000
        session.tick()

        assert not session.closed

    @pytest.mark.parametrize(
        ("dialect", "received", "closed_at", "why"),
        [
            # (the listener's dialect, what is received and when, when it closes, the error)
            (AUTO, [], 30, NO_REQUEST),
            (CURRENT, [], 30, NO_REQUEST),
            (LEGACY, [], 30, NO_REQUEST),
            (AUTO, [(0, b"")], 30, NO_REQUEST),
            (AUTO, [(0, b"NAME x")], 30, NO_REQUEST),
            (CURRENT, [(29, b"NAME x")], 30, NO_REQUEST),
            (AUTO, [(1, b"ERROR oh")], 30, NO_REQUEST),
            # PING alone keeps a connection as long as its time-out does.
            (AUTO, [(0, b"PING 1")], 25, "ping timeout"),
            (AUTO, [(20, b"PING 1")], 45, "ping timeout"),
            (CURRENT, [(t, b"PING 1") for t in range(0, 100, 10)], 115, "ping timeout"),
            # A person at netcat may take some time, and needs not PING.
            (AUTO, [(0, b"REPLICATE push_rules 0")], None, ""),
            (AUTO, [(29, b"REPLICATE push_rules 0")], None, ""),
            (CURRENT, [(20, b"REPLICATE")], None, ""),
            (AUTO, [(0, b"NAME x"), (1, b"REPLICATE ")], None, ""),
            (LEGACY, [(5, b"USER_SYNC @a:hs start 1")], None, ""),
            (AUTO, [(5, b"REMOTE_SERVER_UP far")], None, ""),
            # Who follows and has sent PING is timed out as ever.
            (AUTO, [(0, b"REPLICATE"), (50, b"PING 1")], 75, "ping timeout"),
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

    def test_a_driver_that_wakes_at_the_deadline_closes_in_time(self) -> None:
        """Also if PING is due later."""
        time = Time()
        session = Session(
            SERVER, AUTO, name="hs", seconds=time, keepalive=Keepalive(ping_seconds=40, timeout_seconds=90)
        )

        assert session.deadline() == 1030.0
        time.now = session.deadline()
        assert error_text(session.tick()) == NO_REQUEST

    def test_the_time_for_a_request_can_be_set_or_none(self) -> None:
        """With 0 a person with netcat may think for a day."""
        time = Time()
        patient = Session(SERVER, AUTO, name="hs", seconds=time, keepalive=Keepalive(request_seconds=0))
        quick = Session(SERVER, AUTO, name="hs", seconds=time, keepalive=Keepalive(request_seconds=2))
        assert quick.deadline() == 1002.0

        time.now += 2
        assert "no request within 2 seconds: send REPLICATE to follow" in error_text(quick.tick())
        time.now += 28
        time.now += 100_000
        patient.tick()
        assert not patient.closed

    def test_a_client_does_not_time_out_its_server(self) -> None:
        """A server need not send anything."""
        time = Time()
        session = client(time=time)
        time.now += 1000
        session.tick()

        assert not session.closed

    def test_ping_and_timeout_can_be_set(self) -> None:
        """Networks differ."""
        time = Time()
        session = Session(
            SERVER, AUTO, name="hs", seconds=time, keepalive=Keepalive(ping_seconds=1, timeout_seconds=3)
        )
        receive(session, [b"PING 1"])

        assert session.deadline() == 1001.0
        time.now += 3
        assert "ping timeout" == error_text(session.tick())

    def test_a_peer_does_not_time_out_while_reading_is_paused(self) -> None:
        """While a slow subscriber pauses reading, the peer's pings wait in a buffer."""
        time = Time()
        session = client(time=time)
        receive(session, [b"PING 1"])
        time.now += 100
        session.restart_timeout()
        session.tick()

        assert not session.closed


BAD_INPUT: list[tuple[str, Side, list[bytes], str]] = [
    # (what, side that hears it, lines, what the peer reads)
    ("bad UTF-8", SERVER, [b"NAME \xff\xfe"], "a line is not UTF-8"),
    ("bad UTF-8 in a row", CLIENT, [b'RDATA events master 1 ["\xff"]'], "a line is not UTF-8"),
    ("CR LF", SERVER, [b"PING 1\r"], "a line must end with LF alone, not with CR LF"),
    ("CR LF after a word", SERVER, [b"REPLICATE\r"], "a line must end with LF alone, not with CR LF"),
    ("a blank line with CR", SERVER, [b"\r"], "a line must end with LF alone, not with CR LF"),
    ("percent signs", SERVER, [b"FOO %s %d %n"], "invalid command: 'FOO'"),
    ("percent signs in an argument", SERVER, [b"USER_SYNC i @a:b %s 1"], "cannot parse USER_SYNC"),
    ("unknown command", SERVER, [b"FOO bar"], "invalid command: 'FOO'"),
    ("lower case", SERVER, [b"ping 1"], "invalid command: 'ping'"),
    (
        "wrong direction, to a server",
        SERVER,
        [b"RDATA a b 1 []"],
        "invalid command: RDATA is for the other direction",
    ),
    (
        "wrong direction, to a client",
        CLIENT,
        [b"REPLICATE "],
        "invalid command: REPLICATE is for the other direction",
    ),
    ("no argument", SERVER, [b"NAME"], "cannot parse NAME: expected NAME <name...>, got nothing"),
    ("no argument, to a client", CLIENT, [b"SERVER"], "cannot parse SERVER: expected SERVER <server_name>"),
    ("no row", CLIENT, [b"RDATA events master 5 "], "cannot parse RDATA: row must be JSON, not empty"),
    ("no token", CLIENT, [b"RDATA events master"], "cannot parse RDATA: expected RDATA <stream>"),
    (
        "a word for a token",
        CLIENT,
        [b"RDATA events master x []"],
        "cannot parse RDATA: token must be a 64-bit",
    ),
    ("a bad position", CLIENT, [b"POSITION events master 5"], "cannot parse POSITION: expected POSITION"),
    ("control characters", SERVER, [b"\x00\x01\x02"], "invalid command: '\\x00\\x01\\x02'"),
    ("a tab for a space", SERVER, [b"PING\t1"], "invalid command: 'PING\\t1'"),
]


@pytest.mark.parametrize(("what", "side", "lines", "text"), BAD_INPUT, ids=[row[0] for row in BAD_INPUT])
def test_bad_input_gets_a_clear_error_and_the_close(
    what: str, side: Side, lines: list[bytes], text: str
) -> None:
    """Real peers close without an ERROR for half of these."""
    session = server(CURRENT) if side is SERVER else client()

    assert error_text(receive(session, lines)).startswith(text)
    assert session.closed


@pytest.mark.parametrize(("what", "side", "lines", "text"), BAD_INPUT, ids=[row[0] for row in BAD_INPUT])
def test_commands_before_bad_input_are_delivered(
    what: str, side: Side, lines: list[bytes], text: str
) -> None:
    """Commands after it are not."""
    session = server(CURRENT) if side is SERVER else client()

    actions = receive(session, [b"PING 1", *lines, b"PING 2"])

    assert delivered(actions) == [Ping(text="1")]
    assert receive(session, [b"PING 3"]) == []


def test_blank_lines_are_ignored() -> None:
    """As documented, although no release with TCP does it."""
    session = server()

    assert receive(session, [b"", b"PING 1", b"", b""]) == [Deliver([Ping(text="1")])]


def test_the_error_for_a_long_line_names_the_limit() -> None:
    """16,384 bytes, on every release. The lines before it are delivered."""
    session = server()
    longest = b"NAME " + b"x" * (MAX_LENGTH - 5)
    assert delivered(receive(session, [longest, b"PING 1"]))[1:] == [Ping(text="1")]

    found, *actions = receive(session, [b"PING 2", longest + b"x"])

    assert delivered([found]) == [Ping(text="2")]
    assert error_text(actions) == f"Line length exceeded: a line has at most {MAX_LENGTH} bytes"


@pytest.mark.parametrize("excess", [-1, 0, 1, 2])
@pytest.mark.parametrize("before", [[], [0], [0, 0], [3], [MAX_LENGTH], [MAX_LENGTH - 1, 0], [MAX_LENGTH, 1]])
@pytest.mark.parametrize("after", [[], [0], [MAX_LENGTH]])
def test_a_long_line_is_found_wherever_it_stands(before: list[int], after: list[int], excess: int) -> None:
    """The lines are not looked at one by one; those before it are delivered."""
    lengths = [*before, MAX_LENGTH + excess, *after]

    actions = receive(
        client(), [b"PING ".ljust(length, b"1")[:length] if length > 5 else b"" for length in lengths]
    )

    good = len(before) if excess > 0 else len(lengths)
    assert sum(length > 5 for length in lengths[:good]) == len(delivered(actions))
    assert (excess > 0) == any(isinstance(action, Close) for action in actions)


def test_an_error_of_the_peer_is_delivered_and_the_connection_kept() -> None:
    """Its sender closes the connection."""
    session = client()

    assert receive(session, [b"ERROR server shutting down"]) == [
        Deliver([Error(text="server shutting down")])
    ]
    assert not session.closed


def test_an_error_of_the_peer_is_safe_to_show() -> None:
    """It is shown in logs and terminals."""
    (error,) = delivered(receive(client(), [b"ERROR a\x1b[2J\tb " + b"x" * 2_000]))

    assert isinstance(error, Error)
    assert error.text.startswith("a\\x1b[2J b x")
    assert len(error.text) <= MAX_TEXT + len("\\x1b[2J...")


def test_failing_twice_sends_one_error() -> None:
    """Two reasons to close at the same time make one ERROR."""
    session = server()
    session.fail("one")

    assert [] == session.fail("two")


def test_an_error_never_breaks_the_line() -> None:
    """The text of an exception may contain anything."""
    assert error_text(server().fail("a\nb\r\nc % s " + "x" * 5000)).startswith("a b c % s xxx")


def test_rows_in_a_run_are_delivered_in_order_between_other_commands() -> None:
    """A POSITION between two rows must stay between them."""
    session = client()
    lines = [
        b"RDATA events w 1 [1]",
        b"RDATA events w 2 [2]",
        b"POSITION events w 2 5",
        b"RDATA events w batch [6]",
        b"RDATA events w 6 [6]",
        b"RDATA caches w 9 [9]",
    ]

    assert delivered(receive(session, lines)) == [
        Rdata(stream="events", instance="w", token=1, row=b"[1]"),
        Rdata(stream="events", instance="w", token=2, row=b"[2]"),
        Position(stream="events", instance="w", prev_token=2, token=5),
        Rdata(stream="events", instance="w", token=None, row=b"[6]"),
        Rdata(stream="events", instance="w", token=6, row=b"[6]"),
        Rdata(stream="caches", instance="w", token=9, row=b"[9]"),
    ]


def test_what_a_client_sends_is_checked_on_sending() -> None:
    """A worker that sends RDATA has a bug, which must not reach the server."""
    with pytest.raises(LocalProtocolError):
        client().encode([Rdata(stream="a", token=1, row=b"[]")])
    assert client(LEGACY).encode([Replicate(stream="events", token=None)]) == b"REPLICATE events NOW\n"


def test_user_sync_reads_the_same_whatever_the_release() -> None:
    """All forms become one command."""
    legacy, current = server(), server()
    receive(legacy, [b"REPLICATE events NOW"])

    assert delivered(receive(legacy, [b"USER_SYNC @a:b end 7"])) == [
        UserSync(user_id="@a:b", is_syncing=False, last_sync_ms=7)
    ]
    assert delivered(receive(current, [b"USER_SYNC i @a:b end 7"])) == [
        UserSync(instance_id="i", user_id="@a:b", is_syncing=False, last_sync_ms=7)
    ]


WORDS = [
    b"RDATA", b"POSITION", b"PING", b"NAME", b"SERVER", b"ERROR", b"REPLICATE", b"USER_SYNC", b"USER_IP",
    b"FEDERATION_ACK", b"REMOVE_PUSHER", b"INVALIDATE_CACHE", b"LOCK_RELEASED", b"SYNC", b"CLEAR_USER_SYNC",
    b"events", b"master", b"batch", b"NOW", b"ALL", b"start", b"end", b"1", b"-1", b"99999999999999999999",
    b"[1,2]", b'["a"]', b"{", b"", b"%s", b"\xff", b"\r", b"\x00", b"NaN",
]  # fmt: skip


@given(
    pieces=st.lists(st.one_of(st.binary(max_size=40), st.lists(st.sampled_from(WORDS)).map(b" ".join))),
    cuts=st.lists(st.integers(0, 200)),
    dialect=st.sampled_from([AUTO, LEGACY, MIDDLE, CURRENT]),
    side=st.sampled_from([SERVER, CLIENT]),
)
@settings(max_examples=4 * settings().max_examples)
def test_nothing_that_a_peer_sends_makes_a_session_raise(
    pieces: list[bytes], cuts: list[int], dialect: Dialect | None, side: Side
) -> None:
    """It sends one ERROR line and closes, for any input in any chunks."""
    session = server(dialect) if side is SERVER else client(dialect or CURRENT, expected=None)
    lines = LineBuffer()
    data = b"\n".join(pieces) + b"\n"
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    closes = 0

    for start, end in pairwise(places):
        chunk = data[start:end]
        for action in (actions := receive(session, lines.receive(chunk))):
            if isinstance(action, Close):
                closes += 1
                error_text(actions)

    assert closes == session.closed


class TestSharedChannel:
    """A broker has no peer to greet, to time out or to close on."""

    def channel(self, time: Time | None = None) -> Session:
        return Session(BROKER, NEWEST, name="w1", seconds=time or Time())

    def test_a_channel_has_no_greeting_and_no_timeout(self) -> None:
        """The connection to the broker has its own."""
        time = Time()
        session = self.channel(time)
        time.now += 1000

        assert ([], [], math.inf) == (session.connected(), session.tick(), session.deadline())

    @pytest.mark.parametrize("user", ["ada", "\u00e4"])
    def test_an_invalid_message_does_not_affect_others(self, user: str) -> None:
        """As in real processes: it is logged, and the messages around it are delivered."""
        row = f'RDATA typing w 3 ["!r:hs",["@{user}:hs"]]'.encode()
        good = [b"REPLICATE ", b"", b"NEW_ACTIVE_TASK a", row]
        bad = [
            b"replicate ",
            b" REPLICATE",
            b"PING 1",
            b"SERVER x",
            b"ERROR x",
            b"RDATA typing",
            b"POSITION a b",
        ]
        messages = [message for pair in zip(bad, [*good, *good], strict=False) for message in pair]

        actions = receive(self.channel(), messages)

        assert len(bad) == sum(isinstance(action, Warn) for action in actions)
        assert ["REPLICATE", "NEW_ACTIVE_TASK", "RDATA", "REPLICATE", "NEW_ACTIVE_TASK"] == [
            command.NAME for command in delivered(actions)
        ]

    def test_a_line_end_in_a_message_cannot_end_a_line(self) -> None:
        """It is white space in JSON, or an attack."""
        (action,) = receive(self.channel(), [b'RDATA typing w 3 ["!r:hs",\r\n[]]'])

        assert [Rdata(stream="typing", instance="w", token=3, row=b'["!r:hs",  []]')] == delivered([action])
        assert isinstance(receive(self.channel(), [b"REMOTE_SERVER_UP a\nRDATA"])[0], Warn)

    def test_a_message_that_is_not_utf8_is_invalid(self) -> None:
        """Also if the bytes are within a row."""
        assert [Warn("a message is not UTF-8")] == receive(self.channel(), [b"RDATA typing w 3 [\xff]"])

    def test_messages_may_be_longer_than_lines(self) -> None:
        """Real processes have no limit for messages."""
        row = b'["%s"]' % (b"x" * MAX_LENGTH)
        session = self.channel()

        line = session.encode([Rdata(stream="typing", instance="w", token=3, row=row)])

        assert line == b"RDATA typing w 3 " + row + b"\n"
        assert len(delivered(receive(session, [line[:-1]]))) == 1
