"""The museum is whole: every bug of the list has one test, and the manual names each."""

from pathlib import Path

import pytest

from scripts.docs import museum
from scripts.lib.museum import cases

NUMBERS = {
    1: "7427", 2: "7482", 3: "9010", 4: "16639", 5: "16560", 6: "15349", 7: "4963", 8: "6327", 9: "16473",
    10: "8374", 11: "17386", 12: "18544", 13: "18712", 14: "19671", 15: "8499", 16: "15136", 17: "14723",
    18: "11521", 19: "13863", 20: "16557", 21: "4127", 22: "2026", 23: "17360", 24: "4749", 25: "DBZ-5739",
    26: "synchdb #256", 27: "Tarantool #13209", 28: "Tarantool #5536", 29: "Tarantool #3830",
    30: "devpi #1124", 31: "devpi #447 and #489", 32: "devpi #1102", 33: "15312",
}  # fmt: skip
"""The number of each bug where it was reported."""


def test_every_bug_has_one_test() -> None:
    """33 of 33, each with the number of its report."""
    found = cases()

    assert list(NUMBERS) == [case.number for case in found]
    assert [] == [case for case in found if NUMBERS[case.number] not in case.source]


def test_every_test_says_what_holds_here() -> None:
    """The page has nothing else to tell."""
    assert [] == [case.test for case in cases() if "Here: " not in case.here]


def test_the_page_has_a_line_for_each() -> None:
    """Readers look for the number of the bug that they met."""
    page = museum()

    assert [] == [case.test for case in cases() if f"`{case.test}`" not in page]


def test_a_test_that_names_no_case_is_refused(tmp_path: Path) -> None:
    """Or it would be left out of the page in silence."""
    (tmp_path / "test_new.py").write_text('def test_new():\n    """Something else."""\n', "utf-8")

    with pytest.raises(ValueError, match=r"test_new\.py: test_new: the docstring must be"):
        cases(tmp_path)
