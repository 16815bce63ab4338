"""A job may die at any effect: the archive has what it acknowledged."""

import pytest

from tests.crash.sweep import check_every_death


def test_every_death_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an archive that grows, is merged and vacuumed."""
    check_every_death("tests.pipeline.crash_scenarios:ArchiveScenario", 50, monkeypatch)
