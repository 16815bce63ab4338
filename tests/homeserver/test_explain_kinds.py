"""What reports have around streams: databases, proxies, scripts, systems that end a process."""

import pytest

from synrepl.homeserver.explanation import Passage, explain

HEAD = "2026-11-02 10:00:00,000 - {} - 1 - {} - x - "
UPDATE = (
    "Traceback (most recent call last):\n"
    '  File "/x/synapse/storage/background_updates.py", line 107, in run_background_updates\n'
    "    result = await self.do_next_background_update(\n"
)


def told(text: str) -> Passage:
    """Return what is said first of a text."""
    return explain(text).passages[0]


@pytest.mark.parametrize(
    ("text", "kind", "severity", "said"),
    [
        # What was to be made is there (element-hq/synapse#15484).
        (
            'psycopg2.errors.DuplicateTable: relation "background_updates" already exists',
            "db_there_already",
            "error",
            "start the main process alone",
        ),
        # Values that only SQLite takes (matrix-org/synapse#7654, #15225).
        (
            'insert or update on table "a" violates foreign key constraint "a_b_fkey"',
            "db_reference",
            "error",
            "that one is not there",
        ),
        ('invalid input syntax for type bigint: "1.0"', "db_value", "error", "SQLite keeps any value"),
        ("A string literal cannot contain NUL (0x00) characters.", "db_value", "error", "SQLite"),
        ('psycopg2.DataError: malformed record literal: "x"', "db_value", "error", "SQLite"),
        ('psycopg2.errors.SyntaxError: no operand in tsquery: ":"', "text_search", "error", "other words"),
        # Tables that updates fill (matrix-org/synapse#8209, #6808).
        (
            'psycopg2.errors.UndefinedTable: relation "_temp_populate_user_directory_users" does not exist',
            "update_temp_table",
            "error",
            "start_job",
        ),
        (
            (
                "synapse.api.errors.StoreError: 500: More than one row matched"
                " (_temp_populate_user_directory_rooms)"
            ),
            "row_twice",
            "error",
            "there were several",
        ),
        # Containers with several processes (matrix-org/synapse#14194).
        (
            (
                "2022-10-14 23:59:25,368 INFO success: generic_worker1 entered RUNNING state, process has"
                " stayed up"
            ),
            "supervisor",
            "normal",
            "This is normal",
        ),
        (
            (
                "2022-10-14 23:59:25,368 INFO gave up: generic_worker1 entered FATAL state, too many start"
                " retries"
            ),
            "process_exited",
            "error",
            "The process ended by itself",
        ),
        ("Generating log config file /data/log.config", "image_start", "normal", "start script"),
        # Who was asked is down (matrix-org/synapse#3729, #5086, #14372).
        (
            HEAD.format("synapse.http.server", "ERROR")
            + "Failed handle request via 'ClientDirectoryServer': <SynapseRequest at 0x7f>\n"
            + "Traceback (most recent call last):\n"
            + '  File "/x/synapse/http/server.py", line 78, in wrapped_request_handler\n'
            + "    yield h(self, request)\nHttpResponseException: 502: Bad Gateway",
            "client_request_failed",
            "error",
            "Another server that was asked for this answered with 502 to 504",
        ),
        (
            HEAD.format("synapse.http.matrixfederationclient", "WARNING")
            + "{GET-O-3} [b.org] Request failed: GET matrix://b.org/x: HttpResponseException(\"502: b'x'\",)",
            "fed_request_failed",
            "normal",
            "answered with 502: it, or what is behind its proxy, is down",
        ),
        (
            HEAD.format("synapse.http.matrixfederationclient", "WARNING")
            + "{GET-O-3} [b.org] Request failed: GET matrix://b.org/x: HttpResponseException('404: x')",
            "fed_request_failed",
            "look",
            "does not have what it was asked for",
        ),
        # What was read is broken (matrix-org/synapse#7349).
        (
            (
                "simplejson.errors.JSONDecodeError: Expecting ',' delimiter or '}': line 1 column 1025 (char"
                " 1024)"
            ),
            "no_json",
            "error",
            "no valid JSON",
        ),
        # What only the main process can do (matrix-org/synapse#13604).
        (
            (
                '{"log":"[purge] failed","namespace":"synapse.handlers.pagination","level":"ERROR",'
                '"request":"_purge_history-0","exc_type":"AttributeError",'
                "\"exc_value\":\"'GenericWorkerSlavedStore' object has no attribute 'purge_history'\"}"
            ),
            "purge_failed",
            "error",
            "only the main process can",
        ),
        # Tokens of bridges (matrix-org/matrix-appservice-discord#873, benkuly/matrix-sms-bridge#18).
        ("Error: M_UNKNOWN_TOKEN: Unknown token", "unknown_token", "look", "compare as_token"),
        (
            HEAD.format("synapse.appservice.api", "WARNING")
            + "push_bulk to http://10.0.0.34:8080 received code=401 msg=Unauthorized",
            "as_push_failed",
            "look",
            "use_appservice_legacy_authorization",
        ),
        # Files, and what ended a process (AVENTER-UG/docker-matrix#57, hassio-addons/addon-matrix#32,
        # matrix-org/synapse#3234).
        (
            "/start.sh: line 14: /data/turnserver.conf: Permission denied",
            "file_forbidden",
            "error",
            "chown -R 991:991",
        ),
        (
            "Error accessing file '/data/a.signing.key' (config for signing_key): No such file or directory",
            "cfg_file",
            "error",
            "cannot be read",
        ),
        (
            "Apr 06 16:25:46 a systemd[1]: b.service: Main process exited, code=exited, status=137/n/a",
            "process_killed",
            "error",
            "signal 9",
        ),
        # SQLite.
        (
            "sqlite3.OperationalError: unable to open database file",
            "sqlite_file",
            "error",
            "--sqlite-database",
        ),
        ("sqlite3.DatabaseError: database disk image is malformed", "sqlite_broken", "error", "damaged"),
        ('sqlite3.OperationalError: near "WHERE": syntax error', "sqlite_old", "error", "too old"),
        (
            "sqlite3.OperationalError: table receipts_linearized_new already exists",
            "db_there_already",
            "error",
            "broken off",
        ),
        (
            '2019-06-02 CEST [1] ERROR:  relation "event_search_fts_idx" already exists',
            "db_there_already",
            "look",
            "no trouble",
        ),
        # Rights, versions, ends of PostgreSQL.
        ("permission denied for table schema_version", "db_rights", "error", "OWNER TO"),
        ("ERROR:  permission denied for schema public", "db_rights", "error", "PostgreSQL 15"),
        (
            "current transaction is aborted, commands ignored until end of transaction block",
            "db_aborted",
            "look",
            "first error",
        ),
        ("FATAL:  database files are incompatible with server", "db_files", "error", "version of before"),
        (
            'WARNING:  database "synapse" has a collation version mismatch',
            "db_collation_version",
            "look",
            "REINDEX",
        ),
        # The record of a database that is C now: REFRESH is what fails (YunoHost-Apps/synapse_ynh#640).
        (
            'WARNING:  database "synapse" has no actual collation version, but a version was recorded',
            "db_collation_leftover",
            "look",
            "SET datcollversion = NULL",
        ),
        (
            "ERROR:  invalid collation version change",
            "db_collation_leftover",
            "look",
            "datcollversion = NULL",
        ),
        (
            "LOG:  database system was not properly shut down; automatic recovery in progress",
            "db_recovered",
            "look",
            "oom-kill",
        ),
        (
            "LOG:  unexpected EOF on client connection with an open transaction",
            "db_client_gone",
            "look",
            "killed or restarted",
        ),
        (
            "psycopg2.OperationalError: SCRAM authentication requires libpq version 10 or above",
            "db_library",
            "error",
            "psycopg2-binary",
        ),
        ("psycopg2.InterfaceError: cursor already closed", "db_lost", "look", "PostgreSQL"),
        # A collation over several lines, and within brackets (e#16915, m#14566).
        (
            (
                f"x.IncorrectDatabaseSetup: Database is incorrectly configured:{' ' * 60}\n{' ' * 90}\n"
                f"{' ' * 9}- 'COLLATE' is set to 'c'. Should be 'C'{' ' * 40}"
            ),
            "db_collation",
            "error",
            "allow_unsafe_locale",
        ),
        (
            (
                "x.IncorrectDatabaseSetup: (\"Database has incorrect collation of 'en_US.utf8'. Should be"
                " 'C'\", '')"
            ),
            "db_collation",
            "error",
            "LC_COLLATE",
        ),
        # Redis says precisely what it lacks.
        ("AUTH failed: ERR max number of clients reached", "redis_clients_full", "error", "CLIENT LIST"),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            "redis_memory_full",
            "error",
            "maxmemory",
        ),
        ("READONLY You can't write against a read only replica.", "redis_replica", "error", "the master"),
        ("txredisapi.ResponseError: NOPERM this user has no permissions", "redis_rights", "error", "ACL"),
        ("txredisapi.ResponseError: MOVED 7365 10.0.0.1:6379", "redis_cluster", "error", "single Redis"),
        # Locks (element-hq/synapse#18221, #19315).
        (
            "Lock timeout is getting excessive: 640s. There may be a deadlock.",
            "lock_slow",
            "look",
            "worker_read_write_locks",
        ),
        (
            "ValueError: Exceeds the limit (4300 digits) for integer string conversion",
            "lock_number",
            "error",
            "1.153",
        ),
        # The system around it.
        (
            HEAD.format("twisted", "INFO") + "Received SIGTERM, shutting down.",
            "process_stops",
            "normal",
            "asked to end",
        ),
        (
            "a.service: Scheduled restart job, restart counter is at 15.",
            "process_restarted",
            "look",
            "why it ended",
        ),
        (
            "  Warning  Unhealthy  5s kubelet  Liveness probe failed: HTTP probe failed",
            "probe_failed",
            "look",
            "health",
        ),
        ("State 'stop-sigterm' timed out. Killing.", "stop_timeout", "look", "TimeoutStopSec"),
        ("Out of memory: Killed process 812 (python)", "process_killed", "error", "memory"),
        ("Reason:       OOMKilled", "process_killed", "error", "memory"),
        (
            "Couldn't listen on ::1:8008: [Errno 99] Cannot assign requested address.",
            "address_not_here",
            "error",
            "IPv6",
        ),
        (
            "twisted: [] socket.gaierror: [Errno -9] Address family for hostname not supported",
            "address_not_here",
            "error",
            "bind_addresses",
        ),
        ("KeyError: 'request'", "log_filter", "look", "filters: [context]"),
        ("ValueError: Formatting field not found in record: 'request'", "log_filter", "look", "log"),
        ("synapse_1 exited with code 139", "process_crashed", "error", "segmentation fault"),
        # Tasks in the background.
        (
            HEAD.format("synapse.metrics.background_process_metrics", "ERROR")
            + "Background process 'stats.notify_new_event' threw an exception",
            "background_task_failed",
            "look",
            "Statistics stand still",
        ),
        (
            HEAD.format("synapse.metrics.background_process_metrics", "ERROR")
            + "Background process 'fetch_events' threw an exception",
            "background_task_failed",
            "error",
            "reads events from the database",
        ),
        # Others who were asked, or answer for the server.
        (
            HEAD.format("synapse.http.client", "INFO")
            + "Received response to POST http://push/_matrix/push/v1/notify: 502",
            "http_request",
            "look",
            "an error, 502",
        ),
        (
            HEAD.format("synapse.http.client", "INFO") + "Sending request PUT http://bridge/transactions/1",
            "http_request",
            "normal",
            "application service",
        ),
        (
            HEAD.format("synapse.appservice.api", "WARNING")
            + "push_bulk to http://b:9005/transactions/88 received 504",
            "as_push_failed",
            "look",
            "none in time",
        ),
        ("error code: 524", "proxy_cloudflare", "look", "100 s"),
        # Scripts.
        (
            (
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='::1', port=8448): Max retries"
                " exceeded with url: /_synapse/admin/v1/register (Caused by NewConnectionError('refused'))"
            ),
            "tool_unreachable",
            "error",
            "http://127.0.0.1:8008",
        ),
        (
            (
                "requests.exceptions.SSLError: HTTPSConnectionPool(host='127.0.0.1', port=8008): Max retries"
                " exceeded with url: /x (Caused by SSLError(SSLError(1, '[SSL: WRONG_VERSION_NUMBER] wrong"
                " version number')))"
            ),
            "tool_unreachable",
            "error",
            "write http://",
        ),
        (
            HEAD.format("synapse_port_db", "INFO")
            + 'Failed to create port table: relation "x" already exists',
            "port_again",
            "normal",
            "run before",
        ),
        ("Malformed database config: no 'name'", "port_config", "error", "--postgres-config"),
        # Replication over TCP.
        (
            HEAD.format("synapse.replication.tcp.protocol", "ERROR")
            + "[anon-a] Remote reported error: u\"failed: Exception('stream receipts has fallen behined',)\"",
            "tcp_remote_error",
            "error",
            "more rows than the main process gives at once",
        ),
        (
            HEAD.format("synapse.replication.tcp.protocol", "INFO") + "[a-b] Pause producing",
            "tcp_paused",
            "look",
            "reads slower",
        ),
        # A pusher that is gone, and one that another program answered (matrix-org/synapse#5101, #3207).
        ("synapse.api.errors.StoreError: 404: No row found (pushers)", "no_row", "look", "Nothing is lost"),
        (
            HEAD.format("synapse.push.httppusher", "WARNING")
            + "Failed to send badge count to @a:b\nTraceback (most recent call last):\n"
            + '  File "/x/synapse/http/client.py", line 200, in post_json_get_json\n'
            + "    raise x\nCodeMessageException: 403: <!DOCTYPE html>",
            "push_badge",
            "look",
            "answered 403 with a page",
        ),
        # Options, with what is printed below them.
        (
            " Error in configuration at 'listeners.<item 0>.port':\n   must be a number of a port",
            "cfg_error",
            "error",
            "the option listeners.<item 0>.port of its configuration is wrong: must be a number of a port",
        ),
        (
            "Cannot reuse as_token across application services: irc (files: a, b)",
            "cfg_as_twice",
            "error",
            "named twice",
        ),
    ],
)
def test_what_a_kind_of_report_has_is_told(text: str, kind: str, severity: str, said: str) -> None:
    passage = told(text)

    assert (passage.kind, passage.severity) == (kind, severity)
    assert said in " ".join([*passage.words, *passage.advice])


