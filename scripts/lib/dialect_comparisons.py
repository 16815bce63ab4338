"""Finds comparisons with a dialect outside the files that may make them (`ALLOWED`).

What differs between releases is declared: as the span of a command, field or stream, or as an entry of the
table of strategies. An ``if dialect == LEGACY`` elsewhere would hide such a difference. Allowed everywhere:
``dialect.release in command.span``, and ``is None`` or ``is AUTO`` (whether the dialect is known yet).

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
    """Whether this expression is None or AUTO, which stand for a dialect that is not known yet."""
    match node:
        case ast.Constant(value=None) | ast.Name(id="AUTO") | ast.Attribute(attr="AUTO"):
            return True
    return False


def asks_a_span(node: ast.Compare) -> bool:
    """Whether this is ``dialect.release in span``, and the span is not a literal with dialects."""
    match node:
        case ast.Compare(
            left=ast.Attribute(attr="release"), ops=[ast.In() | ast.NotIn()], comparators=[span]
        ):
            return not names_dialect(span)
    return False


def comparisons(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the comparisons with a dialect in a module, and the subjects of `match` that are one."""
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
            print(f"{path}:{node.lineno}: comparison with a dialect: {ast.unparse(node)}; declare a span")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
