"""Tables of the database, statements and metrics, as people paste them."""

import time

import pytest

from synrepl.homeserver.explanation import Passage, explain

BEHIND = """\
synapse=# select max(stream_ordering) from events;
    max
-----------
 806649123
(1 row)

synapse=# select * from appservice_stream_position;
 lock | stream_ordering
------+-----------------
 X    |       806639937
(1 row)
"""
AHEAD = """\
> select * from federation_stream_position;
>     type    | stream_id
> ------------+-----------
>  federation |        -1
>  events     |    101244
> (2 lignes)
SELECT max(stream_ordering) FROM events
| max    |
|--------|
| 101000 |
"""
SEQUENCE = """\
select last_value, is_called from events_stream_seq;
 last_value | is_called
------------+-----------
        420 | t
(1 row)"""
DROPPED = """\
 stream_id |  cache_func   | keys   | invalidation_ts
-----------+---------------+--------+-----------------
 558594235 | cs_cache_fake | {!a:b} |   1552393420347"""


def only(text: str, kind: str) -> list[Passage]:
    return [one for one in explain(text).passages if one.kind == kind]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BEHIND, "appservice_stream_position is at 806639937, 9,186 behind the newest event (806649123)."),
        (
            AHEAD,
            "federation_stream_position is at 101244, 244 above the newest event (101000): nothing is sent",
        ),
        (BEHIND.replace("806639937", "806649123"), "is at the newest event (806649123): nothing waits."),
    ],
)
def test_positions_of_those_who_follow_the_events_are_compared_with_the_newest(text: str, said: str) -> None:
    found = explain(text)

    assert any(said in word for one in found.passages for word in one.words)
    assert (0, len([line for line in text.splitlines() if line])) == (found.unrecognized, found.lines)


def test_stored_positions_are_told_by_stream_and_writer() -> None:
    [passage] = only(
        "   stream_name    | instance_name | stream_id\n"
        "------------------+---------------+-----------\n"
        " events           | persister1    |        15\n"
        " events           | persister2    |        17\n"
        " receipts_fancy   | persister2    |         7\n"
        "(3 rows)\n",
        "sql_table",
    )

    assert [("events", "persister1", 15, 2), ("events", "persister2", 17, 0)] == [
        (one["stream"], one["writer"], one["position"], one["behind"]) for one in passage.fields[:2]
    ]
    assert any("The writers of events differ" in word for word in passage.words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sqlite> select count(*) from device_federation_outbox;\n4", "It has 4 of them."),
        ("SELECT COUNT(*) FROM device_inbox;\n count \n-------\n 1204\n(1 row)", "It has 1,204 of them."),
        (
            SEQUENCE,
            "A sequence: the last id that was given out is 420.",
        ),
        (
            " last_value | is_called \n------------+-----------\n          1 | f\n(1 row)\n",
            "no id was given out since it was made, or set: the next is 1. Where it is of a stream, all",
        ),
        (
            " last_value | is_called \n------------+-----------\n          1 | t\n(1 row)\n",
            "A sequence: the last id that was given out is 1.",
        ),
        (" last_value \n------------\n          1\n(1 row)\n", "is 1, or none was, and the next is 1"),
        (
            DROPPED,
            "The table cache_invalidation_stream. What was dropped from caches",
        ),
    ],
)
def test_other_tables_say_what_they_are(text: str, said: str) -> None:
    found = explain(text)

    assert said in " ".join(word for one in found.passages for word in one.words)
    assert 0 == found.unrecognized


@pytest.mark.parametrize(
    "text",
    [
        "Heading\n-------\ntext",
        "select * from places;\n name | town\n------+------\n a | b\n(1 row)",
        "a | b\n--+--+--\n1 | 2",
        "delete everything from here",
        "4",
        "select count(*) from people;\n4",
        "the events that I select come from events like these, 4 of them",
    ],
)
def test_tables_of_others_are_none(text: str) -> None:
    assert not [one for one in explain(text).passages if one.kind == "sql_table"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "SELECT setval('receipts_sequence', (SELECT MAX(stream_id) FROM receipts_linearized));",
            "run it only while no process of Synapse runs",
        ),
        (
            "psql -d synapse -c 'DELETE FROM cache_invalidation_stream_by_instance'",
            "All of them only while all processes are stopped",
        ),
        ("update appservice_stream_position set stream_ordering = 5;", "never get the events in between"),
        ("DELETE FROM stream_positions WHERE stream_name = 'events';", "leaves sequences behind"),
    ],
)
def test_a_statement_that_changes_streams_says_what_it_does(text: str, said: str) -> None:
    [passage] = only(text, "statement")

    assert said in " ".join(passage.advice)


