"""Texts with the newest line first, as views of a journal or of a dashboard show them."""

import json

import pytest

from synrepl.homeserver.explanation import explain
from synrepl.homeserver.explanation.entries import entries
from synrepl.homeserver.explanation.order import MAX_TURNED, in_order

HEAD = "Jun 26 10:59:16 server matrix-synapse[818479]: "
TRACEBACK = [
    "**********************************************************************************",
    " Error during initialisation:",
    "     Traceback (most recent call last):",
    '       File "/x/synapse/storage/database.py", line 9, in _do_execute',
    "         return func(sql, *args, **kwargs)",
    "                ^^^^^^^^^^^^^^^^^^^^^^^^^^",
    "     sqlite3.IntegrityError: UNIQUE constraint failed: temp_x.user_id",
    " ",
    " There may be more information in the logs.",
    "**********************************************************************************",
]
LOG = "2026-11-02 10:00:0{},000 - synapse.storage.txn - 1 - WARNING - GET-1 - line {}"


def numbers(lines: list[str]) -> list[int]:
    """Return the numbers of lines in the order in which they are read."""
    return [number for number, _ in in_order(lines)]


@pytest.mark.parametrize("head", [HEAD, ""])
@pytest.mark.parametrize("part", [slice(None), slice(4, None), slice(None, 5), slice(8, None), slice(5, 7)])
def test_lines_upside_down_are_turned_round(head: str, part: slice) -> None:
    lines = [head + line for line in TRACEBACK[part]]
    count = len(lines)

    assert numbers(lines) == list(range(1, count + 1))
    assert numbers(lines[::-1]) == list(range(count, 0, -1))


def test_times_that_go_back_turn_lines_round() -> None:
    assert numbers([LOG.format(time, time) for time in (3, 2, 2, 1)]) == [4, 3, 2, 1]


def test_lines_without_a_time_stay_below_theirs() -> None:
    lines = [LOG.format(3, 3), *TRACEBACK[2:7], LOG.format(2, 2), LOG.format(1, 1)]

    assert numbers(lines) == [8, 7, 1, 2, 3, 4, 5, 6]


def test_tracebacks_within_one_time_stay_upright() -> None:
    lines = [
        HEAD.replace("59:16", "59:17"),
        *(HEAD + line for line in TRACEBACK),
        HEAD.replace("59:16", "58:00"),
    ]

    assert numbers(lines) == [12, *range(2, 12), 1]


@pytest.mark.parametrize(
    "lines",
    [
        [LOG.format(time, time) for time in (3, 2, 4)],
        [LOG.format(2, 2), LOG.format(1, 1)],
        [LOG.format(1, 1)] * 4,
        [
            " id | time ",
            "----+----",
            " 3 | 2026-11-02 10:00:03",
            " 2 | 2026-11-02 10:00:02",
            " 1 | 2026-11-02 10:00:01",
        ],
        ["", " "],
        [LOG.format(9, number) for number in range(MAX_TURNED)] + [LOG.format(1, 1)] * 2,
    ],
)
def test_other_lines_are_read_as_they_stand(lines: list[str]) -> None:
    assert numbers(lines) == list(range(1, len(lines) + 1))


def test_a_failure_upside_down_is_the_same_failure() -> None:
    """A start that failed, read as a journal shows it (matrix-org/synapse#15837)."""
    lines = [HEAD + line for line in TRACEBACK]
    upright, turned = explain("\n".join(lines)), explain("\n".join(reversed(lines)))

    assert [one.words for one in turned.passages] == [one.words for one in upright.passages]
    assert (turned.unrecognized, upright.unrecognized) == (0, 0)


def test_the_line_above_marks_is_of_the_traceback() -> None:
    found = explain("\n".join(HEAD + line for line in TRACEBACK[4:]))

    assert found.unrecognized == 0


@pytest.mark.parametrize("is_newest_first", [True, False])
def test_answers_of_loki_are_read_from_the_oldest(is_newest_first: bool) -> None:
    values = [[f"170000000000000000{number}", line] for number, line in enumerate(TRACEBACK[1:7])]
    values = values[::-1] if is_newest_first else values
    answer = {"data": {"result": [{"stream": {"job": "synapse"}, "values": values}]}}
    found = explain(json.dumps(answer))

    assert ["start_refused"] == [one.kind for one in found.passages]
    assert found.passages[0].cause.startswith("A step that brings the schema")


@pytest.mark.parametrize(
    "form",
    [
        "Nov 02 10:00:0{} hs synapse[71]: {}",
        "2026-11-02T10:00:0{}+0000 hs synapse[71]: {}",
        "synapse-1  | {1}",
        "{1}",
    ],
)
def test_names_before_lines_keep_the_order_in_which_they_are_read(form: str) -> None:
    head = "2026-11-02 10:00:0{},000 - synapse.{} - 1 - {} - GET-5 - "
    client, server = "replication.tcp.client", "http.server"
    waits = "Waiting for repl stream 'caches' to reach 105 (master); currently at: 100"
    failed = "Failed handle request via 'RoomCreateRestServlet': <XForwardedForRequest at 0x7f method='POST'>"
    lines = [
        form.format(1, head.format(1, client, "INFO") + waits),
        form.format(4, head.format(4, server, "ERROR") + failed),
        form.format(4, TRACEBACK[2].strip()),
        form.format(4, '  File "/x/synapse/rest/client/room.py", line 52, in on_PUT'),
        form.format(4, "twisted.internet.defer.TimeoutError: deferred timed out after 3s"),
        form.format(9, head.format(9, server, "INFO") + "the next line"),
    ]
    upright, turned = explain("\n".join(lines)), explain("\n".join(lines[::-1]))

    assert "gave up after 3.0 s" in upright.summary
    assert turned.summary == upright.summary
    assert [one.lines for one in turned.passages if one.kind == "repl_wait_start"] == [[6]]


def test_lines_of_others_within_a_traceback_come_in_their_order() -> None:
    text = ["a  | " + LOG.format(1, 1), "b  | " + LOG.format(1, 1), "a  | " + TRACEBACK[2].strip()]
    text += ['a  |   File "/x/y.py", line 1, in f', "b  | " + LOG.format(1, 1)] * 300
    found = [one.number for one in entries(text)]

    assert found[:3] == [1, 2, 5]
    assert found[-2:] == [601, 603]
    assert found == sorted(found)
