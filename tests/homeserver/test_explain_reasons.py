"""What people paste of lines that stand beside replication: tracebacks, PostgreSQL, the system, requests."""

import json
import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synrepl.homeserver.explanation import explain

FRAMES: Final = (
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3/synapse/app/homeserver.py", line 382, in setup\n'
    "    hs.setup(\n"
    "    ^^^^^^^^^\n"
    '  File "/usr/lib/python3/synapse/server.py", line 318\n'
)
STARTED: Final = "2026-11-02 10:00:00,000 - synapse.app._base - 220 - ERROR - main - Exception during startup"

REASONS: Final = [
    ("db_password", 'psycopg2.OperationalError: FATAL:  password authentication failed for user "synapse"'),
    ("db_password", 'connection to server at "db", port 5432 failed: FATAL:  role "x" does not exist'),
    ("db_password", 'no pg_hba.conf entry for host "10.0.0.7", user "synapse", database "synapse"'),
    ("db_user_id", "psycopg2.OperationalError: local user with ID 1000 does not exist"),
    (
        "db_connections",
        (
            'psycopg2.OperationalError: connection to server at "localhost" (::1), port 5432 failed: FATAL: '
            " sorry, too many clients already"
        ),
    ),
    ("db_connections", "FATAL:  remaining connection slots are reserved for non-replication superuser"),
    ("db_starting", "psycopg2.OperationalError: FATAL:  the database system is starting up"),
    ("db_no_host", 'psql: error: could not translate host name "matrix-postgres" to address: Try again'),
    ("db_unreachable", 'connection to server at "10.0.0.1", port 5432 failed: Connection refused'),
    ("db_unreachable", "        TCP/IP connections on port 5432?"),
    # zalando/postgres-operator#1952, #2341
    ("db_pooler", "[1] WARNING C-0x55b3534cd150: db/ada@10.0.0.1:46936 pooler error: server conn crashed?"),
    ("db_pooler_login", "psycopg2.errors.ProtocolViolation: server login has been failing, try again later"),
    ("db_pooler", "psycopg2.OperationalError: FATAL:  client_login_timeout (server down)"),
    ("db_pooler", "psycopg2.OperationalError: ERROR:  query_wait_timeout"),
    ("db_lost", "psycopg2.InterfaceError: connection already closed"),
    ("db_lost", "psycopg2.OperationalError: SSL SYSCALL error: EOF detected"),
    ("disk_full", 'could not extend file "base/27495/28487": No space left on device#012HINT:  Check'),
    ("disk_full", "OSError: [Errno 28] No space left on device"),
    ("deadlock", "2026-01-21 23:58:29.563 CET [834] synapse@synapse ERROR:  deadlock detected"),
    ("statement_timeout", "psycopg2.errors.QueryCanceled: canceling statement due to statement timeout"),
    ("lock_timeout", "psycopg2.errors.LockNotAvailable: canceling statement due to lock timeout"),
    (
        "db_no_conflict_index",
        "there is no unique or exclusion constraint matching the ON CONFLICT specification",
    ),
    ("db_no_column", 'psycopg2.errors.UndefinedTable: relation "event_failed_pull_attempts" does not exist'),
    ("db_broken", 'psycopg2.errors.UndefinedFile: could not load library "/usr/lib/plpgsql.so": undefined'),
    ("db_memory", "psycopg2.errors.OutOfMemory: out of shared memory"),
    (
        "state_persisting",
        'UniqueViolation: duplicate key value violates unique constraint "state_groups_persisting_pkey"',
    ),
    ("id_twice", 'UniqueViolation: duplicate key value violates unique constraint "state_groups_pkey"'),
    ("sqlite_locked", "sqlite3.OperationalError: database is locked"),
    ("too_many_files", "exceptions.IOError: [Errno 24] Too many open files: '/etc/resolv.conf'"),
    ("too_many_files", "twisted: [PUT-1187882] Could not accept new connection (EMFILE)"),
    ("address_in_use", "OSError: [Errno 98] Address already in use"),
    (
        "port_in_use",
        "CannotListenError: Couldn't listen on 127.0.0.1:8008: [Errno 98] Address already in use.",
    ),
    ("file_forbidden", "PermissionError: [Errno 13] Permission denied: '/homeserver.log'"),
    ("file_missing", "FileNotFoundError: [Errno 2] No such file or directory: '/data/homeserver.yaml'"),
    ("file_missing", "Connection to UNIX socket failed: An error occurred: 2: No such file or directory."),
    ("file_forbidden", "ConnectError: An error occurred while connecting: 13: Permission denied."),
    ("process_killed", "matrix-synapse.service: Main process exited, code=killed, status=9/KILL"),
    ("process_exited", "matrix-synapse.service: Main process exited, code=exited, status=1/FAILURE"),
    ("module_missing", "ModuleNotFoundError: No module named 'synapse_user_restrictions'"),
    ("libpq_old", "ImportError: /x/_psycopg.cpython-39.so: undefined symbol: PQconninfo"),
    ("library_mismatch", "ImportError: /x/_rust.abi3.so: undefined symbol: EVP_PKEY_get_id"),
    ("signing_key", "ValueError: not enough values to unpack (expected 3, got 1)"),
    ("cfg_error", "matrix-synapse   | Error in configuration at 'signing_key':"),
    ("cfg_server_name", "Missing mandatory `server_name` config option."),
    ("cfg_yaml", "yaml.parser.ParserError: while parsing a block mapping"),
    ("wrong_role", "Exception: Workers cannot send federation traffic"),
    ("no_row", "synapse.api.errors.StoreError: 404: No row found (federation_stream_position)"),
    ("no_answer_between", "synapse.api.errors.SynapseError: 502: Failed to talk to event_persister1 process"),
    ("address_none", "twisted.internet.error.DNSLookupError: DNS lookup failed: no results for hostname"),
    ("refused", "twisted.internet.error.ConnectionRefusedError: Connection was refused by other side: 111."),
    ("no_route", "twisted.internet.error.NoRouteError: No route to host: 113: No route to host."),
    ("timed_out", "twisted.internet.error.TimeoutError: User timeout caused connection failure."),
    ("tls", "OpenSSL.SSL.Error: [('SSL routines', '', 'certificate verify failed')]"),
    ("tls", "OpenSSL.SSL.Error: [('SSL routines', 'ssl3_get_record', 'wrong version number')]"),
    ("closed_between", "twisted.web._newclient.ResponseNeverReceived: [<Failure ConnectionLost: x>]"),
    ("start_timeout", "matrix-synapse.service: start operation timed out. Terminating."),
    ("process_exited", "error starting (exit code: 1); see above for logs"),
    ("fed_not_retried", "synapse.util.retryutils.NotRetryingDestination: Not retrying server a.example"),
    ("does_not_fit", "AttributeError: 'MultipartParser' object has no attribute 'feed'"),
    ("redis_gone", "txredisapi.ConnectionError: Lost connection"),
    ("port_identity", 'psycopg2.errors.GeneratedAlways: cannot insert a non-DEFAULT value into column "key"'),
    ("process_exited", "   Main PID: 414731 (code=exited, status=1/FAILURE)"),
    ("redis_loading", "txredisapi.ResponseError: LOADING Redis is loading the dataset in memory"),
    ("redis_rights", "NOPERM this user has no permissions to access one of the channels used as arguments"),
    ("redis_rights", "(error) NOPERM User synapse has no permissions to run the 'subscribe' command"),
    (
        "redis_protected",
        "-DENIED Redis is running in protected mode because protected mode is enabled and no",
    ),
    ("redis_index", "txredisapi.ResponseError: ERR DB index is out of range"),
    ("redis_cluster", "CLUSTERDOWN The cluster is down"),
]
"""Last lines of tracebacks, and words of PostgreSQL and of the system, of public reports."""


