"""``synrepl explain``: words, tables, JSON, exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from synrepl.cli import main

LOST = "Lost connection to redis"
STUCK = "Timed out waiting for repl stream 'device_lists' to reach 17 (dw1); currently at: 5"


def explain(*words: str, typed: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["explain", *words], input=typed)


def test_words_come_before_the_table() -> None:
    result = explain(STUCK)

    lines = result.stdout.splitlines()
    assert (0, "") == (result.exit_code, result.stderr)
    assert lines[0] == "device_lists is 12 behind: dw1 has written up to 17, this process is at 5."
    assert lines[-2].split() == [
        "stream",
        "writer",
        "written",
        "up",
        "to",
        "this",
        "process",
        "behind",
        "written",
        "by",
    ]
    assert lines[-1].split()[:5] == ["device_lists", "dw1", "17", "5", "12"]


def test_text_comes_from_standard_input() -> None:
    for words in ((), ("-",)):
        assert explain(*words, typed=f"{STUCK}\n").stdout == explain(STUCK).stdout


def test_several_lines_are_numbered_and_the_others_counted() -> None:
    result = explain(f"{STUCK}\nhello\n{STUCK}\nt12-345")

    lines = result.stdout.splitlines()
    assert lines[:4] == [
        "In short: device_lists is 12 behind: dw1 has written up to 17, this process is at 5.",
        "",
        "line 1 and 1 other: look into it if it repeats",
        STUCK,
    ]
    assert "line 4: a position, such as t12-345 or RoomStreamToken(...)" in lines
    assert lines[-1] == "1 line not recognized"


def test_a_whole_log_is_told_by_its_messages() -> None:
    line = "2026-11-02 10:00:{:02},000 - synapse.replication.tcp.redis - 270 - INFO - x - " + LOST
    log = "\n".join([line.format(second) for second in range(59)] + ["x" * 200_000, line.format(59)])

    lines = explain(typed=log).stdout.splitlines()

    assert lines[0] == (
        "line 1 and 59 others, 2026-11-02 10:00:00,000 to 2026-11-02 10:00:59,000: look into it if it repeats"
    )
    assert lines[1] == LOST
    assert lines[-1] == "1 line not recognized"


def test_json_has_everything() -> None:
    for option in ("--json", "-ojson"):
        found = json.loads(explain(STUCK, option).stdout)

        assert (found["lines"], found["unrecognized"]) == (1, 0)
        [passage] = found["passages"]
        assert passage["kind"] == "repl_wait_timeout"
        assert passage["severity"] == "look"
        assert passage["fields"][0]["behind"] == 12


def test_wide_tables_name_the_streams() -> None:
    token = "s7_1_1_1_1_1_1_1_0"

    assert "device_lists " not in explain(token).stdout
    assert "device_lists " in explain(token, "-o", "wide").stdout


def test_the_name_of_a_file_is_told_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "homeserver 1.log"
    file.write_text(STUCK)

    result = explain(str(file))

    assert (2, "") == (result.exit_code, result.stdout)
    assert f"to read that file: synrepl explain < '{file}'" in result.stderr


@pytest.mark.parametrize("text", ["x" * 5000, "a\0b", "/"])
def test_what_names_no_file_is_a_text(text: str) -> None:
    assert "nothing was recognized" in explain(text).stderr


def test_nothing_recognized_is_one_line_with_what_is_known() -> None:
    result = explain("hello")

    assert (1, "") == (result.exit_code, result.stdout)
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: nothing was recognized; known are the messages that Synapse logs")
    assert "a line of the replication protocol" in line


def test_text_that_is_not_utf_8_is_read() -> None:
    assert explain(typed=b"\xff\xfe\n" + STUCK.encode()).exit_code == 0


def test_no_text_is_wrong_usage() -> None:
    for result in (explain(" "), explain(typed="\n \n")):
        assert (2, "") == (result.exit_code, result.stdout)
        assert "the text is empty" in result.stderr


def test_control_characters_are_not_printed() -> None:
    result = explain('RDATA typing a\x1b[2J 5 ["!r\x07",["@\x9b"]]')

    assert result.exit_code == 0
    assert all(line.isprintable() for line in result.stdout.splitlines())


def test_modules_are_named_whose_lines_are_not_known() -> None:
    logged = [f"synapse.x{number} - 1 - INFO - x - A" for number in (1, 1, 2, 3, 4, 5, 6, 7)]

    lines = explain(typed="\n".join([STUCK, *logged, "hello"])).stdout.splitlines()
    nothing = explain(typed="\n".join(logged[:3]))

    named = "2 of synapse.x1, 1 of synapse.x2, 1 of synapse.x3, 1 of synapse.x4, 1 of synapse.x5"
    assert f"9 lines not recognized: {named}, others of 2 modules" == lines[-1]
    assert "nothing was recognized: 2 of synapse.x1, 1 of synapse.x2; not known: line 1" in nothing.stderr
    assert ": A (by its level it tells what is done: nothing failed);" in nothing.stderr


def test_lines_that_are_not_about_streams_are_told_by_what_their_module_does() -> None:
    logged = (
        "2026-11-02 10:00:00,000 - synapse.handlers.auth - 1 - INFO - POST-1 - Auth completed\n"
        "2026-11-02 10:00:00,000 - synapse.handlers.sync - 1 - INFO - GET-1 - Something new\n"
        "hello"
    )

    lines = explain(typed=f"{STUCK}\n{logged}").stdout.splitlines()
    nothing = explain(typed=logged)

    assert "2 lines not recognized: 1 of synapse.handlers.sync (answers to a /sync)" == lines[-2]
    assert "1 line not about streams: 1 of synapse.handlers.auth (logins)" == lines[-1]
    assert (1, "") == (nothing.exit_code, nothing.stdout)
    assert "; 1 line not about streams: 1 of synapse.handlers.auth (logins); not known: " in nothing.stderr


def test_a_line_that_nothing_knows_is_told_by_what_is_known_of_it() -> None:
    """Level, module and request: and nothing else is said of it."""
    moon = "2026-11-02 10:00:00,000 - synapse.moon - 1 - {} - GET-{} - The moon is too close: password=x"
    told = (
        "not known: line {}, {} of synapse.moon, request GET-{}: The moon is too close: password=(not shown)"
    )

    nothing = explain(moon.format("WARNING", 7))
    beside = explain(typed="\n".join([STUCK, *(moon.format("ERROR", number) for number in range(9))]))
    quiet = explain(typed=f"{STUCK}\n{moon.format('INFO', 7)}")

    assert (1, "") == (nothing.exit_code, nothing.stdout)
    assert told.format(1, "WARNING", 7) in nothing.stderr
    assert beside.stdout.splitlines()[-3:] == [told.format(n + 2, "ERROR", n) for n in range(3)]
    assert "not known" not in quiet.stdout


def test_the_likely_cause_stands_first() -> None:
    failed = (
        "2026-11-02 10:00:00,000 - synapse.metrics.background_process_metrics - 1 - ERROR - x - Background"
        " process 'x' threw an exception\nTraceback (most recent call last):\n"
        '  File "/opt/synapse/storage/x.py", line 1, in x\n'
        "psycopg2.errors.DeadlockDetected: deadlock detected\n"
    )
    lost = f"2026-11-02 10:00:00,000 - synapse.replication.tcp.redis - 270 - INFO - x - {LOST}"

    first = explain(typed=f"{lost}\n{failed}").stdout.splitlines()[0]
    normal = explain(typed="Connected to redis\nCaught up with stream 'events' to 5").stdout.splitlines()[0]

    assert first.startswith("In short: A task in the background failed.")
    assert "one of two transactions that waited for each other" in first
    assert "In short: Of what is known here, nothing failed." == normal
    assert "In short" not in explain(LOST).stdout + explain("t12-345\nt13-345").stdout
