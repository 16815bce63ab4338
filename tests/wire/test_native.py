"""What two daemons of ours say to each other, and nobody else hears."""

import msgspec
import pytest

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire.codec import codec_of
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect
from synrepl.wire.filter import ALL, Filter
from synrepl.wire.grammar import CLIENT, SERVER, Command
from synrepl.wire.native import (
    Challenge,
    Greeting,
    JoinRequest,
    Refusal,
    Subscription,
    WirePosition,
    decode_body,
    encode_body,
    native_commands,
)
from synrepl.wire.session import AUTO, Session


def len_of(integer: int) -> str:
    return f"{integer.bit_length()} bits"


def digits_of(integer: int) -> str:
    """Its digits; Python writes no more than 4,300 of them."""
    return str(integer) if integer.bit_length() < 10_000 else "1" + "0" * 5_000


HELLO = b'HELLO {"uuid":"u","name":"replica1","nonce":"n"}'


def server(dialect: Dialect | None = AUTO) -> Session:
    return Session(SERVER, dialect, name="hs", seconds=lambda: 1000.0)


@pytest.mark.parametrize("before", [[], [b"NAME replica1"], [b"NAME replica1", b"PING 1"], [b"PING 1"]])
def test_hello_decides(before: list[bytes]) -> None:
    """One port serves replicas too; what a client says at once means nothing yet."""
    session = server()

    session.receive(before)
    assert session.dialect is None
    session.receive([HELLO])

    assert NATIVE == session.dialect
    assert not session.closed


@pytest.mark.parametrize("line", [b"REPLICATE", b"REPLICATE events 5"])
def test_a_follower_stays_one(line: bytes) -> None:
    """Who has said what only followers say cannot be answered as a replica."""
    session = server()
    session.receive([line])

    session.receive([HELLO])

    assert NATIVE != session.dialect
    with pytest.raises(LocalProtocolError):
        session.encode([Challenge(body=b"{}")])


@pytest.mark.parametrize("dialect", [LEGACY, MIDDLE, CURRENT, NEWEST], ids=str)
@pytest.mark.parametrize("command", native_commands(), ids=lambda command: command.__name__)
def test_no_release_is_sent_any_of_it(dialect: Dialect, command: type[Command]) -> None:
    """Real peers fail on a command that they do not know."""
    ours = SERVER if SERVER in command.SENT_BY else CLIENT
    theirs = CLIENT if ours is SERVER else SERVER
    line = command.EXAMPLES[NATIVE].encode()
    said = codec_of(NATIVE, ours=theirs, theirs=ours).parse(line)

    assert codec_of(NATIVE, ours=ours, theirs=theirs).format(said) == line
    with pytest.raises(LocalProtocolError):
        codec_of(dialect, ours=ours, theirs=theirs).format(said)


def test_what_is_said_is_read() -> None:
    """And what a later release adds is passed over."""
    asked = Subscription(history="h", position=WirePosition(1, 7, "d"), epoch_start=WirePosition(1, 3, "c"))

    assert asked == decode_body(Subscription, encode_body(asked))
    assert Greeting(uuid="u", name="n", nonce="x") == decode_body(
        Greeting, b'{"uuid":"u","name":"n","nonce":"x","mood":"good"}'
    )


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"uuid":5}', b"\xff", b"[" * 2000])
def test_nonsense_is_told_as_such(said: bytes) -> None:
    """In words for the peer, never as a traceback here."""
    with pytest.raises(RemoteProtocolError, match="cannot parse Greeting"):
        decode_body(Greeting, said)


@pytest.mark.parametrize("integer", [2**63, -(2**63) - 1, 2**70, -(2**70), 10**400, 10**5000], ids=len_of)
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (WirePosition, '{"epoch":%,"serial":1,"digest":"d"}'),
        (WirePosition, '{"epoch":1,"serial":%,"digest":"d"}'),
        (Greeting, '{"uuid":"u","name":"n","nonce":"x","version":%}'),
        (JoinRequest, '{"join":"j","position":{"epoch":1,"serial":%,"digest":"d"}}'),
        (Subscription, '{"history":"h","position":{"epoch":%,"serial":1,"digest":"d"}}'),
        (
            Subscription,
            '{"history":"h","position":{"epoch":1,"serial":1,"digest":"d"},"clock":{"events":{"master":%}}}',
        ),
        (
            Subscription,
            '{"history":"h","position":{"epoch":1,"serial":1,"digest":""},"epoch_start":{"epoch":1,"serial":%,"digest":""}}',
        ),
        (Subscription, '{"history":"h","position":{"epoch":1,"serial":1,"digest":"d"},"began_ms":%}'),
        (Refusal, '{"code":"c","message":"m","retryable":true,"epoch":%}'),
    ],
)
def test_integers_beyond_64_bits_are_refused_at_the_door(
    shape: type[msgspec.Struct], said: str, integer: int
) -> None:
    """SQLite raises OverflowError for them, deep inside."""
    with pytest.raises(RemoteProtocolError, match=f"cannot parse {shape.__name__}"):
        decode_body(shape, said.replace("%", digits_of(integer)).encode())


@pytest.mark.parametrize(
    "said", ['{"epoch":-1,"serial":1,"digest":"d"}', '{"epoch":1,"serial":-1,"digest":"d"}']
)
def test_epochs_and_serials_are_never_below_zero(said: str) -> None:
    """Nothing is there."""
    with pytest.raises(RemoteProtocolError, match="cannot parse WirePosition"):
        decode_body(WirePosition, said.encode())


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
    """As all integers of lines."""
    with pytest.raises(RemoteProtocolError, match=why):
        codec_of(NATIVE, ours=SERVER, theirs=CLIENT).parse(line)


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
    """A replica that has only some facts can serve no more than those."""
    assert fits is ours.within(wider)


def test_a_proof_is_not_shown_to_who_reads_logs() -> None:
    """It proves something only once, and still need not be seen."""
    (auth,) = [command for command in native_commands() if command.__name__ == "Auth"]

    assert "0a1b" not in repr(auth(body=b'{"proof":"0a1b"}'))
