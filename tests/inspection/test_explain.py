"""The explanation of pasted texts: what is recognized, what it is said to mean, and what nobody may break."""

import re
import time
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.inspection.explanation import KINDS, MAX_BYTES, MAX_LINES, HomeserverState, Passage, explain
from synrepl.inspection.streams import MAIN_PROCESS, TOKEN_FIELDS, WRITER_KEYS
from synrepl.streams.table import StreamTable
from synrepl.wire.codec import COMMANDS


def only(text: str, writers: dict[int, str] | None = None) -> Passage:
    """Explain a text that says one thing."""
    [passage] = explain(text, HomeserverState(writers=writers or {})).passages
    return passage


def room(stream: int, ahead: str = "") -> str:
    return f"RoomStreamToken(stream: {stream}, topological: None, instances: {{{ahead}}})"


def many(stream: int, ahead: str = "") -> str:
    return f"MultiWriterStreamToken(stream: {stream}, instances: {{{ahead}}})"


def logged(**changes: Any) -> str:
    """Return a token as releases before 1.163 log it, with `changes` of its fields."""
    fields = {
        "room": room(900),
        "presence": 70,
        "typing": 31,
        "receipt": many(400),
        "account_data": 55,
        "push_rules": 12,
        "to_device": 81,
        "device_list": 230,
        "groups": 0,
        "un_partial_stated_rooms": 6,
    }
    return f"StreamToken({', '.join(f'{name}: {value}' for name, value in {**fields, **changes}.items())})"


def represented(stream: int, device_list: int) -> str:
    """Return a token as releases of 2024 log it: the representation of an object of Python."""
    return (
        f"StreamToken(room_key=RoomStreamToken(stream={stream},"
        f" instance_map=immutabledict({{'w1': {stream + 2}}}), topological=None), presence_key=12,"
        " typing_key=0, receipt_key=MultiWriterStreamToken(stream=1, instance_map=immutabledict({})),"
        " account_data_key=1, push_rules_key=1, to_device_key=1,"
        f" device_list_key={device_list}, groups_key=0, un_partial_stated_rooms_key=4)"
    )


STUCK: Final = "Timed out waiting for this worker's streams to advance to given token: "
WAITING: Final = "Waiting for current token to reach "

