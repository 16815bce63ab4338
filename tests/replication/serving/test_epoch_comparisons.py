"""Followers of other epochs are compared with the log: each fork once, and made-up ones delay no others."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import Logger

import synrepl.replication.serving.epoch_comparisons as comparisons_module
from synrepl.base.tasks import Tasks
from synrepl.errors import StorageError
from synrepl.replication.serving.epoch_comparisons import EpochComparisons
from synrepl.wire.extension import EpochMark

HISTORY = "h"
PROMOTED = SimpleNamespace(epoch=2, serial=50, at_ms=7, stream="", token=0)


class FakeLog:
    """A log of 100 facts of one writer, in two epochs, that answers reads when the test says so.

    The token of a fact is its serial. Its head and its reads are itself.
    """

    def __init__(self) -> None:
        self.head = self.reads = self
        self.history, self.serial, self.epoch = HISTORY, 100, 2
        self.epoch_starts = [PROMOTED]
        self.ephemeral = SimpleNamespace(names=frozenset())
        self.writers = {"w": 100}
        self.read_count = 0
        self.waiting: list[tuple[Deferred[Any], int]] = []

    def positions_by_stream(self) -> dict[str, dict[str, int]]:
        """One stream."""
        return {"s": self.writers}

    def tokens(self, *, after: int, **_: object) -> "Deferred[Any]":
        """The fact after this token, later."""
        self.read_count += 1
        read: Deferred[Any] = Deferred()
        self.waiting.append((read, after + 1))
        return read

    def answer(self, count: int = 1_000) -> None:
        """Answer so many reads, in their order."""
        while self.waiting and count:
            count -= 1
            read, token = self.waiting.pop(0)
            read.callback(([SimpleNamespace(serial=token, token=token, prev_token=token - 1)], False))


class Asked:
    """Followers that are compared with a log."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.comparisons = EpochComparisons(self.log, Tasks(Logger()))  # type: ignore[arg-type]

    def ask(self, *starts: tuple[int, int, int]) -> "list[Any]":
        """What a follower of these epochs is answered: nothing yet, the tokens, or an error."""
        answers: list[Any] = []
        found = Deferred.fromCoroutine(self.comparisons.fork_tokens(EpochMark(HISTORY, starts)))
        found.addBoth(answers.append)
        return answers


def made_up(number: int) -> tuple[int, int, int]:
    """The start of an epoch that the log has not, different for each number."""
    return 2, number, 1_000 + number


def test_followers_of_the_last_primary_are_compared_once() -> None:
    """They come all at once after a promotion, and all have the same epoch."""
    asked = Asked()
    answers = [asked.ask() for _ in range(100)]
    asked.log.answer()
    reads = asked.log.read_count
    later = asked.ask()

    assert [[[("s", "w", 50)]]] * 100 == answers
    assert [[("s", "w", 50)]] == later
    assert asked.log.read_count == reads < 10


def test_made_up_epochs_delay_no_follower_of_the_last_primary() -> None:
    """Each takes as many reads as an honest one, and anyone can send hundreds."""
    asked = Asked()
    others = [asked.ask(made_up(number)) for number in range(1, 49)]
    honest = asked.ask()
    asked.log.answer(20)

    assert [[("s", "w", 50)]] == honest
    assert [] in others
    asked.log.answer()
    assert [[[("s", "w", number)]] for number in range(1, 49)] == others


def test_those_who_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says what to do; honest followers are still compared."""
    monkeypatch.setattr(comparisons_module, "MAX_WAITING", 3)
    asked = Asked()
    for number in range(1, 5):
        asked.ask(made_up(number))

    (refused,) = asked.ask(made_up(5))
    honest = asked.ask()
    asked.log.answer()

    assert refused.check(StorageError)
    assert "connect again later" in str(refused.value)
    assert [[("s", "w", 50)]] == honest


def test_results_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result used longest ago goes first."""
    monkeypatch.setattr(comparisons_module, "MAX_REMEMBERED", 2)
    asked = Asked()
    for starts in ([], [made_up(1)], [], [made_up(2)]):
        asked.ask(*starts)
        asked.log.answer()
    reads = asked.log.read_count

    assert [[("s", "w", 50)]] == asked.ask()
    assert reads == asked.log.read_count
    asked.ask(made_up(1))
    assert reads < asked.log.read_count


def test_a_writer_that_came_later_has_no_facts_before_the_fork() -> None:
    """A follower of a lost branch may have facts of the same name."""
    asked = Asked()
    asked.ask()
    asked.log.answer()
    asked.log.writers = {"w": 100, "new": 7}

    assert [[("s", "w", 50), ("s", "new", 0)]] == asked.ask()


def test_a_result_that_a_new_epoch_overtakes_is_not_remembered() -> None:
    """Its reads were of the log before."""
    asked = Asked()
    first = asked.ask()
    asked.log.epoch = 3
    asked.comparisons.forget()
    asked.log.answer()
    reads = asked.log.read_count

    assert len(first) == 1
    asked.ask()
    assert asked.log.read_count > reads


def test_a_result_that_a_new_log_overtakes_is_not_remembered() -> None:
    """Another history may have the same epoch."""
    asked = Asked()
    asked.ask()
    asked.comparisons.forget()
    asked.log.answer()
    reads = asked.log.read_count

    asked.ask()
    assert asked.log.read_count > reads


def test_a_follower_that_leaves_waits_no_longer() -> None:
    """Else one that connects again and again would fill the queue."""
    asked = Asked()
    asked.ask(made_up(1))
    leaving = Deferred.fromCoroutine(asked.comparisons.fork_tokens(EpochMark(HISTORY, (made_up(2),))))
    leaving.addErrback(lambda _: None)
    third = asked.ask(made_up(3))
    leaving.cancel()
    asked.log.answer()

    assert [[("s", "w", 3)]] == third
    assert 2 not in asked.comparisons._remembered
