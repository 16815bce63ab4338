"""Lines of public reports in which something other than a message of replication tells: what is said of them.

The reports are named by their numbers in matrix-org/synapse, where no other project is named.
"""

import json

import pytest

from synrepl.homeserver.explanation import explain

HEAD = "2026-11-02 10:00:00,000 - {} - 1 - {} - GET-1 - "
TOKENS = (
    "s8309819_93441792_133776_10682404_669543_1254_1159557_9500936_33",
    "s8309817_93441792_133776_10682404_669543_1254_1159557_9500936_33",
)


def line(logger: str, level: str, text: str) -> str:
    return HEAD.format(f"synapse.{logger}" if logger != "twisted" else logger, level) + text


@pytest.mark.parametrize(
    ("text", "kind", "severity", "said"),
    [
        # 15980: caches, again and again
        (
            line(
                "replication.tcp.handler",
                "INFO",
                "Fetching replication rows for 'caches' between 1847967 and 1847952",
            ),
            "fetching",
            "normal",
            "caches lacks nothing: this process is at 1847967, 15 beyond what its writer announced, 1847952.",
        ),
        # spantaleev/matrix-docker-ansible-deploy#2264
        (
            (
                "[error] 23#23: *15 no live upstreams while connecting to upstream client:"
                ' 1.2.3.4, request: "GET /_matrix/client/r0/sync?since=s44_12_18_49_18_25_27_39_0 HTTP/1.0",'
                ' upstream: "http://generic_workers/_matrix/client/r0/sync?filter=3"'
            ),
            "proxy_upstream",
            "error",
            "holds all processes of its upstream generic_workers for down",
        ),
        (
            'upstream timed out (110: x) while reading, request: "GET /x", upstream: "http://[::1]:8008/x"',
            "proxy_upstream",
            "error",
            "[::1]:8008, to which a proxy passed a request, did not answer in the time that the proxy waits.",
        ),
        # 12971
        (
            (
                "2022/06/18 10:18:01 [info] 23#23: *39 epoll_wait() reported that client prematurely closed"
                ' connection, so upstream connection is closed too, request: "GET /_matrix/client/r0/sync"'
            ),
            "proxy_client_gone",
            "normal",
            "went away before the answer came",
        ),
        # 10718, 6692; 9344
        (
            'UniqueViolation: duplicate key value violates unique constraint "event_json_event_id_key"',
            "id_twice",
            "error",
            "No sequence is at fault.",
        ),
        (
            'UniqueViolation: duplicate key value violates unique constraint "events_stream_ordering"',
            "id_twice",
            "error",
            "The sequence events_stream_seq gives out ids that are in use",
        ),
        # element-hq/synapse#17565
        (
            line("storage.SQL", "DEBUG", "[SQL values] {_load_current_ids} ['events', ['master']]"),
            "sql_debug",
            "normal",
            "At its start the process reads where a stream is",
        ),
        (line("storage.SQL", "DEBUG", "[SQL time] {get-1} 2.500000 sec"), "sql_debug", "look", "took 2.5 s."),
        # 6065: what a client sent, as it was read
        (
            line(
                "handlers.sync",
                "INFO",
                "Calculating sync response for @a:b between StreamToken(room_key='s58', presence_key='631',"
                " typing_key='120', receipt_key='30') and StreamToken(room_key='s60', presence_key=631,"
                " typing_key=120, receipt_key=31)",
            ),
            "sync_span",
            "normal",
            "new in it may be room +2, receipt +1",
        ),
        # kamax-matrix/mxisd#161
        (
            line(
                "handlers.sync",
                "INFO",
                "Calculating sync response for @a:b between Token(room_key=u's5', presence_key=u'6')"
                " and Token(room_key='s5', presence_key=6)",
            ),
            "sync_span",
            "normal",
            "An answer to a /sync: nothing is new.",
        ),
        # 1658: replication in 2016
        (
            line(
                "access.http.1",
                "INFO",
                "::1 - 1 - Received request: GET /_synapse/replication?timeout=3&events=7",
            ),
            "request_received",
            "normal",
            "asks for the rows of all streams after the positions in the address",
        ),
        # 8015
        (
            line(
                "http.matrixfederationclient",
                "WARNING",
                "{PUT-O-3} [x.org] Request failed: PUT matrix://x.org/_matrix/federation/v1/send/1:"
                " HttpResponseException(\"403: b'Forbidden'\")",
            ),
            "fed_request_failed",
            "look",
            "refused a whole transaction with 403",
        ),
        # element-hq/element-web#29858
        (
            "FetchHttpApi: <-- GET https://x/_matrix/client/v3/sync?since=x [10827730ms 401] i.js",
            "client_fetch",
            "look",
            "does not accept its access token any more: not a matter of streams.",
        ),
        # element-hq/synapse#17047
        (
            "2024-02-22 16:24:01.454 CST [127] LOG:  duration: 1836.864 ms  plan:",
            "pg_duration",
            "look",
            "for how long it took",
        ),
        (line("twisted", "INFO", "Timing out client: IPv4Address(x)"), "connection_idle", "normal", "closed"),
        # 9010
        (
            line("twisted", "INFO", "Discarding dead connection."),
            "redis_discarding",
            "look",
            "had a connection to Redis that was closed, and takes another one.",
        ),
        (
            line(
                "twisted", "INFO", "<twisted.internet.tcp.Connector instance at 0x7> will retry in 2 seconds"
            ),
            "connector_retries",
            "look",
            "A connection was not made, or was lost, and is tried again",
        ),
        (
            line("twisted", "INFO", "Stopping factory <synapse.replication.tcp.redis.X object at 0x7>"),
            "factory",
            "normal",
            "This is normal.",
        ),
        # element-hq/synapse#16998
        (
            line(
                "replication.tcp.redis",
                "INFO",
                "Connection to redis server x.windows.net:6380 lost: Connection was closed cleanly.",
            ),
            "redis_lost",
            "look",
            "The port 6380 is by custom that of Redis with TLS",
        ),
        # element-hq/synapse#18053
        (
            'psycopg2.errors.GeneratedAlways: cannot insert a non-DEFAULT value into column "connection_key"',
            "port_identity",
            "error",
            "this release of synapse_port_db copies a table with such a column as any other",
        ),
        # mautrix/whatsapp#44
        (
            line(
                "appservice.api", "WARNING", "push_bulk to http://x threw exception Expecting value: line 1"
            ),
            "as_push_failed",
            "look",
            "It answered with what is no JSON",
        ),
        # element-hq/synapse#16993
        (
            'AssertionError: assert set(min_positions) == {"federation", "events"}',
            "federation_positions",
            "error",
            "The table federation_stream_position has not both rows",
        ),
        # 7308
        (
            "AssertionError: assert len(updates) <= limit",
            "stream_limit",
            "error",
            "none of that stream is sent any more",
        ),
        # 8574
        (
            line("twisted", "INFO", "adbapi connecting: psycopg2"),
            "pool_connections",
            "normal",
            "A connection to PostgreSQL was made or closed",
        ),
        # 7039
        (
            "db_1       | ERROR:  ON CONFLICT DO UPDATE command cannot affect row a second time",
            "db_rows_twice",
            "error",
            "met the same one twice",
        ),
        # 16445
        (
            'pg_restore: error: could not execute query: ERROR:  could not create unique index "x_u_idx"',
            "db_index_not_made",
            "error",
            "That unique index was not made",
        ),
        (
            'psycopg2.errors.InvalidSqlStatementName: prepared statement "s1" does not exist',
            "db_pooler_mode",
            "error",
            "gives one session to several connections",
        ),
        (
            (
                "1:M 02 Feb 2026 07:20:34.203 # Client id=5 addr=10.0.0.3:5501 cmd=subscribe"
                " scheduled to be closed ASAP for overcoming of output buffer limits."
            ),
            "redis_too_slow",
            "error",
            "more waited than its limit allows",
        ),
        (
            "txredisapi.ResponseError: MISCONF Redis is configured to save RDB snapshots, but is currently",
            "redis_cannot_save",
            "error",
            "refuses commands that change something, and PING",
        ),
        # Caddy and Traefik
        (
            '{"level":"error","msg":"dial tcp 172.18.0.5:8083: connect: connection refused"}',
            "proxy_upstream",
            "error",
            "Nothing listens at 172.18.0.5:8083, which a proxy, a bridge or another program asks.",
        ),
        (
            "'502 Bad Gateway' caused by: dial tcp: lookup synapse on 127.0.0.11:53: no such host",
            "proxy_upstream",
            "error",
            "A proxy passes requests to synapse, a name that has no address in its network.",
        ),
        # HAProxy
        (
            'haproxy[12]: Server sync/sync2 is DOWN, reason: Layer4 problem, info: "Connection refused"',
            "proxy_upstream",
            "error",
            "A check of the proxy finds sync/sync2 down",
        ),
        (
            "haproxy[12]: backend 'sync' has no server available!",
            "proxy_upstream",
            "error",
            "HAProxy holds all servers of sync for down",
        ),
        # 8745
        (
            "synapse.api.errors.StoreError: 404: No row found",
            "no_row_unnamed",
            "error",
            "A row of the database was expected, and was not there.",
        ),
    ],
)
def test_what_a_report_has_is_told(text: str, kind: str, severity: str, said: str) -> None:
    [passage] = [one for one in explain(text).passages if one.kind != "sync_token"]

    assert (kind, severity) == (passage.kind, passage.severity)
    assert said in " ".join([*passage.words, *passage.advice])


