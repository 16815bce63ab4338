"""A process that stores files may die at any effect."""

import pytest

from tests.crash.sweep import check_every_death

FEWEST = 50
"""So many deaths at least, or a part of the scenario is not swept any more."""


@pytest.mark.story
def test_every_death_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files, and of positions beside them."""
    check_every_death("tests.files.crash_scenarios:FilesScenario", FEWEST, monkeypatch)
