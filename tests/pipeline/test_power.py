"""Power cuts of an archive, from a journal that was recorded once."""

from pathlib import Path

from tests.power.cuts import check_power_cuts

RECORDED = Path(__file__).with_name("archive.journal.xz")


def test_an_archive_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """The job also goes on from there, and ends as one that was not cut off."""
    load = "tests.pipeline.crash_scenarios:ArchiveScenario"
    check_power_cuts(load, RECORDED, tmp_path, count=12, seed=1)
