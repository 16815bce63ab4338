"""A process that writes ids may die at any effect: no id is given twice, and none is lost."""

import pytest

from tests.crash.sweep import check_every_death

FEWEST = {"IdScenario": 50, "PostgresIds": 30}
"""So many deaths at least, or a part of the scenario is not swept any more."""


@pytest.mark.parametrize("scenario", FEWEST)
def test_every_death_is_survived(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both databases."""
    check_every_death(f"tests.ids.crash_scenarios:{scenario}", FEWEST[scenario], monkeypatch)