@pytest.mark.parametrize(
    ("failed", "where", "said"),
    [
        (
            (
                "connect() failed (111: Connection refused) while connecting to upstream, upstream:"
                ' "http://[::1]:8008/x"'
            ),
            "[::1]:8008",
            "write 127.0.0.1",
        ),
        (
            (
                "connect() failed (111: Connection refused) while connecting to upstream, upstream:"
                ' "http://10.0.0.1:81/x"'
            ),
            "10.0.0.1:81",
            "that address and port",
        ),
        (
            (
                "upstream timed out (110: Connection timed out) while connecting to upstream, upstream:"
                ' "http://10.0.0.1:81/x"'
            ),
            "10.0.0.1:81",
            "in one network",
        ),
        (
            (
                "upstream timed out (110: Connection timed out) while reading response header from"
                ' upstream, upstream: "http://10.0.0.1:81/x"'
            ),
            "10.0.0.1:81",
            "proxy_read_timeout",
        ),
        (
            (
                "upstream prematurely closed connection while reading response header from upstream,"
                ' upstream: "http://10.0.0.1:81/x"'
            ),
            "10.0.0.1:81",
            "restarted, killed",
        ),
        (
            (
                "recv() failed (104: Connection reset by peer) while reading response header from upstream,"
                ' upstream: "http://10.0.0.1:81/x"'
            ),
            "10.0.0.1:81",
            "restarted, killed",
        ),
        (
            (
                "SSL_do_handshake() failed (SSL: wrong version number) while SSL handshaking to upstream,"
                ' upstream: "https://10.0.0.1:81/x"'
            ),
            "10.0.0.1:81",
            "http://",
        ),
        (
            (
                "connect() to unix:/run/a.sock failed (13: Permission denied) while connecting to upstream,"
                ' upstream: "http://unix:/run/a.sock:/x"'
            ),
            "unix:/run/a.sock",
            "mode and group",
        ),
        ('host not found in upstream "synapse" in /etc/nginx/nginx.conf:8', "synapse", "no address"),
        (
            "level=debug msg=\"'504 Gateway Timeout' caused by: dial tcp 172.20.0.3:8008: i/o timeout\"",
            "172.20.0.3:8008",
            "traefik.docker.network",
        ),
        (
            "'502 Bad Gateway' caused by: dial tcp: lookup synapse on 127.0.0.11:53: no such host",
            "synapse",
            "no address",
        ),
        (
            "(111)Connection refused: AH00957: HTTP: attempt to connect to 127.0.0.1:8008 (127.0.0.1) failed",
            "127.0.0.1:8008",
            "that address and port",
        ),
        (
            "AH01102: error reading status line from remote server 127.0.0.1:8008",
            "127.0.0.1:8008",
            "restarted, killed",
        ),
    ],
)
def test_a_proxy_that_got_no_answer_is_told_by_where_it_failed(failed: str, where: str, said: str) -> None:
    passage = told(failed)

    assert passage.kind == "proxy_upstream"
    assert where in passage.words[0]
    assert said in " ".join([*passage.words, *passage.advice]).replace(
        "holds a sound process for down", "held for down"
    )


