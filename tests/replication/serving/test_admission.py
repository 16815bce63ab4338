"""Whether a reader's position lies in this log's history: one table for all transports."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from synrepl.base.history import EpochStart
from synrepl.replication.serving.admission import ReaderPosition, history_mismatch, position_mismatch
from synrepl.wire.position import LogPosition


class History:
    """A log of ten facts, trimmed up to 3; epoch 2 began after 6. Its head and its reads are itself."""

    history = "h"
    epoch = 2
    position = LogPosition(2, 10, "d10")
    trimmed_upto = LogPosition(1, 3, "d3")
    epoch_starts = (EpochStart(2, 6, "d6", 600, "promoted"),)

    def __init__(self) -> None:
        self.head = self.reads = self

    def digest(self, serial: int) -> "Deferred[str | None]":
        return succeed(f"d{serial}" if 3 <= serial <= 10 else None)

    def positions(self, stream: str) -> dict[str, int]:
        return {"master": 5}


BEGAN = LogPosition(2, 6, "d6")


@pytest.mark.parametrize(
    ("reader", "code"),
    [
        ({"serial": 10}, None),
        ({"serial": 3}, None),
        ({"serial": 2}, "trimmed"),
        ({"serial": 2, "compacted": True}, None),
        ({"serial": 11}, "ahead"),
        ({"serial": 11, "compacted": True}, "ahead"),
        ({"serial": 5, "history": "h"}, None),
        ({"serial": 5, "history": "x"}, "other_history"),
        ({"serial": 99, "epoch": 3, "history": "x"}, "other_history"),
        ({"serial": 99, "epoch": 3}, "other_epoch"),
        ({"serial": 10, "epoch": 2, "digest": "d10"}, None),
        ({"serial": 10, "epoch": 2, "digest": "x"}, "fork"),
        ({"serial": 5, "digest": "x"}, "fork"),
        ({"serial": 2, "digest": "x", "compacted": True}, None),
        ({"serial": 6, "epoch": 1}, None),
        ({"serial": 7, "epoch": 1}, "fork"),
        ({"serial": 11, "epoch": 1}, "fork"),
        ({"serial": 7, "epoch": 1, "digest": "d7"}, "fork"),
        ({"serial": 7, "epoch": 1, "digest": "d7", "digest_decides": True}, None),
        ({"serial": 7, "epoch": 1, "digest": "x", "digest_decides": True}, "fork"),
        ({"serial": 8, "epoch": 2, "epoch_start": BEGAN}, None),
        ({"serial": 8, "epoch": 2, "epoch_start": LogPosition(2, 5, "d5")}, "fork"),
        ({"serial": 8, "epoch": 2, "epoch_start": BEGAN, "lost_stream": "events"}, "fork"),
        ({"serial": 2, "epoch_start": BEGAN, "began_ms": 600}, "trimmed"),
        ({"serial": 2, "epoch_start": BEGAN, "began_ms": 601}, "fork"),
        ({"serial": 8, "clock": {"events": {"master": 5}}}, None),
        ({"serial": 8, "clock": {"events": {"master": 6}}}, "ahead"),
        ({"serial": 8, "clock": {"events": {"other": 1}}}, "ahead"),
    ],
)
def test_readers_are_admitted_by_their_position(reader: dict[str, Any], code: str | None) -> None:
    log: Any = History()
    stated = ReaderPosition(**reader)
    found: list[Any] = [history_mismatch(log, stated)]
    if found == [None]:
        Deferred.fromCoroutine(position_mismatch(log, stated)).addCallback(found.append)

    assert code == (None if found[-1] is None else found[-1].code)
