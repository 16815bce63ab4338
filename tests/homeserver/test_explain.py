"""The explanation of pasted texts: what is recognized, what it is said to mean, and what nobody may break."""

import re
import time
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.homeserver.explanation import KINDS, HomeserverState, Passage, explain, explain_lines
from synrepl.homeserver.explanation.excerpts import without_secrets
from synrepl.homeserver.explanation.explainer import MAX_EXAMPLES
from synrepl.homeserver.explanation.messages import known_messages
from synrepl.homeserver.explanation.results import MAX_NUMBERS
from synrepl.homeserver.streams import MAIN_PROCESS, TOKEN_FIELDS, WRITER_KEYS
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
        "stream_wait_timeout",
        "quarantined_media is 2 behind: the request's token is at 13, this process is at 11.",
        "stream_writers: quarantined_media_changes",
    ),
    # The same with a writer that is ahead of the others.
    (
        f"{STUCK}receipt_key (at {many(40, 'rw2: 44')}, waiting for {many(40, 'rw1: 49, rw2: 44')})",
        "stream_wait_timeout",
        "receipt is 9 behind its writer rw1: the request's token is at 49, this process is at 40.",
        "stream_writers: receipts",
    ),
    # Both tokens as clients have them.
    (
        f"{STUCK}s31_4_0_2_2_1_9_17_0_1; current token s31_4_5_2_2_1_9_5_0_1",
        "stream_wait_timeout",
        "device_list is 12 behind: the request's token is at 17, this process is at 5.",
        "stream_writers: device_lists",
    ),
    # To-device messages that came half a minute late: another stream was behind (element-hq/synapse#18412).
    (
        (
            f"2025-05-09 15:07:15,733 - synapse.notifier - 811 - INFO - GET-93-CDG- - {WAITING}"
            f"{logged(device_list=1008)}; currently at {logged(room=room(977), to_device=95)}"
        ),
        "stream_wait_start",
        "device_list is 778 behind: the request's token is at 1008, this process is at 230.",
        "stream_writers: device_lists",
    ),
    # Events behind, and device lists ahead (element-hq/synapse#17215).
    (
        f"{WAITING}{represented(9, 6)}; currently at {represented(8, 7)}",
        "stream_wait_start",
        "room is 1 behind: the request's token is at 9, this process is at 8.",
        "stream_writers: events",
    ),
    # An upgrade after which nothing arrived (element-hq/synapse#17274).
    (
        (
            "2024-06-07 11:02:10,256 - synapse.handlers.sync - 523 - WARNING - GET-21 - Timed out waiting for"
            " worker to catch up. Returning empty response"
        ),
        "sync_empty",
        "A /sync got an empty response",
        "within 10 s",
    ),
    # Workers without a working Redis after an upgrade of the system (matrix-org/synapse#16093).
    (
        (
            "2023-08-11 10:36:08,972 - synapse.replication.tcp.client - 331 - ERROR - POST-27 - Timed out"
            " waiting for repl stream 'caches' to reach 4123 (master); currently at: 3485"
        ),
        "repl_wait_timeout",
        "caches is 638 behind: master has written up to 4123, this process is at 3485.",
        "Every process writes the stream caches.",
    ),
    (
        (
            "2023-08-11 10:36:06,809 - synapse.replication.tcp.client - 321 - INFO - POST-33 - Waiting for"
            " repl stream 'pushers' to reach 93 (master); currently at: 90"
        ),
        "repl_wait_start",
        "pushers is 3 behind: master has written up to 93, this process is at 90.",
        "The main process writes the stream pushers",
    ),
    # A rare stream on which each wait timed out (matrix-org/synapse#15136).
    (
        (
            "2023-02-20 03:48:10,727 - synapse.replication.tcp.client - 378 - ERROR - PUT-165- Timed out"
            " waiting for repl stream 'backfill' to reach 7491 (event_persister)"
        ),
        "repl_wait_timeout",
        "backfill is behind: event_persister has written up to 7491",
        "stream_writers: events",
    ),
    (
        "Finished waiting for repl stream 'events' to reach 2089 (event_persister)",
        "repl_wait_done",
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
        "9 fields: Synapse 0.24 to 1.75.",
    ),
    # A switch-over of PostgreSQL (element-hq/synapse#18544); the message has two lines.
    (
        (
            "Postgres sequence 'events_stream_seq' is inconsistent with associated stream position\n"
            "of 'events' in the 'stream_positions' table."
        ),
        "sequence_position",
        "Synapse refuses to start: the sequence events_stream_seq is behind a stored position of events",
        "32 values ahead",
    ),
    (
        (
            "Postgres sequence 'device_inbox_sequence' is inconsistent with associated\n"
            "table 'device_inbox'. This can happen if"
        ),
        "sequence_table",
        "Synapse refuses to start: the sequence device_inbox_sequence is behind an id in the table device_i",
        "a second time",
    ),
    (
        (
            "WARNING - main - Postgres sequence receipts_sequence is behind table receipts_linearized: 4 < 9."
            " Updating sequence."
        ),
        "sequence_behind",
        "The sequence receipts_sequence is 5 behind: it is at 4, the table receipts_linearized has 9.",
        "raises it by itself",
    ),
    (
        f"Bounding token from the future 'StreamKeyType.DEVICE_LIST': token: {many(30, 'd1: 38')}, bound: 33",
        "token_bounded",
        "device_list of a client's token is 5 ahead of the database: the token is at 38",
        "restored from an older copy",
    ),
    (
        (
            "Got to-device.since from the future. since token: 88 is ahead of our current to_device stream"
            " position: 80"
        ),
        "to_device_ahead",
        "to_device is 8 behind: a sliding sync asks for messages after 88, this process is at 80.",
        "no to-device messages",
    ),
    (
        "INFO - replication_command-4 - Fetching replication rows for 'to_device' / tw1 between 5 and 9",
        "fetching",
        "to_device had a gap of 4: this process is at 5, tw1 announced 9.",
        "missing rows",
    ),
    (
        "Got POSITION for unknown stream: sticky_events",
        "unknown_stream",
        "This process does not know the stream sticky_events.",
        "different releases",
    ),
    (
        "Lost replication connection; streams now disconnected: {'events', 'receipts'}",
        "lost_streams",
        "This process lost its connection to Redis (or, up to 1.66, over TCP",
        "caches are stale",
    ),
    (
        "Dropping command as not connected: 'RDATA'",
        "command_dropped",
        "This process is not connected to Redis (or, up to 1.66, over TCP",
        "Logged by Synapse 1.13 and later.",
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


WRAPPERS: Final = [
    "{line}",
    "    {line}   ",
    "> {line}",
    "`{line}`",
    "2026-01-02 03:04:05,678 - {logger} - 1 - INFO - GET-1 - {line}",
    "Jul 03 15:42:11 matrix synapse[32346]: {logger}: [GET-1] {line}",
    "matrix  | 2023-11-04 23:29:22,160 - {logger} - 1 - INFO - sentinel - {line}",
    '"{escaped}"',
    '{{"log":"{escaped}\\n","stream":"stderr","time":"2026-01-02T03:04:05Z"}}',
    '{{"level":"WARNING","namespace":"{logger}","log":"{escaped}","time":1.5}}',
    '["pmessage","hs","hs","{escaped}"]',
    '1) "message" 2) "hs" 3) "{escaped}"',
    "before\n\n{line}\r\nafter",
]


LOGGERS: Final = {known.key: known.logger for known in known_messages()}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Timed out waiting for repl stream 'typing' to reach 8 (tw1); currently at: 6", "repl_wait_timeout"),
        (f"{STUCK}to_device_key (at 4, waiting for 6)", "stream_wait_timeout"),
        ("s12_3_0_1_1_1_1_4_1", "sync_token"),
    ],
)
def test_prefixes_and_quotes_do_not_matter(wrapper: str, line: str, kind: str) -> None:
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    logger = LOGGERS.get(kind, "synapse.access.http.8008")

    passage = only(wrapper.format(line=line, escaped=escaped, logger=logger))

    assert (passage.kind, passage.fields) == (kind, only(line).fields)