def test_a_statement_that_postgresql_logged_is_nobodys_fault() -> None:
    [passage] = only(
        "Jul 09 19:32:19 host postgres[28]: [24-2] 2020-07-09 14:02:19.105 UTC [33] STATEMENT:  DELETE FROM"
        " device_lists_stream WHERE stream_id < 7",
        "statement",
    )

    assert (passage.advice, passage.severity) == ([], "")
    assert "PostgreSQL's line before it tells, on device_lists_stream" in passage.words[0]
    assert not explain("STATEMENT:  DELETE FROM unknown_here").passages


def test_metrics_are_told_by_family() -> None:
    found = explain(
        "# HELP synapse_util_caches_cache_hits\n"
        '# TYPE synapse_util_caches_cache_hits gauge\nsynapse_util_caches_cache:hits{name="a"} 7.43447e+05\n'
        'synapse_util_caches_cache_size{name="a"} 387\nsynapse_util_caches_cache:hits{name="a"} 9\n'
        'synapse_replication_tcp_command_queue{stream_name="events",name="w1"} 12\n'
        "synapse_notifier_users 0.0\n"
    )

    caches, queue, users = found.passages
    assert 0 == found.unrecognized
    assert (["metric"] * 3, 3) == ([one.kind for one in found.passages], caches.count)
    assert {"metric": "synapse_util_caches_cache_size", "labels": 'name="a"', "value": "387"} in caches.fields
    assert "Some stand there more than once" in caches.words[1]
    assert "cannot keep up" in queue.words[0]
    assert "only processes that answer /sync count any" in users.words[0]


def test_metrics_without_end_are_counted() -> None:
    text = "\n".join(f'synapse_util_caches_cache_size{{name="c{number}"}} 1' for number in range(100))

    [passage] = explain(text).passages

    assert (100, 30) == (passage.count, len(passage.fields))
    assert "The first 30 of 100." in passage.words


@pytest.mark.parametrize(
    "text", ["node_load1 0.5", "go_threads 9", "synapse_x", "the synapse_notifier_users 0"]
)
def test_metrics_of_others_are_none(text: str) -> None:
    assert not only(text, "metric")


def test_memory_as_jemalloc_counts_it_is_of_a_process() -> None:
    [passage] = only('jemalloc_stats_app_memory_bytes{type="allocated"} 2.3e+09', "metric")

    assert "max_cache_memory_usage" in passage.words[0]


CLIENT = (
    "id=96 addr=127.0.0.1:33322 laddr=127.0.0.1:6379 fd=37 name= age=125 idle=5 flags={} db=0 sub={} psub=0"
    " ssub=0 multi=-1 qbuf=0 events=r cmd={} user=default redir=-1 resp=2"
)


def test_connections_to_redis_tell_who_receives() -> None:
    """Where none did, nothing arrived (matrix-org/synapse#16093)."""
    sends, receives = CLIENT.format("N", 0, "ping"), CLIENT.replace("96", "97").format("P", 1, "subscribe")

    [none] = explain(f"{sends}\n{sends}").passages
    [one] = explain(f"$ redis-cli client list\n{sends}\n{receives}").passages

    assert ("error", 2) == (none.severity, none.count)
    assert none.words[0].startswith("No connection here is subscribed")
    assert one.words[0].startswith("2 connections to Redis, of which 1 receive")


@pytest.mark.parametrize(
    ("sub", "omem", "severity"), [(1, 33_554_432, "look"), (1, 20_000, ""), (0, 9**8, "error")]
)
def test_a_connection_that_does_not_keep_up(sub: int, omem: int, severity: str) -> None:
    """Only of those that receive: the others wait for nothing that was published."""
    [one] = explain(CLIENT.format("P", sub, "subscribe").replace("qbuf=0", f"qbuf=0 omem={omem}")).passages

    assert severity == one.severity
    assert (severity == "look") == one.words[0].startswith("Much waits for a connection that receives")