@pytest.mark.parametrize(
    ("last", "said", "never"),
    [
        (
            (
                'psycopg2.errors.UniqueViolation: could not create unique index "e2e_idx"\nDETAIL:  Key'
                " (stream_id)=(3547) is duplicated."
            ),
            "Synapse serves all the same",
            "do not start the homeserver",
        ),
        (
            (
                "psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint"
                ' "a_index2"\nDETAIL:  Key (user_id, room_id)=(@a:b, !c:d) already exists.'
            ),
            "it fails again at each try",
            "see whether sequences and tables fit",
        ),
        (
            "synapse.api.errors.StoreError: 404: No row found",
            "another process did it meanwhile",
            "federation",
        ),
    ],
)
def test_what_ended_an_update_of_the_database_is_told_as_that(last: str, said: str, never: str) -> None:
    """With the line that logged it, and without."""
    for before in (HEAD.format("synapse.storage.background_updates", "ERROR") + "Error doing update\n", ""):
        passage = told(f"{before}{UPDATE}{last}")

        all_said = " ".join([*passage.words, *passage.advice])
        assert said in all_said
        assert never not in all_said


@pytest.mark.parametrize(
    ("line", "severity", "said"),
    [
        (
            '2019-09-02 UTC ERROR:  duplicate key value violates unique constraint "device_uniqueness"',
            "look",
            "no trouble",
        ),
        (
            (
                "UniqueViolation: duplicate key value violates unique constraint"
                ' "event_push_summary_unique_index"'
            ),
            "error",
            "notifications",
        ),
        (
            "sqlite3.IntegrityError: UNIQUE constraint failed: event_push_summary.user_id",
            "error",
            "notifications",
        ),
        (
            (
                "psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint"
                ' "state_groups_pkey"'
            ),
            "error",
            "state_group_id_seq",
        ),
        (
            (
                "psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint"
                ' "x_pkey"\nDETAIL:  Key (id)=(12) already exists.'
            ),
            "error",
            "sequence",
        ),
    ],
)
def test_a_row_that_is_there_is_told_by_its_key(line: str, severity: str, said: str) -> None:
    passage = told(line)

    assert (passage.kind, passage.severity) == ("id_twice", severity)
    assert said in " ".join(passage.words)


