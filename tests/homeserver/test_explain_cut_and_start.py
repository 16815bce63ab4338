"""Lines that windows cut off, starts that Synapse refuses, the log of a Redis server: what is said."""

import pytest

from synrepl.homeserver.explanation import explain

HEAD = "2026-11-02 10:00:00,000 - {} - 1 - {} - main - "
SEQUENCE = HEAD.format("synapse.storage.util.sequence", "WARNING")
NORMAL = HEAD.format("synapse.storage.prepare_database", "INFO") + "Upgrading schema to v43"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        # The logger is known: few letters are enough.
        (SEQUENCE + "Postgres sequence presence_stream_s>", "sequence_behind"),
        (
            "Nov  2 10:00:00 host synapse[1]: " + SEQUENCE + "Postgres sequence events_str\u2026",
            "sequence_behind",
        ),
        (HEAD.format("synapse.storage.util.sequence", "WARNING") + "Postgres sequen>", "sequence_behind"),
        (HEAD.format("synapse.handlers.sync", "WARNING") + "Timed out waiting for wor>", "sync_empty"),
        # Without one, as much as tells one message from all others.
        ("Found users in database not nat>", "start_other_users"),
        ('"You have enabled open registration wi\u2026"', "start_registration_open"),
        ('could not translate host name "db" to addre...', "db_no_host"),
    ],
)
def test_a_line_that_a_window_cut_off_is_told_by_its_beginning(text: str, kind: str) -> None:
    [passage] = explain(text).passages

    assert passage.kind == kind
    assert "journalctl --no-pager" in passage.advice[-1]
    assert not any(word.startswith("Logged by") for word in passage.words)


@pytest.mark.parametrize(
    "text",
    [
        "Timed out wai>",  # too short
        "Waiting for worker>",
        HEAD.format("synapse.storage.util.sequence", "WARNING") + "Post>",
        HEAD.format("synapse.x", "WARNING") + "Nothing that is known here, and long enough>",
        "an object <Request at 0x7f>",
        "In the log of the day ...",
    ],
)
def test_a_beginning_that_tells_no_message_from_others_is_not_told(text: str) -> None:
    assert explain(text).passages == []


def test_a_start_whose_traceback_was_cut_off_is_told_by_what_came_before() -> None:
    found = explain(
        f"{SEQUENCE}Postgres sequence presence_stream_s>\n"
        f"{HEAD.format('synapse.app._base', 'ERROR')}Exception during startup\n"
        "Traceback (most recent call last):\n"
        '  File "/x/synapse/app/homeserver.py", line 363, in setup\n'
        "    hs.se>"
    )

    assert "could not start" in found.summary
    assert "sequence of the database is behind" in found.summary
    assert "journalctl --no-pager" in found.passages[0].advice[-1]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Exception: Found users in database not native to b.example!", "start_other_users"),
        ("You cannot change a synapse server_name after it's been configured", "start_other_users"),
        ("You have enabled open registration without any verification.", "start_registration_open"),
        ("Synapse 1.99.0 needs Twisted>=18.9.0, but got Twisted==17.1", "start_requirement"),
        ("Synapse 1.99.0 needs psycopg2, but it is not installed", "start_requirement"),
        ("Synapse requires Python 3.10 or above.", "start_python"),
        ("Exception: No 'state' database configured", "start_data_store"),
        ("Please opt in or out of reporting homeserver usage statistics, by", "start_report_stats"),
        ("Error during initialisation:", "start_refused"),
    ],
)
def test_what_synapse_says_when_it_refuses_to_start_is_told(text: str, kind: str) -> None:
    [passage] = explain(text).passages

    assert (passage.kind, passage.severity) == (kind, "error")


def test_a_banner_is_told_by_what_is_in_it() -> None:
    twisted = HEAD.format("twisted", "ERROR")
    found = explain(
        "\n".join(
            (
                NORMAL,
                twisted + "*" * 40,
                twisted + " Found users in database not native to b.example!",
                twisted + " You cannot changed a synapse server_name after it's been configured",
                twisted + "*" * 40,
            )
        )
    )

    assert [(one.kind, one.count) for one in found.passages] == [
        ("start_other_users", 2),
        ("db_new_schema", 1),
    ]
    assert found.unrecognized == 0


def test_errors_that_are_not_known_come_before_what_is_normal() -> None:
    critical = HEAD.format("synapse.app.homeserver", "CRITICAL")
    found = explain(f"{NORMAL}\n{critical}The moon is too close to start")

    first, second = found.passages
    assert (first.kind, first.severity, first.lines) == ("unknown_error", "error", [2])
    assert "The moon is too close" in found.summary
    assert "synapse.app.homeserver" in first.words[0]
    assert second.severity == "normal"


