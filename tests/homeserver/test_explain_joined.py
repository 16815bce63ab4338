"""What only several lines of a text tell together: cut tracebacks, repeated lines, texts in another order.

The reports are named by their numbers in matrix-org/synapse, where no other project is named.
"""

import pytest

from synrepl.homeserver.explanation import Passage, explain

HEAD = "2026-11-02 10:00:00,000 - synapse.{} - 1 - {} - {} - "
FAILED = (
    HEAD.format("http.server", "ERROR", "PUT-16")
    + "Failed handle request via 'PushRuleRestServlet': <SynapseRequest at 0x7f method='PUT'"
    " uri='/_matrix/client/r0/pushrules/global/override/.m.rule.master/enabled' clientproto='HTTP/1.1'"
    " site=8084>\n"
)
TRACED = (
    'Traceback (most recent call last):\n  File "/x/synapse/rest/client/push_rule.py", line 52, in on_PUT\n'
)


def told(text: str) -> Passage:
    """Return what is said first of a text."""
    return explain(text).passages[0]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('raise Exception("Cannot handle PUT /x on worker")', "Exception: Cannot handle PUT /x on worker"),
        ("raise RuntimeError('a %s of %d' % (b, c))", "RuntimeError: a %s of %d"),
        ('raise SynapseError(400, "No " "row", Codes.X)', "SynapseError: No row"),
        ('raise errors.SynapseError(code=400, msg=f"No {row}")', "errors.SynapseError: No {row}"),
        ('raise ValueError("It\'s %r", row)', "ValueError: It's %r"),
        ('raise StoreError(\n        404,\n        "It is gone",\n    )', "StoreError: It is gone"),
        ('raise ValueError("gone") from e\n    ^^^^^^^^^^^^^^', "ValueError: gone"),
        ("assert self._can_write_to_receipts", "AssertionError: assert self._can_write_to_receipts"),
    ],
)
def test_source_of_a_cut_traceback_is_the_exception(source: str, text: str) -> None:
    """The line that raises has the literal text, whatever was cut off after it (6432)."""
    cut = explain(f"{FAILED}{TRACED}    {source}\n").passages[0]
    whole = explain(f"{FAILED}{TRACED}    {source}\n{text}\n").passages[0]

    assert (cut.words, cut.advice) == (whole.words, whole.advice)
    assert not any("cut off" in word for word in cut.words)


@pytest.mark.parametrize(
    "source",
    [
        "raise",
        "raise error",
        "raise Exception(",
        "raise KeyError(self._values.get('name'))",
        'raise Exception("Cannot han',
        "assert self._is_there(row)",
        "return call(x)",
        'raise Exception("a")\n  File "/x/synapse/http/server.py", line 77, in wrapped\n    await h(self)',
    ],
)
def test_traceback_without_a_text_stays_cut_off(source: str) -> None:
    assert any("was cut off" in word for word in told(f"{FAILED}{TRACED}    {source}\n").words)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_path_that_no_worker_writes_goes_to_main(method: str) -> None:
    found = told(FAILED + TRACED + f'    raise Exception("Cannot handle {method} /push_rules on worker")\n')

    assert found.severity == "error"
    assert f"This worker does not take {method} of /push_rules" in found.cause
    assert found.advice == [
        (
            "have the proxy send PUT and DELETE of"
            " ^/_matrix/client/(api/v1|r0|v3|unstable)/pushrules/ to the main process, or from 1.105"
            " on to the process in `stream_writers`: push_rules. GET may stay with workers"
        )
    ]


def test_any_path_that_a_worker_does_not_handle_is_of_main() -> None:
    found = told("Exception: Cannot handle POST /room_keys on worker")

    assert (found.kind, found.severity) == ("not_writer", "error")
    assert "This worker does not take POST of /room_keys" in found.words[0]
    assert "have the proxy send POST of that path to the main process" in found.advice[0]