def test_a_known_reason_of_a_write_that_failed_is_not_put_down_to_the_proxy() -> None:
    line = (
        HEAD.format("synapse.http.server", "ERROR") + "Failed handle request via 'PushRuleRestServlet': <X>\n"
    )
    trace = (
        'Traceback (most recent call last):\n  File "/x/synapse/http/server.py", line 81, in w\n    await h\n'
    )

    collided = told(f"{line}{trace}psycopg2.errors.SerializationFailure: could not serialize access due to x")
    not_writer = told(f"{line}{trace}AssertionError")

    assert "stream_writers" not in " ".join([*collided.words, *collided.advice])
    assert "stream_writers" in " ".join(not_writer.advice)


def test_an_exception_with_its_frames_below_it_is_one() -> None:
    """As Sentry shows it."""
    found = explain(
        "SerializationFailure: could not serialize access due to concurrent update\n\n"
        '  File "synapse/appservice/scheduler.py", line 324, in send\n'
        "    await txn.complete(self.store)\n"
    )

    [passage] = found.passages
    assert passage.kind == "serialization"
    assert "What failed is what application services are sent." in passage.words


def test_a_statement_below_an_error_of_postgresql_is_no_change_by_hand() -> None:
    found = explain(
        "2022-10-16 06:41:55.897 CDT [7116] ERROR:  could not serialize access due to concurrent delete\n"
        "2022-10-16 06:41:55.897 CDT [7116] STATEMENT:\n"
        "            DELETE FROM stream_positions\n"
        "            WHERE\n"
        "                stream_name = 'account_data'\n"
    )

    assert found.unrecognized == 0
    assert not any("doctor instead" in step for one in found.passages for step in one.advice)


def test_rows_that_are_twice_end_an_upgrade_of_the_schema() -> None:
    frames = UPDATE.replace("background_updates.py", "prepare_database.py")
    passage = told(f"{frames}sqlite3.IntegrityError: UNIQUE constraint failed: receipts_linearized.room_id")

    assert passage.kind == "id_twice"
    assert "Synapse does not start" in passage.words[0]


def test_what_other_homeservers_do_is_not_the_summary() -> None:
    """Many of them cannot be reached at all times."""
    found = explain(
        HEAD.format("synapse.http.federation.matrix_federation_agent", "INFO")
        + "Failed to connect to b.example:8448: User timeout caused connection failure.\n"
        + HEAD.format("synapse.replication.tcp.handler", "WARNING")
        + "Dropping command as not connected: 'USER_IP'"
    )

    assert found.summary.startswith("This process is not connected to Redis")


