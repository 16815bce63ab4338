"""The check that names in prose lead somewhere."""

from pathlib import Path

import pytest

from scripts.lib.references import complaints

PYTHON = '''"""A module; see `Reader.read` and docs/page.md#a-heading."""

import os

__all__ = ["Reader"]


class Reader:
    """Reads. `wire/lines.py` has the cutter."""

    def read(self) -> str:
        return os.environ["some_key"]
'''

PAGE = """# A heading

`Reader` of `synrepl/reader.py` reads `some_key`; [again](#a-heading).
"""


def told(root: Path, *, python: str = PYTHON, page: str = PAGE, settings: str = "") -> list[str]:
    """What is said of a tree of one module and one page."""
    for name, text in (
        ("synrepl/reader.py", python),
        ("synrepl/wire/lines.py", '"""Lines."""\n'),
        ("docs/page.md", page),
        ("README.md", "# Readme\n"),
        ("CONTRIBUTING.md", "# Contributing\n"),
        ("setup.py", ""),
        ("pyproject.toml", settings),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    return [f"{one.file.relative_to(root)}:{one.line}: {one.what}" for one in complaints(root)]


def test_names_that_exist_are_fine(tmp_path: Path) -> None:
    """Classes, members, keys in strings, files, headings."""
    assert [] == told(tmp_path)


@pytest.mark.parametrize(
    ("span", "what"),
    [
        ("`Writer`", "`Writer` does not exist"),
        ("`Reader.write`", "`Reader.write` does not exist"),
        ("``synrepl.reader.write_all``", "`synrepl.reader.write_all` does not exist"),
        ("`wire/gone.py`", "`wire/gone.py` does not exist"),
        ("`wire/reader.py`", "`wire/reader.py` does not exist"),  # it is in another folder
        ("`other_key`", "`other_key` does not exist"),
        ("`go_on()`", "`go_on()` does not exist"),
        ("docs/gone.md", "docs/gone.md leads nowhere"),
        ("docs/page.md#gone", "docs/page.md#gone leads nowhere"),
    ],
)
def test_a_docstring_that_names_what_is_gone(tmp_path: Path, span: str, what: str) -> None:
    """A rename forgot the prose."""
    python = PYTHON.replace("Reads.", f"Reads {span}.")

    assert [f"synrepl/reader.py:9: {what}"] == told(tmp_path, python=python)


def test_the_library_names_nothing_that_only_tests_know(tmp_path: Path) -> None:
    """A module that was renamed, and that a test imports under its old name; the manual may name it."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("import synrepl.reader as old_reader\n", "utf-8")
    python, page = PYTHON.replace("Reads.", "Reads `old_reader`."), f"{PAGE}`old_reader`\n"

    assert ["synrepl/reader.py:9: `old_reader` does not exist"] == told(tmp_path, python=python, page=page)


@pytest.mark.parametrize("more", ["`GoneClass`", "[there](gone.md)", "[there](#gone)", "`synrepl/gone.py`"])
def test_a_page_that_names_what_is_gone(tmp_path: Path, more: str) -> None:
    """Names, files and links."""
    assert 1 == len(told(tmp_path, page=f"{PAGE}{more}\n"))


@pytest.mark.parametrize(
    "more",
    [
        "`synrepl tail --json`", "`RDATA`", "`a = b`", "`{\"x\":1}`", "`NAME.md`", "`epoch`",
        "```python\nGoneClass()\n```",
    ],
)  # fmt: skip
def test_what_is_no_name_is_left_alone(tmp_path: Path, more: str) -> None:
    """Commands, words of the protocol, snippets, placeholders, listings."""
    assert [] == told(tmp_path, page=f"{PAGE}{more}\n")


def test_settings_that_name_a_file_that_is_gone(tmp_path: Path) -> None:
    """An exception from a lint rule whose file was renamed."""
    settings = (
        '"synrepl/gone.py" = ["S"]\n"synrepl/reader.py" = []\nmodule = ["synrepl.wire.*", "synrepl.gone"]\n'
    )

    assert [
        "pyproject.toml:1: synrepl/gone.py does not exist",
        "pyproject.toml:3: synrepl.gone does not exist",
    ] == told(tmp_path, settings=settings)


def test_two_public_classes_of_one_name(tmp_path: Path) -> None:
    """A reader cannot tell which is meant."""
    (tmp_path / "synrepl").mkdir()
    (tmp_path / "synrepl/another.py").write_text("class Reader: ...\n\n\nclass _Private: ...\n", "utf-8")

    assert ["synrepl/reader.py:8: class Reader has the name of another one in synrepl/another.py"] == told(
        tmp_path
    )