UPGRADE = (
    "Traceback (most recent call last):\n"
    '  File "/x/synapse/storage/prepare_database.py", line 527, in _upgrade_existing_database\n'
    "    database_engine.execute_script_file(cur, absolute_path)\n"
)
REST = " There may be more information in the logs.\n" + "*" * 80


@pytest.mark.parametrize(
    "text",
    [
        UPGRADE + "{}",
        UPGRADE.replace("prepare_database", "schema/main/delta/78/02_x") + "{}",
        f"{{}}\n{REST}",
        f"    return func(sql)\n           ^^^^\n{{}}\n\n{REST}",
        f"Error during initialisation:\n     {{}}\n{REST}",
    ],
)
@pytest.mark.parametrize(
    ("exception", "said"),
    [
        ("sqlite3.IntegrityError: UNIQUE constraint failed: x.user_id", "rows are in a table twice"),
        (
            'psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint "x_uniqueness"',
            "twice",
        ),
        (
            'psycopg2.errors.UniqueViolation: could not create unique index "x_unique"',
            "rows are in a table twice",
        ),
        ("sqlite3.OperationalError: duplicate column name: ts", "what is there already"),
        ("sqlite3.OperationalError: table x already exists", "what is there already"),
        ('psycopg2.errors.DuplicateTable: relation "x" already exists', "what is there already"),
        (
            'psycopg2.errors.DuplicateObject: constraint "x" for relation "y" already exists',
            "is there already",
        ),
        ("sqlite3.OperationalError: no such table: x", "did not find what it changes"),
        ('psycopg2.errors.UndefinedColumn: column "x" does not exist', "did not find what it changes"),
        (
            'psycopg2.errors.UndefinedObject: constraint "x" of relation "y" does not exist',
            "did not find what it changes",
        ),
    ],
)
def test_failures_of_an_upgrade_are_of_one_step(text: str, exception: str, said: str) -> None:
    """No requests were under way when the schema was brought up to date (15837, 6463, 15741, 14377)."""
    found = explain(text.format(exception))
    shown = " ".join(word for one in found.passages for word in [*one.words, *one.advice])

    assert said in shown
    assert "Two requests" not in shown
    assert "two processes" not in shown
    assert "keep a copy" in shown.lower()


@pytest.mark.parametrize("table", ["temp_user_devices", "receipts_linearized_new"])
def test_a_table_of_an_upgrade_tells_that_it_is_one(table: str) -> None:
    found = told(f"sqlite3.IntegrityError: UNIQUE constraint failed: {table}.user_id")

    assert found.words[0].startswith("A step that brings the schema of the database up to date")


TWICE = "psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint"


@pytest.mark.parametrize(
    ("line", "frame", "source"),
    [
        ("sqlite3.IntegrityError: UNIQUE constraint failed: temp_user_filters.user_id", "", "15809"),
        (f'{TWICE} "event_push_summary_unique_index2"\nDETAIL:  Key (a, b)=(c, d)', UPGRADE, "15736"),
        ("sqlite3.OperationalError: table receipts_linearized_new already exists", UPGRADE, "14909"),
        ("sqlite3.OperationalError: no such table: receipts_linearized", UPGRADE, "14909"),
        ('DuplicateColumn: column "event_stream_ordering" of relation "x" already exists', UPGRADE, "15586"),
        ('UndefinedObject: constraint "receipts_graph_uniqueness" does not exist', UPGRADE, "14377"),
    ],
)
def test_known_faults_of_upgrades_have_their_source(line: str, frame: str, source: str) -> None:
    found = told(frame + line)

    assert f"matrix-org/synapse#{source}" in found.words[0]
    assert found.severity == "error"
    assert found.advice
    assert not any("A step that brings" in word for word in found.words)


