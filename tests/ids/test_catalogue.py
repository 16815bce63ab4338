"""The museum of ids is whole: every bug of the list has one test."""

from pathlib import Path

from tests.museum.catalogue import check_cases

NUMBERS = {9: "16473", 10: "8374", 11: "17386", 12: "18544", 13: "18712", 14: "19671", 15: "8499"}
"""The number of each bug where it was reported."""


def test_every_bug_has_one_test() -> None:
    """With the number of its report. A test that names no case is none of the museum."""
    check_cases([Path(__file__).with_name("test_museum.py")], NUMBERS)