def test_a_program_that_syslog_names_is_no_part_of_an_exception() -> None:
    """Its lines have lost their indentation."""
    [passage] = explain(
        "\n".join(
            f"Jan 27 22:14:49 hs bridged: {line}"
            for line in (
                'File "/x/txredisapi.py", line 400, in handle_reply',
                "raise r",
                (
                    "txredisapi.ResponseError: MISCONF Redis is configured to save RDB snapshots, but is"
                    " not able to"
                ),
            )
        )
    ).passages

    assert passage.kind == "redis_cannot_save"


def test_details_of_an_error_of_postgresql_belong_to_it() -> None:
    found = explain(
        "2023-05-12 10:34:27.145 UTC [matrix event_persister5] ERROR:  deadlock detected\n"
        "2023-05-12 10:34:27.145 UTC [matrix event_persister5] DETAIL:  Process 9 waits for ShareLock on x;\n"
        "        Process 8 waits for AccessExclusiveLock on relation 87 of database 16.\n"
        "2023-05-12 10:34:27.145 UTC [matrix event_persister5] STATEMENT:  SELECT 1"
    )

    assert ([one.kind for one in found.passages], found.unrecognized) == (["deadlock"], 0)


@pytest.mark.parametrize(
    ("said", "shown"),
    [("nobody knows of it", "It said: nobody knows of it"), ("-", "synapse.handlers.x logged it")],
)
def test_a_traceback_that_was_cut_off_is_told_behind_a_line_that_is_not_known(said: str, shown: str) -> None:
    """Who logged it, what it said, and where it came from (matrix-org/synapse#8753)."""
    line = HEAD.format("synapse.handlers.x", "ERROR") + said
    passage = told(f"{line}\n{UPDATE}")
    assert passage.kind == "traceback"
    assert shown in " ".join(passage.words)
    assert "The last file of Synapse in it is synapse/storage/background_updates.py." in passage.words
    assert passage.advice == ["paste the whole traceback"]


def test_what_a_logger_said_is_told_with_an_exception_that_is_not_known() -> None:
    """The words of the line, beside those of the exception."""
    line = HEAD.format("synapse.handlers.x", "ERROR") + "nobody knows of it"
    assert "It said: nobody knows of it" in told(f"{line}\n{UPDATE}ValueError: neither of this").words


def test_a_level_may_stand_before_the_logger() -> None:
    """The number of the line in the module is no part of the message then (matrix-org/synapse#12147)."""
    line = "2022-03-03 11:45:22,390 - ERROR - synapse.storage.background_updates - 282 - b-0 - {}"
    assert told(line.format("Error doing update")).kind == "update_failed"
    (unknown,) = explain(line.format("12 - 13 of them failed")).unknown
    assert (unknown.request, unknown.text) == ("b-0", "12 - 13 of them failed")


def test_what_a_schema_lacks_is_told_where_it_ends_an_upgrade() -> None:
    """The main process itself found it: to start it first is no remedy (matrix-org/synapse#14377)."""
    passage = told(
        HEAD.format("synapse.app._base", "ERROR")
        + "Exception during startup\nTraceback (most recent call last):\n"
        + '  File "/x/synapse/storage/prepare_database.py", line 150, in prepare_database\n'
        + "    _upgrade_existing_database(\n"
        + 'psycopg2.errors.UndefinedObject: constraint "a" of relation "receipts_graph" does not exist'
    )
    assert "did not find what it changes" in " ".join(passage.words)
    assert "make by hand what the line names" in " ".join(passage.advice)
    assert not any("first, alone" in step for step in passage.advice)


def test_databases_are_told_by_their_locale() -> None:
    """What psql -l prints (matrix-org/synapse#6831)."""
    rows = (
        "   Name    |  Owner   | Encoding |   Collate   |    Ctype    |   Access privileges\n"
        "-----------+----------+----------+-------------+-------------+-----------------------\n"
        " postgres  | postgres | UTF8     | en_US.UTF-8 | en_US.UTF-8 | \n"
        " right     | ada      | UTF8     | C           | C           | \n"
        " synapse   | postgres | UTF8     | en_US.UTF-8 | en_US.UTF-8 | =Tc/postgres         +\n"
        "           |          |          |             |             | synapse=CTc/postgres\n"
        "(3 rows)"
    )
    passage = told(rows)
    assert passage.text == "databases"
    assert passage.words[1:] == [
        "synapse has encoding UTF8, collate en_US.UTF-8, ctype en_US.UTF-8: Synapse refuses to start on it."
    ]
    assert [row["name"] for row in passage.fields] == ["right", "synapse"]
    assert "--locale=C" in passage.advice[0]


def test_a_deadlock_with_a_change_of_a_table_is_told_as_that() -> None:
    """The lock tells it, or where it ended the start (matrix-org/synapse#15580)."""
    detail = (
        "ERROR:  deadlock detected\nDETAIL:  Process 1 waits for AccessShareLock on relation 2 of database 3;"
        " blocked by process 4.\nProcess 4 waits for {} on relation 2 of database 3; blocked by process 1."
    )
    changing = told(detail.format("AccessExclusiveLock"))
    assert "One of the two wants a table for itself alone" in changing.words[1]
    assert "end all workers" in changing.advice[0]
    assert told(detail.format("ShareLock")).words == changing.words[:1]
    at_start = told(
        HEAD.format("synapse.app._base", "ERROR")
        + "Exception during startup\nTraceback (most recent call last):\n"
        + '  File "/x/synapse/storage/prepare_database.py", line 150, in prepare_database\n'
        + "    _upgrade_existing_database(\npsycopg2.errors.DeadlockDetected: deadlock detected"
    )
    assert "start the main process alone" in " ".join(at_start.advice)