def test_a_request_that_a_terminal_broke_is_read() -> None:
    """Within the address, as in 9613, or before what took how long."""
    whole = line(
        "access.http.9893",
        "INFO",
        "::1 - 9893 - {None} Processed request: 0.000sec/-0.000sec (0.001sec, 0.000sec) (0.00sec/0.00sec/0)"
        ' 2B 200 "POST /_synapse/replication/presence_set_state/%40a%3Ab HTTP/1.1" "S/1.2" [0 dbevts]',
    )

    for place in (whole.index("_set"), whole.index("0.000sec")):
        found = explain(f"{whole[:place]}\n{whole[place:]}\nhello")

        [passage] = found.passages
        assert (
            "POST /_synapse/replication/presence_set_state/%40a%3Ab, answered with 200." in passage.words[0]
        )
        assert (3, 1) == (found.lines, found.unrecognized)


def test_a_message_that_was_broken_within_brackets_is_read() -> None:
    """As in matrix-org/synapse#8747; what belongs to nothing is not taken for the rest."""
    whole = line(
        "federation.sender.transaction_manager",
        "INFO",
        "TX [matrix.org] {1605094380906} Sending transaction [1605094380906], (PDUs: 3, EDUs: 0)",
    )

    for place in (whole.index("1605094380906]"), whole.index(" EDUs")):
        found = explain(f"{whole[:place]}\n{whole[place:]}\nhello")

        assert ["fed_tx"] == [one.kind for one in found.passages]
        assert (3, 1) == (found.lines, found.unrecognized)

    # What has no bracket open is whole, and a line of the log is never the rest of another.
    found = explain(f"{whole}\nhello\n{whole[:-1]}\n{whole}")
    assert (4, 2) == (found.lines, found.unrecognized)