EXCERPTS: Final = [
    # A dedicated writer that never announced its stream (element-hq/synapse#20080), as 1.163 logs it.
    (
        (
            f"2026-08-11 09:12:44,101 - synapse.notifier - 926 - WARNING - GET-5f1-FRA- - {STUCK}"
            f"quarantined_media_key (at {many(11)}, waiting for {many(13)})"
        ),
        "stuck_sync",
        "quarantined_media is 2 behind: the request's token is at 13, this process is at 11.",
        "stream_writers: quarantined_media_changes",
    ),
    # The same with a writer that is ahead of the others.
    (
        f"{STUCK}receipt_key (at {many(40, 'rw2: 44')}, waiting for {many(40, 'rw1: 49, rw2: 44')})",
        "stuck_sync",
        "receipt is 9 behind its writer rw1: the request's token is at 49, this process is at 40.",
        "stream_writers: receipts",
    ),
    # Both tokens as clients have them.
    (
        f"{STUCK}s31_4_0_2_2_1_9_17_0_1; current token s31_4_5_2_2_1_9_5_0_1",
        "stuck_sync",
        "device_list is 12 behind: the request's token is at 17, this process is at 5.",
        "stream_writers: device_lists",
    ),
    # To-device messages that came half a minute late: another stream was behind (element-hq/synapse#18412).
    (
        (
            f"2025-05-09 15:07:15,733 - synapse.notifier - 811 - INFO - GET-93-CDG- - {WAITING}"
            f"{logged(device_list=1008)}; currently at {logged(room=room(977), to_device=95)}"
        ),
        "waiting_sync",
        "device_list is 778 behind: the request's token is at 1008, this process is at 230.",
        "stream_writers: device_lists",
    ),
    # Events behind, and device lists ahead (element-hq/synapse#17215).
    (
        f"{WAITING}{represented(9, 6)}; currently at {represented(8, 7)}",
        "waiting_sync",
        "room is 1 behind: the request's token is at 9, this process is at 8.",
        "stream_writers: events",
    ),
    # An upgrade after which nothing arrived (element-hq/synapse#17274).
    (
        (
            "2024-06-07 11:02:10,256 - synapse.handlers.sync - 523 - WARNING - GET-21 - Timed out waiting for"
            " worker to catch up. Returning empty response"
        ),
        "stuck_sync",
        "A /sync got an empty response",
        "does not name the stream",
    ),
    # Workers without a working Redis after an upgrade of the system (matrix-org/synapse#16093).
    (
        (
            "2023-08-11 10:36:08,972 - synapse.replication.tcp.client - 331 - ERROR - POST-27 - Timed out"
            " waiting for repl stream 'caches' to reach 4123 (master); currently at: 3485"
        ),
        "stuck_request",
        "caches is 638 behind: master has written up to 4123, this process is at 3485.",
        "Every process writes the stream caches.",
    ),
    (
        (
            "2023-08-11 10:36:06,809 - synapse.replication.tcp.client - 321 - INFO - POST-33 - Waiting for"
            " repl stream 'pushers' to reach 93 (master); currently at: 90"
        ),
        "waiting_request",
        "pushers is 3 behind: master has written up to 93, this process is at 90.",
        "The main process writes the stream pushers",
    ),
    # A rare stream on which each wait timed out (matrix-org/synapse#15136).
    (
        (
            "2023-02-20 03:48:10,727 - synapse.replication.tcp.client - 378 - ERROR - PUT-165- Timed out"
            " waiting for repl stream 'backfill' to reach 7491 (event_persister)"
        ),
        "stuck_request",
        "backfill is behind: event_persister has written up to 7491",
        "stream_writers: events",
    ),
    (
        "Finished waiting for repl stream 'events' to reach 2089 (event_persister)",
        "caught_up",
        "events has reached 2089: the wait for event_persister is over",
        "nothing is wrong",
    ),
    # A request log with a token (matrix-org/synapse#9564 and others have many).
    (
        (
            '{@ada:hs} Processed request: 30.0sec 374B 200 "GET /_matrix/client/r0/sync?timeout=30000'
            '&since=s3687_2729_3843_1823_3216_13_1996_1182_48 HTTP/1.0" "RiotX" [0 dbevts]'
        ),
        "sync_token",
        "A sync token: what a client has received ends after event 3687",
        "9 fields: Synapse 0.24 to 1.66",
    ),
    # A switch-over of PostgreSQL (element-hq/synapse#18544); the message has two lines.
    (
        (
            "Postgres sequence 'events_stream_seq' is inconsistent with associated stream position\n"
            "of 'events' in the 'stream_positions' table."
        ),
        "inconsistent_sequence",
        "Synapse refuses to start: the sequence events_stream_seq is behind a stored position of events",
        "32 values ahead",
    ),
    (
        (
            "Postgres sequence 'device_inbox_sequence' is inconsistent with associated\n"
            "table 'device_inbox'. This can happen if"
        ),
        "inconsistent_sequence",
        "Synapse refuses to start: the sequence device_inbox_sequence is behind an id in the table device_i",
        "a second time",
    ),
    (
        (
            "WARNING - main - Postgres sequence receipts_sequence is behind table receipts_linearized: 4 < 9."
            " Updating sequence."
        ),
        "inconsistent_sequence",
        "The sequence receipts_sequence is 5 behind: it is at 4, the table receipts_linearized has 9.",
        "raises it by itself",
    ),
    (
        f"Bounding token from the future 'StreamKeyType.DEVICE_LIST': token: {many(30, 'd1: 38')}, bound: 33",
        "token_from_future",
        "device_list of a client's token is 5 ahead of the database: the token is at 38",
        "restored from an older copy",
    ),
    (
        (
            "Got to-device.since from the future. since token: 88 is ahead of our current to_device stream"
            " position: 80"
        ),
        "stuck_sync",
        "to_device is 8 behind: a sliding sync asks for messages after 88, this process is at 80.",
        "no to-device messages",
    ),
    (
        "Position of stream 'receipts' of rw1 is ahead",
        "position_ahead",
        "A position of receipts is ahead",
        "stream_writers: receipts",
    ),
    (
        "INFO - replication_command-4 - Fetching replication rows for 'to_device' / tw1 between 5 and 9",
        "fetching_rows",
        "to_device had a gap of 4: this process is at 5, tw1 announced 9.",
        "missing rows",
    ),
    (
        "Got POSITION for unknown stream: sticky_events",
        "unknown_stream",
        "This process does not know the stream sticky_events, and drops its POSITION.",
        "different releases",
    ),
    (
        "Lost replication connection; streams now disconnected: {'events', 'receipts'}",
        "lost_connection",
        "This process lost its connection to Redis.",
        "asks for positions",
    ),
    (
        "Dropping command as not connected: 'RDATA'",
        "lost_connection",
        "This process is not connected to Redis, and dropped a RDATA",
        "shows the gap",
    ),
]
"""Text, kind, the beginning of the summary, and what one of the sentences contains."""


