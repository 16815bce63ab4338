"""Finds classes, type aliases and modules that borrow a word which has one owner in the glossary.

A name borrows a word if it is the word, or ends in it, in the singular or plural: `IdTable` and
`tables.py` say that they are tables. The section `SECTION` of the glossary has a table of the words with the
classes, aliases and modules that own them, and a table of exceptions with their reasons.

    word_owners.py [ROOT]
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

GLOSSARY: Final = "docs/explanation/glossary.md"
SECTION: Final = "## Words with one owner"
PACKAGE: Final = "synrepl"

_WORD: Final = re.compile(r"\*\*(\w+)\*\*")
_NAME: Final = re.compile(r"`([^`]+)`")
_ALIAS: Final = re.compile(r"_?[A-Z]\w*[a-z]")
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


class Glossary(NamedTuple):
    """The owned words, and the names that may use each: those of its owners, and exceptions (word "")."""

    words: frozenset[str]
    owners: dict[str, str]


class Complaint(NamedTuple):
    """A name that borrows a word, or an entry of the glossary without a use."""

    where: str
    what: str


def read_glossary(text: str) -> Glossary:
    """Read the tables of the section: ``| **word** | meaning | owners |``, and ``| names | reason |``."""
    words: set[str] = set()
    owners: dict[str, str] = {}
    section = text.partition(f"\n{SECTION}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) < 2:
            continue
        if found := _WORD.fullmatch(cells[0]):
            words.add(found[1])
            owners |= dict.fromkeys(_NAME.findall(cells[-1]), found[1])
        elif cells[-1]:
            owners |= dict.fromkeys(_NAME.findall(cells[0]), "")
    return Glossary(frozenset(words), owners)


def last_word(name: str) -> str:
    """The last word of the name of a class, alias or module, in lower case."""
    parts = _PART.findall(name)
    return parts[-1].lower() if parts else ""


def borrowed(name: str, words: frozenset[str]) -> str:
    """The owned word that this name is, or ends in; empty if there is none."""
    word = last_word(name)
    return next((one for one in (word, word.removesuffix("s")) if one in words), "")


def defined_name(node: ast.AST) -> str:
    """The name of the class or type alias that this node defines; empty if it defines none.

    An assignment defines an alias if its name is spelled as that of a class (``Pair = tuple[str, str]``).
    """
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name if _ALIAS.match(name) else ""
    return ""


def names(root: Path) -> Iterator[tuple[str, str, str]]:
    """Each module, package, class and alias: where it is, its name, and its name in the glossary."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        if path.name == "__init__.py":
            yield file, path.parent.name, f"{path.parent.relative_to(root).as_posix()}/"
        else:
            yield file, path.stem, file
        for node in ast.walk(ast.parse(path.read_text("utf-8"), file)):
            if defined := defined_name(node):
                yield f"{file}:{node.lineno}", defined, defined  # type: ignore[attr-defined]


def complaints(root: Path) -> Iterator[Complaint]:
    """Yield the names that borrow a word, and the entries of the glossary that no longer apply."""
    glossary = read_glossary((root / GLOSSARY).read_text("utf-8"))
    if not glossary.words:
        yield Complaint(GLOSSARY, f"the section {SECTION.strip('# ')!r} has no words")
    used = set()
    for where, name, entry in names(root):
        word = borrowed(name, glossary.words)
        if not word:
            continue
        used.add(entry)
        if glossary.owners.get(entry, None) not in (word, ""):
            yield Complaint(where, f"{name} borrows the word {word}, which has one meaning ({GLOSSARY})")
    for entry in sorted(glossary.owners.keys() - used):
        yield Complaint(GLOSSARY, f"{entry} owns no word: it is gone, or has another name")


def main(root: Path) -> int:
    found = list(complaints(root))
    for one in found:
        print(f"{one.where}: {one.what}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path()))
