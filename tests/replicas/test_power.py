"""Power cuts of a replica and of a backup, from journals that were recorded once."""

from pathlib import Path

import pytest

from tests.power.cuts import check_power_cuts

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["Replica", "Backup"])
def test_what_was_told_to_be_there_is_kept(tmp_path: Path, kind: str) -> None:
    load = f"tests.replicas.power_loads:Few{kind}Load"
    recorded = HERE / f"{kind.lower()}.journal.xz"
    check_power_cuts(load, recorded, tmp_path, count=12, seed=1, to_end=False)