@pytest.mark.parametrize(("text", "kind", "summary", "more"), EXCERPTS)
def test_a_line_of_the_log_is_explained(text: str, kind: str, summary: str, more: str) -> None:
    passage = only(text)

    assert passage.kind == kind
    assert passage.words[0].startswith(summary)
    assert more in " ".join(passage.words)
    assert all(re.fullmatch("[a-z_]+", name) for row in passage.fields for name in row)


def test_excerpts_are_of_many_kinds() -> None:
    """Every kind but those of lines of the protocol and of positions alone."""
    assert {kind for _, kind, _, _ in EXCERPTS} == {*KINDS} - {"protocol_line", "room_position"}


WRAPPERS: Final = [
    "{line}",
    "    {line}   ",
    "> {line}",
    "`{line}`",
    "2026-01-02 03:04:05,678 - synapse.x - 1 - INFO - GET-1 - {line}",
    "Jul 03 15:42:11 matrix synapse[32346]: synapse.x: [GET-1] {line}",
    "matrix  | 2023-11-04 23:29:22,160 - synapse.x - 1 - INFO - sentinel - {line}",
    '"{escaped}"',
    '{{"log":"{escaped}\\n","stream":"stderr","time":"2026-01-02T03:04:05Z"}}',
    '{{"level":"WARNING","namespace":"x","log":"{escaped}","time":1.5}}',
    '["pmessage","hs","hs","{escaped}"]',
    '1) "message" 2) "hs" 3) "{escaped}"',
    "before\n\n{line}\r\nafter",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Timed out waiting for repl stream 'typing' to reach 8 (tw1); currently at: 6", "stuck_request"),
        (f"{STUCK}to_device_key (at 4, waiting for 6)", "stuck_sync"),
        ('RDATA receipts rw1 54 ["!r:hs","m.read","@ada:hs","$e",null,{"ts":1}]', "protocol_line"),
        ("POSITION events master 50 53", "protocol_line"),
        ("s12_3_0_1_1_1_1_4_1", "sync_token"),
    ],
)
def test_prefixes_and_quotes_do_not_matter(wrapper: str, line: str, kind: str) -> None:
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')

    passage = only(wrapper.format(line=line, escaped=escaped))

    assert (passage.kind, passage.fields) == (kind, only(line).fields)


def test_a_special_field_is_explained_in_its_row() -> None:
    """It stands in its row."""
    notes = {row["field"]: row["note"] for row in only("t12-345_3_0_m1~2.3_1_1_1_4_1").fields}

    assert "depth 12" in notes["room"]
    assert notes["presence"] == ""
    assert "begins at 0 again" in notes["typing"]
    assert "all writers but those below" in notes["receipt"]
    assert "unused since 1.61" in notes["groups"]


def test_a_command_in_a_message_about_it() -> None:
    """As Synapse logs what it could not parse."""
    passage = only("""ERROR - Failed to parse replication line: b'RDATA typing tw1 5 ["!r:hs",["@a:hs"]]'""")

    assert passage.words[0] == "tw1 wrote a row of typing at 5."


def test_a_token_in_a_percent_encoded_address() -> None:
    passage = only("GET /sync?pos=5%2Fm12~2.14_3_0_m1%7E2.3_1_1_1_4_1_7 HTTP/1.1")

    assert passage.kind == "sync_token"
    assert "It is one of sliding sync: 5 is the state of the connection." in passage.words
    assert {"field": "receipt, writer 2", "position": 3}.items() <= passage.fields[5].items()


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (4, "before 0.21, or the token was cut off"),
        (8, "before 0.24, which brought groups"),
        (9, "Synapse 0.24 to 1.66"),
        (10, "after 1.66, before 1.163"),
        (12, "after 1.85, before 1.163"),
        (14, "Synapse 1.163, or a release shortly"),
        (15, "more than Synapse 1.163 has"),
    ],
)
def test_the_number_of_fields_tells_releases(count: int, said: str) -> None:
    passage = only("s7" + "".join(f"_{number}" for number in range(1, count)))

    assert [row["position"] for row in passage.fields] == [7, *range(1, count)]
    assert [row["field"] for row in passage.fields][:14] == [one.name for one in TOKEN_FIELDS][:count]
    assert said in passage.words[1]
    is_ambiguous = any("does not tell which one" in sentence for sentence in passage.words)
    assert is_ambiguous == (9 < count < 14)