def test_known_fault_of_a_start_is_told_with_it() -> None:
    """The headline of the banner, the traceback and the end of the banner are of one failure (15809)."""
    exception = "sqlite3.IntegrityError: UNIQUE constraint failed: temp_user_filters.user_id"
    [found] = explain(f"Error during initialisation:\n{UPGRADE}{exception}\n{REST}").passages

    assert found.words[0] == "Synapse could not start."
    assert "15809" in found.words[1]
    assert found.cause.startswith("A fault of Synapse from 1.86.0 on")
    assert found.advice == ["update to 1.87 or later", "or start 1.85.2 again until then"]


RACE = "could not serialize access due to concurrent update"


def tries(name: str, count: int, request: str = "PUT-2433", end: str = "", reason: str = RACE) -> str:
    """Return lines of a transaction that failed so often; in `end` {} is the number of the try."""
    return "".join(
        f"2025-01-21 17:19:27,{100 + one} - synapse.storage.txn - 787 - WARNING - {request}- [TXN OPERROR]"
        f" {{{name}}} {reason}{end.format(one)}\n"
        for one in range(count)
    )


@pytest.mark.parametrize("end", ["", " {}/5", "\n {}/5"])
def test_all_tries_of_a_transaction_used_up_are_a_failure(end: str) -> None:
    """Two processes of a bot wrote one user's account data (matrix-org/conference-bot#251)."""
    [found] = explain(tries("add_user_account_data-259b", 6, end=end)).passages

    assert (found.kind, found.severity, found.count) == ("txn_used_up", "error", 6)
    assert "add_user_account_data-259b were used up" in found.words[0]
    assert found.words[1].startswith(
        "The request PUT-2433 failed with it, and was answered with an error 500"
    )
    assert "Nothing of it is stored" in found.words[1]
    assert not any("repeats it" in word for word in found.words)
    assert found.advice[0].startswith("two clients")
    assert "pause" in found.advice[0]


def test_last_try_alone_tells_that_all_were_used_up() -> None:
    line = tries("find-1a", 6, request="persist-9", end=" {}/5").splitlines()[-1]
    [found] = explain(line).passages

    assert found.kind == "txn_used_up"
    assert found.words[1].startswith("What it was done for (persist-9) failed with it.")


def test_tries_are_counted_as_each_release_counts_them() -> None:
    """1.135 and older try six times, from 0/5 on; 1.150 and newer five times, from 1/5 on."""
    older, newer = tries("a-1", 6, end=" {}/5"), "".join(tries("a-1", 6, end=" {}/5").splitlines(True)[1:])
    for text in (older, newer):
        found = told(text)

        assert (found.kind, found.count) == ("txn_used_up", text.count("\n"))
        assert "repeats failed" not in found.words[0]
    for text, least in ((older, 5), (newer, 4)):
        found = told("".join(text.splitlines(True)[:-1]))

        assert f"failed at least {least} times in a row" in " ".join(found.words)


@pytest.mark.parametrize(
    "text",
    [
        tries("add_user_account_data-259b", 5),
        tries("a-1", 5) + tries("a-2", 5),
        tries("a-1", 3, request="GET-1") + tries("a-1", 3, request="GET-2"),
        tries("a-1", 4) * 2,
    ],
)
def test_fewer_tries_were_repeated(text: str) -> None:
    found = told(text)

    assert (found.kind, found.severity) == ("txn_retry", "look")
    assert any("does not tell how its last try ended" in word for word in found.words)


def test_used_up_tries_are_told_beside_others() -> None:
    found = explain(tries("a-1", 6) + tries("b-1", 2) + tries("c-1", 6, request="GET-8")).passages

    assert [(one.kind, one.severity) for one in found] == [
        ("txn_used_up", "error"),
        ("txn_used_up", "error"),
        ("txn_retry", "look"),
    ]