@pytest.mark.parametrize(("key", "line"), REASONS)
def test_an_exception_is_explained_alone_and_with_what_logged_it(key: str, line: str) -> None:
    [alone] = explain(line).passages
    assert (alone.kind, bool(alone.advice)) == (key, True)

    if re.match(r"[\w.]*[A-Z][a-z]\w+: ", line):
        found = explain(f"{STARTED}\n{FRAMES}{line}\n")
        [joined] = found.passages
        assert (joined.kind, joined.lines, found.lines) == ("startup_failed", [1], 7)
        assert alone.words[0] in " ".join(joined.words)
        assert set(alone.advice) <= set(joined.advice)
        assert not any("read the traceback" in step for step in joined.advice)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "Nov 11 20:26:42 cloud.example.com python[16207]: ",
        "Jun 13 01:24:01 synapse python[24074]: ",
        "synapse-generic-worker-1-1     | ",
        "Warning: Dec 19 13:54:24 python[75182]:        ",
    ],
)
def test_a_traceback_is_one_whatever_shipped_it(prefix: str) -> None:
    log = f"{STARTED}\n{FRAMES}psycopg2.OperationalError: FATAL:  the database system is starting up"
    found = explain("\n".join(f"{prefix}{line}" for line in log.splitlines()))

    assert ["startup_failed"] == [passage.kind for passage in found.passages]
    assert (found.lines, found.unrecognized) == (7, 0)
    assert "PostgreSQL runs, and takes no connections" in " ".join(found.passages[0].words)


def test_the_cause_and_the_last_exception_are_told() -> None:
    """The first of a chain is the cause (element-hq/synapse#9338)."""
    found = explain(
        "2021-02-06 11:09:54,223 - synapse.metrics.background_process_metrics - 210 - ERROR - x-1- Background"
        f" process 'replication-USER_IP' threw an exception\n{FRAMES}"
        "twisted.web._newclient.RequestTransmissionFailed: [<Failure ConnectionDone>]\n"
        f"\nThe above exception was the direct cause of the following exception:\n\n{FRAMES}"
        "synapse.api.errors.SynapseError: 502: Failed to talk to main process\n"
    )

    [passage] = found.passages
    said = " ".join(passage.words)
    assert "SynapseError: 502: Failed to talk to main process: A request to another" in said
    assert said.index("closed the connection") < said.index("whichever") < len(said)
    assert 0 == found.unrecognized


def test_an_unknown_exception_is_shown_with_what_its_kind_means() -> None:
    [passage] = explain(f"{STARTED}\n{FRAMES}TypeError: int() argument must be a string").passages

    assert "The exception: TypeError: int() argument must be a string" in passage.words
    assert "By its kind that is a fault of the program" in " ".join(passage.words)
    assert not [step for step in passage.advice if step.startswith("read the traceback")]