def test_nine_fields_with_several_writers_of_receipts_are_recent() -> None:
    """Up to 1.66 only the room had positions of single writers."""
    assert "after 1.66" in only("s7_1_1_m3~2.5_1_1_1_1_0").words[1]
    assert "0.24 to 1.66" in only("m7~2.9_1_1_3_1_1_1_1_0").words[1]


def test_writers_are_named_if_their_numbers_are_known() -> None:
    passage = only("m56~2.58~3.59_1_1_1_1_1_1_1_0", {2: "event_persister1"})

    assert [row["field"] for row in passage.fields][:3] == [
        "room",
        "room, event_persister1",
        "room, writer 3",
    ]
    assert [row["position"] for row in passage.fields][:3] == [56, 58, 59]
    assert "instance_id IN (3)" in passage.advice[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s123", "A place in the stream events: after event 123."),
        ("t12-345", "A place in a room's history: it pages back after depth 12, event 345."),
        ("m56~2.58", "A place in the stream events: all writers are after 56, but these further."),
        ("GET /messages?dir=b&from=t12-345&limit=1", "A place in a room's history"),
        ('{"start": "t3-4", "chunk": []}', "A place in a room's history"),
    ],
)
def test_a_position_of_rooms_alone(text: str, said: str) -> None:
    passage = only(text)

    assert passage.kind == "room_position"
    assert passage.words[0].startswith(said)


def test_equal_tokens_say_that_nothing_is_behind() -> None:
    """Typing begins at 0 again: that is no lag."""
    passage = only(f"{WAITING}{logged(typing=31)}; currently at {logged(typing=2)}")

    assert passage.words[0].startswith("No field of the token is behind")
    assert passage.fields == []


def test_each_writer_that_is_behind_has_a_row_and_the_worst_comes_first() -> None:
    passage = only(
        f"{STUCK}to_device_key (at 4, waiting for 6),"
        f" room_key (at {room(10, 'a: 12')}, waiting for {room(11, 'a: 20, b: 15')})"
    )

    assert [(row["field"], row["writer"], row["behind"]) for row in passage.fields] == [
        ("room", "a", 8),
        ("room", "b", 5),
        ("to_device", "all others", 2),
        ("room", "all others", 1),
    ]
    assert [sentence.split(":")[0] for sentence in passage.words[:2]] == [
        "room is 8 behind its writer a",
        "to_device is 2 behind",
    ]
    assert "stream_positions WHERE stream_name IN ('events', 'to_device')" in passage.advice[0]
    assert "--stream events,to_device." in passage.advice[2]


def test_advice_uses_the_names_of_the_database() -> None:
    passage = only(f"{STUCK}device_list_key (at 4, waiting for 6)")

    assert "stream_name IN ('device_lists_stream')" in passage.advice[0]
    assert "--stream device_lists." in passage.advice[2]


def test_numbered_writers_are_compared_too() -> None:
    tokens = "m56~2.58~3.59_1_1_1_1_1_1_1_0; currently at m56~2.58_1_1_1_1_1_1_1_0"

    passage = only(f"{WAITING}{tokens}")
    assert passage.words[0].startswith("room is 3 behind its writer 3: ")
    assert "instance_id IN (3)" in passage.advice[-1]

    passage = only(f"{WAITING}{tokens}", {3: "ep2"})
    assert passage.words[0].startswith("room is 3 behind its writer ep2: ")
    assert not any("instance_map" in step for step in passage.advice)


