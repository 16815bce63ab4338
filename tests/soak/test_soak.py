"""What a piece of the soak looks at, and that a short one runs."""

import random
from pathlib import Path

import pytest

from scripts import soak
from tests.soak.followers import Followers
from tests.soak.piece import Outcome, Piece


@pytest.mark.parametrize(
    ("lines", "lost", "doubled"),
    [
        ([b"POSITION events w 7 7", b"RDATA events w 8 []", b"RDATA events w 9 []"], 0, 0),
        ([b"POSITION events w 7 7", b"RDATA events w batch []", b"RDATA events w 8 []"], 0, 0),
        ([b"POSITION events w 7 7", b"RDATA events w 10 []"], 2, 0),
        ([b"POSITION events w 7 7", b"POSITION events w 9 9"], 2, 0),
        ([b"POSITION events w 7 7", b"POSITION events w 7 9"], 0, 0),
        ([b"POSITION events w 7 7", b"RDATA events w 8 []", b"RDATA events w 8 []"], 0, 1),
        ([b"POSITION events w 7 7", b"RDATA events v 3 []", b"RDATA receipts w 90 []"], 0, 0),
    ],
)
def test_a_follower_finds_what_is_left_out_and_what_comes_again(
    lines: list[bytes], lost: int, doubled: int
) -> None:
    found = Followers([], 0, random.Random(1))
    tokens: dict[bytes, int] = {}
    for line in lines:
        found._check(tokens, line)

    assert (lost, doubled) == (found.lost, found.doubled)


def test_pieces_add_up(tmp_path: Path) -> None:
    """The table is of the soak so far."""
    rows = [{"minutes": 30.0}, {"minutes": 60.0}]

    row = soak.row_of(Outcome(facts=3, trouble=["lost"]), tmp_path, began=0.0, seed=7, rows=rows)

    assert (3, 7, ["lost"]) == (row["facts"], row["seed"], row["trouble"])
    assert row["hours"] >= 1.5


@pytest.mark.slow
def test_two_short_pieces(tmp_path: Path) -> None:
    """The second goes on with the logs of the first."""
    state: dict[str, int] = {}
    outcomes = [Piece(tmp_path, 30, followers=20, rate=10, seed=seed, state=state).run() for seed in (1, 2)]

    assert [[], []] == [one.trouble for one in outcomes]
    assert all(one.facts and one.restarts + one.full_disks + one.clock_jumps for one in outcomes)
