"""The museum of bugs, read from the docstrings of its tests."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["MUSEUM", "Case", "cases"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MUSEUM: Final = ROOT / "tests" / "museum"

FORM: Final = re.compile(r"Case (?P<number>\d+), (?P<source>[^:]+): (?P<bug>.+?)\n\n(?P<here>.+)", re.DOTALL)
"""The docstring of a test: number and source, the bug, and in a paragraph of its own what holds here."""


class Case(NamedTuple):
    """One bug: its number, where it was met, what happened, what holds here, and the test of it."""

    number: int
    source: str
    bug: str
    here: str
    file: str
    test: str


def cases(folder: Path = MUSEUM) -> list[Case]:
    """Return all cases, by number. Raises `ValueError` for a test whose docstring does not match `FORM`."""
    return sorted(case for path in folder.glob("test_*.py") for case in _cases_in(path))


def _cases_in(path: Path) -> Iterator[Case]:
    if path.name == "test_catalogue.py":
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found = FORM.fullmatch(ast.get_docstring(node) or "")
            if found is None:
                form = "'Case N, SOURCE: BUG', and in a second paragraph what holds here"
                raise ValueError(f"{path.name}: {node.name}: the docstring must be {form}")
            bug, here = (" ".join(found[name].split()) for name in ("bug", "here"))
            yield Case(int(found["number"]), found["source"], bug, here, path.name, node.name)
