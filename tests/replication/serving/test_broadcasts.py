"""Commands for all are passed on some messages in a turn, and the senders take turns."""

import itertools
from collections.abc import Iterator

import pytest
from twisted.internet.task import Clock

import synrepl.replication.serving.broadcasts as broadcasts_module
from synrepl.replication.serving.broadcasts import Broadcasts


class Sent:
    """What was sent, in order: the command and the number of the peer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, in_a_turn: int, waiting: int = 100) -> None:
        monkeypatch.setattr(broadcasts_module, "MESSAGES_PER_TURN", in_a_turn)
        monkeypatch.setattr(broadcasts_module, "MAX_WAITING", waiting)
        self.clock = Clock()
        self.broadcasts = Broadcasts(self.clock)
        self.sent: list[tuple[str, int]] = []

    def add(self, command: str, *, peers: int, sender: object = None) -> bool:
        """Pass a command on to so many peers."""

        def messages() -> Iterator[None]:
            for peer in range(peers):
                self.sent.append((command, peer))
                yield

        return self.broadcasts.add(messages(), sender=sender)

    def turn(self) -> list[tuple[str, int]]:
        """What is sent in the next turn of the reactor."""
        self.sent.clear()
        # Not `advance`, which makes the calls that these make due as well.
        for call in list(self.clock.calls):
            self.clock.calls.remove(call)
            call.func(*call.args, **call.kw)
        return list(self.sent)


def test_what_fits_in_a_turn_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits while there is little to say, and no timer runs on."""
    sent = Sent(monkeypatch, in_a_turn=10)
    sent.add("a", peers=3)
    sent.add("b", peers=3)

    assert [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)] == sent.sent
    assert [] == sent.turn()
    assert [] == sent.clock.getDelayedCalls()


def test_no_turn_sends_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 lines of 8 KiB became 120,000 messages to 300 followers, in one turn."""
    sent = Sent(monkeypatch, in_a_turn=4)
    for command in "ab":
        sent.add(command, peers=5)

    turns = [list(sent.sent), sent.turn(), sent.turn(), sent.turn()]

    assert [4, 4, 2, 0] == [len(turn) for turn in turns]
    assert [(command, peer) for command in "ab" for peer in range(5)] == [*itertools.chain(*turns)]


def test_senders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that says little waits for one command of the other, not for all of them."""
    sent = Sent(monkeypatch, in_a_turn=1)
    for number in range(50):
        sent.add(f"flood{number}", peers=1, sender="much")
    sent.add("honest", peers=1, sender="little")

    assert "honest" in [command for _ in range(2) for command, _ in sent.turn()]


def test_a_sender_has_so_many_commands_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """More are dropped; those of others are not."""
    sent = Sent(monkeypatch, in_a_turn=1, waiting=3)
    sent.add("first", peers=2, sender="much")

    assert [True, True, False] == [sent.add("more", peers=1, sender="much") for _ in range(3)]
    assert sent.add("honest", peers=1, sender="little")
    for _ in range(9):
        sent.turn()
    assert sent.add("again", peers=1, sender="much")


def test_the_end_drops_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a daemon."""
    sent = Sent(monkeypatch, in_a_turn=1)
    sent.add("a", peers=5)
    sent.broadcasts.stop()

    assert [] == sent.turn()
    assert [] == sent.clock.getDelayedCalls()
