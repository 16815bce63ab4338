"""Where two histories part: found by asking for few digests, and rather too early than too late."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from synrepl.replicas.diverged_facts import DIGESTS_PER_REQUEST, last_common
from synrepl.wire.position import LogPosition


class FakeLog:
    """A log whose facts are its own beyond `common`; digests up to `begin` are not known."""

    def __init__(self, common: int, serial: int, *, trimmed_upto: int = 0, whose: str = "ours") -> None:
        self.head = self.reads = self
        self.serial = serial
        self._common = common
        self._begin = trimmed_upto
        self._whose = whose

    async def digest(self, serial: int) -> str | None:
        if serial <= self._begin or serial > self.serial:
            return None
        return f"{serial}" if serial <= self._common else f"{serial} {self._whose}"


class Upstream:
    """What the other one answers, and how often it was asked."""

    def __init__(self, log: FakeLog) -> None:
        self.welcome = SimpleNamespace(position=LogPosition(1, log.serial, ""))
        self.asked = 0
        self._log = log

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        self.asked += 1
        assert len(serials) <= DIGESTS_PER_REQUEST
        return {serial: await self._log.digest(serial) for serial in serials}


def found(ours: FakeLog, theirs: FakeLog) -> tuple[int, int]:
    """The last serial in common, and how often that had to be asked for."""
    log: Any = ours
    upstream: Any = Upstream(theirs)
    work = last_common(log, upstream)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value, upstream.asked
    raise AssertionError("it waits")


@pytest.mark.parametrize("common", [0, 1, 64, 65, 66, 999, 1_000])
@pytest.mark.parametrize("their_serial", [1_000, 5_000])
def test_the_last_common_serial_is_found(common: int, their_serial: int) -> None:
    """However long the logs are, with few questions."""
    serial, asked = found(FakeLog(common, 1_000), FakeLog(common, their_serial, whose="theirs"))

    assert common == serial
    assert asked <= 3


@pytest.mark.parametrize("who", ["ours", "theirs"])
def test_serials_hidden_by_trimming_count_as_different(who: str) -> None:
    """What only this copy has is written to a file: rather some facts too many."""
    trimmed_upto = {"ours": 0, "theirs": 0} | {who: 700}

    serial, _ = found(
        FakeLog(600, 1_000, trimmed_upto=trimmed_upto["ours"]),
        FakeLog(600, 1_000, trimmed_upto=trimmed_upto["theirs"], whose="theirs"),
    )

    assert serial <= 600