def test_a_traceback_that_was_cut_off_comes_after_what_is_known() -> None:
    """It says less (matrix-org/synapse#8753)."""
    behind = HEAD.format("synapse.storage.util.sequence", "WARNING") + (
        "Postgres sequence events_stream_seq is behind table events: 1 < 127"
    )
    found = explain(f"{HEAD.format('synapse.handlers.x', 'ERROR')}nobody knows it\n{UPDATE}{behind}")
    assert [one.kind for one in found.passages] == ["sequence_behind", "traceback"]
    assert found.summary.startswith("The sequence events_stream_seq is 126 behind")


@pytest.mark.parametrize(
    ("refused", "said", "step"),
    [
        (
            'no pg_hba.conf entry for host "::1", user "ada", database "b", SSL on',
            "lets ada from ::1 into the database b",
            "host b ada ::1/128 scram-sha-256",
        ),
        (
            'no pg_hba.conf entry for host "172.18.0.3", user "ada", database "b", no encryption',
            "lets ada from 172.18.0.3 into the database b",
            "hostssl",
        ),
        ('Peer authentication failed for user "ada"', "does not run as ada", "host: 127.0.0.1"),
        ('Ident authentication failed for user "ada"', "it did not say ada", "in place of ident"),
        ('password authentication failed for user "ada"', "The password of ada", "POSTGRES_PASSWORD"),
        ('role "ada" does not exist', "no role ada", "createuser ada"),
        ('database "b" does not exist', "no database b", "--owner=USER b"),
        ("fe_sendauth: no password supplied", "this process has none", "set password"),
    ],
)
def test_a_login_that_postgresql_refuses_is_told_by_its_words(refused: str, said: str, step: str) -> None:
    """Who asked, and which line or option to change (YunoHost-Apps/synapse_ynh#61)."""
    passage = told(f"psycopg2.OperationalError: FATAL:  {refused}")
    assert passage.kind == "db_password"
    assert said in passage.words[0]
    assert step in " / ".join(passage.advice)
    assert ("::1 is what localhost may mean" in " / ".join(passage.advice)) == ("::1" in refused)


@pytest.mark.parametrize(
    ("name", "said", "step"),
    [
        ("synapse", "has no Synapse", "make the environment anew"),
        ("synapse.synapse_rust", "compiled part", "install Rust"),
        ("synapse.app.room_reader", "no module synapse.app.room_reader", "synapse.app.generic_worker"),
        ("systemd", "systemd's journal", "matrix-synapse[systemd]"),
        ("systemd.journal", "systemd's journal", "matrix-synapse[systemd]"),
        ("txredisapi", "The Python module txredisapi", "matrix-synapse[redis]"),
        ("my_module", "The Python module my_module is not installed", "workers too"),
        # matrix-org/synapse#14717, AVENTER-UG/docker-matrix#33: images with a part of Synapse alone
        ("synapse.app", "a part of Synapse alone", "pull it again"),
        ("synapse.app.homeserver", "a part of Synapse alone", "pull it again"),
        # YunoHost-Apps/synapse_ynh#29
        ("msgpack", "The Python package msgpack is not installed, which each process", "pip install msgpack"),
        ("twisted.internet", "The Python package twisted is not installed", "pip check"),
    ],
)
def test_a_module_that_is_missing_is_told_by_its_name(name: str, said: str, step: str) -> None:
    """What needs it, and where it comes from (matrix-org/synapse#12631, #14966)."""
    passage = told(f"ModuleNotFoundError: No module named '{name}'")
    assert passage.kind == "module_missing"
    assert said in passage.words[0]
    assert step in passage.advice[0]


@pytest.mark.parametrize(
    "line",
    [
        "Missing Requirement: Can't import 'msgpack' which is part of 'msgpack-python>=0.3.0'",
        "Missing Requirements: 'jsonschema>=2.5.1', 'frozendict>=1'",
        "Needed attrs>=19.2.0, got attrs==18.1.0",
    ],
)
def test_a_requirement_of_an_older_release_is_told(line: str) -> None:
    assert told(line).kind == "start_requirement"


def test_a_name_that_cannot_be_imported_is_told_of_all_modules() -> None:
    """It is no module."""
    assert "a module of modules:" in told("ImportError: cannot import name 'x' from 'y'").words[0]


def test_redis_is_lost_where_the_process_ends() -> None:
    """That is no failure; far from the end it is one (matrix-org/synapse#16464)."""
    lost = HEAD.format("synapse.replication.tcp.redis", "INFO") + "Lost connection to redis"
    end = HEAD.format("synapse.app._base", "INFO") + "Shutting down..."
    found = explain(f"{end}\n{lost}")
    assert {one.severity for one in found.passages} == {"normal"}
    assert "asked to end at that time" in found.passages[1].words[0]
    far = explain("\n".join([lost, *["x"] * 6, end]))
    assert far.passages[0].kind == "redis_lost"
    assert far.passages[0].severity == "look"
    assert explain(lost).passages[0].severity == "look"