def test_all_errors_that_are_not_known_are_counted_and_the_first_ones_are_shown() -> None:
    lines = [
        HEAD.format(f"synapse.x{number % 30}", "ERROR").replace("10:00:00", f"10:00:{number % 60:02}")
        + f"Moon {number % 40} is too close"
        for number in range(3000)
    ]
    found = explain("\n".join([NORMAL, *lines]))

    [error] = [one for one in found.passages if one.kind == "unknown_error"]
    assert error.count == found.unrecognized == 3000
    assert (error.lines, len(error.words)) == ([*range(2, 12)], 10)
    assert (error.first_time, error.last_time) == ("2026-11-02 10:00:00,000", "2026-11-02 10:00:59,000")


def test_an_unknown_error_beside_a_known_one_is_counted_alone() -> None:
    known = HEAD.format("synapse.app._base", "ERROR") + "Exception during startup"
    unknown = HEAD.format("synapse.app.homeserver", "ERROR") + "The moon is too close to start"

    assert [one.kind for one in explain(f"{known}\n{unknown}").passages] == ["startup_failed"]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("RuntimeError: Synapse requires PostgreSQL 14 or above.", "SELECT version()"),
        ("RuntimeError: Synapse requires PostgreSQL 14 or above.", "pg_lsclusters"),
        ("RuntimeError: Synapse requires sqlite 3.27 or above.", "sqlite3.sqlite_version"),
        ("Database has incorrect collation of 'en_US.UTF-8'. Should be 'C'", "pg_database"),
        ("cannot execute INSERT in a read-only transaction", "pg_is_in_recovery()"),
        ("Found users in database not native to b.example!", "split_part(name"),
        ("Synapse requires Python 3.10 or above.", "python3 --version"),
    ],
)
def test_what_a_server_is_is_asked_before_anything_is_changed(text: str, asks: str) -> None:
    [passage] = explain(text).passages

    assert asks in passage.advice[0]


REDIS = "1:{} 02 Nov 2026 10:00:00.000 {} "


@pytest.mark.parametrize(
    ("role", "text", "kind", "says"),
    [
        ("S", "Connecting to MASTER 192.0.2.7:27000", "redis_follows", "REPLICAOF NO ONE"),
        ("S", "MASTER <-> REPLICA sync started", "redis_follows", "requirepass"),
        (
            "S",
            "REPLICAOF 192.0.2.7:1 enabled (user request from 'id=3')",
            "redis_made_replica",
            "requirepass",
        ),
        (
            "S",
            "Error reply to PING from master: '-Reading from master: reset'",
            "redis_follows",
            "none of yours",
        ),
        ("S", "MASTER aborted replication with an error: NOAUTH Auth", "redis_master_password", "masterauth"),
        ("S", "Unexpected reply to PSYNC from master: -NOAUTH A", "redis_master_password", "masterauth"),
        (
            "S",
            "(Non critical) Master does not understand REPLCONF capa: -NOAUTH Authentication required.",
            "redis_master_password",
            "masterauth",
        ),
        ("M", "Possible SECURITY ATTACK detected. It looks like", "redis_attack", "close the port"),
        ("M", "Background saving error", "redis_save_failed", "save"),
        (
            "C",
            "Failed opening the RDB file crontab (in server root dir /etc)",
            "redis_broken_into",
            "crontab",
        ),
        ("M", "Out Of Memory allocating 64 bytes!", "redis_memory", "maxmemory"),
        ("X", "+switch-master mymaster 192.0.2.7 6379 192.0.2.8 6379", "redis_switched", "master"),
        ("M", "Ready to accept connections tcp", "redis_runs", ""),
        # What it says in answers is told as before, and of the client that it names.
        (
            "M",
            "Client id=7 scheduled to be closed ASAP for overcoming of output buffer limits.",
            "redis_too_slow",
            "",
        ),
    ],
)
def test_the_log_of_a_redis_server_is_its_own(role: str, text: str, kind: str, says: str) -> None:
    [passage] = explain(REDIS.format(role, "*") + text).passages

    assert passage.kind == kind
    assert says in " ".join(passage.advice)
    assert "Logged by Synapse" not in " ".join(passage.words)
    assert "redis: password (and username" not in " ".join(passage.advice)


