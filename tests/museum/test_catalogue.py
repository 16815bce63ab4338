"""The museum is whole: every bug of the list has one test, which names the report and what holds here."""

from pathlib import Path

from tests.museum.catalogue import check_cases

NUMBERS = {
    1: "7427", 2: "7482", 3: "9010", 4: "16639", 5: "16560", 6: "15349", 7: "4963", 8: "6327",
    16: "15136", 17: "14723", 18: "11521", 19: "13863", 20: "16557", 21: "4127", 22: "2026", 23: "17360",
    24: "4749", 33: "15312",
}  # fmt: skip
"""The number of each bug where it was reported. Those of rooms are in tests/ROOM."""


def test_every_bug_has_one_test() -> None:
    """With the number of its report. A test that names no case is none of the museum."""
    folder = Path(__file__).parent
    check_cases([path for path in folder.glob("test_*.py") if path != Path(__file__)], NUMBERS)
