"""Knowing one's own words."""

import pytest
from twisted.internet.task import Clock

from synrepl.replication.membership.echoes import EXPIRY_SECONDS, Echoes
from synrepl.wire.commands import Position, RemoteServerUp, UserSync
from synrepl.wire.grammar import Command

UP = RemoteServerUp(server="far")
SYNC = UserSync(instance_id="life", user_id="@a:hs", device_id=None, is_syncing=True, last_sync_ms=1)
AT = Position(stream="events", instance="w1", prev_token=3, token=3)


@pytest.mark.parametrize("command", [UP, SYNC, AT])
def test_ours_comes_back_once(command: Command) -> None:
    """The second one is somebody else's."""
    echoes = Echoes(Clock())
    echoes.record(command)

    assert [True, False] == [echoes.match_and_remove(command) for _ in range(2)]


def test_as_often_as_it_was_sent() -> None:
    """Equal words count one by one, in any order with others."""
    echoes = Echoes(Clock())
    for command in (UP, SYNC, UP):
        echoes.record(command)

    assert [True, True, True, False] == [echoes.match_and_remove(one) for one in (UP, UP, SYNC, UP)]


def test_lines_are_known_as_commands() -> None:
    """A publisher writes ready-made lines."""
    echoes = Echoes(Clock())
    echoes.record_line(b"POSITION events w1 3 3")

    assert echoes.match_and_remove(AT)


@pytest.mark.parametrize(("seconds", "known"), [(EXPIRY_SECONDS - 1, True), (EXPIRY_SECONDS + 1, False)])
def test_what_does_not_come_back_is_forgotten(seconds: float, known: bool) -> None:
    """It was lost with a connection: from then on it would be taken for ours wrongly."""
    clock = Clock()
    echoes = Echoes(clock)
    echoes.record(UP)
    clock.advance(seconds)
    echoes.record(SYNC)

    assert known is echoes.match_and_remove(UP)


def test_one_that_expires_does_not_take_a_later_one_along() -> None:
    """Of two equal ones, the first came back; only the second waits."""
    clock = Clock()
    echoes = Echoes(clock)
    echoes.record(UP)
    assert echoes.match_and_remove(UP)
    echoes.record(SYNC)  # so that something is held
    clock.advance(EXPIRY_SECONDS - 1)
    echoes.record(UP)
    clock.advance(2)
    echoes.record(AT)

    assert echoes.match_and_remove(UP)