@pytest.mark.parametrize("name", ["update_presence-3", "add_room_account_data-1", "complete_txn-1", "x-1"])
@pytest.mark.parametrize("count", [1, 5, 6])
def test_two_processes_are_not_told_of_one(name: str, count: int) -> None:
    """Lines of one process tell of one: that another does the same work would be a guess."""
    found = told(tries(name, count))

    assert "two processes that" not in str(found)
    assert "two processes do" not in str(found)
    assert "for good" not in str(found)


def test_many_transactions_of_one_name_do_not_go_on() -> None:
    found = told("".join(tries(f"move_rows-{number:x}", 1) for number in range(9, 12)))

    assert found.words[-1].startswith("3 transactions move_rows failed at least once")


@pytest.mark.parametrize(
    ("name", "reason", "source"),
    [
        (
            "store_destination_rooms_entries-9e4f",
            "could not serialize access due to concurrent update",
            "#9639",
        ),
        (
            "persist_events-df2a",
            'could not serialize access CONTEXT:  SQL statement "UPDATE event_stats SET x"',
            "#18346",
        ),
        (
            "store_new_positions-1",
            'deadlock detected CONTEXT:  in relation "sliding_sync_connection_lazy_members"',
            "#19826",
        ),
    ],
)
@pytest.mark.parametrize("count", [2, 6])
def test_a_fault_is_told_by_the_transaction(name: str, reason: str, source: str, count: int) -> None:
    found = told(tries(name, count, reason=reason))

    assert source in " ".join(found.words)
    assert any("update to" in step for step in found.advice)


def test_other_advice_stays_for_transactions_of_many_requests() -> None:
    found = told(tries("update_presence-1", 1, reason='could not extend file "x": No space left on device'))

    assert "A disk is full" in " ".join(found.words)
    assert not any("six" in step or "many requests" in step for step in found.advice)


LACKS = "AttributeError: 'GenericWorkerSlavedStore' object has no attribute 'get_x'\n"
REQUEST = (
    HEAD.format("http.server", "ERROR", "GET-21972")
    + "Failed handle request via 'OpenIdUserInfo': <SynapseRequest at 0x7f method='GET'"
    " uri='/_matrix/federation/v1/openid/userinfo?access_token=<redacted>' clientproto='HTTP/1.1' site='2'>\n"
)
SERVED = (
    "Traceback (most recent call last):\n"
    '  File "/x/synapse/http/server.py", line 269, in _async_render_wrapper\n'
    "    callback_return = await self._async_render(request)\n"
)
OTHER = HEAD.format("metrics", "INFO", "x") + "Collecting gc 1\n"


@pytest.mark.parametrize(
    "text",
    [
        REQUEST + SERVED + LACKS,
        LACKS + OTHER + REQUEST + SERVED,
        LACKS + REQUEST,
        OTHER + REQUEST + SERVED + OTHER + LACKS,
        REQUEST.replace("OpenIdUserInfo", "PushRuleRestServlet") + SERVED + LACKS,
        REQUEST + SERVED + LACKS.replace("GenericWorkerSlavedStore", "FederationReaderSlavedStore"),
    ],
)
def test_path_of_what_a_worker_lacks_goes_to_main(text: str) -> None:
    """The exception is of the request in the same text, in whatever order they were copied (11814)."""
    advice = [step for one in explain(text).passages for step in one.advice]

    assert any(
        "send GET /_matrix/federation/v1/openid/userinfo to the main process" in step for step in advice
    )
    assert not any("run_background_tasks_on" in step or "access_token" in step for step in advice)


@pytest.mark.parametrize(
    "text",
    [
        LACKS,
        LACKS + REQUEST + SERVED + "ValueError: another one\n",
        LACKS + OTHER * 80 + REQUEST + SERVED,
        HEAD.format("metrics.background_process_metrics", "ERROR", "x")
        + "Background process 'prune' threw an exception\n"
        + SERVED
        + LACKS,
    ],
)
def test_what_a_worker_lacks_is_not_blamed_on_other_requests(text: str) -> None:
    advice = [step for one in explain(text).passages for step in one.advice]

    assert not any("openid" in step for step in advice)
    assert any("run_background_tasks_on" in step for step in advice)


