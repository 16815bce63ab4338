"""Native commands, between two synrepl daemons."""

import pytest

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.replicas.relay.hello import OPENING
from synrepl.replicas.wire.native import (
    NATIVE_COMMANDS,
    DigestsAre,
    Hello,
    Subscribe,
)
from synrepl.replicas.wire.native_codec import native_codec
from synrepl.wire.codec import codec_of
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.position import LogPosition
from synrepl.wire.session import AUTO, Action, Session, Upgrade


def len_of(integer: int) -> str:
    return f"{integer.bit_length()} bits"


def digits_of(integer: int) -> str:
    """Its digits; Python writes at most 4,300 of them."""
    return str(integer) if integer.bit_length() < 10_000 else "1" + "0" * 5_000


HELLO = b'HELLO {"uuid":"u","name":"replica1","version":3}'


def receive(session: Session, lines: list[bytes]) -> list[Action]:
    """What the session makes of these lines; a replica is served in its own dialect."""
    actions: list[Action] = []
    for action in session.receive(lines):
        if isinstance(action, Upgrade):
            session.speak(native_codec(ours=SERVER, theirs=CLIENT))
            actions += receive(session, list(action.lines))
        else:
            actions.append(action)
    return actions


def server(dialect: Dialect | None = AUTO) -> Session:
    return Session(SERVER, dialect, name="hs", seconds=lambda: 1000.0, opening=OPENING)


def test_the_names_that_only_a_replica_sends_are_those_of_its_commands() -> None:
    """They are written out, so that a daemon without replicas need not load the commands."""
    assert {one.NAME.encode() for one in NATIVE_COMMANDS if one.SENT_BY & CLIENT} == OPENING


@pytest.mark.parametrize("before", [[], [b"NAME replica1"], [b"NAME replica1", b"PING 1"], [b"PING 1"]])
def test_hello_makes_a_connection_native(before: list[bytes]) -> None:
    """One port serves replicas, too; the first NAME and PING of a client do not show its kind."""
    session = server()

    receive(session, before)
    assert session.dialect is None
    receive(session, [HELLO])

    assert NATIVE == session.dialect
    assert not session.closed


@pytest.mark.parametrize("line", [b"REPLICATE", b"REPLICATE events 5"])
def test_a_follower_stays_one(line: bytes) -> None:
    """A peer that sent a command of followers does not become a replica."""
    session = server()
    receive(session, [line])

    receive(session, [HELLO])

    assert NATIVE != session.dialect
    with pytest.raises(LocalProtocolError):
        session.encode([DigestsAre({})])


@pytest.mark.parametrize("dialect", [LEGACY, MIDDLE, CURRENT, NEWEST], ids=str)
@pytest.mark.parametrize("command", NATIVE_COMMANDS, ids=lambda command: command.__name__)
def test_no_release_receives_native_commands(dialect: Dialect, command: type[Command]) -> None:
    """Real peers fail on a command that they do not know."""
    ours = SERVER if SERVER in command.SENT_BY else CLIENT
    theirs = CLIENT if ours is SERVER else SERVER
    line = command.EXAMPLES[NATIVE].encode()
    parsed = native_codec(ours=theirs, theirs=ours).parse(line)

    assert native_codec(ours=ours, theirs=theirs).format(parsed) == line
    with pytest.raises(LocalProtocolError):
        codec_of(dialect, ours=ours, theirs=theirs).format(parsed)


REPLICAS = native_codec(ours=SERVER, theirs=CLIENT)
"""What a primary reads and writes."""

PRIMARYS = native_codec(ours=CLIENT, theirs=SERVER)


def test_a_body_is_decoded_as_it_was_encoded() -> None:
    """Fields that a later release adds are ignored."""
    subscription = Subscribe(history="h", position=LogPosition(1, 7, "d"), epoch_start=LogPosition(1, 3, "c"))
    line = PRIMARYS.format(subscription)

    assert subscription == REPLICAS.parse(line)
    assert Hello(uuid="u", name="n") == REPLICAS.parse(b'HELLO {"uuid":"u","name":"n","mood":"good"}')


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"uuid":5}', b'{"uuid":"\xff"}', b"[" * 2000])
def test_a_malformed_body_is_rejected(body: bytes) -> None:
    """With a message for the peer, and never a traceback."""
    with pytest.raises(RemoteProtocolError, match=r"cannot parse HELLO: body is (invalid|not UTF-8)"):
        REPLICAS.parse(b"HELLO " + body)


