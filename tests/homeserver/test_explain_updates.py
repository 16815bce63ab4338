"""Updates of the database in the background that fail: which one, and whether its fault is a known one."""

from typing import Final

import pytest

from synrepl.homeserver.explanation import explain
from synrepl.homeserver.explanation.results import Passage

LOGGED: Final = (
    "2026-11-02 10:00:00,{} - synapse.storage.background_updates - 302 - {} - background_updates-0 - {}\n"
)
FILE: Final = (
    'Traceback (most recent call last):\n  File "/x/synapse/storage/background_updates.py", line 294, in f\n'
)
CUT: Final = FILE + "    result = await self.do_next_background_update(sleep)\n"


def failed(
    name: str, traceback: str, *, by: str = "Starting update batch on background update '{}'"
) -> Passage:
    text = LOGGED.format("000", "INFO", by.format(name)) + LOGGED.format("001", "ERROR", "Error doing update")
    return next(one for one in explain(text + traceback).passages if one.kind == "update_failed")


def test_the_update_of_the_line_before_is_named() -> None:
    found = failed("current_state_members_idx", CUT)

    assert "It is the update current_state_members_idx, which makes an index" in " ".join(found.words)
    assert "mended" not in str(found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chain_cover", "1.26.0rc1 had a fault in it, which 1.26.0rc2 mends (matrix-org/synapse#9210)"),
        ("set_device_id_for_pushers", "1.95 had a fault in it, which 1.96 mends (matrix-org/synapse#16594)"),
        ("remove_stale_pushers", "which 1.44 mends (matrix-org/synapse#10843)"),
        ("populate_stats_process_rooms", "Releases before 1.76 had a fault in it"),
    ],
)
def test_a_fault_that_the_update_had_is_told(name: str, said: str) -> None:
    """What failed is not in the text, so that it may be another fault."""
    found = failed(name, CUT)

    assert said in " ".join(found.words)
    assert any(step.startswith("if this process runs") for step in found.advice)


def test_a_fault_that_is_told_by_its_exception_is_told_once() -> None:
    frame = '  File "/x/synapse/storage/databases/main/pusher.py", line 3, in f\n    a()\n'
    found = failed(
        "set_device_id_for_pushers", FILE + "    a()\n" + frame + "TypeError: 'int' object is not iterable\n"
    )

    assert "A fault of Synapse from 1.95 on, mended in 1.96" in " ".join(found.words)
    assert "had a fault in it" not in str(found)


def test_an_update_that_is_not_known_may_be_one_that_a_release_forgets() -> None:
    """1.54 does not know its own update where search is turned off (matrix-org/synapse#12215)."""
    found = failed("", FILE + "    a()\nKeyError: 'event_search_sqlite_delete_non_strings'\n", by="x {}")

    assert "1.54 had a fault in it, which 1.55 mends (matrix-org/synapse#12215)" in " ".join(found.words)
    assert "update to 1.55 or later" in found.advice[0]


def test_of_an_update_in_another_text_nothing_is_said() -> None:
    found = explain(LOGGED.format("001", "ERROR", "Error doing update") + CUT).passages

    assert "It is the update" not in str(found)
