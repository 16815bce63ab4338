"""The museum is whole: every bug of the list has one test, which names the report and what holds here."""

import ast
import re
from pathlib import Path
from typing import Final

FORM: Final = re.compile(r"Case (?P<number>\d+), (?P<source>[^:]+): .+?\n\n.*Here: ", re.DOTALL)
"""The docstring of a test: number and source, the bug, and in a paragraph of its own what holds here."""

NUMBERS = {
    1: "7427", 2: "7482", 3: "9010", 4: "16639", 5: "16560", 6: "15349", 7: "4963", 8: "6327", 9: "16473",
    10: "8374", 11: "17386", 12: "18544", 13: "18712", 14: "19671", 15: "8499", 16: "15136", 17: "14723",
    18: "11521", 19: "13863", 20: "16557", 21: "4127", 22: "2026", 23: "17360", 24: "4749", 25: "DBZ-5739",
    26: "synchdb #256", 27: "Tarantool #13209", 28: "Tarantool #5536", 29: "Tarantool #3830",
    30: "devpi #1124", 31: "devpi #447 and #489", 32: "devpi #1102", 33: "15312",
}  # fmt: skip
"""The number of each bug where it was reported."""


def test_every_bug_has_one_test() -> None:
    """With the number of its report. A test that names no case is none of the museum."""
    found = {}
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and path != Path(__file__):
                case = FORM.match(ast.get_docstring(node) or "")
                assert case is not None, f"{path.name}: {node.name}"
                assert NUMBERS[int(case["number"])] in case["source"]
                found[int(case["number"])] = node.name

    assert NUMBERS.keys() == found.keys()