def test_messages_that_a_viewer_put_into_one_line_are_told_apart() -> None:
    """K9s shows the log between bars (matrix-org/synapse#15477)."""
    lost = line("replication.tcp.redis", "INFO", "Lost connection to redis")
    gone = line("http.server", "WARNING", "Not sending response to request <x>, already disconnected.")

    found = explain(f"ry-encoded macaroon.    ││ {lost}       ││ {gone}  ││")

    assert {"redis_lost", "client_gone_early"} <= {one.kind for one in found.passages}
    assert all(one.lines == [1] for one in found.passages)
    assert 1 == found.unrecognized


def test_a_message_that_a_window_cut_within_its_value_is_told() -> None:
    """Only where a quote or a bracket is open, and by the module that logs it (matrix-org/synapse#15477)."""
    gone = "Not sending response to request "

    for cut in ("<XForwardedForRequest at 0x7f method='GET' uri='/_matrix/client/r0/login&filter ", "[a, b"):
        [passage] = explain(line("http.server", "WARNING", gone + cut)).passages
        assert ("client_gone_early", "normal") == (passage.kind, passage.severity)

    for logger, rest in (("http.server", "what it is"), ("handlers.x", "<x uri='/_matrix")):
        found = explain(line(logger, "WARNING", gone + rest))
        assert (0, 1) == (len(found.passages), found.unrecognized)


