"""The form of the museum's tests, here and in rooms: each names the report of a bug, and what holds here."""

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

FORM: Final = re.compile(r"Case (?P<number>\d+), (?P<source>[^:]+): .+?\n\n.*Here: ", re.DOTALL)
"""The docstring of a test: number and source, the bug, and in a paragraph of its own what holds here."""


def check_cases(paths: Iterable[Path], numbers: Mapping[int, str]) -> None:
    """Assert that each bug has one test in these files, with the number of its report, and that each test
    names a case."""
    found = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                case = FORM.match(ast.get_docstring(node) or "")
                assert case is not None, f"{path.name}: {node.name}"
                assert numbers[int(case["number"])] in case["source"]
                found[int(case["number"])] = node.name

    assert numbers.keys() == found.keys()
