"""Log lines that peers cause are bounded."""

from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, Logger, formatEvent
from zope.interface import implementer

from synrepl.base.limited_logger import MAX_LINES, WINDOW_SECONDS, LimitedLogger


@implementer(ILogObserver)
class Setup:
    """A logger, and what it wrote."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.events: list[Any] = []
        self.logger = LimitedLogger(Logger(observer=self), self.clock)

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def lines(self) -> list[str]:
        found = [formatEvent(event) for event in self.events]
        self.events.clear()
        return found

    def closing(self, count: int) -> None:
        for number in range(count):
            self.logger.warn("closing {peer}: {why}", peer=f"peer{number}", why="bad")


def test_a_few_lines_are_written_as_they_are() -> None:
    """Most days there is nothing to limit."""
    setup = Setup()
    setup.closing(MAX_LINES)
    setup.clock.advance(WINDOW_SECONDS * 3)

    assert [f"closing peer{n}: bad" for n in range(MAX_LINES)] == setup.lines()
    assert [] == setup.clock.getDelayedCalls()


def test_the_rest_of_a_minute_is_one_line() -> None:
    """20,000 bad lines were 20,000 lines of the log."""
    setup = Setup()
    setup.closing(MAX_LINES + 42)
    assert MAX_LINES == len(setup.lines())

    setup.clock.advance(WINDOW_SECONDS)

    expected = "similar lines dropped in the last minute: 42; the last one: closing peer51: bad"
    assert [expected] == setup.lines()


def test_each_minute_begins_anew() -> None:
    """An operator who looks sees that it goes on."""
    setup = Setup()
    for _ in range(5):
        setup.closing(1_000)
        setup.clock.advance(WINDOW_SECONDS)

    assert 5 * (MAX_LINES + 1) == len(setup.lines())


@pytest.mark.parametrize("seconds", [0.5, 7.0, 59.0])
def test_a_steady_stream_of_lines_stays_bounded(seconds: float) -> None:
    """However the lines fall into the minutes."""
    setup = Setup()
    minutes = 20
    for _ in range(round(minutes * 60 / seconds)):
        setup.closing(100)
        setup.clock.advance(seconds)

    assert len(setup.lines()) <= (minutes + 1) * (MAX_LINES + 1)


def test_kinds_do_not_share_a_bound() -> None:
    """One peer's nonsense must not hide what another does."""
    setup = Setup()
    setup.closing(1_000)
    setup.lines()
    setup.logger.info("{name} is refused: {why}", name="paris", why="trimmed")

    assert ["paris is refused: trimmed"] == setup.lines()


def test_the_end_says_what_was_left_out() -> None:
    """The last minute of a daemon is the one that is looked at."""
    setup = Setup()
    setup.closing(MAX_LINES + 1)
    setup.lines()

    setup.logger.stop()

    assert ["similar lines dropped in the last minute: 1; the last one: closing peer10: bad"] == setup.lines()
    assert [] == setup.clock.getDelayedCalls()


def test_a_peer_cannot_write_a_format() -> None:
    """Its text is a field, also in the line that stands for others."""
    setup = Setup()
    for _ in range(MAX_LINES + 1):
        setup.logger.warn("closing {peer}: {why}", peer="{boom}", why="{0} %s {why.__class__}")
    setup.logger.stop()

    assert "closing {boom}: {0} %s {why.__class__}" in setup.lines()[-1]
