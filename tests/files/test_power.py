"""Power cuts of the store of files, from a journal that was recorded once, and flipped bits."""

from pathlib import Path

from tests.files.power_loads import ServedFiles
from tests.power.bits import check_flips
from tests.power.cuts import check_power_cuts

RECORDED = Path(__file__).with_name("files.journal.xz")


def test_files_and_positions_are_kept(tmp_path: Path) -> None:
    check_power_cuts(
        "tests.files.power_loads:FewFilesLoad", RECORDED, tmp_path, count=12, seed=1, to_end=False
    )


class FewServedFiles(ServedFiles):
    """A little of it."""

    STEPS = 40


def test_a_flipped_bit_is_not_served(tmp_path: Path) -> None:
    """A queue with one is made anew."""
    check_flips(FewServedFiles, tmp_path, count=6, seed=1)