CAPTURES: Final = [
    "1795226010143\tlocalhost:52673\t{line}",
    "   148 < {line}",
    "0.000 > {line}",
    "   3.808 c1 < {line}",
    '1795226010.139287 [0 127.0.0.1:41678] "PUBLISH" "localhost:52673" "{escaped}"',
]
"""Lines of the protocol that were recorded."""


@pytest.mark.parametrize("wrapper", [*WRAPPERS, *CAPTURES])
@pytest.mark.parametrize(
    "line",
    [
        'RDATA receipts rw1 54 ["!r:hs","m.read","@ada:hs","$e",null,{"ts":1}]',
        "POSITION events master 50 53",
    ],
)
def test_a_line_of_the_protocol_is_one_without_a_logger_before_it(wrapper: str, line: str) -> None:
    """What a logger wrote is none, whatever it looks like."""
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    text = wrapper.format(line=line, escaped=escaped, logger="synapse.x")

    found = [passage.kind for passage in explain(text).passages]

    assert found == ([] if "synapse.x" in text else ["protocol_line"])


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

    assert passage.kind == "redis_bad_line"
    assert "tw1 wrote a row of typing at 5." in passage.words


def test_a_token_in_a_percent_encoded_address() -> None:
    passage = only("GET /sync?pos=5%2Fm12~2.14_3_0_m1%7E2.3_1_1_1_4_1_7 HTTP/1.1")

    assert passage.kind == "sync_token"
    assert "It is one of sliding sync: 5 is the state of the connection." in passage.words
    assert {"field": "receipt, writer 2", "position": 3}.items() <= passage.fields[5].items()


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (7, "of an older one, or the token was cut off"),
        (8, "8 fields: Synapse 0.21 to 0.23."),
        (9, "9 fields: Synapse 0.24 to 1.75."),
        (10, "10 fields: Synapse 1.76 to 1.138."),
        (11, "11 fields: Synapse 1.139 to 1.147."),
        (12, "12 fields: Synapse 1.148 to 1.153."),
        (13, "13 fields: Synapse 1.154 to 1.158."),
        (14, "14 fields: Synapse 1.159 and later."),
        (15, "more than Synapse 1.163 has"),
    ],
)
def test_the_number_of_fields_tells_releases(count: int, said: str) -> None:
    passage = only("s7" + "".join(f"_{number}" for number in range(1, count)))

    assert [row["position"] for row in passage.fields] == [7, *range(1, count)]
    assert [row["field"] for row in passage.fields][:14] == [one.name for one in TOKEN_FIELDS][:count]
    assert said in passage.words[1]


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("m7~2.9_1_1_3_1_1_1_1_0", "9 fields: Synapse 1.22 to 1.75."),
        ("s7_1_1_m3~2.5_1_1_1_1_0_0", "10 fields: Synapse 1.96 to 1.138."),
        ("s7_1_1_3_1_1_1_m1~2.3_0_0", "10 fields: Synapse 1.135 to 1.138."),
        ("s7_1_1_3_1_1_1_1_0_0_0_m1~2.3_0_0", "14 fields: Synapse 1.163 and later."),
        ("5/s7_1_1_3_1_1_1_1_0_0", "10 fields: Synapse 1.113 to 1.138."),
        ("m7~_1_1_3_1_1_1_1_0_0", "10 fields: Synapse 1.76 to 1.111."),
        ("s7_1_1_m3~_1_1_1_1_0_0", "10 fields: Synapse 1.96 to 1.111."),
        ("m7~2.3_1_1_3_1_1_1_1_0", "9 fields: Synapse 1.22 to 1.75."),
        ("s7_1_1_m3~2.5_1_1_1_1_0", "no release writes it so. So many fields are of Synapse 0.24 to 1.75"),
    ],
)
def test_the_form_of_a_token_narrows_the_releases(token: str, said: str) -> None:
    """Maps of writers came field by field, sliding sync later, empty maps went."""
    assert said in " ".join(only(token).words)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("m56~2.50_1_1_3_1_1_1_1_0", "releases 1.22 to 1.75 wrote such tokens"),
        ("s9_1_1_m56~2.50_1_1_1_1_0_0", "no release writes such a token"),
        ("s9_1_1_m56~2.56_1_1_1_1_0_0", "writer 2 at 56, which is not ahead of 56"),
    ],
)
def test_a_writer_that_is_not_ahead_is_told(token: str, said: str) -> None:
    """Synapse refuses such a token since 1.112 (element-hq/synapse#17438)."""
    [sentence] = [one for one in only(token).words if "cannot be right" in one]

    assert said in sentence
    assert "refuses it with 400" in sentence


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

    assert passage.kind == "position"
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


