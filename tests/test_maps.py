"""Maps of the code for newcomers: the reading of an afternoon, and the folders that CONTRIBUTING explains."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
AFTERNOON = (ROOT / "docs/explanation/afternoon.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")

MAX_FILES = 12
MAX_LINES = 5_000

ROOMS = ("replicas", "files", "channel", "homeserver", "ids", "pipeline")

STOPS = {
    found[1]: set(re.findall(r"`([\w.]+)`", found[2]))
    for found in re.finditer(r"^\| `(synrepl/[\w/]+\.py)`(?: \(([^)]*)\))? \|", AFTERNOON, re.MULTILINE)
}
"""The files to read, and the classes and functions that are named with each."""


def test_the_afternoon_is_no_longer_than_an_afternoon() -> None:
    """Otherwise the core has become more than an engineer holds in mind; or choose other files."""
    lines = {file: len((ROOT / file).read_text("utf-8").splitlines()) for file in STOPS}

    assert 0 < len(lines) <= MAX_FILES
    assert sum(lines.values()) <= MAX_LINES, lines


def test_the_afternoon_is_spent_in_the_core() -> None:
    """It stays true when a room is deleted."""
    assert [] == [file for file in STOPS if Path(file).parts[1] in ROOMS]


@pytest.mark.parametrize("file", STOPS)
def test_what_the_afternoon_names_is_in_its_file(file: str) -> None:
    """A function that has moved away leaves its question without an answer."""
    text = (ROOT / file).read_text("utf-8")
    names = [name.rpartition(".")[2] for name in STOPS[file]]
    definition = r"^ *(?:class |async def |def |){}\b"

    assert [] == [name for name in names if not re.search(definition.format(name), text, re.MULTILINE)]


def _folders(top: str) -> list[str]:
    """The folders with code or data: not those that tools make."""
    return sorted(
        f"{top}/{path.name}"
        for path in (ROOT / top).iterdir()
        if path.is_dir()
        and path.name[0] not in "_."
        and any(one.is_file() and "__pycache__" not in one.parts for one in path.rglob("*"))
    )


@pytest.mark.parametrize("folder", [*_folders("synrepl"), *_folders("tests")])
def test_contributing_explains_every_folder(folder: str) -> None:
    """A newcomer finds no folder of which nobody says what it is for."""
    table = [line for line in CONTRIBUTING.splitlines() if line.startswith("|")]

    assert any(re.search(rf"{folder}\b", line) for line in table)
