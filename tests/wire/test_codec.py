"""Codecs: lines to commands and back, as each release writes them."""

import tracemalloc
from typing import Any

import pytest

from synrepl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from synrepl.wire.codec import MAX_LENGTH, Codec, LineBuffer
from synrepl.wire.commands import (
    FOR_ALL_PROCESSES,
    FORWARDED,
    FROM_ALL_PROCESSES,
    CancelTask,
    InvalidateCache,
    LockReleased,
    Name,
    Ping,
    Position,
    Rdata,
    RemovePusher,
    Replicate,
    UserIp,
    UserSync,
    declared_commands,
)
from synrepl.wire.dialect import CURRENT, LEGACY, MIDDLE, NATIVE, NEWEST, Dialect
from synrepl.wire.grammar import BOTH, BROKER, CLIENT, SERVER, Command
from synrepl.wire.rdata_runs import RdataRun, RunParser
from tests.captures import Said, said

BAD_ON_PURPOSE = {
    # What the captures' err-* files sent to see the ERROR; everything else in all captures must parse.
    ("legacy/err-bad-token.txt", b"REPLICATE events abc"),
    ("legacy/err-unknown-command.txt", b"FOO bar"),
    ("legacy/err-user-sync-bad-state.txt", b"USER_SYNC @x:y maybe 1"),
    ("current/err-unknown-command.txt", b"FOO bar"),
    ("current/err-user-sync-bad-state.txt", b"USER_SYNC @x:y maybe 1"),
}


def examples() -> list[tuple[type[Command], Dialect, bytes]]:
    return [
        (command, dialect, line.encode())
        for command in declared_commands()
        for dialect, line in command.EXAMPLES.items()
    ]


@pytest.mark.parametrize(("command", "dialect", "line"), examples())
def test_every_example_parses_and_formats_back_to_itself(
    command: type[Command], dialect: Dialect, line: bytes
) -> None:
    """The examples are the documentation, so they must be true."""
    codec = Codec(dialect, ours=command.SENT_BY, theirs=command.SENT_BY)

    parsed = codec.parse(line)

    assert type(parsed) is command
    assert line == codec.format(parsed)


def test_every_command_has_an_example() -> None:
    """A command without one would be undocumented."""
    assert [] == [command.NAME for command in declared_commands() if not command.EXAMPLES]


def test_every_line_of_real_peers_formats_back_to_the_same_bytes() -> None:
    """Byte for byte what 1.0, 1.21 and 1.66 sent and accepted, in both directions."""
    failures: list[tuple[Said, str]] = []
    count = 0
    for one in said():
        if (one.file, one.line) in BAD_ON_PURPOSE or not one.line:
            continue
        side = SERVER if one.by_server else CLIENT
        codec = Codec(one.dialect, ours=side, theirs=side)
        count += 1
        try:
            formatted = codec.format(codec.parse(one.line))
        except (RemoteProtocolError, LocalProtocolError) as error:
            failures.append((one, str(error)))
        else:
            if formatted != one.line:
                failures.append((one, formatted.decode()))

    assert [] == failures
    assert count > 5_000


def test_lines_that_real_servers_rejected_are_rejected() -> None:
    """Lines that real servers answered with ERROR get one here, too."""
    refused = set()
    for one in said():
        if (one.file, one.line) in BAD_ON_PURPOSE:
            with pytest.raises(RemoteProtocolError):
                Codec(one.dialect, ours=SERVER, theirs=CLIENT).parse(one.line)
            refused.add((one.file, one.line))

    assert refused == BAD_ON_PURPOSE