@pytest.mark.parametrize("line", ["RDATA receipts rw1 54", 'RDATA receipts rw1 54 ["!r:hs","m.re'])
def test_a_line_that_was_cut_off_is_shown_with_its_forms(line: str) -> None:
    passage = only(line)

    assert "no release writes it so" in passage.words[0]
    assert any(sentence.startswith("RDATA <stream> <instance> <token") for sentence in passage.words)


def test_an_access_token_is_not_shown() -> None:
    for line in (
        'USER_IP @ada:hs ["s3cret","127.0.0.1","curl",null,1490197670513]',
        'USER_IP @ada:hs ["s3cret"',
    ):
        assert "s3cret" not in repr(explain(line))
        assert len(explain(line).passages) == 1


@pytest.mark.parametrize(
    "line",
    [
        """Failed to parse replication line: b'USER_IP @ada:hs ["s3cretToken","127.0.0.1","curl",null,5]'""",
        """Failed to parse replication line: b'USER_IP @ada:hs ["s3cretToken"'""",
        "Error sending request to  GET http://w1/_synapse/replication/x?access_token=s3cretToken&a: Error",
        "x request connection failed; retrying in 1s: ConnectError('redis://:s3cretToken@host:6379')",
        "Failed to handle command syt_YWRh_s3cretToken_1abc",
        "psycopg2.ProgrammingError: invalid dsn: host=db password=s3cretToken user=x",
        # As libpq, JSON and Python quote it, also where the text was cut within.
        "psycopg2.ProgrammingError: invalid dsn: host=db password = 'my \\' s3cretToken' user=x",
        "psycopg2.ProgrammingError: invalid dsn: {'PASSWORD': 'my s3cretToken', 'x': 1}",
        'psycopg2.ProgrammingError: invalid dsn: {"password": "my s3cretToken',
        "psycopg2.ProgrammingError: invalid dsn: as_token='my s3cretToken' hs_token: \"s3cretToken\"",
        "psycopg2.ProgrammingError: invalid dsn: postgresql://u:p@s3cretToken@host/d",
        "x request connection failed; retrying in 1s: {'Authorization': 'Bearer s3cretToken.x'}",
        "Failed to handle command mct_AbCdEf123s3cretToken_zzz",
        "Failed to handle command syr_YWRh_s3cretToken_1abc",
    ],
)
def test_secrets_of_a_message_are_not_shown(line: str) -> None:
    passage = only(line)

    assert "s3cretToken" not in repr(passage)
    assert "(not shown)" in passage.text