@pytest.mark.parametrize(
    "text", ["Something NOAUTH Authentication required", "connection refused: Connection refused"]
)
def test_what_is_not_known_of_redis_is_never_explained_as_if_synapse_had_logged_it(text: str) -> None:
    found = explain(REDIS.format("S", "#") + text)

    assert found.passages == []
    assert found.other_loggers == {"redis.own": 1}
    assert found.areas == {"redis.own": "the log of the Redis server itself"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sync", "sync_response_cache_duration"),
        ("remote_room_list", "30 seconds"),
        ("room_list", "while it is made"),
    ],
)
def test_an_answer_that_was_kept_is_told_with_how_long(name: str, says: str) -> None:
    header = HEAD.format("synapse.util.caches.response_cache", "INFO")
    [passage] = explain(f"{header}[{name}]: using completed cached result for [('x',)]").passages

    assert says in " ".join(passage.words)
    assert "This is normal." in passage.words


TO_OTHERS = [
    (
        "Request failed: GET matrix://b.org/x: ConnectionRefusedError('Connection refused',)",
        "nothing listens",
    ),
    ("Request failed: GET matrix://b.org/x: TimeoutError('',)", "did not answer in time"),
    ("Request failed: GET matrix-federation://b.org/x: DNSLookupError('no results',)", "has no address"),
    ("Request failed: GET matrix://b.org/x: HttpResponseException('502: Bad Gateway',)", "answered with 502"),
    (
        (
            "Request failed: GET matrix://b.org/x: ResponseNeverReceived:[<twisted.python.failure.Failure"
            " OpenSSL.SSL.Error: [('SSL routines', '', 'certificate verify failed')]>]"
        ),
        "certificate was not accepted",
    ),
    ("Completed request: 200 OK in 0.1 secs, got 12 bytes - GET matrix://b.org/x", "was sent, or answered"),
    ("Got response headers: 200 OK", "was sent, or answered"),
    ("Sending request: GET matrix://b.org/x; timeout 10.000000s", "was sent, or answered"),
]
BEFORE_REQUEST = [
    "2026-11-02 10:00:00,000 - synapse.http.matrixfederationclient - 672 - INFO - s-5- {GET-O-17} [b.org] ",
    "ationclient - 672 - INFO - sending-5- {GET-O-17} [b.org] ",
    "INFO - sending-5 - {GET-O-17} [b.org] ",
    "sending-5- {GET-O-17} [b.org] ",
    "{GET-O-17} [b.org] ",
]


@pytest.mark.parametrize(("text", "said"), TO_OTHERS)
@pytest.mark.parametrize("before", BEFORE_REQUEST)
def test_a_request_to_another_homeserver_is_known_by_its_id(before: str, text: str, said: str) -> None:
    passage = explain(before + text).passages[0]
    words = " ".join([*passage.words, *passage.advice])
    assert (passage.severity, said in words) == ("normal", True)
    assert "127.0.0.1" not in words
    assert "normal" in words


@pytest.mark.parametrize("before", ["[b.org] Request failed: ", "Request failed: "])
def test_the_scheme_of_an_address_tells_of_another_homeserver(before: str) -> None:
    passage = explain(f"{before}GET matrix://b.org/x: ConnectionRefusedError('Connection refused')").passages[
        0
    ]
    assert (passage.kind, passage.severity) == ("fed_request_failed", "normal")


def test_what_is_not_known_of_such_a_request_is_said_so() -> None:
    passage = explain("{PUT-O-3} [b.org] Turned into a pumpkin").passages[0]
    assert (passage.kind, passage.severity) == ("fed_request_said", "look")


@pytest.mark.parametrize("end", [",)", ",", ")"])
def test_the_end_of_a_repr_is_no_part_of_a_reason(end: str) -> None:
    line = "synapse.http.client - 5 - INFO - x - Error sending request to  POST http://a:1/_synapse/x: "
    passage = explain(f"{line}ConnectionRefusedError('Connection refused'{end}").passages[0]
    assert any(word.startswith("Connection refused: ") for word in passage.words)


@pytest.mark.parametrize(
    ("file", "said", "step"),
    [
        # matrix-org/synapse#12763, #16591
        ("synapse/handlers/user_directory.py", "NUL (0x00) characters", "update to 1.59.1 or later"),
        (
            "synapse/storage/databases/main/pusher.py",
            "'int' object is not iterable",
            "update to 1.96 or later",
        ),
    ],
)
def test_known_faults_of_the_last_file_are_told_where_the_exception_is_cut_off(
    file: str, said: str, step: str
) -> None:
    """Which of them it is, if any, is in the line that is missing."""
    cut = (
        f'Traceback (most recent call last):\n  File "/x/{file}", line 119, in process\n    await self.a(u\n'
    )
    line = "2022-05-17 15:04:36,496 - synapse.metrics.background_process_metrics - 245 - ERROR - x - "
    for before in ("", line + "Background process 'a' threw an exception\n"):
        [found] = explain(before + cut).passages
        told = next(word for word in found.words if "is missing has" in word)
        assert said in told
        assert step in told
        assert len([word for word in found.words if "is missing has" in word]) <= 2