@pytest.mark.parametrize("integer", [2**63, -(2**63) - 1, 2**70, -(2**70), 10**400, 10**5000], ids=len_of)
@pytest.mark.parametrize(
    "line",
    [
        'HELLO {"uuid":"u","name":"n","version":%}',
        'JOIN {"join":"j","position":{"epoch":1,"serial":%,"digest":"d"}}',
        'SUBSCRIBE {"history":"h","position":{"epoch":%,"serial":1,"digest":"d"}}',
        'SUBSCRIBE {"history":"h","position":{"epoch":1,"serial":1,"digest":"d"},"clock":{"events":{"w":%}}}',
        'SUBSCRIBE {"history":"h","position":POSITION,"epoch_start":{"epoch":1,"serial":%,"digest":""}}',
        'SUBSCRIBE {"history":"h","position":{"epoch":1,"serial":1,"digest":"d"},"began_ms":%}',
        'SUBSCRIBED {"epoch":%,"serial":1,"digest":"d"}',
        'SUBSCRIBED {"epoch":1,"serial":%,"digest":"d"}',
        'REFUSED {"code":"c","message":"m","retryable":true,"epoch":%}',
        "DIGESTS [%]",
    ],
)
def test_integers_beyond_64_bits_are_rejected(line: str, integer: int) -> None:
    """SQLite would raise OverflowError for them."""
    line = line.replace("POSITION", '{"epoch":1,"serial":1,"digest":""}')
    reader = PRIMARYS if line.startswith(("SUBSCRIBED", "REFUSED")) else REPLICAS
    with pytest.raises(
        RemoteProtocolError, match=rf"cannot parse {line.split(maxsplit=1)[0]}: \w+ is invalid"
    ):
        reader.parse(line.replace("%", digits_of(integer)).encode())


@pytest.mark.parametrize(
    "body", ['{"epoch":-1,"serial":1,"digest":"d"}', '{"epoch":1,"serial":-1,"digest":"d"}']
)
def test_epochs_and_serials_are_never_below_zero(body: str) -> None:
    """There are no such positions."""
    with pytest.raises(RemoteProtocolError, match=r"cannot parse SUBSCRIBED: \w+ is invalid"):
        PRIMARYS.parse(f"SUBSCRIBED {body}".encode())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"ACK -1 5 1", "cannot parse ACK: epoch must be a 64-bit integer of at least 0, not '-1'"),
        (b"ACK 1 -5 1", "cannot parse ACK: serial must be a 64-bit integer of at least 0, not '-5'"),
        (b"ACK 1 9223372036854775808 1", "cannot parse ACK: serial must be a 64-bit integer of at least 0"),
        (b"ACK 1 5 9223372036854775808", "cannot parse ACK: at_ms must be a 64-bit integer, not"),
    ],
)
def test_an_ack_is_bounded(line: bytes, why: str) -> None:
    """As all integers of commands."""
    with pytest.raises(RemoteProtocolError, match=why):
        native_codec(ours=SERVER, theirs=CLIENT).parse(line)


@pytest.mark.parametrize(
    ("ours", "wider", "fits"),
    [
        (ALL, ALL, True),
        (Filter.of(streams=("a",)), ALL, True),
        (ALL, Filter.of(streams=("a",)), False),
        (Filter.of(streams=("a",)), Filter.of(streams=("a", "b")), True),
        (Filter.of(streams=("a", "c")), Filter.of(streams=("a", "b")), False),
        (Filter.of(streams=("a",)), Filter.of(streams=("a",), writers=("w",)), False),
        (Filter.of(streams=("a",), writers=("w",)), Filter.of(writers=("w", "x")), True),
    ],
)
def test_one_filter_is_within_another(ours: Filter, wider: Filter, *, fits: bool) -> None:
    """A replica with some of the facts can only serve those."""
    assert fits is ours.within(wider)


def test_the_secret_of_a_greeting_is_not_in_logs() -> None:
    """Nor what else a malformed one says."""
    hello = Hello(uuid="u", name="n", secret="rosebud")

    assert "rosebud" not in f"{hello} {hello!r}"
    for line in (
        b'HELLO {"uuid":5,"name":"n","secret":"rosebud"}',
        b'HELLO {"uuid":"u","name":"n","secret":["rosebud"]}',
        b'HELLO {"uuid":"u","name":"n","secret":"rosebud"',
        b'HELLO rosebud {"uuid":"u","name":"n"}',
        b'HELLO {"secret":"rosebud"} \r',
        b'HELLO {"secret":"rosebud\xff"}',
        b"HELLO rosebud " + b"x" * 100_000,
        b'hello {"secret":"rosebud"}',
    ):
        for dialect in (AUTO, NATIVE, LEGACY, MIDDLE, CURRENT, NEWEST):
            assert "rosebud" not in str(receive(server(dialect), [line])), line