@pytest.mark.parametrize(
    "text",
    [
        'password authentication failed for user "synapse"',
        "Client sent AUTH, but no password is set",
        "AUTH failed: WRONGPASS invalid username-password pair",
        "access to https://matrix.org:8448/@ada:hs",
        "the token s1_2_3 is old",
        "SMTP AUTH extension not supported by server.",
        "Server supports SMTP AUTH LOGIN mechanism only",
        "No suitable authentication method found: AUTH PLAIN LOGIN",
        "the bearer authentication failed",
        "Unsupported Authorization: Bearer authentication",
        "the bearer tokens.",
        "CMD=AUTH user=default",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert text == without_secrets(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"{\"password\": \"hun ter3\", \"user\": 1}", r"{\"password\": (not shown), \"user\": 1}"),
        (r"{\"password\": \"hun\\\"ter3\", \"user\": 1}", r"{\"password\": (not shown), \"user\": 1}"),
        (r'"{\\\"access_token\\\":\\\"hunter3\\\"}"', r'"{\\\"access_token\\\":(not shown)}"'),
        (r'{"password": "hun\"ter3", "user": 1}', '{"password": (not shown), "user": 1}'),
        ("('AUTH', 'hunter3')", "('AUTH', '(not shown)')"),
        ("(b'AUTH', b'hunter3')", "(b'AUTH', b'(not shown)')"),
        ("('AUTH', 'default', 'hunter3')", "('AUTH', '(not shown)')"),
        ("AUTH default hunter3", "AUTH (not shown)"),
        ("AUTH PLAIN aHVudGVyMw==", "AUTH (not shown)"),
        ("SMTP AUTH PLAIN aHVudGVyMw==", "SMTP AUTH PLAIN (not shown)"),
        ("[b'Bearer abcdefgh']", "[b'Bearer (not shown)']"),
        ("Authorization: Basic aHVudGVyMw==", "Authorization: Basic (not shown)"),
        ("smtp_pass: hunter3", "smtp_pass: (not shown)"),
    ],
)
def test_secrets_are_hidden_however_they_are_quoted(text: str, shown: str) -> None:
    assert shown == without_secrets(text)