def test_no_fault_is_told_of_a_file_by_way_of_which_all_goes() -> None:
    cut = 'Traceback (most recent call last):\n  File "/x/synapse/app/_base.py", line 1, in a\n    b(\n'

    assert "is missing has" not in str(explain(cut))


def test_a_start_that_was_about_to_connect_to_the_database_is_told_where_it_is_cut_off() -> None:
    """element-hq/element-docker-demo#1."""
    cut = (
        "2025-03-06 15:16:52,190 - synapse.app._base - 220 - ERROR - main - Exception during startup\n"
        "Traceback (most recent call last):\n"
        '  File "/x/synapse/storage/databases/__init__.py", line 76, in __init__\n'
        '    with make_conn(database_config, engine, "startup") as db_conn:\n'
        '  File "/x/synapse/storage/database.py", line 168, in make_conn\n'
        "    native_db_conn = engine.module.connect(**db_params)\n"
    )
    [found] = explain(cut).passages

    assert any("about to connect to the database" in word for word in found.words)
    assert "see that PostgreSQL runs" in found.advice[0]


def test_of_a_fault_that_nobody_is_known_to_have_mended_it_is_not_said_that_nothing_is_to_be_done() -> None:
    """It failed, and a later release may mend it (matrix-org/synapse#7819)."""
    frame = '  File "/x/synapse/storage/data_stores/main/push_rule.py", line 4, in f\n    a()\n'
    [found] = explain(
        f"Traceback (most recent call last):\n{frame}TypeError: 'int' object is not subscriptable\n"
    ).passages

    assert "nothing is to be done" not in found.advice
    assert "1.28 or later" in found.advice[0]


def test_an_update_whose_row_was_looked_for_is_told_where_it_is_cut_off() -> None:
    """Two main processes ran the same updates (matrix-org/synapse#15485)."""
    cut = (
        "Traceback (most recent call last):\n"
        '  File "/x/synapse/storage/background_updates.py", line 455, in f\n'
        "    progress_json = await self.db_pool.simple_select_one_onecol(\n"
        '  File "/x/synapse/storage/database.py", line 1646, in simple_select_one_onecol\n'
    )
    [found] = explain(cut).passages

    assert any("If the line that is missing has No row found" in word for word in found.words)
    assert "one main process alone" in found.advice[0]


@pytest.mark.parametrize("file", ["synapse/config/_base.py", "synapse/config/server.py"])
def test_a_configuration_that_was_read_is_told_where_the_exception_is_cut_off(file: str) -> None:
    """matrix-org/synapse#8738."""
    frame = f'  File "/x/{file}", line 762, in read_con\n    yaml_config = yaml.safe_load(file_stream)\n'
    [found] = explain(f"Traceback (most recent call last):\n{frame}").passages

    assert any("The process was reading its configuration" in word for word in found.words)
    assert "yaml.safe_load" in found.advice[0]


def test_no_fault_is_told_of_a_file_in_which_much_else_fails() -> None:
    """A /sync is answered in one file, whatever fails (matrix-org/synapse#10603)."""
    cut = 'Traceback (most recent call last):\n  File "/x/synapse/handlers/sync.py", line 353, in a\n    b(\n'

    assert "is missing has" not in str(explain(cut))


@pytest.mark.parametrize(
    ("files", "said", "step"),
    [
        (
            ("handlers/sync.py", "storage/databases/main/events_worker.py"),
            "Events were being",
            "Could not find",
        ),
        (
            ("storage/data_stores/main/events_worker.py",),
            "Events were being looked up",
            "Could not find event",
        ),
        (
            ("storage/databases/main/events_worker.py", "storage/database.py"),
            "a statement to the database",
            "PostgreSQL's log",
        ),
        (("rest/client/sync.py", "handlers/sync.py"), "An answer to a /sync", "one user alone"),
        (("handlers/federation_event.py", "handlers/federation.py"), "other homeservers", "one room alone"),
    ],
)
def test_what_was_being_done_is_told_where_a_traceback_of_busy_files_is_cut_off(
    files: tuple[str, ...], said: str, step: str
) -> None:
    frames = "".join(f'  File "/usr/lib/synapse/{one}", line 3, in it\n    await it(\n' for one in files)
    [passage] = explain(f"Traceback (most recent call last):\n{frames}").passages

    assert any(said in one for one in passage.words)
    assert step in passage.advice[0]