def test_lines_of_one_client_are_one_connection() -> None:
    """It was looked at three times, and had read all in the end (redis/redis#3893)."""
    lines = [
        CLIENT.format("P", 1, "subscribe").replace("qbuf=0", f"omem={omem}") for omem in (0, 8_482_912, 0)
    ]
    [one] = explain("\n\n".join(lines)).passages

    assert "8482912 bytes" in one.words[0]
    assert "In its last line here 0 wait" in one.words[0]
    assert one.words[1].startswith("1 connection to Redis, of which 1 receive")
    assert "3 lines" in one.words[2]


MONITOR = """\
OK
1690876800.123456 [0 127.0.0.1:43212] "SUBSCRIBE" "{0}" "{0}/USER_IP"
1690876800.223456 [0 127.0.0.1:43210] "PUBLISH" "hs" "REPLICATE "
1690876800.323456 [0 127.0.0.1:43210] "publish" "hs" "{1} caches master 3 3"
1690876801.123456 [0 unix:/run/redis.sock] "SET" "cache_v1:get_joined_hosts:1" "[\\"hs\\"]" "PX" "3000"
1690876801.223456 [0 lua] "PING"
"""


@pytest.mark.parametrize(
    ("channel", "verb", "severity", "first"),
    [
        ("hs", "POSITION", "", "Commands that a Redis was sent (redis-cli monitor): 2 PUBLISH, 1 SUBSCRIBE"),
        ("other", "POSITION", "look", "Nobody who subscribed here hears hs: the channels of those who did"),
        ("hs", "PING", "look", "A process asked for the positions (REPLICATE), and none came (POSITION)."),
    ],
)
def test_commands_to_redis(channel: str, verb: str, severity: str, first: str) -> None:
    """As MONITOR prints them: who hears whom, beside the lines that were published."""
    result = explain(MONITOR.format(channel, verb))
    [passage] = [one for one in result.passages if one.kind == "redis_commands"]

    assert (severity, 5) == (passage.severity, passage.count)
    assert passage.words[0].startswith(first)
    assert (
        f"On hs there were published: 1 REPLICATE and 1 {verb}; connections that did so: 1." in passage.words
    )
    assert f"Connections that subscribed to {channel}/USER_IP here: 1." in passage.words
    assert [one for one in result.passages if one.kind == "protocol_line"]


def test_most_commands_to_redis_are_counted_alone() -> None:
    """A page of them is no page of explanations."""
    line = '1690876800.123456 [0 127.0.0.1:4] "PUBLISH" "hs" "POSITION caches w{} 3 3"\n'
    result = explain("".join(line.format(number) for number in range(500)))

    assert 3 == len([one for one in result.passages if one.kind == "protocol_line"])
    assert 0 == result.unrecognized


NUMSUB = '127.0.0.1:6379> PUBSUB NUMSUB hs\n1) "hs"\n2) (integer) {}\n'


def test_subscribers_of_a_channel() -> None:
    [three], [none] = (explain(NUMSUB.format(count)).passages for count in (3, 0))

    assert ("", "hs has 3 subscribers.") == (three.severity, three.words[0])
    assert ("look", "Nobody hears hs.") == (none.severity, none.words[0])
    assert not explain('1) "hs"\n2) (integer) 3\n').passages


def test_all_lines_of_an_output_are_counted() -> None:
    """Only the numbers of the first ones are listed: there may be thousands of channels."""
    channels = "".join(f'{at}) "hs{at}"\n{at + 1}) (integer) 1\n' for at in range(1, 20, 2))
    [found] = explain(f"> PUBSUB NUMSUB\n{channels}").passages

    assert (21, list(range(1, 11))) == (found.count, found.lines)


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("client_output_buffer_limit_disconnections:4", "did not read what was published fast enough"),
        ("role:slave", "reaches the subscribers of this one alone"),
        ("master_link_status:down", "lost its primary"),
        ("loading:1", "answers nothing yet"),
        ("pubsub_channels:0", "nobody is subscribed"),
        ("rejected_connections:12", "maxclients"),
        ("evicted_keys:0", ""),
        ("role:master", ""),
    ],
)
def test_what_redis_says_of_itself(line: str, means: str) -> None:
    [passage] = explain(f"# Server\nredis_version:7.2.4\nuptime_in_days:3\n\n# Stats\n{line}\n").passages

    assert ("redis_info", "look" if means else "") == (passage.kind, passage.severity)
    assert means in passage.words[0]


@pytest.mark.parametrize("text", ["port:8008", "# Server\nserver_name: x", "redis:\n  host:redis", "OK"])
def test_settings_are_no_info_of_redis(text: str) -> None:
    assert not only(text, "redis_info")


