"""A process may die at any effect; what it acknowledged is there, and what it left half done does no harm."""

import pytest

from tests.crash.sweep import check_every_death

FEWEST = {"SQLiteLog": 120, "PostgresLog": 25}
"""So many deaths at least, or a part of the scenario is not swept any more."""


@pytest.mark.parametrize("scenario", FEWEST)
def test_every_death_is_survived(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the log."""
    check_every_death(f"tests.crash.scenarios:{scenario}", FEWEST[scenario], monkeypatch)