def test_a_traceback_of_old_releases_may_have_no_time() -> None:
    """The request is empty there (matrix-org/synapse#2503)."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/x/synapse/app/_base.py", line 113, in quit_with_error',
        "    sys.stderr.write(x)",
        "NameError: global name 'sys' is not defined",
    )
    passage = told("\n".join(f"twisted - 131 - ERROR - - {line}" for line in lines))
    assert passage.kind == "does_not_fit"
    assert "synapse/app/_base.py" in " ".join(passage.words)


@pytest.mark.parametrize(
    "text",
    [
        "Error doing update\n" + UPDATE + "KeyError: 'event_store_labels'",
        "Error doing update: 'event_store_labels'\n" + UPDATE + "KeyError: 'event_store_labels'",
        "Error doing update: 'event_store_labels'",
    ],
)
def test_an_update_that_a_release_does_not_know_is_told_as_that(text: str) -> None:
    """It was added by a newer one (matrix-org/synapse#6404, element-hq/synapse#18546)."""
    passage = told(HEAD.format("synapse.storage.background_updates", "ERROR") + text)
    assert "event_store_labels, that this release does not know" in passage.words[0]
    assert "start the newer release again" in passage.advice[0]


def test_a_key_that_an_update_misses_elsewhere_is_no_update() -> None:
    """The last file is another one."""
    frames = UPDATE + '  File "/x/synapse/storage/databases/main/events.py", line 1, in x\n    y\n'
    line = HEAD.format("synapse.storage.background_updates", "ERROR") + "Error doing update"
    assert "does not know" not in " ".join(told(f"{line}\n{frames}KeyError: 'event_store_labels'").words)


def test_a_container_may_be_named_synapse() -> None:
    """It is no logger: a traceback goes on behind it (element-hq/synapse#17508)."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/usr/local/lib/python3.11/site-packages/synapse/app/homeserver.py", line 362, in setup',
        "    hs.setup()",
        'psycopg2.OperationalError: connection to server at "10.0.0.1", port 5432 failed: Connection refused',
    )
    found = explain("\n".join(f"2024-07-31T14:11:18.545Z [synapse] {line}" for line in lines))
    assert [one.kind for one in found.passages] == ["db_unreachable"]
    assert found.unrecognized == 0


def test_an_event_that_cannot_be_checked_is_of_another_homeserver() -> None:
    """Its key is not to be had (matrix-org/synapse#11908)."""
    line = HEAD.format("synapse.federation.federation_base", "WARNING")
    passage = told(f"{line}Signature check failed for $a: 403: event id $a: unable to verify signature")
    assert passage.kind == "fed_event_signature"
    assert passage.advice[0].startswith("nothing is to be done here")


@pytest.mark.parametrize(
    ("line", "kind", "severity"),
    [
        # PostgreSQL's own log.
        ("ERROR:  canceling autovacuum task", "db_chores", "normal"),
        ('ERROR:  index "a" contains unexpected zero page at block 0', "db_broken", "error"),
        ("PANIC:  could not locate a valid checkpoint record", "pg_replay_failed", "error"),
        (
            'ERROR:  could not resize shared memory segment "/P.1" to 8388608 bytes: No space left on device',
            "db_shared_memory",
            "error",
        ),
        (
            'FATAL:  data directory "/var/lib/postgresql/data" has invalid permissions',
            "db_not_started",
            "error",
        ),
        ('WARNING:  database "a" must be vacuumed within 10000000 transactions', "db_wraparound", "error"),
        (
            "psycopg2.OperationalError: SSL error: decryption failed or bad record mac",
            "db_tls_broken",
            "error",
        ),
        # Python, and what work was given up.
        ("RecursionError: maximum recursion depth exceeded while calling", "too_deep", "error"),
        ("twisted.internet.defer.CancelledError", "given_up", "look"),
        (
            "pkg_resources.DistributionNotFound: The 'attrs' distribution was not found",
            "start_requirement",
            "error",
        ),
        ("MemoryError", "no_memory", "error"),
        ("synapse.config._base.ConfigError: Must specify 'presence'", "cfg_error", "error"),
        # What starts and ends processes.
        ("0/3 nodes are available: 3 Insufficient memory.", "not_scheduled", "error"),
        ("Error response from daemon: network matrix not found", "not_scheduled", "error"),
        ("The node was low on resource: memory. Threshold quantity: 100Mi", "pod_evicted", "error"),
        ("a.service: Main process exited, code=exited, status=203/EXEC", "unit_wrong", "error"),
        ("a.service: Watchdog timeout (limit 10s)!", "watchdog", "error"),
        (
            "Config file '/data/homeserver.yaml' does not exist. You should either create",
            "image_no_config",
            "error",
        ),
        ("Bind for 0.0.0.0:8008 failed: port is already allocated", "address_in_use", "error"),
        # Proxies by themselves.
        ("2023/01/01 10:00:00 [alert] 7#7: 768 worker_connections are not enough", "proxy_limits", "error"),
        (
            '[emerg] 7#7: cannot load certificate "/etc/ssl/x.pem": BIO_new_file() failed',
            "proxy_files",
            "error",
        ),
        (
            "[warn] 7#7: *1 an upstream response is buffered to a temporary file /x",
            "proxy_buffered",
            "normal",
        ),
    ],
)
def test_what_runs_beside_synapse_is_known(line: str, kind: str, severity: str) -> None:
    """Databases, Python, systemd, Kubernetes, proxies."""
    passage = told(line)
    assert (passage.kind, passage.severity) == (kind, severity)


@pytest.mark.parametrize(
    ("server", "state", "severity", "said"),
    [
        ("w1", "SC--", "look", "HAProxy did not reach synapse/w1"),
        ("w1", "sC--", "look", "could not connect to synapse/w1 in time"),
        ("w1", "sQ--", "look", "no free place at synapse/w1"),
        ("w1", "sH--", "look", "synapse/w1 did not answer in the time"),
        ("w1", "SD--", "look", "synapse/w1 closed the connection"),
        ("w1", "PR--", "look", "HAProxy itself refused"),
        ("w1", "CH--", "normal", "went away before the answer"),
        ("<NOSRV>", "SC--", "look", "all of synapse are down"),
        ("w1", "----", "look", "answered with 503"),
        ("w1", "XX--", "look", "answered with 503"),
    ],
)
def test_a_request_is_told_by_how_haproxy_ended_it(server: str, state: str, severity: str, said: str) -> None:
    """Two letters tell it."""
    passage = told(
        f"haproxy[1]: 10.0.0.1:1234 [01/Jan/2023:10:00:00.000] https synapse/{server} 0/0/-1/-1/3003 503 217"
        f' - - {state} 1/1/0/0/3 0/0 "GET /_matrix/client/v3/sync HTTP/1.1"'
    )
    assert passage.severity == severity
    assert said in passage.words[0]
    assert bool(passage.advice) == (severity == "look")


def test_traefik_finds_no_address_of_a_container() -> None:
    """The network is another one."""
    passage = told(
        'level=error msg="service \\"a\\" error: unable to find the IP address for the container'
        ' \\"/synapse\\": the server is ignored"'
    )
    assert passage.words == [
        "Traefik finds no address of synapse in the network that it uses: it asks it nothing."
    ]


def test_a_socket_is_told_without_the_upstream() -> None:
    """It is in the line too."""
    line = (
        "connect() to unix:/run/main.sock failed (2: No such file or directory) while connecting to upstream"
    )
    assert told(line).words[0].startswith("Nothing listens at unix:/run/main.sock")


@pytest.mark.parametrize(
    ("text", "kind", "severity", "said"),
    [
        (
            '{"errcode": "M_UNRECOGNIZED", "error": "Unrecognized request"}',
            "unrecognized_request",
            "look",
            "does not take it",
        ),
        ('{"errcode":"M_UNRECOGNIZED"}', "unrecognized_request", "look", "goes to the main process"),
        ("SynapseError: 404 - Unrecognized request", "unrecognized_request", "look", "does not take it"),
        (
            "synapse.api.errors.UnrecognizedRequestError: 405: Unrecognized request",
            "unrecognized_request",
            "look",
            "does not take it",
        ),
        (
            HEAD.format("synapse.http.server", "INFO")
            + "<XForwardedForRequest at 0x7f method='POST' uri='/_matrix/client/unstable/org.matrix.msc4140"
            "/delayed_events/abc/send' clientproto='HTTP/1.1' site='8081'> SynapseError: 404 - Unrecognized"
            " request",
            "client_refused",
            "look",
            "to the main process",
        ),
        (
            '{"errcode":"M_MISSING_TOKEN","error":"Missing access token"}',
            "missing_token",
            "look",
            "Authorization",
        ),
        (
            '{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":200}',
            "rate_limited",
            "look",
            "rate_limited: false",
        ),
        ('{"errcode":"M_RESOURCE_LIMIT_EXCEEDED"}', "resource_limited", "error", "max_mau_value"),
        ('{"errcode":"M_USER_DEACTIVATED"}', "user_deactivated", "look", "deactivated"),
        ('{"errcode":"M_EXCLUSIVE","error":"x"}', "name_exclusive", "look", "namespaces"),
        ('{"errcode":"M_UNKNOWN_POS","error":"x"}', "sliding_sync_new", "normal", "begins a new one"),
    ],
)
def test_a_code_of_an_error_with_one_meaning(text: str, kind: str, severity: str, said: str) -> None:
    passage = told(text)
    assert (passage.kind, passage.severity) == (kind, severity)
    assert said in " ".join([*passage.words, *passage.advice])


@pytest.mark.parametrize(
    ("asked", "code", "is_said"),
    [
        ("POST /_matrix/client/unstable/org.matrix.msc4140/delayed_events/a", 405, True),
        ("POST /_matrix/client/v3/rooms/!a:b/upgrade", 404, True),
        ("GET /_matrix/client/v3/pushers", 404, True),
        ("GET /_matrix/client/unstable/org.matrix.msc4140/delayed_events", 404, False),
        ("GET /_matrix/client/v3/rooms/!a:b/state", 404, False),
    ],
)
def test_what_workers_do_not_take_goes_to_the_main_process(asked: str, code: int, *, is_said: bool) -> None:
    line = (
        HEAD.format("synapse.access.http.8083", "INFO")
        + "1.2.3.4 - 8083 - {None} Processed request: 0.001sec/0.000sec (0.001sec, 0.000sec)"
        + f' (0.000sec/0.000sec/0) 59B {code} "{asked} HTTP/1.1" "x" [0 dbevts]'
    )
    assert ("Only the main process takes" in " ".join(told(line).words)) == is_said


def test_a_stack_that_was_logged_is_no_failure() -> None:
    """Python writes it for a line that asks for its callers, as Synapse does of its clock at level DEBUG."""
    stack = (
        "Stack (most recent call last):\n"
        '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '  File "/usr/lib/python3/dist-packages/synapse/app/homeserver.py", line 505, in <module>\n'
        "    main()\n"
    )
    line = "2025-12-04 14:27:08,832 - synapse.util.clock - 224 - DEBUG - main - looping_call(x): Scheduled\n"

    after = " - synapse.replication.tcp.redis - 302 - INFO - sentinel - Connected to redis\n"
    for text in (line + stack, stack, line + stack + line + stack):
        found = explain(text + line.partition(" - ")[0] + after)
        assert {"redis_connect"} == {one.kind for one in found.passages} - {"clock"}
    raised = explain(
        line + stack + 'Traceback (most recent call last):\n  File "a", line 1\nValueError: no\n'
    )
    assert ["traceback", "clock"] == [one.kind for one in raised.passages]


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("401: Destination mismatch in auth header", "addressed to another name"),
        ("401: Missing Authorization headers", "without what says who sent it"),
        ("400: Malformed Authorization header", "in no known form"),
        ("401: Invalid signature for server a.example with key ed25519:a", "signature could not be checked"),
    ],
)
def test_a_request_is_refused_for_its_signature_only_if_that_was_looked_at(why: str, told: str) -> None:
    """As synapse#17576 of element-hq has it, whose other end had written another name."""
    logged = (
        "synapse.federation.transport.server._base - 323 - WARNING - PUT-2355 - authenticate_request failed"
    )

    [passage] = explain(f"2024-08-10 16:48:39,209 - {logged}: {why}\n").passages

    assert told in passage.words[0]
