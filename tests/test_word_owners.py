"""The check that a word of the glossary with one owner is in no other name."""

from pathlib import Path

import pytest

from scripts.lib.word_owners import GLOSSARY, SECTION, borrowed, complaints

TEXT = f"""# Glossary

| **row** | no word with an owner: another section | `Row` |

{SECTION}

| word | the one thing | classes and modules |
|---|---|---|
| **feed** | a cursor | `Feed`, `synrepl/feed.py` |
| **table** | of a database | `IdTable`, `synrepl/tables/` |

| exception | reason |
|---|---|
| `StreamTable` | a public name |

## Releases

| `FromHere` | is read no more |
"""

MODULES = {
    "synrepl/__init__.py": "",
    "synrepl/feed.py": "class Feed:\n    pass\n",
    "synrepl/tables/__init__.py": "",
    "synrepl/tables/ids.py": "class IdTable:\n    pass\n\nclass StreamTable:\n    pass\n",
}


def told(root: Path, modules: dict[str, str], glossary: str = TEXT) -> list[str]:
    """What is said of a tree of these modules."""
    for name, text in ({GLOSSARY: glossary} | modules).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    return [f"{one.where}: {one.what}" for one in complaints(root)]


def test_owners_and_exceptions_are_fine(tmp_path: Path) -> None:
    """They are what the glossary says."""
    assert [] == told(tmp_path, MODULES)


@pytest.mark.parametrize(
    ("file", "text", "where", "name"),
    [
        ("synrepl/a.py", "class CommandFeed:\n    pass\n", "synrepl/a.py:1", "CommandFeed"),
        ("synrepl/a.py", "class A:\n    class _Tables:\n        pass\n", "synrepl/a.py:2", "_Tables"),
        ("synrepl/a.py", "import x\nOtherFeed = tuple[str, str]\n", "synrepl/a.py:2", "OtherFeed"),
        ("synrepl/a.py", "Tables: TypeAlias = 'dict[str, int]'\n", "synrepl/a.py:1", "Tables"),
        ("synrepl/a.py", "if TYPE_CHECKING:\n    Feeds = list[str]\n", "synrepl/a.py:2", "Feeds"),
        ("synrepl/b/feeds.py", "", "synrepl/b/feeds.py", "feeds"),
        ("synrepl/b/tables/__init__.py", "", "synrepl/b/tables/__init__.py", "tables"),
    ],
)
def test_a_borrowed_word_is_found(tmp_path: Path, file: str, text: str, where: str, name: str) -> None:
    """Of a class or a module, in the singular or the plural, wherever the class is."""
    (complaint,) = told(tmp_path, MODULES | {file: text})

    word = "feed" if "eed" in name else "table"
    assert f"{where}: {name} borrows the word {word}, which has one meaning ({GLOSSARY})" == complaint


@pytest.mark.parametrize("text", ["TABLE = 1\n", "feed = 2\n", "COUNTS_BY_TABLE: Final = {}\n"])
def test_a_constant_and_a_variable_borrow_nothing(tmp_path: Path, text: str) -> None:
    """They are values, and named for what they are in their module."""
    assert [] == told(tmp_path, MODULES | {"synrepl/a.py": text})


def test_an_owner_of_one_word_may_not_borrow_another(tmp_path: Path) -> None:
    """Its entry names the word."""
    glossary = TEXT.replace("`Feed`, ", "`Feed`, `OtherTable`, ")

    (complaint,) = told(tmp_path, MODULES | {"synrepl/a.py": "class OtherTable:\n    pass\n"}, glossary)

    assert "OtherTable borrows the word table" in complaint


def test_an_exception_needs_a_reason(tmp_path: Path) -> None:
    """Without one it is none."""
    (complaint,) = told(tmp_path, MODULES, TEXT.replace("a public name", ""))

    assert "StreamTable borrows the word table" in complaint


def test_an_owner_that_is_gone_is_found(tmp_path: Path) -> None:
    """Or the glossary would tell of what there is no longer."""
    modules = MODULES | {"synrepl/feed.py": "class Cursor:\n    pass\n"}

    assert [f"{GLOSSARY}: Feed owns no word: it is gone, or has another name"] == told(tmp_path, modules)


def test_a_glossary_without_the_section_is_found(tmp_path: Path) -> None:
    """A heading that was changed must not switch off the check."""
    (complaint,) = told(tmp_path, {"synrepl/__init__.py": ""}, "# Glossary\n")

    assert f"{GLOSSARY}: the section 'Words with one owner' has no words" == complaint


def test_a_name_ends_in_a_word_and_not_in_its_letters() -> None:
    """`Comfortable` is no table."""
    words = frozenset({"table", "log", "position"})

    assert ["table", "table", "log", "position"] == [
        borrowed(name, words) for name in ("IdTable", "id_tables", "SQLLog", "SQLPositions")
    ]
    assert ["", "", ""] == [borrowed(name, words) for name in ("Comfortable", "TableScan", "Dialog")]