def test_a_traceback_alone_is_told_to_be_one() -> None:
    """Cut off, or with an exception that is not known: what is missing is told, and nothing more."""
    [cut] = explain(FRAMES).passages
    [unknown] = explain(f"{FRAMES}StopIteration: []").passages

    [end] = explain("    server, thread = start(\n    ^^^^^^^^^^^^^^\nRuntimeError: x").passages

    assert ("traceback", "traceback", "traceback") == (cut.kind, unknown.kind, end.kind)
    assert "its last line, which names the exception, is missing" in cut.words[0]
    assert "StopIteration: []" in unknown.words[0]


def test_a_failure_of_a_module_that_is_not_known_names_it() -> None:
    line = "2026-11-02 10:00:00,000 - synapse.handlers.x - 1 - ERROR - main - Something odd"
    found = explain(f"{line}\n{FRAMES}RuntimeError: odd")

    [passage] = found.passages
    assert ("traceback", 0) == (passage.kind, found.unrecognized)
    assert "The module synapse.handlers.x logged a failure" in passage.words[0]
    assert "RuntimeError: odd" in passage.words[0]


def test_a_chain_goes_on_after_an_exception_with_an_odd_name() -> None:
    """As those of Twisted and Python 3.5 (matrix-org/synapse#5157)."""
    again = "\nDuring handling of the above exception, another exception occurred:\n\n"
    found = explain(
        f"{STARTED}\n{FRAMES}twisted.internet.defer._DefGen_Return: {{}}\n{again}{FRAMES}ValueError: x"
    )

    [passage] = found.passages
    assert ("startup_failed", 0) == (passage.kind, found.unrecognized)
    assert "The exception: ValueError: x" in passage.words


def test_a_traceback_does_not_take_the_lines_after_it() -> None:
    after = (
        "2026-11-02 10:00:00,000 - synapse.replication.tcp.redis - 1 - INFO - x - Lost connection to redis"
    )

    for text in (f"{STARTED}\n{FRAMES}{after}", f"{STARTED}\n{FRAMES}ValueError: x\n{after}"):
        assert ["startup_failed", "redis_lost"] == [passage.kind for passage in explain(text).passages]


def test_a_transaction_that_is_repeated_has_the_words_of_the_database() -> None:
    """They are over several lines (matrix-org/synapse#8574)."""
    found = explain(
        "2020-11-18 08:37:40,582 - synapse.storage.txn - 512 - WARNING - x-221- [TXN OPERROR] {find-f5a1a}"
        " server closed the connection unexpectedly\n"
        "        This probably means the server terminated abnormally\n"
        "        before or while processing the request.\n 0/5\n"
    )

    [passage] = found.passages
    assert ("txn_retry", 4, 0) == (passage.kind, found.lines, found.unrecognized)
    assert "The connection to PostgreSQL was cut" in " ".join(passage.words)


LINES: Final = [
    ("synapse.storage.background_updates - 302 - ERROR - x - Error doing update", "update_failed"),
    (
        "synapse.federation.federation_server - 1 - ERROR - x - Failed to handle edu 'm.receipt'",
        "fed_edu_failed",
    ),
    (
        (
            "synapse.federation.federation_server - 190 - WARNING - x - Received another txn 1 from other.x"
            " while still processing 2"
        ),
        "fed_still_busy",
    ),
    (
        (
            "synapse.http.matrixfederationclient - 799 - INFO - x - {PUT-O-635} [other.x] Request failed:"
            " PUT matrix-federation://other.example/_matrix/federation/v1/send/1: TimeoutError('')"
        ),
        "fed_request_failed",
    ),
    (
        (
            "synapse.push.httppusher - 416 - WARNING - x - Failed to push data to @a:b/app: <class"
            " 'twisted.internet.error.DNSLookupError'> DNS lookup failed: no results for hostname lookup: n."
        ),
        "push_unreachable",
    ),
    (
        (
            "synapse.metrics.background_process_metrics - 1 - ERROR - x - Background process"
            " 'process_event_queue_for_federation' threw an exception"
        ),
        "fed_queue_failed",
    ),
    (
        "synapse.http.server - 108 - INFO - GET-9 - <X uri='/'> SynapseError: 502 - Failed to fetch media",
        "client_refused",
    ),
    (
        (
            "synapse.handlers.stats - 1 - WARNING - x - Event stream ordering appears to have gone backwards"
            " (120 -> 96): rewinding stats processor"
        ),
        "events_backwards",
    ),
    (
        "synapse.crypto.keyring - 1 - WARNING - x - Key lookup failed from <KeyFetcher>: 502: not reached",
        "key_lookup",
    ),
    (
        "synapse.util.caches.response_cache - 1 - INFO - x - [sync]: using completed cached result for [(@a",
        "response_cached",
    ),
    ("synapse.handlers.presence - 350 - INFO -  - Handling presence timeouts", "presence_work"),
    ("twisted - 240 - CRITICAL -  - Rollback failed", "rollback_failed"),
    ("root - 326 - INFO - main- Instance name: synapse.app.synchrotron", "start_name"),
    ("synapse.config.logger - 389 - INFO - main - Instance name: master", "start_name"),
    # The streams of devices, to-device messages, receipts and typing begin here (matrix-org/synapse#8631).
    (
        (
            "synapse.handlers.device - 750 - INFO - PUT-234062- Received device list update for @a:other.x,"
            " requiring resync: True. Devices: DEVICE"
        ),
        "device_update",
    ),
    (
        "synapse.handlers.device - 1 - WARNING - x - Got device list update edu for '@a:x'/'D' from 'y'",
        "device_update_dropped",
    ),
    (
        "synapse.handlers.device - 1 - INFO - x - Found 3 changed hosts to send device list updates to",
        "device_sent",
    ),
    (
        "synapse.handlers.devicemessage - 1 - WARNING - x - To-device message to non-local user @a:x",
        "to_device_dropped",
    ),
    (
        "synapse.handlers.e2e_keys - 1 - INFO - x - Updating device_keys for device 'D' for user @a:hs at 17",
        "device_keys",
    ),
    (
        (
            "synapse.handlers.receipts - 1 - INFO - x - Ignoring receipt for room '!r:x' from server y.x as"
            " we're not in the room"
        ),
        "edu_ignored_receipt",
    ),
    ("synapse.handlers.typing - 1 - INFO - x - Timing out typing for: @ada:hs", "typing_work"),
    (
        "synapse.storage.databases.main.devices - 1 - INFO - x - Pruned 12 device list outbound pokes",
        "device_pruned",
    ),
    # synapse_port_db (matrix-org/synapse#15219, #15225)
    (
        (
            "Pending background updates exist in the SQLite3 database. Please start Synapse again and wait"
            " until every update has finished before running this script."
        ),
        "port_pending",
    ),
    ("synapse_port_db - 197 - ERROR - Failed to insert: destination_rooms", "port_insert"),
    ("synapse_port_db - 489 - INFO - Table events: 10/20 (rows 1-2) already ported", "port_work"),
    ("synapse_port_db - 1 - WARNING - DROPPING ROW: NUL value in table events col json: 'x'", "port_dropped"),
]


