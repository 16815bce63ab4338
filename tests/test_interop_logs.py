"""What the tests with real Synapse processes take for a complaint of theirs."""

from __future__ import annotations

import pytest

from tests.interop.logs import trouble_in

TIME = "2026-11-30 02:03:59,843"
LOOP_DIED = f"{TIME} ERROR synapse.util - sentinel - Looping call died"
HEADLINE = f"{TIME} CRITICAL twisted - sentinel - Unhandled error in Deferred:"
UNHANDLED = f"{TIME} CRITICAL twisted - sentinel - "


def traceback(function: str, error: str) -> str:
    """The lines below an entry, as 1.163.2 wrote them."""
    return f"""
Traceback (most recent call last):
  File "synapse/storage/database.py", line 573, in {function}
    for name, (count, cum_time) in self.current_counters.items():
{error}"""


RACE = traceback("interval", "RuntimeError: dictionary changed size during iteration")
OTHER_PLACE = traceback("update", "RuntimeError: dictionary changed size during iteration")
OTHER_ERROR = traceback("interval", "ZeroDivisionError: division by zero")
REPLICATION = f"{TIME} WARNING synapse.replication.tcp.client - sentinel - Lost connection"
UNRELATED = f"{TIME} WARNING synapse.util.caches - sentinel - Failed to shrink"
INFORMATION = f"{TIME} INFO synapse.replication.tcp.client - sentinel - Connected"


@pytest.mark.parametrize(
    ("log", "complaints"),
    [
        ([INFORMATION, UNRELATED], []),
        ([INFORMATION, REPLICATION], [REPLICATION]),
        ([LOOP_DIED + RACE, HEADLINE, UNHANDLED + RACE], []),
        (
            [LOOP_DIED + OTHER_PLACE, HEADLINE, UNHANDLED + OTHER_PLACE],
            [LOOP_DIED + OTHER_PLACE, HEADLINE, UNHANDLED + OTHER_PLACE],
        ),
        ([LOOP_DIED + OTHER_ERROR, INFORMATION], [LOOP_DIED + OTHER_ERROR]),
        ([LOOP_DIED], [LOOP_DIED]),
        ([HEADLINE], [HEADLINE]),
    ],
)
def test_complaints(log: list[str], complaints: list[str]) -> None:
    """Errors with their whole tracebacks; not the race between its threads and its own loop."""
    assert complaints == list(trouble_in("\n".join(log) + "\n"))