def test_requests_joined_by_their_place_are_not_told_as_sure() -> None:
    found = explain(LACKS + OTHER + REQUEST + SERVED).passages[0]

    assert found.kind == "worker_lacks"
    assert any("Most likely" in word and "line 3" in word for word in found.words)


@pytest.mark.parametrize(
    ("name", "said", "step"),
    [
        ("block_room", "workers lack block_room in 1.109, and have it in 1.133.", "update to 1.133 or later"),
        ("create_room_alias_association", "in 1.28, and have it in 1.56.", "update to 1.56 or later"),
        ("set_push_rule_actions_", "", "newer releases let workers do more"),
        ("add_pusher", "and none up to 1.163 has it.", "leave it to the main process"),
    ],
)
def test_release_from_which_on_workers_have_it_is_told(name: str, said: str, step: str) -> None:
    """From the packages of seven releases (matrix-org/synapse#10757, element-hq/synapse#18119)."""
    alone = told(LACKS.replace("get_x", name))
    served = told(REQUEST + SERVED + LACKS.replace("get_x", name))

    for passage in (alone, served):
        assert said in " ".join(passage.words)
        assert ("Read in packages" in str(passage)) == bool(said)
    assert step in " / ".join(alone.advice)
    assert "send GET /_matrix/federation/v1/openid/userinfo to the main process" in served.advice[0]
    assert ("newer releases" in str(served.advice)) == (not said)
    assert "leave it to the main process" not in str(served.advice)


def test_known_path_that_workers_lack_is_named_without_the_request() -> None:
    found = told(LACKS.replace("get_x", "get_user_id_for_open_id_token"))

    assert "matrix-org/synapse#11814" in found.words[0]
    assert "openid/userinfo" in found.advice[0]


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        ("Exception: Got /typing request on instance that is not typing writer", "typing"),
        ("AssertionError: assert self._can_write_to_account_data", "account_data"),
        ("AssertionError: assert self._can_write_to_device", "to_device"),
        ("AssertionError: assert self._can_persist_presence", "presence"),
    ],
)
def test_words_of_no_writer_name_the_stream(text: str, stream: str) -> None:
    """Each of them has its own words for the same (element-hq/synapse#17243)."""
    found = told(text)

    assert found.kind == "not_writer"
    assert f"`stream_writers`: {stream}, or to the main process" in found.advice[0]


def test_deadlocks_count_as_tries() -> None:
    line = HEAD.format("storage.txn", "WARNING", "GET-1") + "[TXN DEADLOCK] {{x-1}} {}/5"
    [found] = explain("\n".join(line.format(one) for one in range(6))).passages

    assert (found.kind, found.text) == ("txn_used_up", "{x-1} deadlock detected")


def test_traceback_of_account_data_has_its_known_reason() -> None:
    found = told(
        REQUEST + SERVED + '  File "/x/synapse/storage/databases/main/account_data.py", line 463, in _add\n'
        "    self.db_pool.simple_upsert_txn(\n"
        f"psycopg2.errors.SerializationFailure: {RACE}\n"
    )

    assert found.severity == "error"
    assert any("element-hq/synapse#11464" in word for word in found.words)
    assert "pause" in found.advice[0]


def test_used_up_tries_keep_the_advice_of_their_reason() -> None:
    full = tries("x-1", 6, reason='could not extend file "x": No space left on device')
    [found] = explain(full).passages
    [retried] = explain(full.splitlines()[0]).passages

    assert set(retried.advice) <= set(found.advice)
    assert found.advice[-1] == "repeat what failed once that is mended"
    assert "A disk is full" in " ".join(found.words)