@pytest.mark.parametrize(("line", "key"), LINES)
def test_a_line_beside_replication_is_explained(line: str, key: str) -> None:
    assert [key] == [passage.kind for passage in explain(f"2026-11-02 10:00:00,000 - {line}").passages]


def test_a_worker_without_a_name_is_told() -> None:
    [passage] = explain("root - 326 - INFO - main- Instance name: synapse.app.generic_worker").passages

    assert "look" == passage.severity
    assert "This process has no worker_name" in passage.words[0]


REQUEST: Final = (
    "synapse_1 | 2026-11-02 10:00:00,000 - synapse.access.http.8083 - 508 - INFO - GET-28 - 10.0.0.3 - 8083 -"
    ' {{None}} Processed request: {}sec/0.000sec (0.001sec, 0.000sec) (0.000sec/0.000sec/0) 60B {} "{}'
    ' HTTP/1.1" "x" [0 dbevts]'
)


@pytest.mark.parametrize(
    ("seconds", "code", "request_line", "said"),
    [
        (
            "0.001",
            "404",
            "GET /_matrix/client/v1/media/thumbnail/b/abc?width=32",
            "that has the media repository",
        ),
        ("0.001", "404", "GET /_matrix/client/v3/rooms/!a:b/members", "the resource client, and"),
        ("0.001", "404", "POST /_synapse/replication/fed_send_edu/x/y", "the resource replication"),
        ("0.001", "401", "POST /_synapse/replication/fed_send_edu/x/y", "the same worker_replication_secret"),
        ("0.001", "500", "PUT /_matrix/client/v3/rooms/!a:b/send/m/1", "it failed, or was not answered"),
        ("0.001", "500", "POST /_matrix/client/v3/rooms/!a:b/receipt/m.read/$e", "that write receipts"),
        ("55.561", "200", "POST /_synapse/replication/fed_send_edu/x/y", "this process was busy"),
        ("0.001", "200", "POST /_synapse/replication/fed_send_edu/x/y", "This is normal."),
        ("0.001", "404!", "GET /_matrix/client/v3/keys", "the resource client"),
    ],
)
def test_a_request_is_explained_by_its_answer(seconds: str, code: str, request_line: str, said: str) -> None:
    [passage] = explain(REQUEST.format(seconds, code, request_line)).passages

    assert "request" == passage.kind
    assert said in " ".join([*passage.words, *passage.advice])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            (
                "10.42.7.127:58106 [29/Jul/2025:00:42:10.600] http-in initial/sync13 0/0/18259/0/46/18305 500"
                ' 488 - - ---- 1031/1027/543/49/0 93/0 {hs.example||X} "POST'
                ' /_matrix/client/v3/rooms/!a:b/receipt/m.read/$e HTTP/1.1"'
            ),
            "Only processes that write receipts take such requests.",
        ),
        (
            '10.0.0.1 - - [1/Jan/2026:00:00:01 +0000] "GET /_matrix/client/v3/keys HTTP/2.0" 404 60 "-" "x"',
            "the resource client",
        ),
        (
            (
                "2021/02/17 10:12:01 [error] 8#8: *17 connect() failed (111: Connection refused) while"
                ' connecting to upstream, client: 10.0.0.1, request: "PUT /_matrix/client/r0/sync HTTP/2.0",'
                ' upstream: "http://127.0.0.1:8083/_matrix/client/r0/sync"'
            ),
            "Nothing listens at 127.0.0.1:8083, which a proxy, a bridge or another program asks.",
        ),
    ],
)
def test_a_line_of_a_proxy_is_explained(line: str, said: str) -> None:
    """Of HAProxy (element-hq/ess-helm#631) and nginx."""
    [passage] = explain(line).passages

    assert said in " ".join([*passage.words, *passage.advice])