def test_a_traceback_that_was_cut_off_after_a_message_is_told() -> None:
    """With the source as Python 3.13 shortens it (element-hq/synapse#19283)."""
    [passage] = explain(
        line("http.server", "ERROR", "Failed handle request via 'SyncRestServlet': <x>\n")
        + "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.13/site-packages/synapse/handlers/sync.py", line 359, in wait\n'
        "    res = await self.cache.wrap(\n          ^^^^^^^\n    ...<7 lines>...\n    )\n    ^\n"
    ).passages

    assert (
        "The traceback after it was cut off: the last line, with the exception, is missing." in passage.words
    )
    assert "What failed is the answer to a /sync." in passage.words


def test_the_short_frames_of_twisted_are_a_traceback() -> None:
    """In 7693."""
    [passage] = explain(
        "/opt/lib/python3.7/site-packages/twisted/internet/defer.py:1416:_inlineCallbacks\n"
        "--- <exception caught here> ---\n"
        "/opt/lib/python3.7/site-packages/synapse/replication/tcp/resource.py:152:loop\n"
    ).passages

    assert "What failed is the loop that sends the rows of streams" in " ".join(passage.words)


@pytest.mark.parametrize(
    "text",
    [
        "a `next_batch` of `{}` and a `prev_batch` for that room of `{}`",
        "GET /sync?since={}\nGET /rooms/!a:b/messages?dir=b&from={}",
        '{{"next_batch":"{}"}}\n{{"prev_batch":"{}"}}',
    ],
)
def test_a_place_in_a_rooms_history_is_not_compared(text: str) -> None:
    found = explain(text.format(*TOKENS))

    assert ["sync_token"] * 2 == [one.kind for one in found.passages]
    assert any(one.words[0].startswith("A place in a room's history") for one in found.passages)


def test_a_request_that_is_logged_after_its_answer_is_compared_with_it() -> None:
    """As in 9533."""
    answer = line("9533_debug", "DEBUG", f"Sync body generated, next batch: {TOKENS[0]}")
    found = explain(f"{answer}\nGET /sync?since={TOKENS[1]}")

    [compared] = [one for one in found.passages if one.kind == "compared_tokens"]
    assert "from that of a request to that of its answer" in compared.words[0]
    assert [2] == [row["moved"] for row in compared.fields if row["field"] == "room"]


def test_a_request_that_gave_up_is_told_with_the_stream_that_was_behind() -> None:
    """In element-hq/synapse#18412."""
    token = "StreamToken(room: RoomStreamToken(stream: 9, topological: None), device_list: {})"
    waits = f"Waiting for current token to reach {token.format(24)}; currently at {token.format(17)}"
    gave_up = "Timed out waiting for worker to catch up. Returning empty response"

    found = explain(f"{line('notifier', 'INFO', waits)}\n{line('handlers.sync', 'WARNING', gave_up)}")

    assert found.summary.endswith(
        "device_list is 7 behind: the request's token is at 24, this process is at 17."
    )


def test_an_assertion_is_told_by_what_it_asserts() -> None:
    """In 8325; an assertion that is not known is shown."""
    failed = (
        line("metrics.background_process_metrics", "ERROR", "Background process 'x' threw an exception\n")
        + 'Traceback (most recent call last):\n  File "/a/synapse/storage/databases/main/state_deltas.py",'
        " line 54, in get_current_state_deltas\n    assert {}\nAssertionError\n"
    )

    [known] = explain(failed.format("prev_stream_id <= max_stream_id")).passages
    [other] = explain(failed.format("a == b")).passages

    assert known.cause.startswith("Who follows the stream of events is beyond the newest event")
    assert "The exception: AssertionError: assert a == b" in other.words