def test_every_example_of_every_command_is_explained() -> None:
    """All but ERROR, which begins lines of logs."""
    for name, command in COMMANDS.items():
        for line in command.EXAMPLES.values():
            assert explain(line).passages or name == "ERROR", line


def test_every_stream_of_synapse_has_writers() -> None:
    own = {"files", "declarations", "promises", "atomic_appends", "refused"}
    known = {stream.name for stream in StreamTable.default()} - own

    assert known == {*WRITER_KEYS, *MAIN_PROCESS, "caches"}
    assert {field.stream for field in TOKEN_FIELDS} <= known


def test_lines_that_say_the_same_are_one_passage() -> None:
    line = "Timed out waiting for worker to catch up. Returning empty response"

    found = explain(f"{line}\nhello\n2024-06-06 01:02:03,456 - {line}\nPOSITION typing tw1 0 5")

    assert [(passage.lines, passage.count) for passage in found.passages] == [([1, 3], 2), ([4], 1)]
    assert (found.lines, found.unrecognized) == (4, 1)


@pytest.mark.parametrize(
    "text", ["", "\n \n", "hello", "ERROR:", "a_b_c", "s12_x", "1_2_3", "{", '{"log": 5}']
)
def test_other_text_is_not_recognized(text: str) -> None:
    assert explain(text).passages == []


def test_a_message_with_ever_other_values_is_one_passage() -> None:
    """The first is the example; the memory does not grow with the log."""
    lines = [
        f"2026-11-02 10:00:{number % 60:02},000 - synapse.replication.tcp.handler - 738 - INFO - x -"
        f" Caught up with stream 'receipts' to {number}"
        for number in range(50)
    ]

    few = explain("\n".join(lines[:MAX_EXAMPLES])).passages
    [many] = explain("\n".join(["hello", *lines])).passages

    assert [passage.count for passage in few] == [MAX_EXAMPLES]
    assert (many.count, many.lines) == (50, list(range(2, 2 + MAX_NUMBERS)))
    assert (many.first_time, many.last_time) == ("2026-11-02 10:00:00,000", "2026-11-02 10:00:49,000")


def test_lines_of_the_protocol_beyond_the_first_are_counted() -> None:
    few = explain("\n".join(f"POSITION typing tw1 0 {number}" for number in range(MAX_EXAMPLES)))
    many = explain("\n".join(f"POSITION typing tw1 0 {number}" for number in range(10 * MAX_EXAMPLES)))

    assert [passage.count for passage in few.passages] == [1] * MAX_EXAMPLES
    assert [passage.count for passage in many.passages] == [10 * MAX_EXAMPLES]


def test_the_worst_comes_first() -> None:
    found = explain(
        "Connected to redis\nPOSITION typing tw1 0 5\nFailed to send ping to a redis connection\n"
        "[a-b] invalid command USER_SYNC"
    )

    assert [passage.severity for passage in found.passages] == ["error", "look", "", "normal"]


def test_control_characters_are_never_returned() -> None:
    found = explain(
        "Timed out waiting for repl stream 'typing' to reach 8 (a\x1b[31m\u202eb)\n"
        'RDATA typing a\x1b[2J 5 ["!r\\u0007",["@\x9b"]]\n'
        "POSITION \x1b[31mx master 1 2\nUSER_SYNC \x1b \x1b \x1b start 5\nRDATA \x1b"
    )

    assert len(found.passages) == 3
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


HOSTILE_SECONDS: Final = 20.0
"""CPU seconds: ten times what the slowest takes. A pattern that backtracks takes minutes."""


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_takes_no_long_time(text: str) -> None:
    began = time.process_time()

    explain(text)

    assert time.process_time() - began < HOSTILE_SECONDS


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
        assert passage.kind in {*KINDS, *LOGGERS}
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


