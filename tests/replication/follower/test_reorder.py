"""Facts that come from the highest token down."""

from twisted.internet.task import Clock

from synrepl.replication.follower.history import MAX_HELD, QUIET_SECONDS, ReorderBuffer

A, B = "a", "b"


class Story:
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
    story = Story()
    story.add(9, 8, 7)

    assert [(A, 7, [b"7"]), (A, 8, [b"8"]), (A, 9, [b"9"])] == story.bursts.pop(A)
    assert not story.bursts


def test_writers_do_not_mix() -> None:
    """The position of one says nothing of another's burst."""
    story = Story()
    story.add(9, 8)
    story.add(7, writer=B)

    assert [7] == [token for _, token, _ in story.bursts.pop(B)]
    assert [8, 9] == [token for _, token, _ in story.bursts.pop(A)]


def test_it_is_over_when_nothing_came_for_a_while() -> None:
    """A burst of one is not followed by POSITION."""
    story = Story()
    story.add(9)
    story.clock.advance(QUIET_SECONDS - 0.1)
    assert [] == story.settled()

    story.clock.advance(0.1)

    assert [A] == story.settled()
    assert not story.bursts


def test_it_is_not_over_while_it_comes() -> None:
    """A slow link may part it; and the writer that is quiet need not wait for the other."""
    story = Story()
    story.add(9)
    story.add(6, writer=B)
    story.clock.advance(0.4)
    story.add(8)
    story.clock.advance(0.1)
    assert [B] == story.settled()
    story.clock.advance(0.3)
    assert [] == story.settled()

    story.clock.advance(0.1)

    assert [A, A] == story.settled()


def test_it_is_held_within_bounds() -> None:
    """A full one comes back at once."""
    story = Story()
    story.add(*range(MAX_HELD - 1, 0, -1))

    facts = story.bursts.add(A, 0, [])

    assert list(range(MAX_HELD)) == [token for _, token, _ in facts]
    assert not story.bursts