def test_the_exception_of_a_traceback_is_never_left_out() -> None:
    """A KeyError may be of a stream, or not (14813)."""
    [passage] = explain(
        line("http.server", "ERROR", "Failed handle request via 'SyncRestServlet': <x>\n")
        + 'Traceback (most recent call last):\n  File "/a/synapse/storage/controllers/state.py", line 1\n'
        "    event_to_state = {\nKeyError: 824591\n"
    ).passages

    assert "The exception: KeyError: 824591" in passage.words
    assert "What failed has to do with events and the state of rooms in the database." in passage.words


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("2024-09-20T16:01:09Z ERROR matrix_sdk_ui::sync_service: Error while processing", "matrix_sdk"),
        ("Jul 09 18:23:52 host mautrix-whatsapp[22860]: [Jul  9, 2019] Sync error: code=500", "mautrix"),
        ("03:29:10.110 rageshake.js?16c9:65 PUT /sendToDevice/m.key", "rageshake"),
        ("2026-02-25 08:06:06,293 - nio.responses - WARNING - Error validating response", "nio"),
    ],
)
def test_lines_of_other_programs_are_told_to_be_theirs(text: str, name: str) -> None:
    found = explain(text)

    assert ([name], 1) == (list(found.beside), found.other_loggers[name])


def test_a_request_whose_line_was_cut_off_is_none_that_failed() -> None:
    text = line("access.http.1", "INFO", "::1 - 1 - {@a:b} Processed request: 0.024sec/0.012sec (0.004sec>")

    [passage] = explain(text).passages

    assert ("request", "normal") == (passage.kind, passage.severity)


def test_a_failure_beside_the_streams_is_told_as_such_and_is_not_the_summary() -> None:
    """As YunoHost-Apps/synapse_ynh#495 has it."""
    found = explain(
        line(
            "media.url_previewer",
            "WARNING",
            "Error downloading https://x.org: ConnectError('No route to host')",
        )
        + "\n"
        + line("replication.tcp.handler", "INFO", "Caught up with stream 'events' to 5")
    )

    assert ["preview", "caught_up"] == [one.kind for one in found.passages]
    assert found.summary.startswith("A preview of a page could not be made. Only that is missing.")


def test_an_answer_that_begins_and_ends_with_a_token_is_the_end_of_a_room() -> None:
    """In 12102."""
    token = "t1-915_1917_28_2_75_1_1_77_1"

    [passage] = explain(rf'body: b"{{\"chunk\":[],\"start\":\"{token}\",\"end\":\"{token}\"}}"').passages

    assert any("in that direction the room has nothing more" in word for word in passage.words)


@pytest.mark.parametrize(
    "wrapper",
    [
        '{{"streams":[{{"stream":{{"job":"x"}},"values":[["17","{0}"],["18","{0}"]]}}]}}',
        '{{"status":"success","data":{{"result":[{{"stream":{{}},"values":[["17","{0}"],["18","{0}"]]}}]}}}}',
        'worker-1 {{"log":"{0}"}}\nworker-1 {{"log":"{0}"}}',
        "&quot;{0}&quot;\n&#34;{0}&#34;",
    ],
)
def test_lines_in_documents_of_loki_and_of_containers_are_read(wrapper: str) -> None:
    lost = line("replication.tcp.redis", "INFO", "Lost connection to redis")

    [passage] = explain(wrapper.format(lost)).passages

    assert "redis_lost" == passage.kind


def test_a_request_between_processes_in_the_log_of_a_proxy_is_told() -> None:
    [passage] = explain(
        '1.2.3.4 - - [02/Nov/2026:10:00:00 +0000] "POST /_synapse/replication/fed_send_edu/x/a HTTP/1.1"'
        ' 502 0 "-" "Synapse/1.150.0"'
    ).passages

    assert "answered with 502: it failed, or was not answered." in passage.words[0]