def test_an_answer_of_prometheus_has_samples() -> None:
    queue = '{{"metric":{{"__name__":"synapse_replication_tcp_command_queue","name":"{}"}},"value":[16,"5"]}}'
    results = ",".join(queue.format(name) for name in ("w1", "w2"))

    [passage] = explain(f'{{"status":"success","data":{{"result":[{results}]}}}}').passages

    assert ['name="w1"', 'name="w2"'] == [row["labels"] for row in passage.fields]
    assert not explain('{"metric":{"__name__":"node_load1"},"value":[1,"5"]}').passages


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # Not believed until a restart (element-hq/synapse#18814).
        ("UPDATE users SET admin = 1 WHERE name = '@user:hs';", ["users.admin", "get_user_by_id USER_ID"]),
        (
            "synapse=# update users set shadow_banned = true, user_type='bot, admin = 1' where name='@a:hs'",
            ["users.shadow_banned", "--all get_user_by_access_token", "users.user_type", "is_support_user"],
        ),
        ("update public.profiles set displayname='x' where user_id='bob'", ["member events"]),
        ("DELETE FROM access_tokens WHERE user_id = '@a:hs';", ["--all get_user_by_access_token"]),
        ("delete from pushers where user_name = '@a:hs'", ["each pusher in its memory"]),
        ("INSERT INTO registration_tokens (token) VALUES ('x');", ["seen at the next read"]),
    ],
)
def test_a_row_changed_by_hand_is_followed_to_the_caches(text: str, says: list[str]) -> None:
    [passage] = only(text, "statement")

    assert [one for one in says if one not in " ".join(passage.words)] == []
    assert "synrepl invalidate" in passage.advice[0]


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE users SET password = 'x' WHERE id = 1;",
        "UPDATE customers SET admin = 1;",
        "SELECT admin FROM users;",
        "update the users",
        "we have to update users some day",
        "2024-01-01 10:00:00,000 - synapse.storage.SQL - 469 - DEBUG - P-1 - UPDATE users SET admin = 1",
    ],
)
def test_statements_that_change_no_known_column_are_none(text: str) -> None:
    assert not only(text, "statement")


def test_a_password_in_a_statement_is_not_shown() -> None:
    [passage] = only("psql postgresql://u:hunter2@h/s -c 'DELETE FROM stream_positions'", "statement")

    assert "hunter2" not in str(passage)
    assert "DELETE FROM stream_positions" in passage.text


@pytest.mark.parametrize(
    "text",
    [
        "select " * 9_000,
        "select count(*) from " * 3_000,
        "delete" + " " * 60_000 + "from",
        "-" * 60_000,
        "a|" * 30_000 + "\n" + "-+" * 30_000,
        "synapse_" * 8_000,
        "synapse_x{" + "a" * 60_000,
        "id=1 addr=x " + "sub=1 " * 10_000,
        '{"a":' * 10_000 + "}" * 10_000,
        "/a" * 30_000 + ".py:1:x",
        'Processed request: "' * 3_000,
        "prev_batch " * 6_000 + "s1_2_3_4_5_6_7_8",
    ],
)
def test_a_hostile_text_of_figures_takes_no_long_time(text: str) -> None:
    began = time.process_time()
    explain(f"{text}\n{text}")

    assert time.process_time() - began < 5


def test_commands_of_a_crafted_text_are_bounded() -> None:
    """A text may be large, and name anything."""
    line = '1690876800.123456 [0 10.0.0.1:{0}] "{1}" "c{0}" "V{1}"\n'
    result = explain("".join(line.format(n, "PUBLISH" if n % 2 else f"X{n}") for n in range(2_500)))
    [passage] = [one for one in result.passages if one.kind == "redis_commands"]

    assert 2_500 == passage.count
    assert len(str(passage)) < 3_000


@pytest.mark.parametrize(
    ("name", "has_key"), [("*getEvent*", True), ("*getEventOther*", False), ("a", False)]
)
def test_the_limit_of_a_cache_is_told_with_the_key_that_sets_it(name: str, *, has_key: bool) -> None:
    passage = explain(f'synapse_util_caches_cache_max_size{{name="{name}"}} 5120').passages[0]
    assert "entries, not bytes" in passage.words[0]
    assert "without the asterisks" in passage.advice[0]
    assert any("event_cache_size" in step for step in passage.advice) == has_key
