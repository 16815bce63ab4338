"""The museum of replicas is whole: every bug of the list has one test."""

from pathlib import Path

from tests.museum.catalogue import check_cases

NUMBERS = {
    25: "DBZ-5739",
    26: "synchdb #256",
    27: "Tarantool #13209",
    28: "Tarantool #5536",
    29: "Tarantool #3830",
    30: "devpi #1124",
    32: "devpi #1102",
}
"""The number of each bug where it was reported."""


def test_every_bug_has_one_test() -> None:
    """With the number of its report. A test that names no case is none of the museum."""
    check_cases([Path(__file__).with_name("test_museum.py")], NUMBERS)