def test_how_a_step_of_twisted_ends_is_no_exception_that_tells() -> None:
    """In syslog, a line of the traceback in each (6405)."""
    step = (
        "Jan  9 19:43:40 kolab python: Traceback (most recent call last):\n"
        'Jan  9 19:43:40 kolab python: File "/a/twisted/internet/defer.py", line 1418, in _inlineCallbacks\n'
        "Jan  9 19:43:40 kolab python: result = g.send(result)\nJan  9 19:43:40 kolab python: {}\n"
    )
    failed = line(
        "metrics.background_process_metrics", "ERROR", "Background process 'x' threw an exception\n"
    )

    [cut] = explain(f"Jan  9 19:43:40 kolab python: {failed}{step.format('StopIteration: set()')}").passages
    [told] = explain(
        f"Jan  9 19:43:40 kolab python: {failed}{step.format('ValueError: x')}"
        f"Jan  9 19:43:40 kolab python: During handling of the above exception, another exception occurred:\n"
        f"{step.format('StopIteration: set()')}"
    ).passages

    assert "The traceback after it was cut off: the last line, with the exception, is missing." in cut.words
    assert "The exception: ValueError: x" in told.words


def test_an_exception_whose_text_begins_in_the_next_line_is_read() -> None:
    """As Synapse raises it about sequences (8753)."""
    found = explain(
        "2020-11-12 18:09:46,973 - synapse_port_db - 643 - ERROR - \n"
        "Traceback (most recent call last):\n"
        '  File "/x/synapse/storage/util/sequence.py", line 140, in check_consistency\n'
        "    raise IncorrectDatabaseSetup(\n"
        "synapse.storage.engines._base.IncorrectDatabaseSetup: \n"
        "Postgres sequence 'events_stream_seq' is inconsistent with associated\n"
        "table 'events'. This can happen if Synapse has been downgraded and\n"
    )

    assert ["sequence_table"] == [one.kind for one in found.passages]


def test_a_message_over_several_documents_of_docker_is_one() -> None:
    """Each line that a container prints is a document (14199)."""
    lines = (
        HEAD.format("synapse.storage.txn", "WARNING") + "[TXN OPERROR] {x-11} deadlock detected",
        "DETAIL:  Process 1 waits for ShareLock on transaction 5; blocked by process 2.",
        "Process 2 waits for ShareLock on transaction 6; blocked by process 1.",
        "HINT:  See server log for query details.",
        " 0/5",
    )
    text = "\n".join(
        json.dumps({"log": f"{one}\n", "stream": "stdout", "time": "2026-11-02T10:00:00Z"}) for one in lines
    )

    found = explain(text)

    assert (["txn_retry"], 0) == ([one.kind for one in found.passages], found.unrecognized)
    assert "PostgreSQL ended one of two transactions" in found.passages[0].cause


def test_the_headline_that_twisted_logs_alone_is_told_with_its_traceback() -> None:
    """Twisted logs the traceback as a message of its own, whose first line is empty."""
    found = explain(
        line("twisted", "CRITICAL", "Unhandled error in Deferred:\n")
        + line("twisted", "CRITICAL", "\n")
        + "Traceback (most recent call last):\n"
        '  File "/x/txredisapi.py", line 533, in handle_reply\n    raise r\n'
        "txredisapi.ConnectionError: Lost connection"
    )

    assert ["unhandled_error"] == [one.kind for one in found.passages]
    assert found.passages[0].cause.startswith("The connection to Redis was lost")


def test_a_message_with_a_cause_is_the_summary_before_one_without() -> None:
    found = explain(
        line("replication.tcp.resource", "ERROR", "Failed to handle stream events\n")
        + line("storage.txn", "ERROR", "x\n")
        + line(
            "metrics.background_process_metrics",
            "ERROR",
            "Background process 'send-cmd' threw an exception\n",
        )
        + "Traceback (most recent call last):\n"
        '  File "/x/txredisapi.py", line 533, in handle_reply\n    raise r\n'
        "txredisapi.ConnectionError: Lost connection"
    )

    assert "The connection to Redis was lost" in found.summary


