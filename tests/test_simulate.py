"""The table of seeds that `scripts/simulate --continue` keeps."""

import json
from pathlib import Path
from unittest.mock import patch

from scripts import simulate
from scripts.simulate import Outcome, Piece

ROOT = Path(__file__).resolve().parent.parent


def test_each_world_goes_on_behind_its_last_seed_and_they_take_turns() -> None:
    table = [
        Piece("c", "a", 1, 250, 1.0, []),
        Piece("c", "a", 251, 100, 1.0, []),
        Piece("c", "b", 1, 9, 1.0, []),
    ]

    found = simulate.pieces_to_try(table, ["a", "b", "new"], 300)

    assert found == [
        ("a", 351, 250),
        ("b", 10, 250),
        ("new", 1, 250),
        ("a", 601, 50),
        ("b", 260, 50),
        ("new", 251, 50),
    ]


def test_a_piece_that_was_run_is_a_line_and_a_cut_one_is_none(tmp_path: Path) -> None:
    table = tmp_path / "tried.jsonl"

    def outcomes(tasks: list[tuple[str, int]], jobs: int) -> list[Outcome]:
        if tasks[0][1] > simulate.PIECE_SEEDS:
            raise KeyboardInterrupt
        return [Outcome(world, seed, 0.5, "lost" if seed == 7 else "") for world, seed in tasks]

    with patch.object(simulate, "outcomes", outcomes):
        try:
            simulate.go_on(["acks"], 2 * simulate.PIECE_SEEDS, 1, table)
        except KeyboardInterrupt:
            pass

    (line,) = map(json.loads, table.read_text().splitlines())
    assert ("acks", 1, 250, 125.0, [7]) == tuple(line[key] for key in Piece._fields[1:])


def test_the_table_in_the_tree_is_of_worlds_that_there_are() -> None:
    """And no seed of a world was tried twice."""
    ends: dict[str, int] = {}
    for piece in simulate.tried():
        assert piece.world in simulate.WORLDS
        assert piece.first >= ends.get(piece.world, 0)
        ends[piece.world] = piece.first + piece.seeds