@pytest.mark.parametrize(("code", "said"), [(404, "another server"), (403, "hs_token"), (500, "at its url")])
def test_the_answer_of_an_application_service_is_told(code: int, said: str) -> None:
    [passage] = explain(
        f"synapse.appservice.api - 397 - WARNING - x - push_bulk to http://localhost:8008 received"
        f" code={code} msg=Not Found"
    ).passages

    assert said in " ".join([*passage.words, *passage.advice])


def test_a_request_that_a_proxy_passed_on_well_tells_nothing() -> None:
    line = '10.0.0.1 - - [1/Jan/2026:00:00:01 +0000] "GET /_matrix/client/v3/keys HTTP/2.0" 200 60 "-" "x"'

    assert explain(line).passages == []


TOO_MANY: Final = "FATAL:  sorry, too many clients already"


@pytest.mark.parametrize(
    "log",
    [
        # The two ways in which Synapse writes an exception in its structured log
        json.dumps(
            {
                "log": "Exception during startup",
                "namespace": "synapse.app._base",
                "level": "ERROR",
                "exc_type": "OperationalError",
                "exc_value": TOO_MANY,
            }
        ),
        json.dumps(
            {
                "log": f"Exception during startup\n{FRAMES}psycopg2.OperationalError: {TOO_MANY}",
                "namespace": "synapse.app._base",
                "level": "ERROR",
            }
        ),
        # What Docker keeps
        "\n".join(
            json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2022-10-14T13:12:05.483Z"})
            for line in f"{STARTED}\n{FRAMES}psycopg2.OperationalError: {TOO_MANY}".splitlines()
        ),
    ],
)
def test_a_traceback_in_json_is_one_with_what_logged_it(log: str) -> None:
    found = explain(log)

    [passage] = found.passages
    assert ("startup_failed", 0) == (passage.kind, found.unrecognized)
    assert "PostgreSQL has as many connections as it takes." in " ".join(passage.words)


def test_a_request_of_old_releases_is_read() -> None:
    """They did not tell how long the sending took (matrix-org/synapse#3373)."""
    [passage] = explain(
        "2018-06-08 10:29:18,841 - synapse.access.http.9091 - 131 - INFO - - 10.0.0.1 - 9091 - {None}"
        " Processed request: 1612.422sec (21.768sec, 0.616sec) (1.589sec/42.834sec/1568) 0B 200"
        ' "POST /_synapse/replication/remote_join HTTP/1.1" "Synapse/0.31.0"'
    ).passages

    assert "after 1612 s" in passage.words[0]


@pytest.mark.parametrize(
    ("seconds", "code", "request_line", "severity", "said"),
    [
        ("31.0", "200", "GET /_matrix/client/v3/sync?timeout=30000", "normal", "A /sync was answered"),
        ("384.703", "200", "GET /_matrix/client/r0/sync?timeout=0&filter=1", "look", "A /sync took 385 s"),
        ("31.0", "200", "GET /favicon.ico", "normal", "A request was answered."),
        ("0.1", "200!", "GET /_matrix/client/v3/keys", "normal", "though its client had gone away"),
    ],
)
def test_a_request_that_was_answered_is_normal(
    seconds: str, code: str, request_line: str, severity: str, said: str
) -> None:
    [passage] = explain(REQUEST.format(seconds, code, request_line)).passages

    assert ("request", severity) == (passage.kind, passage.severity)
    assert said in passage.words[0]


def test_normal_requests_do_not_hide_those_that_failed() -> None:
    """Not even when those that failed are of many kinds."""
    lines = [REQUEST.format("0.1", "500", f"GET /_matrix/client/v3/x{number}") for number in range(20)]
    lines += [REQUEST.format("0.1", "200", f"GET /x{number}") for number in range(200)]

    failed, normal = explain("\n".join(lines)).passages

    assert ("look", 20) == (failed.severity, failed.count)
    assert ("normal", 200) == (normal.severity, normal.count)


def test_the_reason_is_shown_without_the_brackets_and_quotes_around_it() -> None:
    [passage] = explain(
        "synapse.replication.http._base - 318 - WARNING - x - send_event request connection failed; retrying"
        " in 1s: ConnectionRefusedError('Connection refused')"
    ).passages

    assert "Connection refused: Nothing listens at that address" in " ".join(passage.words)


def test_a_normal_line_stays_normal_whatever_it_gives_as_the_reason() -> None:
    [passage] = explain(
        "synapse.http.site - 203 - WARNING - GET-1 - Error processing request <X uri='/'>: <class"
        " 'twisted.internet.error.ConnectionDone'> Connection was closed cleanly."
    ).passages

    assert "normal" == passage.severity


def test_modules_are_named_whose_lines_are_not_known() -> None:
    found = explain("synapse.handlers.x - 1 - INFO - x - A\nsynapse.handlers.x - 1 - INFO - x - B\nhello")

    assert {"synapse.handlers.x": 2, "": 1} == found.other_loggers


PIECES: Final = st.sampled_from(
    [
        STARTED,
        *FRAMES.splitlines(),
        "ValueError: x",
        "psycopg2.OperationalError: server closed the connection unexpectedly",
        "\tThis probably means the server terminated abnormally",
        " 0/5",
        "During handling of the above exception, another exception occurred:",
        '2026-11-02 10:00:00,000 - twisted - 1 - ERROR - x -   File "x", line 1',
        '{"log":"  File \\"x\\", line 1\\n","stream":"stderr"}',
        "RDATA events w1 5 []",
        "hello",
        "",
    ]
)