def test_the_names_that_tail_prints_are_no_lines() -> None:
    found = explain(
        "==> /var/log/synapse/generic1.log <==\n"
        + line("replication.tcp.redis", "INFO", "Lost connection to redis")
    )

    assert (1, 0) == (len(found.passages), found.unrecognized)


def test_a_traceback_is_told_by_the_file_that_asked_the_database() -> None:
    """All statements go by way of the same file (8745)."""
    [found] = explain(
        line("x", "ERROR", "y\n") + "Traceback (most recent call last):\n"
        '  File "/x/synapse/storage/databases/main/stream.py", line 948, in get_position\n    return 1\n'
        '  File "/x/synapse/storage/database.py", line 1289, in simple_select\n    raise X\n'
        "some.module.OddError: odd"
    ).passages

    assert any("synapse/storage/databases/main/stream.py." in word for word in found.words)


def test_updates_in_the_background_are_told() -> None:
    """In 5489."""
    found = explain(
        "select * from background_updates ;\n"
        "       update_name       | progress_json | depends_on\n"
        "-------------------------+---------------+------------\n"
        " user_ips_remove_dupes   | {}            |\n"
        "(1 row)\n"
    )

    assert found.passages[0].words[0].startswith("The table background_updates.")


def test_the_row_that_is_there_already_is_told_with_an_exception() -> None:
    """What PostgreSQL says in its next line is of the same exception (9344)."""
    [found] = explain(
        line("http.server", "ERROR", "Failed handle request via 'X': <SynapseRequest at 0x7>\n")
        + "Traceback (most recent call last):\n"
        '  File "/x/synapse/storage/persist_events.py", line 172, in handle_queue_loop\n    ret = 1\n'
        'psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint "chains_pkey"\n'
        "DETAIL:  Key (event_id)=($x) already exists.\n"
    ).passages

    assert "The database has this event already (chains_pkey)" in found.cause


def test_a_text_that_twisted_logged_line_by_line_is_one() -> None:
    """What a process prints while it starts (YunoHost-Apps/synapse_ynh#152)."""
    found = explain(
        line(
            "twisted", "ERROR", "psycopg2.OperationalError: could not connect to server: Connection refused\n"
        )
        + line("twisted", "ERROR", '        Is the server running on host "localhost" (::1) and accepting\n')
        + line("twisted", "ERROR", "        TCP/IP connections on port 5432?\n")
    )

    assert (["db_unreachable"], 0) == ([one.kind for one in found.passages], found.unrecognized)


def test_a_time_without_a_space_after_it_is_one() -> None:
    """As Rancher shows a container's log (4831)."""
    time = "3/7/2019 10:32:39 PM"
    found = explain(
        f"{time}{line('twisted', 'CRITICAL', 'Rollback failed')}\n{time}Traceback (most recent call last):\n"
        f'{time}  File "/x/twisted/enterprise/adbapi.py", line 436, in run\n'
        f"{time}psycopg2.InterfaceError: connection already closed\n"
    )

    assert (["rollback_failed"], 0) == ([one.kind for one in found.passages], found.unrecognized)
    assert "The connection to PostgreSQL was cut" in found.passages[0].cause


def test_the_exception_that_another_one_caused_is_told_behind_prefixes() -> None:
    """Between them is a line with nothing but what Docker Compose writes before each (16333)."""
    found = explain(
        "synapse-1  | Traceback (most recent call last):\n"
        'synapse-1  |   File "/usr/local/lib/python3.11/logging/__init__.py", line 1181, in __init__\n'
        "synapse-1  | PermissionError: [Errno 13] Permission denied: '/homeserver.log'\n"
        "synapse-1  | \n"
        "synapse-1  | The above exception was the direct cause of the following exception:\n"
        "synapse-1  | \n"
        "synapse-1  | Traceback (most recent call last):\n"
        'synapse-1  |   File "/usr/local/lib/python3.11/logging/config.py", line 580, in configure\n'
        "synapse-1  | ValueError: Unable to configure handler 'file'\n"
    )

    assert (["log_config"], 0) == ([one.kind for one in found.passages], found.unrecognized)
    assert "The user of this process may not read or write" in found.passages[0].cause