LINES: Final = [
    ("POSITION events 53", "master has sent all rows of events up to 53.", "Synapse before 1.13"),
    ("POSITION events master 53", "master has sent all rows", "Synapse from 1.13 on, before 1.22"),
    ("POSITION events master 50 53", "master has sent all rows", "Synapse from 1.22 on"),
    ("POSITION typing tw1 0 0", "tw1 has sent all rows of typing up to 0, and nothing", "from 1.22 on"),
    ('RDATA typing batch ["!r:hs", ["@a:hs"]]', "master wrote a row of typing, and more", "before 1.13"),
    ('RDATA typing tw1 5 ["!r:hs",["@a:hs"]]', "tw1 wrote a row of typing at 5.", "from 1.13 on"),
    ("REPLICATE events 53", "A request to follow", "Synapse before 1.13"),
    ("REPLICATE ", "A request to follow", "Synapse from 1.13 on"),
    ("FEDERATION_ACK 177", "A federation sender has received", "Synapse before 1.18"),
    ("FEDERATION_ACK fs1 177", "A federation sender has received", "Synapse from 1.18 on"),
    ("REMOTE_SERVER_UP example.org", "Another homeserver may be reachable", "Synapse from 1.9 on"),
    ("USER_SYNC x @ada:hs end 1490197670513", "A user started or stopped", "from 1.13 on, before 1.92"),
    ("USER_SYNC x @ada:hs PHONE start 1490197670513", "A user started or stopped", "from 1.92 on"),
    ('LOCK_RELEASED ["w1","purge","!r:hs"]', "A lock was released", "from 1.90 on"),
    ("PING 1490197665618", "A keepalive.", "every release"),
    ("EPOCH 5f1c:2.1200.1490197670513", "The epochs of the server's log", "every release"),
]


@pytest.mark.parametrize(("line", "summary", "release"), LINES)
def test_a_line_of_the_protocol_is_explained(line: str, summary: str, release: str) -> None:
    passage = only(line)

    assert passage.kind == "protocol_line"
    assert passage.words[0].startswith(summary)
    assert release in " ".join(passage.words)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (
            'RDATA receipts rw1 54 ["!r:hs","m.read","@ada:hs","$e",null,{"ts":1}]',
            "room_id receipt_type user_id event_id thread_id data",
        ),
        (
            'RDATA receipts 54 ["!r:hs", "m.read", "@ada:hs", "$e", {}]',
            "room_id receipt_type user_id event_id data",
        ),
        ('RDATA device_lists 3 ["@ada:hs", null]', "user_id destination"),
        ('RDATA device_lists master 3 ["@ada:hs",false,true]', "user_id is_signature hosts_calculated"),
        ('RDATA account_data 3 ["@ada:hs", null, "m.x", "{}"]', "user_id room_id data_type data"),
        ('RDATA events master 3 ["state",["!r:hs","m.x","","$e"]]', "room_id type state_key event_id"),
        ('RDATA events 3 ["$e", "!r:hs", "m.x", null, null]', "event_id room_id type state_key redacts"),
        ('RDATA packages master 3 ["a",1]', "item 1|item 2"),
    ],
)
def test_fields_of_a_row_are_named(line: str, names: str) -> None:
    """By the form of the release that wrote the row."""
    passage = only(line)

    expected = names.split("|") if "|" in names else names.split()
    rows = [row["field"].removeprefix("row: ") for row in passage.fields if row["field"].startswith("row: ")]
    assert rows == expected


def test_a_row_that_does_not_fit_is_said_to() -> None:
    assert "The row does not fit" in " ".join(only("RDATA typing tw1 5 [7]").words)
    assert "not a JSON array" in " ".join(only('RDATA typing tw1 5 {"a":7}').words)


def test_a_line_that_was_cut_off_is_shown_with_its_forms() -> None:
    passage = only("RDATA receipts rw1 54")

    assert "no release writes it so" in passage.words[0]
    assert any(sentence.startswith("RDATA <stream> <instance> <token") for sentence in passage.words)


def test_an_access_token_is_not_shown() -> None:
    for line in (
        'USER_IP @ada:hs ["s3cret","127.0.0.1","curl",null,1490197670513]',
        'USER_IP @ada:hs ["s3cret"',
    ):
        assert "s3cret" not in repr(explain(line))
        assert len(explain(line).passages) == 1


def test_every_example_of_every_command_is_explained() -> None:
    for command in COMMANDS.values():
        for line in command.EXAMPLES.values():
            assert explain(line).passages, line


def test_every_stream_of_synapse_has_writers() -> None:
    own = {"files", "declarations", "promises", "atomic_appends"}
    known = {stream.name for stream in StreamTable.default()} - own

    assert known == {*WRITER_KEYS, *MAIN_PROCESS, "caches"}
    assert {field.stream for field in TOKEN_FIELDS} <= known


def test_lines_that_say_the_same_are_one_passage() -> None:
    line = "Timed out waiting for worker to catch up. Returning empty response"

    found = explain(f"{line}\nhello\n2024-06-06 - {line}\nPOSITION typing tw1 0 5")

    assert [passage.lines for passage in found.passages] == [[1, 3], [4]]
    assert (found.lines, found.unrecognized, found.skipped) == (4, 1, 0)