CONTEXTS: Final = [
    "{token}",
    "since={token}",
    "GET /_matrix/client/v3/sync?timeout=30000&since={encoded}&filter=0 HTTP/1.1",
    "https://hs.test/_matrix/client/v3/sync?since={encoded}",
    "GET /sync?next=%2Fsync%3Fsince%3D{encoded} HTTP/1.1",
    '{{"next_batch": "{token}", "rooms": {{}}}}',
    '  "next_batch": "{token}",',
    '{{"log":"since={token}\\n","stream":"stderr"}}',
    "INSERT INTO tokens VALUES ('@ada:hs', '{token}');",
    "UPDATE x SET next_batch = '{token}' WHERE id = 3",
    " @ada:hs | {token} | 2026-11-02",
    "2026-11-02 10:00:00,000 - synapse.access.http.8008 - 1 - INFO - GET-1 - GET /sync?since={encoded}",
    "since: {token}, limit 5",
    "(from {token} to here)",
    "curl 'https://hs.test/sync?since={encoded}&timeout=0'",
    'next_batch=\\"{token}\\"',
]
"""Where people paste tokens from."""

POSITIONS: Final = st.integers(0, 2**40)
MAPS: Final = st.builds(
    lambda least, ahead: f"m{least}" + "".join(f"~{writer}.{least + more}" for writer, more in ahead.items()),
    POSITIONS,
    st.dictionaries(st.integers(1, 99), st.integers(1, 99), min_size=1, max_size=3),
)
TOKENS: Final = st.builds(
    lambda room, rest: "_".join([room, *rest]),
    st.one_of(POSITIONS.map(lambda at: f"s{at}"), MAPS),
    st.lists(st.one_of(POSITIONS.map(str), MAPS), min_size=7, max_size=13),
)


@given(st.sampled_from(CONTEXTS), TOKENS)
def test_a_token_in_a_text_is_the_token_alone(context: str, token: str) -> None:
    text = context.format(token=token, encoded=token.replace("~", "%7E"))

    assert only(text).fields == only(token).fields


@given(st.lists(TOKENS, min_size=1, max_size=4, unique=True))
def test_several_tokens_in_a_line_are_each_found(tokens: list[str]) -> None:
    found = [one for one in explain(", ".join(tokens)).passages if one.kind == "sync_token"]

    assert [one.fields for one in found] == [only(token).fields for token in tokens]


def test_tokens_are_compared() -> None:
    """Two processes of which one does not receive presence (matrix-org/synapse#15055)."""
    found = explain(
        "since=s4829079_162550120_457711_6070757_12110780_26763_166962_37472_0_1\n"
        'next_batch: "s4829085_162550120_457732_6070767_12110792_26763_166962_37473_0_1"\n'
        'next_batch: "s4829128_162821655_457849_6070806_12110893_26763_166962_37474_0_1"\n'
    ).passages

    assert [passage.kind for passage in found] == ["compared_tokens", *["sync_token"] * 3]
    assert (
        "presence stands still at 162550120 from token 1 to token 2, and is 271,535 further in a later one."
        in found[0].words
    )
    rows = {row["field"]: row for row in found[0].fields}
    assert (rows["room"]["token_1"], rows["room"]["token_3"], rows["room"]["moved"]) == (4829079, 4829128, 49)
    assert any("Still in all tokens: push_rules, to_device" in sentence for sentence in found[0].words)


def test_a_stream_that_goes_back_is_told() -> None:
    [compared] = [
        one
        for one in explain("s9_5_3_4_4_4_4_4_0 then s9_4_1_4_4_4_4_4_0").passages
        if one.kind == "compared_tokens"
    ]

    assert "presence goes back by 1 from token 1 to token 2." in compared.words
    assert not any(sentence.startswith("typing goes back") for sentence in compared.words)


def test_each_writer_of_tokens_is_compared() -> None:
    """One that stands still while another goes on."""
    [compared] = [
        one
        for one in explain(
            "m56~2.60~3.70_1_1_1_1_1_1_1_0 m56~2.60~3.75_1_1_1_1_1_1_1_0 m58~2.61~3.75_1_1_1_1_1_1_1_0"
        ).passages
        if one.kind == "compared_tokens"
    ]

    assert [(row["field"], row["token_1"], row["token_3"]) for row in compared.fields[:3]] == [
        ("room", 56, 58),
        ("room, writer 2", 60, 61),
        ("room, writer 3", 70, 75),
    ]
    assert any(
        sentence.startswith("room, writer 2 stands still at 60 from token 1") for sentence in compared.words
    )


