"""The list of mutants: faults that were written by hand, each with the tests that must notice it."""

import ast
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["LIST", "BadList", "Mutant", "complaints", "load", "mutated"]

LIST: Final = "tests/mutants.toml"
TRIAL: Final = "trial:"


class BadList(Exception):
    """The list of mutants cannot be read, or does not fit the code or the tests."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault: in `file`, `new` stands where `old` stood.

    `tests` are arguments of pytest: paths, node ids, ``-k EXPRESSION``; or ``trial:`` and a module. Where the
    program does the same with the fault as without it, `equivalent` says why, and no tests are named.
    """

    id: str
    file: str
    old: str
    new: str
    tests: str = ""
    equivalent: str = ""

    @property
    def package(self) -> str:
        """The folder of its file, below synrepl: ``ids``."""
        return Path(self.file).parent.relative_to("synrepl").as_posix()


class _List(msgspec.Struct, forbid_unknown_fields=True):
    mutant: list[Mutant]


def load(root: Path) -> list[Mutant]:
    """Return all mutants, in the order of the list. Raises `BadList` if it cannot be read."""
    try:
        table = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
        return msgspec.convert(table, _List).mutant
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadList(f"{LIST}: {error}") from error


def mutated(root: Path, mutant: Mutant) -> str:
    """Return the text of the mutant's file with the fault. Raises `BadList` unless it has `old` just once."""
    try:
        text = (root / mutant.file).read_text(encoding="utf-8")
    except OSError as error:
        raise BadList(f"{mutant.id} is stale: cannot read {mutant.file}: {error.strerror}") from error
    if (count := text.count(mutant.old)) != 1:
        raise BadList(f"{mutant.id} is stale: {mutant.file} holds its old text {count} times, not once")
    return text.replace(mutant.old, mutant.new)


def complaints(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """Return the errors of the list, one line each; empty if it is valid."""
    ids = Counter(mutant.id for mutant in mutants)
    found = [f"{name} is listed {count} times" for name, count in ids.items() if count > 1]
    for mutant in sorted(mutants, key=lambda mutant: mutant.file):
        found += [f"{mutant.id}: {why}" for why in _faults(root, mutant)]
    return found


def _faults(root: Path, mutant: Mutant) -> Iterator[str]:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", mutant.id):
        yield "the id must be words in lower case, joined by hyphens"
    if not mutant.file.startswith("synrepl/"):
        yield f"the file {mutant.file} is not below synrepl/"
    elif mutant.old == mutant.new:
        yield "old and new text are the same"
    else:
        try:
            changed = mutated(root, mutant)
            if mutant.file.endswith(".py"):
                text = (root / mutant.file).read_text(encoding="utf-8")
                first = text[: text.index(mutant.old)].count("\n") + 1
                if _is_same_code(_parsed(text), ast.parse(changed), first):
                    yield "the fault changes no code"
        except (BadList, SyntaxError) as error:
            yield str(error)
    if bool(mutant.tests) == bool(mutant.equivalent):
        yield "needs either tests or equivalent, and not both"
    if TRIAL in mutant.tests and len(mutant.tests.split()) > 1:
        yield "a trial:MODULE stands alone in tests"
    for name in _named(mutant.tests):
        if not _exists(root, name):
            yield f"there is no test {name}"


@lru_cache(maxsize=1)
def _parsed(text: str) -> ast.Module:
    """The tree of a file, which has several mutants in a row."""
    return ast.parse(text)


def _is_same_code(before: ast.AST, after: ast.AST, line: int) -> bool:
    """Whether nothing but comments and spaces differ; the texts are the same above this line."""
    if type(before) is not type(after):
        return False
    if isinstance(before, ast.stmt) and (before.end_lineno or line) < line:
        return True
    for name in before._fields:
        ours, theirs = getattr(before, name, None), getattr(after, name, None)
        if not isinstance(ours, list) or not isinstance(theirs, list):
            ours, theirs = [ours], [theirs]
        if len(ours) != len(theirs):
            return False
        for one, other in zip(ours, theirs, strict=True):
            if isinstance(one, ast.AST) and isinstance(other, ast.AST):
                if not _is_same_code(one, other, line):
                    return False
            elif type(one) is not type(other) or one != other:
                return False
    return True


def _named(tests: str) -> Iterator[str]:
    """Yield the files, modules and node ids among these arguments."""
    words = iter(shlex.split(tests))
    for word in words:
        if word == "-k":
            next(words, None)
        else:
            yield word


def _exists(root: Path, name: str) -> bool:
    if name.startswith(TRIAL):
        return (root / f"{name.removeprefix(TRIAL).replace('.', '/')}.py").is_file()
    path, *inside = name.partition("[")[0].split("::")
    if not (root / path).is_file():
        return (root / path).is_dir() and not inside
    return not inside or "::".join(inside) in _defined((root / path).read_text(encoding="utf-8"))


@lru_cache(maxsize=1000)
def _defined(text: str) -> frozenset[str]:
    """The functions, classes and methods of this module: ``TestLeast::test_it``."""

    def names(node: ast.AST, of: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield of + child.name
                yield from names(child, f"{of}{child.name}::")

    return frozenset(names(ast.parse(text), ""))
