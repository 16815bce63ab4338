"""The last serial that two logs of one history certainly share."""

from types import SimpleNamespace
from typing import Any

import pytest

from synrepl.base.history import EpochStart
from synrepl.replication.serving.forks import fork_serial, is_behind, is_later
from synrepl.wire.extension import EpochMark

Start = tuple[int, int, int]

SECOND: Start = (2, 50, 7)
THIRD: Start = (3, 80, 9)
OTHER_THIRD: Start = (3, 70, 9)


def log(*starts: Start, serial: int = 100) -> Any:
    """A log with these epochs."""
    made = [EpochStart(epoch, at, "", at_ms, "promoted") for epoch, at, at_ms in starts]
    head = SimpleNamespace(serial=serial, epoch_starts=made, epoch=starts[-1][0] if starts else 1)
    return SimpleNamespace(history="h", head=head)


@pytest.mark.parametrize(
    ("ours", "theirs", "serial"),
    [
        ([], [], 100),
        ([SECOND], [SECOND], 100),
        # They did not follow the promotion: what came after it here may have taken tokens of theirs.
        ([SECOND], [], 50),
        ([SECOND, THIRD], [], 50),
        ([SECOND, THIRD], [SECOND], 80),
        # Two promotions to one epoch: up to the earlier.
        ([SECOND, THIRD], [SECOND, OTHER_THIRD], 70),
        ([SECOND, OTHER_THIRD], [SECOND, THIRD], 70),
        # Theirs is later than ours.
        ([], [SECOND], 50),
        ([SECOND], [SECOND, THIRD], 80),
        # The log is shorter than their epoch's start.
        ([], [(2, 200, 7)], 100),
    ],
)
def test_the_fork_is_the_first_epoch_start_that_differs(
    ours: list[Start], theirs: list[Start], serial: int
) -> None:
    """Up to the first start that differs."""
    assert serial == fork_serial(log(*ours), EpochMark("h", tuple(theirs)))


def test_later_and_earlier_epochs_of_one_history_are_told_apart() -> None:
    """Of one history only."""
    second, third = EpochMark("h", (SECOND,)), EpochMark("h", (SECOND, THIRD))

    assert [False, True] == [is_later(log(SECOND), one) for one in (second, third)]
    assert [False, True] == [is_behind(log(SECOND), one) for one in (second, third)]
    assert is_behind(log(SECOND, THIRD), second)
    other = EpochMark("other", (SECOND, THIRD))
    assert not is_later(log(SECOND), other)
    assert not is_behind(log(SECOND), other)