BAD_LINES = [
    # (dialect, line, the error)
    (CURRENT, b"FOO bar", "invalid command: 'FOO'"),
    (CURRENT, b" PING 1", "invalid command: ''"),
    (CURRENT, b"ping 1", "invalid command: 'ping'"),
    (CURRENT, b"%s %d %", "invalid command: '%s'"),
    (CURRENT, b"RDATA events master 5 []", "invalid command: RDATA is for the other direction"),
    (CURRENT, b"NEW_ACTIVE_TASK abc", "invalid command: NEW_ACTIVE_TASK is for the other direction"),
    (CURRENT, b"NAME", "cannot parse NAME: expected NAME <name...>, got nothing"),
    (CURRENT, b"NAME ", "cannot parse NAME: name must not be empty"),
    (CURRENT, b"NAME \xff", "cannot parse NAME: name is not UTF-8"),
    (
        CURRENT,
        b"CLEAR_USER_SYNC ",
        "cannot parse CLEAR_USER_SYNC: expected CLEAR_USER_SYNC <instance_id>, got ''",
    ),
    (
        CURRENT,
        b"USER_SYNC i @a:b maybe 1",
        "cannot parse USER_SYNC: is_syncing must be start or end, not 'maybe'",
    ),
    (
        CURRENT,
        b"USER_SYNC i @a:b start 1.5",
        "cannot parse USER_SYNC: last_sync_ms must be a 64-bit integer, not '1.5'",
    ),
    (
        CURRENT,
        b"USER_SYNC @a:b start 1",
        "cannot parse USER_SYNC: expected USER_SYNC <instance_id> <user_id> start|end <last_sync_ms",
    ),
    (
        CURRENT,
        b"FEDERATION_ACK s 9223372036854775808",
        "cannot parse FEDERATION_ACK: token must be a 64-bit integer, not '9223372036854775808'",
    ),
    (
        CURRENT,
        b"FEDERATION_ACK s -9223372036854775809",
        "cannot parse FEDERATION_ACK: token must be a 64-bit integer, not '-9223372036854775809'",
    ),
    (
        CURRENT,
        b"FEDERATION_ACK s " + b"9" * 5000,
        "cannot parse FEDERATION_ACK: token must be a 64-bit integer",
    ),
    (
        CURRENT,
        b"FEDERATION_ACK s 1_0",
        "cannot parse FEDERATION_ACK: token must be a 64-bit integer, not '1_0'",
    ),
    (CURRENT, b"FEDERATION_ACK s \xd9\xa3", "cannot parse FEDERATION_ACK: token must be a 64-bit integer"),
    (CURRENT, b"USER_IP @a:b {}", "cannot parse USER_IP: seen must be a JSON array of 5 items"),
    (CURRENT, b"USER_IP @a:b [1,", "cannot parse USER_IP: seen must be JSON: Input data was truncated"),
    (CURRENT, b"LOCK_RELEASED " + b"[" * 5000, "cannot parse LOCK_RELEASED: lock must be JSON"),
    *(
        (CURRENT, b'LOCK_RELEASED ["i","n",%b]' % key, "cannot parse LOCK_RELEASED: lock must not have array")
        for key in (b"[]", b'{"a":1}', b"[" * 900 + b"]" * 900)
    ),
    (
        LEGACY,
        b"REPLICATE",
        "cannot parse REPLICATE: expected REPLICATE <stream> <token: integer or NOW>, got nothing",
    ),
    (
        LEGACY,
        b"REPLICATE events",
        "cannot parse REPLICATE: expected REPLICATE <stream> <token: integer or NOW>",
    ),
    (
        LEGACY,
        b"REPLICATE events abc",
        "cannot parse REPLICATE: token must be a 64-bit integer or NOW, not 'abc'",
    ),
    (
        LEGACY,
        b"INVALIDATE_CACHE f",
        "cannot parse INVALIDATE_CACHE: expected INVALIDATE_CACHE <cache> <keys: JSON>",
    ),
    (LEGACY, b"INVALIDATE_CACHE f [NaN]", "cannot parse INVALIDATE_CACHE: keys must be JSON"),
    (
        LEGACY,
        b"REMOVE_PUSHER app key",
        "cannot parse REMOVE_PUSHER: expected REMOVE_PUSHER <app_id> <push_key>",
    ),
]


@pytest.mark.parametrize(("dialect", "line", "why"), BAD_LINES)
def test_a_bad_line_is_rejected_with_a_reason(dialect: Dialect, line: bytes, why: str) -> None:
    """The ERROR must show the developer of the peer what to change."""
    with pytest.raises(RemoteProtocolError) as refused:
        Codec(dialect, ours=SERVER, theirs=CLIENT).parse(line)

    assert refused.value.why.startswith(why)
    assert len(refused.value.why) < 400


def test_variant_spellings_of_peers_are_accepted() -> None:
    """`now` in lower case, a bare PING, push keys with spaces: seen on real wires."""
    legacy = Codec(LEGACY, ours=SERVER, theirs=CLIENT)

    assert legacy.parse(b"REPLICATE events now") == Replicate(stream="events", token=None)
    assert legacy.parse(b"PING") == Ping(text=None)
    assert legacy.parse(b"REPLICATE federation -1") == Replicate(stream="federation", token=-1)
    assert legacy.parse(b"REMOVE_PUSHER a k 1 2 @u:hs") == RemovePusher(
        app_id="a", push_key="k 1 2", user_id="@u:hs"
    )


def test_a_command_of_another_release_is_parsed_but_never_sent() -> None:
    """A bare REPLICATE may be all that shows a peer's release; it may be newer than configured."""
    codec = Codec(CURRENT, ours=SERVER, theirs=CLIENT)

    assert codec.parse(b'LOCK_RELEASED ["i","n","k"]') == LockReleased(lock=["i", "n", "k"])
    assert codec.parse(b'INVALIDATE_CACHE f ["k"]') == InvalidateCache(cache="f", keys=["k"])
    with pytest.raises(LocalProtocolError):
        codec.format(LockReleased(lock=["i", "n", "k"]))


