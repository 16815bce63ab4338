"""Flipped bits of a backup."""

from pathlib import Path

from tests.power.bits import check_flips
from tests.replicas.served_backup import ServedBackup


def test_a_flipped_bit_is_not_restored(tmp_path: Path) -> None:
    """Whether it is in a part, in a file, or in what says who the backup is."""
    check_flips(ServedBackup, tmp_path, count=10, seed=1)
