"""Power cuts of the store of files, from a journal that was recorded once."""

from pathlib import Path

from tests.power.cuts import check_power_cuts

RECORDED = Path(__file__).with_name("files.journal.xz")


def test_files_and_positions_are_kept(tmp_path: Path) -> None:
    check_power_cuts(
        "tests.files.power_loads:FewFilesLoad", RECORDED, tmp_path, count=12, seed=1, to_end=False
    )
