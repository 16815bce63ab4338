"""The museum of files is whole: every bug of the list has one test."""

from pathlib import Path

from tests.museum.catalogue import check_cases

NUMBERS = {31: "devpi #447 and #489"}
"""The number of each bug where it was reported."""


def test_every_bug_has_one_test() -> None:
    """With the number of its report. A test that names no case is none of the museum."""
    check_cases([Path(__file__).with_name("test_museum.py")], NUMBERS)