@given(st.lists(PIECES, max_size=30))
def test_each_line_is_counted_once_however_tracebacks_are_mixed(lines: list[str]) -> None:
    found = explain("\n".join(lines))

    assert found.lines == sum(line != "" for line in lines)
    assert found.unrecognized <= found.lines
    assert found.unrecognized == sum(found.other_loggers.values())


_CONTEXT: Final = "2022-07-22 15:42:54,886 - synapse.logging.context - 81 - WARNING - PUT-9253 - "


@pytest.mark.parametrize(
    "lines",
    [
        # As a terminal broke it (matrix-org/synapse#13366).
        (
            "Jul 22 17:42:54 host matrix-synapse[9]: 2022-07-22 15:42:54,886 - synapse.logging.context - 81 -"
            " WARNING - PUT-92\n53 - Re-starting finished log context PUT-9253"
        ),
        f"{_CONTEXT}Re-starting finished log context PUT-9253",
        # element-hq/synapse#19066, #19165
        f"synapse-1  | {_CONTEXT}Expected logging context sentinel but found call_later",
        f"synapse-1  | {_CONTEXT}Expected logging context call_later was lost",
        (
            f"{_CONTEXT}run_in_background(UcxFX): deferred already completed but the function did not"
            " maintain the calling logcontext call_later (found sentinel)"
        ),
        # matrix-org/synapse#5592, #1554, #4414
        "synapse.util.logcontext - 476 - WARNING - PUT-12443- Expected logging context PUT-12449 was lost",
        (
            "Jun 12 06:38:23 servername python[12486]: 2016-06-12 06:38:23,661 - synapse.util.metrics - 67 -"
            " WARNING - - Entered Measure without log context: presence_handle_timeouts"
        ),
        "synapse.storage._base - 319 - WARNING -  - Starting db txn 'update_presence' from sentinel context",
        (
            "synapse.storage._base - 355 - WARNING -  - Starting db connection from sentinel context: metrics"
            " will be lost"
        ),
        "synapse.storage.database - 9 - WARNING - GET-1 - Starting db txn 'x' from sentinel context",
        f"{_CONTEXT}Re-starting already-active log context PUT-9253",
        (
            "synapse.metrics.background_process_metrics - 9 - WARNING - x-1 - Background process re-entered"
            " without a proc: x-1"
        ),
    ],
)
def test_what_synapse_says_of_its_own_accounting_is_normal(lines: str) -> None:
    explanation = explain(lines)

    [passage] = explanation.passages
    assert (passage.kind, passage.severity) == ("context_restarted", "normal")
    assert "log context" in passage.words[0]
    assert any("nothing to configure" in one for one in (*passage.words, *passage.advice))
    assert explanation.unrecognized == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # matrix-org/synapse#7202
        ("Re-starting finished log context replication-RDATA-events-751607", "before 1.13"),
        ("Re-starting finished log context PUT-9253", "(1.77)"),
        # The connection to Redis was lost (matrix-org/synapse#10984).
        ("Expected logging context replication_command_handler was lost", "before 1.46"),
        (
            "Starting db txn 'get_completed_ui_auth_stages' from sentinel context",
            "from 1.13 on, mended in 1.16",
        ),
    ],
)
def test_faults_of_the_accounting_have_their_releases(text: str, said: str) -> None:
    [passage] = explain(f"{_CONTEXT}{text}").passages

    assert (passage.kind, passage.severity) == ("context_restarted", "normal")
    assert said in passage.words[0]
    assert any("harmless" in one for one in passage.advice)


def test_a_warning_of_the_accounting_that_is_not_known_is_told_by_its_module() -> None:
    explanation = explain(f"{_CONTEXT}Calling that of a context that does not run")

    assert explanation.passages == []
    assert any("harmless to the data" in about for about in explanation.areas.values())


_SYNC: Final = (
    "2020-04-24 23:{at} - synapse.access.http.8018 - 301 - INFO - GET-109678- - - 8018 - {{@ada:hs}}"
    ' Processed request: 30.013sec/0.000sec (0.013sec, 0.000sec) (0.000sec/0.000sec/0) 374B 200 "GET'
    ' /_matrix/client/r0/sync?filter=174&timeout=30000&since={since} HTTP/1.0" "Riot" [0 dbevts]'
)
_SINCE: Final = "s36879970_272948375_38430_18234116_321641_1391_199654_1182299_48"


def test_a_token_with_which_a_client_asks_again_is_told() -> None:
    """A sync that stands still (matrix-org/synapse#7345)."""
    times = "39:59,121", "40:14,737", "40:29,227"
    passage, _ = explain("\n".join(_SYNC.format(at=one, since=_SINCE) for one in times)).passages

    [told] = [one for one in passage.words if one.startswith("It was asked with")]
    assert "3 times, from 2020-04-24 23:39:59,121 to 2020-04-24 23:40:29,227" in told
    assert any("synrepl inspect" in one for one in passage.advice)


