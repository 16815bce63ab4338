"""Facts that come from the highest token down."""

from twisted.internet.task import Clock

from synrepl.replication.follower.history import MAX_HELD, QUIET_SECONDS, ReorderBuffer

A, B = "a", "b"


class Setup:
    """A reorder buffer, and which writers settled."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.bursts = ReorderBuffer(self.clock.seconds)

    def settled(self) -> list[str]:
        return [writer for writer, _, _ in self.bursts.pop_quiet()]

    def add(self, *tokens: int, writer: str = A) -> None:
        for token in tokens:
            assert self.bursts.add(writer, token, [b"%d" % token]) == []


def test_a_burst_is_taken_by_token() -> None:
    """Highest first is how it came."""
    setup = Setup()
    setup.add(9, 8, 7)

    assert [(A, 7, [b"7"]), (A, 8, [b"8"]), (A, 9, [b"9"])] == setup.bursts.pop(A)
    assert not setup.bursts


def test_writers_do_not_mix() -> None:
    """The position of one says nothing of another's burst."""
    setup = Setup()
    setup.add(9, 8)
    setup.add(7, writer=B)

    assert [7] == [token for _, token, _ in setup.bursts.pop(B)]
    assert [8, 9] == [token for _, token, _ in setup.bursts.pop(A)]


def test_it_is_over_when_nothing_came_for_a_while() -> None:
    """A burst of one is not followed by POSITION."""
    setup = Setup()
    setup.add(9)
    setup.clock.advance(QUIET_SECONDS - 0.1)
    assert [] == setup.settled()

    setup.clock.advance(0.1)

    assert [A] == setup.settled()
    assert not setup.bursts


def test_it_is_not_over_while_it_comes() -> None:
    """A slow link may part it; and the writer that is quiet need not wait for the other."""
    setup = Setup()
    setup.add(9)
    setup.add(6, writer=B)
    setup.clock.advance(0.4)
    setup.add(8)
    setup.clock.advance(0.1)
    assert [B] == setup.settled()
    setup.clock.advance(0.3)
    assert [] == setup.settled()

    setup.clock.advance(0.1)

    assert [A, A] == setup.settled()


def test_a_full_reorder_buffer_comes_back_at_once() -> None:
    """A full one comes back at once."""
    setup = Setup()
    setup.add(*range(MAX_HELD - 1, 0, -1))

    facts = setup.bursts.add(A, 0, [])

    assert list(range(MAX_HELD)) == [token for _, token, _ in facts]
    assert not setup.bursts
