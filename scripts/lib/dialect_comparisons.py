"""Finds comparisons against a dialect outside the few files that may make them.

What differs between releases is a span on a declaration, or one entry in the table of catch-up strategies;
an ``if dialect == LEGACY`` anywhere else is how two dialects rot. Asking a declared span is the way, and so
is fine: ``dialect.release in command.span``. So is asking whether a dialect is decided at all: ``is None``,
``is AUTO``.

    dialect_comparisons.py FOLDER
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ALLOWED = {"wire/dialect.py", "wire/grammar.py"}
DIALECTS = {"LEGACY", "MIDDLE", "CURRENT", "NATIVE", "NEWEST"}


def names_dialect(node: ast.expr) -> bool:
    """Whether this expression is, by its name, a dialect or the release of one."""
    match node:
        case ast.Name(id=name):
            return name in DIALECTS or name.lower().endswith("dialect")
        case ast.Attribute(value=of, attr=name):
            return (
                name in DIALECTS
                or name.lower().endswith("dialect")
                or (name in {"release", "name"} and names_dialect(of))
            )
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(map(names_dialect, parts))
    return False


def is_undecided(node: ast.expr) -> bool:
    """None, or the AUTO that stands for a dialect not known yet."""
    match node:
        case ast.Constant(value=None) | ast.Name(id="AUTO") | ast.Attribute(attr="AUTO"):
            return True
    return False


def asks_a_span(node: ast.Compare) -> bool:
    """``dialect.release in span``, where the span is no list of dialects written on the spot."""
    match node:
        case ast.Compare(
            left=ast.Attribute(attr="release"), ops=[ast.In() | ast.NotIn()], comparators=[span]
        ):
            return not names_dialect(span)
    return False


def comparisons(tree: ast.AST) -> Iterator[ast.expr]:
    """Every place in a module that asks which dialect this is."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                if asks_a_span(node) or any(map(is_undecided, sides)):
                    continue
                if any(map(names_dialect, sides)):
                    yield node
            case ast.Match(subject=subject) if names_dialect(subject):
                yield subject


def main(folder: Path) -> int:
    found = 0
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(folder).as_posix() in ALLOWED:
            continue
        for node in comparisons(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            found += 1
            print(f"{path}:{node.lineno}: comparison against a dialect: {ast.unparse(node)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
