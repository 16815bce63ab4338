"""What a release says of itself: its version, its description, its news."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.specifiers import SpecifierSet

ROOT: Final = Path(__file__).resolve().parent.parent
FRAGMENTS: Final = ROOT / "docs" / "newsfragments"

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The table of the project's description."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found: dict[str, Any] = content["project"]
    return found


def test_the_version_is_the_one_of_the_news(project: dict[str, Any]) -> None:
    """A release is tagged by it. That of the Debian package: tests/contrib/test_debian.py."""
    news = (ROOT / "NEWS.md").read_text("utf-8")
    [first, *_] = re.findall(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", news, re.MULTILINE)

    assert first == project["version"]


def test_the_description_has_what_an_index_shows(project: dict[str, Any]) -> None:
    """An index lists a package by these."""
    assert (ROOT / project["readme"]).is_file()
    assert [name for name in project["license-files"] if not (ROOT / name).is_file()] == []
    assert project["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text("utf-8").lstrip().startswith("Apache License")
    assert len(project["description"]) <= 110
    assert len(set(project["keywords"])) >= 5


def test_the_pythons_are_those_that_are_allowed(project: dict[str, Any]) -> None:
    """Each one has its classifier, and nothing older is installed on."""
    named = [
        one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: Python :: 3\.\d+$", one)
    ]
    allowed = SpecifierSet(project["requires-python"])

    assert list(PYTHONS) == named
    assert all(version in allowed for version in PYTHONS)
    assert "3.10" not in allowed


def test_the_fields_that_setup_py_gives_are_dynamic(project: dict[str, Any]) -> None:
    """Setuptools would ignore them otherwise, and the wheel would have no dependencies."""
    given = {
        "install_requires": ("dependencies",),
        "extras_require": ("optional-dependencies",),
        "entry_points": ("scripts", "entry-points"),
    }
    text = (ROOT / "setup.py").read_text("utf-8")

    found = {field for word, fields in given.items() if f"{word}=" in text for field in fields}
    assert found == set(project["dynamic"])
    static = "name|version|description|classifiers|license|python_requires"
    assert not re.search(rf"^    ({static})=", text, re.MULTILINE)


def test_the_newsfragments_build() -> None:
    """Each is part of the next release's news: towncrier leaves out a name that it does not understand."""
    draft = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next", "--dir", str(ROOT)],
        capture_output=True,
        text=True,
    )
    texts = {
        path.name: path.read_text("utf-8").split()
        for path in FRAGMENTS.glob("*.md")
        if path.name != "README.md" and ".misc" not in path.name
    }

    assert draft.returncode == 0, draft.stderr
    shown = " ".join(draft.stdout.split())
    assert [name for name, words in texts.items() if " ".join(words) not in shown] == []