def test_many_used_up_transactions_of_one_name_are_one() -> None:
    [found] = explain("".join(tries(f"x-{one:x}", 6, request=f"PUT-{one}") for one in range(40))).passages

    assert (found.kind, found.count) == ("txn_used_up", 240)
    assert found.words[1] == "So it went with 40 transactions of that name in this text."


def test_source_behind_its_file_in_one_line_is_the_exception() -> None:
    found = told(
        'Traceback (most recent call last):   File "/x/synapse/rest/client/push_rule.py", line 52, in on_PUT'
        '     raise Exception("Cannot handle PUT /push_rules on worker")'
    )

    assert found.kind == "not_writer"


LATE = """\
2020-10-21 13:29:51,969 - synapse.replication.tcp.client - 232 - INFO - POST-39220 - Waiting for repl stream \
'events' to reach 1605
2020-10-21 13:30:21,987 - synapse.http.server - 85 - ERROR - {request} - Failed handle request via \
'RoomCreateRestServlet': <XForwardedForRequest>
Traceback (most recent call last):
{exception}
{end}"""
TIMEOUT = "twisted.internet.defer.TimeoutError: Timed out after 30s"
HANDLER = (
    "2020-10-21 13:31:30,491 - synapse.replication.tcp.handler - 543 - INFO - process-replication-data-4 - "
)
CAME = f"{HANDLER}Caught up with stream 'events' to 1605\n"


def test_request_that_waited_in_vain_is_joined_with_the_stream_that_came() -> None:
    """The room was made, and replication was only late (matrix-org/synapse#8625)."""
    found = explain(LATE.format(request="POST-39220", exception=TIMEOUT, end=CAME))
    first = found.passages[0]

    assert "POST-39220 waited for the stream events to reach 1605" in first.words[1]
    assert "gave up after 30 s" in first.words[1]
    assert "reached, 1 min 8 s later: replication was late, and is not broken" in first.words[1]
    assert "do not create it anew" in first.advice[0]
    assert "late, and is not broken" in found.summary


@pytest.mark.parametrize("end", ["", CAME.replace("1605", "1604"), CAME.replace("events", "receipts")])
def test_stream_that_was_not_seen_to_come_is_not_said_to_be_well(end: str) -> None:
    first = explain(LATE.format(request="POST-39220", exception=TIMEOUT, end=end)).passages[0]

    assert "does not tell whether the stream came later" in first.words[1]


@pytest.mark.parametrize(
    ("request_name", "exception"), [("POST-3", TIMEOUT), ("POST-39220", "ValueError: 3")]
)
def test_other_failures_are_not_joined_with_a_wait(request_name: str, exception: str) -> None:
    found = explain(LATE.format(request=request_name, exception=exception, end=CAME))

    assert "waited for the stream" not in found.summary


def test_wait_that_a_request_gave_up_is_joined_with_the_stream_that_came() -> None:
    wait = (
        "2023-02-01 13:31:20,491 - synapse.replication.tcp.client - 300 - ERROR - POST-7 - Timed out waiting"
        " for repl stream 'events' to reach 1605 (master); currently at: 1600\n"
    )
    [alone] = explain(wait).passages
    late = explain(wait + CAME).passages[0]

    assert not any("is not broken" in word for word in alone.words)
    assert any("is not broken" in word for word in late.words)


STUCK = (
    "2023-02-19 03:48:{} - synapse.replication.tcp.client - 372 - INFO - {} - Waiting for repl stream"
    " '{}' to reach 74 (persister){}\n"
)
OVER = (
    "2023-02-19 03:48:09,000 - synapse.replication.tcp.client - 384 - INFO - PUT-165 - Finished waiting for"
    " repl stream 'backfill' to reach 74 (persister)\n"
)