@pytest.mark.parametrize(
    ("asked", "answered", "is_told"),
    [
        ("/sync?timeout=30000&since={}", '{{"next_batch":"{}","presence":{{}}}}', True),
        ("GET /_matrix/client/v3/sync?since={}&x=1", "{{'next_batch': '{}'}}", True),
        ("POST /sync?pos=7/{}", '{{"pos": "7/{}"}}', True),
        ("/sync?since={}", "/sync?since={}", False),
        ("/messages?from={}", '{{"start":"{}"}}', False),
    ],
)
def test_an_answer_with_the_token_of_its_request_is_told(asked: str, answered: str, is_told: bool) -> None:
    """A client that goes nowhere, pasted from its own log (matrix-org/synapse#5503)."""
    [passage] = explain(f"{asked.format(_SINCE)}\n{answered.format(_SINCE)}").passages

    said = [one for one in passage.words if "gave it back" in one]
    assert is_told == bool(said)


def test_a_line_that_was_pasted_in_two_before_its_request_is_told() -> None:
    """As people redact it (home-assistant/core#111921)."""
    text = (
        " synapse.http.server - 782 - WARNING - GET-86 - Not sending response to request\n"
        "<XForwardedForRequest at<redacted> method='GET' uri='/_matrix/client/r0/sync?access_token=<redacted>"
        f"&since={_SINCE}&timeout=30000' clientproto='HTTP/1.0' site='8008'>, already disconnected.\n"
    )
    found = explain(text)

    assert "client_gone_early" in {passage.kind for passage in found.passages}
    assert 0 == found.unrecognized


@pytest.mark.parametrize(
    "line",
    [
        "INFO - - Total database time: 0.519% {get_new_events_for_appservice(38): 0.519%, x(0): 0.000%}",
        "INFO - - Total database time: 0.519% {a(38): 0.519%} {m.room.member('master'): 0.5%}",
        "DEBUG - sentinel - Total database time: 20.769% {get_current_state_deltas(1): 0.1%}",
    ],
)
def test_how_long_the_database_took_is_normal(line: str) -> None:
    """Most lines of a quiet process (matrix-org/synapse#5957)."""
    [passage] = explain(f"2019-10-24 21:24:21,558 - synapse.storage.TIME - 391 - {line}").passages

    assert ("database_time", "normal") == (passage.kind, passage.severity)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("is_at_a_standstill", [False, True])
def test_a_client_that_goes_on_asks_with_what_an_answer_gave(times: int, is_at_a_standstill: bool) -> None:
    """The log of a client in a browser (element-hq/element-web#3375)."""
    lines = []
    for number in range(times):
        token = _SINCE.replace("s36879970", f"s3687{number}")
        lines += [f"Completed sync, next_batch={token}", f"Starting sync since={token}"]
    lines += [lines[-2]] * is_at_a_standstill

    words = [word for passage in explain("\n".join(lines)).passages for word in passage.words]

    assert is_at_a_standstill == any("gave it back" in word for word in words)


def test_a_token_in_several_lines_of_one_request_was_asked_with_once() -> None:
    """At DEBUG (matrix-org/synapse#15082)."""
    more = [
        f"2020-04-24 23:39:{at} - synapse.rest.client.sync - 131 - DEBUG - GET-14 - /sync: '{_SINCE}'"
        for at in ("29,000", "29,001")
    ]
    passage, _ = explain("\n".join([*more, _SYNC.format(at="39:59,121", since=_SINCE)])).passages

    assert passage.count == 3
    assert not any("It was asked with" in one for one in passage.words)


_LOOP: Final = (
    "    result = g.send(result)\n"
    '  File "/opt/lib/python3.7/site-packages/synapse/replication/tcp/resource.py", line 163, in'
    " _run_notifier_loop\n"
    "    updates, current_token, limited = await stream.get_updates()\n"
    '  File "/opt/lib/python3.7/site-packages/synapse/replication/tcp/streams/events.py", line 180, in'
    " _update_function\n"
    "    assert len(state_rows) < target_row_count\n"
    "AssertionError\n"
)


def test_a_traceback_tells_what_failed_by_where_it_was() -> None:
    """The loop that sends rows to the workers (matrix-org/synapse#7345, #7308)."""
    unknown = _LOOP.replace("target_row_count", "other").replace("len(updates) <= limit", "other")
    [passage] = [one for one in explain(unknown).passages if one.kind == "traceback"]

    assert "sends the rows of streams to the other processes" in " ".join(passage.words)
    assert "synapse/replication/tcp/streams/events.py" in " ".join(passage.words)
    assert any("synrepl inspect" in one for one in passage.advice)


def test_a_traceback_of_no_part_that_is_known_says_where_it_was() -> None:
    text = FRAMES.replace("server.py", "handlers/room.py") + "synapse.x.OddError: x"
    [passage] = explain(text).passages

    assert "synapse/handlers/room.py" in " ".join(passage.words)


def test_a_homeserver_without_redis_has_nobody_to_tell() -> None:
    """spantaleev/matrix-docker-ansible-deploy#2849: a small server, flooded with it."""
    [passage] = explain("Dropping command as not connected: 'REMOTE_SERVER_UP'").passages

    assert "without Redis" in " ".join(passage.words)
    assert "nothing is to be done" in passage.advice[0]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        # matrix-org/synapse#14246, #16101
        (
            (
                "synapse.util.wheel_timer - 64 - WARNING - PUT-343 - Inserting into a wheel timer that hasn't"
                " been read from recently. Item: @ada:hs"
            ),
            "timers_late",
        ),
        (
            (
                "synapse.util.retryutils - 234 - INFO - x-1 - Connection to hs was unsuccessful (<class"
                " 'synapse.api.errors.HttpResponseException'>(404: Not Found)); backoff now 604800000"
            ),
            "federation_backoff",
        ),
    ],
)
def test_lines_of_a_busy_process_and_of_a_pause_for_another_homeserver(line: str, kind: str) -> None:
    assert [kind] == [one.kind for one in explain(line).passages]


