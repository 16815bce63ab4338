"""Power cuts of the log, from a journal that was recorded once.

`scripts/power` records others, and makes more cuts.
"""

import lzma
from pathlib import Path

import pytest

from tests.power.cuts import check_power_cuts, cut_power, draw, unsynced
from tests.power.journal import records_of

LOG = "tests.crash.scenarios:SQLiteLog"
RECORDED = Path(__file__).with_name("log.journal.xz")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_log_keeps_what_it_acknowledged(tmp_path: Path, seed: int) -> None:
    """It also goes on from there, and ends as one that was not cut off."""
    check_power_cuts(LOG, RECORDED, tmp_path, count=12, seed=seed)


def test_a_disk_that_does_not_sync_files_loses_facts(tmp_path: Path) -> None:
    """Whoever finds nothing here looks in the wrong place."""
    records = unsynced(list(records_of(lzma.decompress(RECORDED.read_bytes()))))

    tally = cut_power(LOG, records, draw(records, 24, 1), tmp_path)

    assert len(tally.failed) > 10
