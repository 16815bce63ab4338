"""What leaves the log, and when: on a clock of ours, over a log that notes how far it is trimmed."""

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock

from synrepl.ports.history import LogPosition
from synrepl.replication import retention as retention_module
from synrepl.replication.retention import Retention
from synrepl.replication.settings import RetentionSettings
from synrepl.streams.facts import Fact


class FakeLog:
    """A fact a second from second 1 on."""

    def __init__(self, count: int = 20) -> None:
        self.serial = count
        self.trimmed_upto = LogPosition(1, 0, "")
        self.asked: list[int] = []

    async def read(self, *, after: int, upto: int, limit: int) -> tuple[list[Fact], int]:
        serials = range(after + 1, min(upto, after + limit) + 1)
        return [Fact(n, 1, "events", "w", n - 1, n, b"[]", n * 1_000, "") for n in serials], upto

    async def trim(self, upto: int, keys: Any, limit: int) -> LogPosition:
        self.asked.append(upto)
        self.trimmed_upto = LogPosition(1, min(upto, self.trimmed_upto.serial + limit), "")
        return self.trimmed_upto


class Story:
    """A log from which facts go after ten seconds, at second 14.5; who holds what is in `held`."""

    def __init__(self, *, held: Sequence[int | None] = (None,)) -> None:
        self.clock = Clock()
        self.clock.advance(14.5)
        self.log = FakeLog()
        self.held = list(held)
        self.retention = Retention(
            self.log,  # type: ignore[arg-type]  # as much of a log as is asked
            self.clock,
            RetentionSettings(retain_seconds=10),
            keys=lambda stream, rows: None,
            lowest=lambda: self.held.pop(0) if len(self.held) > 1 else self.held[0],
        )
        self.retention.start()

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.01] * round(seconds * 100))


def test_what_is_old_goes_and_nothing_else() -> None:
    """At second 14.5 facts 1 to 4 are older than ten seconds; the others follow as they get old."""
    story = Story()
    story.wait(0.1)
    assert 4 == story.log.trimmed_upto.serial

    story.wait(10)

    assert 14 == story.log.trimmed_upto.serial


@pytest.mark.parametrize("held", [0, 2, 4])
def test_what_somebody_holds_stays(held: int) -> None:
    """However old it is."""
    story = Story(held=[held])
    story.wait(0.1)

    assert held == story.log.trimmed_upto.serial
    assert all(upto <= held for upto in story.log.asked)


def test_a_lease_that_is_made_while_facts_are_read_holds_them() -> None:
    """A replica was told that it can have them."""
    story = Story(held=[None, 1])
    story.wait(0.1)

    assert 1 == story.log.trimmed_upto.serial


def test_trimming_goes_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends and reads come between."""
    monkeypatch.setattr(retention_module, "SLICE_FACTS", 3)
    story = Story()

    story.wait(0.1)

    assert [3, 4] == story.log.asked