def test_a_message_of_one_word_takes_no_other_line_away() -> None:
    """It looks like a line that was broken before its message."""
    killed = "host systemd[1]: matrix-synapse.service: Main process exited, code=killed, status=9/KILL"
    lines = f"2022-07-22 15:42:54,886 - synapse.app - 81 - WARNING - Stopping\n{killed}"

    assert ["process_killed"] == [one.kind for one in explain(lines).passages]


# -- addresses between processes -----------------------------------------------------------------------------

_SENT = "2020-06-14 23:49:11,767 - synapse.http.client - 330 - INFO - replication-POSITION-27- Error sending"


@pytest.mark.parametrize(
    ("host", "failure", "is_sent", "lacks_port", "is_bare"),
    [
        ("::1:None", "URLParseError expected integer for port, not ':1:None'", False, True, True),
        ("10.0.0.1:None", "URLParseError expected integer for port, not 'None'", False, True, False),
        ("main:None", "DNSLookupError DNS lookup failed: main:None", True, True, False),
        ("fd00::7:9093", "URLParseError expected integer for port, not ':7:9093'", False, False, True),
        ("[::1]:9093", "ConnectError", True, False, False),
        ("main:9093", "ConnectError", True, False, False),
    ],
)
def test_an_address_of_another_process_that_is_none(
    host: str, failure: str, is_sent: bool, lacks_port: bool, is_bare: bool
) -> None:
    """The settings of 1.15 were half there (element-hq/synapse#7695)."""
    found = explain(
        f"{_SENT} request to  GET http://{host}/_synapse/replication/get_repl_stream_updates/x: {failure}"
    )
    [passage] = found.passages
    words, advice = " ".join(passage.words), " ".join(passage.advice)

    assert "http_failed" == passage.kind
    assert is_sent == ("got no answer" in words)
    assert is_sent != ("was not sent" in words)
    assert lacks_port == ("has no port (None)" in words) == ("worker_replication_http_port" in advice)
    assert is_bare == ("IPv6" in words) == ("host name" in advice)
    assert (lacks_port or is_bare) != ("see whether that process runs" in advice)


@pytest.mark.parametrize(
    ("port", "lacks_port", "is_bare"), [(":1:None", True, True), ("None", True, False), ("x", False, False)]
)
def test_a_url_that_cannot_be_read_is_the_cause_of_the_task_that_failed(
    port: str, lacks_port: bool, is_bare: bool
) -> None:
    found = explain(
        "2020-06-14 23:49:11,768 - synapse.metrics.background_process_metrics - 215 - ERROR -"
        " replication-POSITION-27- Background process 'replication-POSITION' threw an exception\n"
        f"{FRAMES}hyperlink._url.URLParseError: expected integer for port, not '{port}'\n"
    )
    [passage] = found.passages

    assert "replication_task_failed" == passage.kind
    assert "was not sent" in passage.cause
    assert lacks_port == ("has no port (None)" in " ".join(passage.words))
    assert is_bare == ("IPv6" in " ".join(passage.words))


_REDIS = "2026-04-06 16:48:45,240 - {} - 341 - INFO - sentinel - {}"


@pytest.mark.parametrize(
    "text",
    [
        _REDIS.format(
            "synapse.replication.tcp.redis",
            "Connection to redis server valkey:6379 failed: DNS lookup failed: valkey.",
        ),
        # Of a text that is not known.
        _REDIS.format("synapse.replication.tcp.redis", "Something else").replace("INFO", "ERROR")
        + f"\n{FRAMES}twisted.internet.error.DNSLookupError: DNS lookup failed: valkey.\n",
    ],
)
def test_a_name_that_redis_has_no_ipv4_address_of(text: str) -> None:
    """In a cluster of IPv6 alone (element-hq/synapse#10694)."""
    [passage] = explain(text).passages
    words, advice = " ".join(passage.words), " ".join(passage.advice)

    assert "IPv4" in words
    assert "AAAA" in words
    assert "getent ahostsv4 valkey" in advice
    assert "ip_range_blacklist" not in words + advice
    assert "instance_map" not in advice


def test_a_name_of_another_client_may_have_any_address() -> None:
    [passage] = explain(_REDIS.format("synapse.http.client", "DNS lookup failed: x")).passages
    assert "ahostsv4" not in str(passage)


def test_missing_index_of_client_addresses_is_named() -> None:
    """synapse_port_db did not make it (matrix-org/synapse#4877)."""
    line = (
        "2019-06-02 13:39:53,824 - synapse.storage.client_ips - 359 - ERROR - update_client_ips-853 - Failed"
        " to insert client IP (('@alice:nas', 'MDA', '::1'), ('Mozilla/5.0', 'VUON', 1559475590506)):"
        " InvalidColumnReference('there is no unique or exclusion constraint matching the ON CONFLICT"
        " specification\\n')"
    )
    [found] = explain(line).passages

    assert "user_ips lacks its unique index (user_id, access_token, ip)" in found.words[0]
    assert "Nothing else is harmed" in found.words[0]
    assert "CREATE UNIQUE INDEX" in found.advice[0]