def test_wait_without_its_end_is_told_where_releases_have_the_fault() -> None:
    """It is the line before the one that tells of the fault (matrix-org/synapse#15136)."""
    found = explain(STUCK.format("05,726", "PUT-165", "backfill", ""))
    [first] = found.passages

    assert first.severity == "look"
    assert "#15136" in " ".join(first.words)
    assert "Nothing is lost" in " ".join(first.words)
    assert any("update to 1.78" in step for step in first.advice)
    assert any("restart" in step for step in first.advice)
    assert "no end in this text" in found.summary
    assert "nothing failed" not in found.summary


def test_wait_with_its_end_is_normal() -> None:
    found = explain(STUCK.format("05,726", "PUT-165", "backfill", "") + OVER)

    assert {one.severity for one in found.passages} == {"normal"}


def test_one_of_many_waits_without_its_end_is_told() -> None:
    pairs = "".join(
        STUCK.format("05,726", f"PUT-{number}", "backfill", "").replace("74", str(number))
        + OVER.replace("PUT-165", f"PUT-{number}").replace("74", str(number))
        for number in range(40)
    )

    assert explain(pairs).summary == "Of what is known here, nothing failed."
    assert "no end in this text" in explain(pairs + STUCK.format("09,1", "PUT-99", "backfill", "")).summary


@pytest.mark.parametrize(("stream", "current"), [("events", ""), ("backfill", "; currently at: 70")])
def test_wait_without_its_end_is_said_so(stream: str, current: str) -> None:
    """No fault is known of these: it is normal, but its end is not in the text."""
    [first] = explain(STUCK.format("05,726", "PUT-165", stream, current)).passages

    assert first.severity == "normal"
    assert "no end of it" in " ".join(first.words)


def test_wait_that_was_given_up_has_its_end() -> None:
    given_up = STUCK.format("10,727", "PUT-165", "backfill", "").replace("INFO", "ERROR")
    given_up = given_up.replace("Waiting for repl", "Timed out waiting for repl")
    found = explain(STUCK.format("05,726", "PUT-165", "backfill", "") + given_up)

    assert "no end" not in " ".join(word for one in found.passages for word in one.words)


# -- a text of several processes -----------------------------------------------------------------------------

OF_FEDERATION = (
    HEAD.format("metrics.background_process_metrics", "ERROR", "process_event_queue_for_federation-7")
    + "Background process 'process_event_queue_for_federation' threw an exception"
)
NO_SPACE = 'psycopg2.errors.DiskFull: could not extend file "base/1/2": No space left on device'


def put_together(form: str, *lines: tuple[str, str]) -> str:
    """Lines of processes as something put them together."""
    return "".join(
        f"{form.format(writer)}{line}\n" for writer, text in lines for line in text.strip().split("\n")
    )


