"""Power cuts of an archive, from a journal that was recorded once, and flipped bits of what one leaves."""

from pathlib import Path

from tests.pipeline.power_loads import ServedArchive
from tests.power.bits import check_flips
from tests.power.cuts import check_power_cuts

RECORDED = Path(__file__).with_name("archive.journal.xz")


def test_an_archive_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """The job also goes on from there, and ends as one that was not cut off."""
    load = "tests.pipeline.crash_scenarios:ArchiveScenario"
    check_power_cuts(load, RECORDED, tmp_path, count=12, seed=1)


def test_a_flipped_bit_is_not_served(tmp_path: Path) -> None:
    """Of data files, their log, and a snapshot."""
    check_flips(ServedArchive, tmp_path, count=6, seed=1)
