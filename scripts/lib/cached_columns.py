#!/usr/bin/env python3
"""Writes synrepl/caches/relations.txt: which cache of Synapse reads which columns of its database.

    python scripts/lib/cached_columns.py RELEASE=FOLDER...

A FOLDER is an unpacked wheel of that release; oldest first. Nothing of it is run: the files of its stores are
parsed, and a function reads what is in the text of its statements, in the arguments of the `simple_` methods,
and in the functions of the stores that it calls. It may say too much, where two functions have one name or a
column is named like a word of another statement, and too little, where a name is put together.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from synrepl.caches.names import all_names

TARGET = Path(__file__).parents[2] / "synrepl/caches/relations.txt"
READS = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+([a-z_][a-z0-9_]+)", re.IGNORECASE)
NAME = re.compile(r"[a-z_][a-z0-9_]*")
CREATE = re.compile(
    r'CREATE\s+TABLE\s+(?:IF NOT EXISTS\s+)?(?:public\.)?"?([a-z_0-9]+)"?\s*\(', re.IGNORECASE
)
ADD = re.compile(
    r'ALTER\s+TABLE\s+(?:ONLY\s+)?([a-z_0-9]+)\s+ADD\s+(?:COLUMN\s+)?(?:IF NOT EXISTS )?"?([a-z_0-9]+)',
    re.IGNORECASE,
)
RENAME = re.compile(r"ALTER\s+TABLE\s+([a-z_0-9]+)\s+RENAME\s+TO\s+([a-z_0-9]+)", re.IGNORECASE)
NO_COLUMNS = frozenset(
    {"unique", "primary", "foreign", "check", "constraint", "column", "exists", "not", "if"}
)
TEMPORARY = re.compile(r"(?:2|_new|_migration)$")
DEEPEST = 4
"""How many calls deep a function is followed."""

Columns = dict[str, set[str]]


class Function(NamedTuple):
    """A function of a store: the tables and words in it, what it calls, and the cache that it fills."""

    tables: set[str]
    words: set[str]
    calls: set[str]
    cache: str


def columns_of(folder: Path) -> Columns:
    """The columns of each table, from the statements that make the database."""
    found: Columns = defaultdict(set)
    for file in sorted((folder / "synapse/storage").rglob("*")):
        if "/schema/" not in str(file) or not (".sql" in file.name or file.suffix == ".py"):
            continue
        text = re.sub(r"--.*|/\*(?s:.*?)\*/", "", file.read_text(errors="replace"))
        for table in CREATE.finditer(text):
            for part in parts_of(text[table.end() :]):
                first = part.split()[0].strip('"').lower() if part.split() else ""
                if NAME.fullmatch(first) and first not in NO_COLUMNS:
                    found[table[1].lower()].add(first)
        for table, column in ADD.findall(text):
            if column.lower() not in NO_COLUMNS:
                found[table.lower()].add(column.lower())
        for before, after in RENAME.findall(text):
            found[after.lower()] |= found.get(before.lower(), set())
    return found


def parts_of(text: str) -> Iterator[str]:
    """The parts between commas, up to the bracket that closes."""
    depth, part = 1, ""
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth == 0 or (depth == 1 and character == ","):
            yield part
            part = ""
        else:
            part += character
        if depth == 0:
            return


def functions_of(folder: Path, columns: Columns) -> dict[str, list[Function]]:
    """The functions of the stores, by name."""
    found: dict[str, list[Function]] = defaultdict(list)
    for file in sorted((folder / "synapse/storage").rglob("*.py")):
        if "/schema/" in str(file):
            continue
        for one in ast.walk(ast.parse(file.read_text())):
            for member in one.body if isinstance(one, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[member.name].append(read_function(member, columns))
    return found


def read_function(function: ast.FunctionDef | ast.AsyncFunctionDef, columns: Columns) -> Function:
    """What is in one function."""
    texts: list[str] = []
    tables, calls = set[str](), set[str]()
    nodes = list(ast.walk(function))
    docs = {
        id(one.body[0].value)
        for one in nodes
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(one.body[0], ast.Expr)
    }
    for one in nodes:
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docs:
            texts.append(one.value)
        elif isinstance(one, ast.keyword) and one.arg == "table" and isinstance(one.value, ast.Constant):
            tables.add(str(one.value.value))
        elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
            calls.add(one.attr)
        elif (
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr.startswith("simple_select")
        ):
            tables |= {str(arg.value) for arg in one.args[:2] if isinstance(arg, ast.Constant)}
    tables |= {table.lower() for text in texts for table in READS.findall(text)}
    words = {word for text in texts for word in NAME.findall(text)}
    return Function({table for table in tables if table in columns}, words, calls, cache_of(function))


def cache_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The cache that a function fills, by its decorators; "" for none."""
    for one in function.decorator_list:
        call: Any = one if isinstance(one, ast.Call) else None
        name = getattr(call.func if call else one, "id", getattr(call.func if call else one, "attr", ""))
        if name in ("cached", "cachedInlineCallbacks"):
            return function.name
        if name == "cachedList":
            named = [word.value.value for word in call.keywords if word.arg == "cached_method_name"]
            return str((named or [call.args[0].value])[0])
    return ""


def read_by(name: str, functions: dict[str, list[Function]], columns: Columns) -> Columns:
    """The columns that a function reads, by itself and through others."""
    found: Columns = defaultdict(set)
    seen: set[str] = set()

    def follow(name: str, depth: int) -> None:
        if name in seen or depth > DEEPEST:
            return
        seen.add(name)
        for one in functions.get(name, ()):
            for table in one.tables:
                found[table] |= one.words & columns[table]
            for call in one.calls:
                follow(call, depth + 1)

    follow(name, 0)
    return found


def mark(has: Sequence[str], of: Sequence[str]) -> str:
    """The span of the releases `has` among those that have the cache; "" for all of them."""
    if has == of:
        return ""
    first, after = of.index(has[0]), of.index(has[-1]) + 1
    return f"{has[0] if first else ''}..{of[after] if after < len(of) else ''}"


def lines_of(folders: dict[str, Path]) -> Iterator[str]:
    """The lines of the file."""
    columns: Columns = defaultdict(set)
    lives: dict[str, list[str]] = defaultdict(list)
    reads: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for release, folder in folders.items():
        there = columns_of(folder)
        for table, its in there.items():
            columns[table] |= its
        functions = functions_of(folder, there)
        caches: dict[str, Columns] = defaultdict(lambda: defaultdict(set))
        for name, several in functions.items():
            for cache in {one.cache for one in several if one.cache}:
                caches[cache]
                for table, its in read_by(name, functions, there).items():
                    caches[cache][table] |= its
        for cache in caches.keys() & all_names():
            lives[cache].append(release)
            for table, its in caches[cache].items():
                for column in its:
                    reads[table, cache, column].append(release)
    for table in sorted(columns):
        if (TEMPORARY.search(table) and TEMPORARY.sub("", table) in columns) or table.startswith(
            ("temp_", "new_")
        ):
            continue
        yield " ".join([table, *sorted(columns[table])])
        spans: dict[tuple[str, str], list[str]] = defaultdict(list)
        for (of, cache, column), has in sorted(reads.items()):
            if of == table:
                spans[cache, mark(has, lives[cache])].append(column)
        for (cache, has_them), read in sorted(spans.items()):
            yield " ".join(["  " + cache, *filter(None, [has_them]), *read])


if __name__ == "__main__":
    given = dict(one.split("=", 1) for one in sys.argv[1:])
    TARGET.write_text("\n".join(lines_of({name: Path(folder) for name, folder in given.items()})) + "\n")