def test_a_value_that_is_nested_too_deeply_is_not_sent() -> None:
    """It is no error of the connection, which a RecursionError would end."""
    nested: Any = []
    for _ in range(5000):
        nested = [nested]

    with pytest.raises(LocalProtocolError, match="cannot format INVALIDATE_CACHE: keys"):
        Codec(LEGACY, ours=CLIENT, theirs=SERVER).format(InvalidateCache(cache="f", keys=nested))


def test_positions_have_two_three_or_four_words() -> None:
    """The three incompatible forms become one command."""
    forms = {
        LEGACY: b"POSITION events 53",
        MIDDLE: b"POSITION events master 53",
        CURRENT: b"POSITION events master 50 53",
    }

    for dialect, line in forms.items():
        codec = Codec(dialect, ours=SERVER, theirs=SERVER)
        position = codec.parse(line)
        assert isinstance(position, Position)
        assert ("events", "master", 53) == (position.stream, position.instance, position.token)
        assert line == codec.format(Position(stream="events", prev_token=50, token=53))


def test_commands_of_the_other_side_are_not_sent() -> None:
    """A mistake on this side must fail here, not at the peer."""
    server = Codec(CURRENT, ours=SERVER, theirs=CLIENT)

    for command in (Replicate(), Name(name="x"), CancelTask(task_id="x")):
        with pytest.raises(LocalProtocolError):
            server.format(command)


def test_values_that_do_not_fit_the_wire_are_not_formatted() -> None:
    """The peer would misread a word with a space, a line break, or a line that is too long."""
    codec = Codec(CURRENT, ours=BOTH, theirs=BOTH)
    room = MAX_LENGTH - len(b"NAME ")

    assert len(codec.format(Name(name="x" * room))) == MAX_LENGTH
    for command in (
        Name(name="x" * (room + 1)),
        Name(name="a\nb"),
        UserSync(instance_id="i", user_id="@a b", is_syncing=True, last_sync_ms=1),
        UserSync(instance_id="", user_id="@a:b", is_syncing=True, last_sync_ms=1),
        Rdata(stream="events", token=1, row=b"[]\nPING 1"),
    ):
        with pytest.raises(LocalProtocolError):
            codec.format(command)


def test_an_access_token_is_in_no_repr_and_no_error() -> None:
    """USER_IP has one, and both reach logs."""
    codec = Codec(CURRENT, ours=SERVER, theirs=CLIENT)

    assert "secret" not in repr(codec.parse(b'USER_IP @a:b ["secret","ip","ua",null,1]'))
    assert "secret" not in str(UserIp(user_id="@a:b", seen=["secret"] * 5))
    for line in (b'USER_IP @a:b ["secret"]', b'USER_IP @a:b ["secret"'):
        with pytest.raises(RemoteProtocolError) as refused:
            codec.parse(line)
        assert "secret" not in str(refused.value)


def test_tasks_are_sent_on_a_broker_only() -> None:
    """Real servers answer NEW_ACTIVE_TASK over TCP with an ERROR."""
    broker = Codec(NEWEST, ours=BROKER, theirs=BROKER)

    assert b"CANCEL_TASK t" == broker.format(CancelTask(task_id="t"))


@pytest.mark.parametrize("text", ["legacy", "middle", "current", "native", "1.83", "0.99.4"])
def test_a_dialect_is_a_name_or_a_release(text: str) -> None:
    """Operators know the release of their Synapse, not the names of dialects."""
    assert text == str(Dialect.parse(text))


def test_dialects_are_ordered_by_release() -> None:
    """All differences between releases depend on this order."""
    assert Dialect.parse("0.99.3") < LEGACY < MIDDLE < CURRENT < Dialect.parse("1.83") < NEWEST < NATIVE


@pytest.mark.parametrize("text", ["", "old", "1", "1.x", "0.20", "1.2.3.4", "1.66 ", "\u0661.66"])
def test_an_unknown_dialect_is_rejected_with_the_choices(text: str) -> None:
    """A typo in the configuration gets a helpful message."""
    with pytest.raises(ConfigError):
        Dialect.parse(text)