@pytest.mark.parametrize(
    "text", ["", "\n \n", "hello", "ERROR:", "a_b_c", "s12_x", "1_2_3", "{", '{"log": 5}']
)
def test_other_text_is_not_recognized(text: str) -> None:
    assert explain(text).passages == []


def test_at_most_a_hundred_lines_are_explained() -> None:
    lines = [f"POSITION typing tw1 0 {number}" for number in range(MAX_LINES + 7)]

    found = explain("\n".join(["hello", *lines]))

    assert (len(found.passages), found.unrecognized, found.skipped) == (MAX_LINES, 1, 7)


def test_a_text_beyond_the_limit_is_refused() -> None:
    explain("x" * MAX_BYTES)
    with pytest.raises(ValueError, match="more than 65,536 bytes"):
        explain("é" * (MAX_BYTES // 2 + 1))


def test_control_characters_are_never_returned() -> None:
    found = explain(
        "Timed out waiting for repl stream 'typing' to reach 8 (a\x1b[31m\u202eb)\n"
        'RDATA typing a\x1b[2J 5 ["!r\\u0007",["@\x9b"]]\n'
        "POSITION \x1b[31mx master 1 2\nUSER_SYNC \x1b \x1b \x1b start 5\nRDATA \x1b"
    )

    assert len(found.passages) == 5
    texts = [text for one in found.passages for text in (one.text, *one.words, *one.advice)]
    texts += [str(value) for one in found.passages for row in one.fields for value in row.values()]
    assert all(text.isprintable() for text in texts)


HOSTILE: Final = [
    *("StreamToken(" * 5_000, "RoomStreamToken(" * 4_000, f"{STUCK}room_key (at RoomStreamToken(" * 500),
    *("s1" + "_1" * 30_000 + "~", "m1" + "~1.1" * 15_000 + "x", "s1_1 " * 12_000, "'ABCD " * 10_000),
    *(
        "[" * 65_000,
        '{"log":' * 9_000,
        '"' * 65_000,
        "\\" * 65_000,
        "%" * 65_000,
        "> " * 32_000,
        "`" * 65_000,
    ),
    *("RDATA typing a 5 [" + "9" * 60_000 + "]", "RDATA typing a 5 " + "[" * 60_000, "RDATA " * 10_000),
    *("position of stream a " * 3_000, f"{WAITING}StreamToken(room: " * 900, "\n" * 65_000, "a\n" * 32_000),
    *(
        "Postgres sequence 'a' is inconsistent with associated\n" * 1_000,
        "room: RoomStreamToken(" + "()" * 30_000,
    ),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_takes_no_long_time(text: str) -> None:
    began = time.process_time()

    explain(text)

    assert time.process_time() - began < 2.0


@given(
    st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            ["RDATA", "POSITION", "typing", " ", "s1", "_", "m2~1.2", "5", "[", "]", '"', STUCK, "(at 1,"]
        ),
        max_size=14,
    ).map("".join)
)
def test_no_text_is_an_error(text: str) -> None:
    found = explain(text)

    for passage in found.passages:
        assert passage.kind in KINDS
        assert all(sentence.isprintable() and sentence for sentence in passage.words)
        assert all(row.keys() == passage.fields[0].keys() for row in passage.fields)


def test_a_token_ahead_of_the_database_is_found() -> None:
    """With what each writer has stored, and the last id of the sequence."""
    state = HomeserverState(
        positions={"receipts": {"w1": 20, "w2": 18}, "device_lists_stream": {"w1": 9}},
        allocated={"receipts": 21},
    )
    token = "s100_1_1_30_1_1_1_9_0"
    [passage] = explain(token, state).passages
    rows = {row["field"]: row for row in passage.fields}

    assert rows["receipt"]["stored_now"] == "w1 20, w2 18"
    assert rows["device_list"]["stored_now"] == "w1 9"
    ahead = [word for word in passage.words if "ahead of the database" in word]
    assert len(ahead) == 1
    assert ahead[0].startswith("receipt is at 30, ahead of the database, which has none beyond 21")


def test_ids_that_are_taken_and_not_stored_are_not_ahead() -> None:
    """The sequence is the end."""
    state = HomeserverState(positions={"receipts": {"w1": 20}}, allocated={"receipts": 30})
    [passage] = explain("s100_1_1_30_1_1_1_9_0", state).passages

    assert not any("ahead of the database" in word for word in passage.words)