def test_equal_positions_of_tokens_are_told() -> None:
    found = explain("s9_5_3_4_4_4_4_4_0 then s9_5_3_4_4_4_4_4_0_0").passages

    assert "All tokens are at the same positions." in found[0].words


@pytest.mark.parametrize(
    ("text", "said", "rows"),
    [
        (
            "RoomStreamToken(topological: None, stream: 4321, instances: {'persister1': 4330})",
            "A place in the stream events: all writers are after 4321",
            [("room", 4321), ("room, persister1", 4330)],
        ),
        (
            "MultiWriterStreamToken(stream: 41, instances: {'worker1': 44})",
            "A place in a stream that several processes write",
            [("all others", 41), ("worker1", 44)],
        ),
        (
            "RoomStreamToken(topological=7, stream=5, instance_map=immutabledict({}))",
            "A place in a room's history: it pages back after depth 7",
            [("room", 5)],
        ),
    ],
)
def test_a_logged_position_alone(text: str, said: str, rows: list[tuple[str, int]]) -> None:
    for wrapped in (text, f"2026-11-02 10:00:00,000 - synapse.x - 1 - DEBUG - GET-1 - at {text}, which is"):
        passage = only(wrapped)

        assert passage.kind == "position"
        assert passage.words[0].startswith(said)
        assert [(row.get("field", row.get("writer")), row["position"]) for row in passage.fields] == rows


def test_the_log_form_without_separators_is_read() -> None:
    """As 1.154 to 1.158 write it."""
    text = logged(un_partial_stated_rooms=6).removesuffix(")")
    text += f",thread_subscriptions: 8, sticky_events: 9quarantined_media: {many(3, 'w1: 4')})"

    places = {row["field"]: row["position"] for row in only(text).fields}

    assert (places["thread_subscriptions"], places["sticky_events"]) == (8, 9)
    assert (places["quarantined_media"], places["quarantined_media, w1"]) == (3, 4)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (represented(9, 6), "10 fields: Synapse 1.96 to 1.138."),
        (represented(9, 6).replace("immutabledict", "frozendict"), "no release writes it so"),
        (logged(), "10 fields: Synapse 1.112 to 1.138."),
        (
            logged(un_partial_stated_rooms="6,thread_subscriptions: 8, sticky_events: 9"),
            "12 fields: Synapse 1.148 to 1.153.",
        ),
        (
            represented(9, 6).partition(", receipt_key")[0].replace("immutabledict", "frozendict")
            + ", receipt_key=5, account_data_key=1, push_rules_key=1, to_device_key=1, device_list_key=3,"
            " groups_key=0)",
            "9 fields: Synapse 1.44 to 1.75.",
        ),
    ],
)
def test_the_notation_of_a_log_narrows_the_releases(token: str, said: str) -> None:
    assert said in only(token).words[1]


def test_a_whole_log_is_bounded() -> None:
    """A hundred thousand lines are a few passages; what they say is counted."""
    lines = (
        f"2026-11-02 10:{number // 60 % 60:02}:{number % 60:02},000 - synapse.replication.tcp.handler - 738 -"
        f" DEBUG - x - Received rdata events (w{number % 3}) -> {number} since=s{number}_1_1_1_1_1_1_1_1"
        for number in range(20_000)
    )

    [passage] = explain_lines(lines).passages

    assert (passage.kind, passage.count) == ("rdata_received_handler", 20_000)
    assert len(passage.lines) == MAX_NUMBERS


def test_a_token_of_a_rooms_history_is_no_sync_token() -> None:
    """As clients send it to /messages, and keep it as prev_batch (famedly/matrix-dart-sdk#2473)."""
    passage = only("GET /_matrix/client/v3/rooms/!x:y/messages?from=t33-1714_75_10_35_40_26_14_11_0_47&dir=b")

    assert passage.words[0].startswith(
        "A token of a room's history: it pages back after depth 33, event 1714"
    )
    assert "received" not in " ".join(passage.words)