class TestRuns:
    """Consecutive RDATA is parsed together, with the same result as one by one."""

    def parser(self, dialect: Dialect) -> RunParser:
        runs = Codec(dialect, ours=CLIENT, theirs=SERVER).runs
        assert runs is not None
        return runs

    def test_a_run_ends_where_stream_or_writer_change(self) -> None:
        """Rows of two writers must not be mixed up."""
        lines = [b"RDATA a w 1 [1]", b"RDATA a w batch [2]", b"RDATA a w 2 [3]", b"RDATA a v 3 [4]"]

        assert self.parser(CURRENT).read(lines, 0) == RdataRun(
            stream="a", instance="w", tokens=[1, None, 2], rows=[b"[1]", b"[2]", b"[3]"]
        )

    def test_a_line_that_is_alone_is_one_command(self) -> None:
        """Where streams alternate, a line is parsed once, and as the form parses it."""
        lines = [b"RDATA a w 1 [1]", b"RDATA b w batch [2]"]

        assert self.parser(CURRENT).read(lines, 0) == Rdata(stream="a", instance="w", token=1, row=b"[1]")
        assert self.parser(CURRENT).read(lines, 1) == Rdata(stream="b", instance="w", token=None, row=b"[2]")

    def test_a_release_without_writers_has_the_default_one(self) -> None:
        """All legacy rows are of the master."""
        assert self.parser(LEGACY).read([b"RDATA a 1 [1, 2]", b"RDATA a 2 [3]"], 0) == RdataRun(
            stream="a", instance="master", tokens=[1, 2], rows=[b"[1, 2]", b"[3]"]
        )

    @pytest.mark.parametrize(
        "second",
        [
            b"RDATA a w x [1]",
            b"RDATA a w  [1]",
            b"RDATA a w 5",
            b"RDATA a w 5 ",
            b"RDATA a w 99999999999999999999 [1]",
        ],
    )
    def test_odd_lines_are_left_to_the_form(self, second: bytes) -> None:
        """The form explains the error."""
        assert self.parser(CURRENT).read([b"RDATA a w 1 [1]", second], 0) is None
        assert self.parser(CURRENT).read([second], 0) is None

    @pytest.mark.parametrize("token", [b"007", b"-3", b"9223372036854775807"])
    def test_unusual_tokens_are_read_as_the_form_reads_them(self, token: bytes) -> None:
        """They are integers, though JSON does not write all of them so."""
        lines = [b"RDATA a w 1 [1]", b"RDATA a w %s [2]" % token]

        run = self.parser(CURRENT).read(lines, 0)

        assert isinstance(run, RdataRun)
        assert [1, int(token)] == run.tokens

    def test_the_good_lines_before_an_odd_one_still_make_a_run(self) -> None:
        """One bad line must not lose the good lines before it."""
        lines = [b"RDATA a w 1 [1]", b"RDATA a w 2 [2]", b"RDATA a w 1e3 [3]"]

        run = self.parser(CURRENT).read(lines, 0)

        assert isinstance(run, RdataRun)
        assert [1, 2] == run.tokens


def test_who_a_followers_command_is_for_follows_from_its_senders() -> None:
    """A new command needs no entry in a list."""
    about_the_connection = {"ERROR", "PING", "NAME", "REPLICATE", "SYNC", "HELLO", "SUBSCRIBE"}
    forwarded = {made.NAME for made in FORWARDED}
    for_all = {made.NAME for made in FOR_ALL_PROCESSES}

    assert not forwarded & about_the_connection
    assert forwarded - for_all >= {"REMOVE_PUSHER", "INVALIDATE_CACHE"}
    assert for_all >= {"USER_SYNC", "CLEAR_USER_SYNC", "FEDERATION_ACK", "USER_IP"}
    assert {made.NAME for made in FROM_ALL_PROCESSES} >= {"REMOTE_SERVER_UP", "LOCK_RELEASED"}


class TestLines:
    """Bytes to lines, in any chunks."""

    def test_lines_do_not_depend_on_how_bytes_arrive(self) -> None:
        """TCP may deliver chunks of any size."""
        data = b"PING 1\n\nNAME x\r\nhalf"
        whole = LineBuffer().receive(data)

        piecemeal = LineBuffer()
        lines = [line for byte in data for line in piecemeal.receive(bytes([byte]))]

        assert [b"PING 1", b"", b"NAME x\r"] == whole
        assert whole == lines

    @pytest.mark.parametrize("ending", [b"", b"\n", b"\nPING 1\n"])
    def test_a_line_of_one_byte_too_many_is_returned_with_or_without_its_end(self, ending: bytes) -> None:
        """A peer that never ends its line must not fill the memory."""
        long = b"x" * (MAX_LENGTH + 1)
        assert LineBuffer().receive(b"PING 1\n" + long + ending)[:2] == [b"PING 1", long]
        assert LineBuffer().receive(b"x" * MAX_LENGTH) == []

    def test_a_long_line_in_small_parts_costs_what_it_has(self) -> None:
        """A part of one byte that was kept for itself would cost forty."""
        buffer = LineBuffer(2**24)
        parts = [bytes([ord("a") + number % 26]) for number in range(2**18)]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for part in parts:
                assert buffer.receive(part) == []
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()

        assert grown < 1.25 * len(parts)
        assert buffer.receive(b"\n") == [b"".join(parts)]
