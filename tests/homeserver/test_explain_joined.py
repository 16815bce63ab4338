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