FORMS = (
    "{:<9}| ",
    "[pod/hs-{}-0/synapse] ",
    "Nov 02 10:00:00 hs synapse-{}[71]: ",
    "2026-11-02T10:00:00+0000 hs {}[7]: ",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_traceback_is_that_of_the_process_whose_name_stands_before_it(form: str) -> None:
    """Docker Compose, kubectl --prefix and a journal mix the lines."""
    mixed = put_together(
        form,
        ("w1", FAILED),
        ("worker2", OF_FEDERATION),
        ("w1", f"{TRACED}    return call(x)\n{NO_SPACE}"),
        ("worker2", f"{TRACED}    return call(x)\nKeyError: 'x'"),
    )
    first, second = (
        put_together(form, (writer, f"{line.strip()}\n{TRACED}    return call(x)\n{error}"))
        for writer, line, error in (("w1", FAILED, NO_SPACE), ("worker2", OF_FEDERATION, "KeyError: 'x'"))
    )
    found = {one.kind: one.words for one in explain(mixed).passages}

    assert found == {one.kind: one.words for text in (first, second) for one in explain(text).passages}


def test_a_traceback_of_another_container_is_of_no_line_of_synapse() -> None:
    mixed = put_together(FORMS[0], ("synapse", FAILED), ("bridge", f"{TRACED}    return call(x)\n{NO_SPACE}"))
    kinds = {one.kind: one.words for one in explain(mixed).passages}

    assert not any("disk is full" in word for word in kinds["client_write_failed"])
    assert len(kinds) == 2


def test_a_row_of_a_table_is_of_no_container() -> None:
    """Even below lines that Docker Compose put together."""
    rows = " stream_name | instance_name | stream_id\n-------------+---------------+-----------\n"
    table = f"{rows} events      | w1            | 12\n receipts    | master        | 13\n(2 rows)\n"
    alone = explain(table).passages
    below = explain(put_together("{:<12}| ", ("synapse", FAILED)) + table).passages

    assert [one.fields for one in alone] == [one.fields for one in below if one.kind == "sql_table"]


WAITS = (
    HEAD.format("replication.tcp.client", "INFO", "GET-5")
    + "Waiting for repl stream 'caches' to reach 105 (master); currently at: 100"
)
GAVE_UP = (
    HEAD.format("http.server", "ERROR", "GET-5")
    + "Failed handle request via 'RoomCreateRestServlet': <XForwardedForRequest at 0x7f method='POST'"
    " uri='/_matrix/client/v3/createRoom' clientproto='HTTP/1.1' site='8083'>\n"
    f"{TRACED}    return call(x)\ntwisted.internet.defer.TimeoutError: deferred timed out after 3s"
)


@pytest.mark.parametrize("form", FORMS)
def test_each_process_counts_its_requests_for_itself(form: str) -> None:
    """GET-5 of one is not GET-5 of another."""
    one, two = (explain(put_together(form, ("w1", WAITS), (writer, GAVE_UP))) for writer in ("w1", "worker2"))

    assert "waited for the stream caches" in one.summary
    assert "waited for the stream caches" not in two.summary
    answered = ANSWER.format("GET-5")
    open_one, open_two = (
        explain(put_together(form, ("w1", WAITS), (writer, answered))) for writer in ("w1", "worker2")
    )
    assert [False, True] == ["no end of it" in repr(found) for found in (open_one, open_two)]


ANSWER = HEAD.format("access.http.8083", "INFO", "{}") + (
    "10.0.0.1 - 8083 - {{@a:x}} Processed request: 0.010sec/0.000sec (0.001sec, 0.000sec)"
    ' (0.000sec/0.000sec/0) 12B 200 "GET /_matrix/client/v3/sync HTTP/1.1" "x" [0 dbevts]'
)


def test_requests_whose_numbers_come_again_may_be_of_two_processes() -> None:
    """Where no name of a process stands before the lines."""
    later = ANSWER.format("GET-3").replace("10:00:00,000", "10:00:01,000")
    once, again = (
        explain("\n".join((ANSWER.format("GET-3"), *more, WAITS, GAVE_UP))) for more in ((), (later,))
    )

    assert ["may be of two" in found.summary for found in (once, again)] == [False, True]


STARTS = HEAD.format("{}", "{}", "main").replace("10:00:00,000", "10:00:00,500") + "{}"


@pytest.mark.parametrize(
    "start",
    [
        STARTS.format("app._base", "INFO", "Synapse now listening on TCP port 8008"),
        STARTS.format("app.homeserver", "INFO", "Setting up server"),
        STARTS.format("config.logger", "WARNING", "***** STARTING SERVER *****"),
    ],
)
def test_a_process_that_was_started_again_is_one(start: str) -> None:
    """It counts its requests from 1 again."""
    later = ANSWER.format("GET-3").replace("10:00:00,000", "10:00:01,000")
    again, between = (
        explain("\n".join((ANSWER.format("GET-3"), *lines, GAVE_UP)))
        for lines in ((start, later, WAITS), (WAITS, start))
    )

    assert "waited for the stream caches" in again.summary
    assert "may be of two" not in again.summary
    assert "waited for the stream caches" not in between.summary
