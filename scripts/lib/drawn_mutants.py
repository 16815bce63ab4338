"""Mutants drawn at random over the whole package, each with the tests that are nearest to its module."""

import ast
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from scripts.lib.mutants import TRIAL, Mutant

__all__ = ["DrawnMutant", "draw", "entry", "mutations"]

SLOW: Final = ("tests/interop", "tests/processes", "tests/typing", "tests/corpus", "tests/simulation")
"""Folders whose tests are left to the whole suite: they would take minutes for each mutant."""

MAX_FILES: Final = 12
"""The most files of tests in one stage."""

_SWAPPED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip

_CONSTANTS: Final = {"bool": "False", "int": "0", "float": "0.0", "str": '""', "bytes": 'b""'}
"""By return annotation: what a function returns in place of its value; None for any other."""

_LOGGING: Final = ("logger", "_logger", "log_failure", "say")


class Mutation(msgspec.Struct, frozen=True):
    """One fault: the text from offset `start` to `end` becomes `new`. `operator` says what kind it is."""

    operator: str
    line: int
    start: int
    end: int
    new: str


class DrawnMutant(msgspec.Struct, frozen=True):
    """A mutant, and its tests in `stages`: the next one is run if the tests of the former ones pass."""

    mutant: Mutant
    stages: tuple[str, ...]


def draw(root: Path, seed: int, count: int) -> list[DrawnMutant]:
    """Return `count` mutants; the same for a seed and a checkout. Each mutation is as likely as any other."""
    found = [
        (path, mutation)
        for path in sorted((root / "synrepl").rglob("*.py"))
        for mutation in mutations(path.read_text(encoding="utf-8"))
    ]
    tests = _Tests(root)
    drawn = random.Random(seed).sample(found, min(count, len(found)))
    return [tests.with_stages(_mutant(root, path, mutation)) for path, mutation in drawn]


def entry(drawn: DrawnMutant) -> str:
    """Return a survivor as an entry of the list. Its tests are those that should come to notice it."""
    mutant = drawn.mutant
    texts = "".join(f"{name} = '''\n{getattr(mutant, name)}'''\n" for name in ("old", "new"))
    tests = drawn.stages[0] if drawn.stages else "tests"
    return f'\n[[mutant]]\nid = "{mutant.id}"\nfile = "{mutant.file}"\n{texts}tests = "{tests}"\n'


def mutations(text: str) -> list[Mutation]:
    """Return all faults that can be drawn in the text of a module, in order of place."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))
    finder = _Finder(text.encode(), lines)
    finder.visit(ast.parse(text))
    return sorted(finder.found, key=lambda one: (one.start, one.end, one.operator))


class _Finder(ast.NodeVisitor):
    """Collects the faults of a module: only in functions, and not in what only people read."""

    def __init__(self, text: bytes, lines: Sequence[int]) -> None:
        self.found: list[Mutation] = []
        self._text = text
        self._lines = lines
        self._returns: list[str] = []

    def _add(self, operator: str, node: ast.expr | ast.stmt, change: Callable[[str], str]) -> None:
        start, end = self._span(node)
        old = self._text[start:end].decode()
        if self._returns and (new := change(old)) != old:
            self.found.append(Mutation(operator, node.lineno, start, end, new))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        is_text = node.name in ("__repr__", "__str__")
        is_stub = any("overload" in ast.unparse(one) for one in node.decorator_list)
        if is_text or is_stub:
            return
        self._returns.append("" if node.returns is None else ast.unparse(node.returns))
        for statement in node.body:
            self.visit(statement)
        self._returns.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._add("negate-if", node.test, lambda old: f"not ({old})")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._add("never-loop", node.test, lambda _: "False")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add("negate-choice", node.test, lambda old: f"(not ({old}))")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and any(word in ast.unparse(call.func) for word in _LOGGING):
            return
        self._add("drop-call", node, lambda _: "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("drop-assignment", node, lambda _: "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("drop-assignment", node, lambda _: "pass")
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            swapped = f"({self._source(left)}) {_SWAPPED[type(node.ops[0])]} ({self._source(right)})"
            self._add("swap-comparison", node, lambda _: swapped)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        parts = [f"({self._source(one)})" for one in node.values]
        self._add("and-or", node, lambda _: f"({word.join(parts)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int and abs(node.value) <= 100:
            self._add("off-by-one", node, lambda _: str(node.value + 1))  # type: ignore[operator]

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and self._returns:
            constant = _CONSTANTS.get(self._returns[-1], "None")
            self._add("return-constant", node.value, lambda _: constant)
            self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if not isinstance(node.body[0], ast.Pass | ast.Raise):
            self._add("handler-raises", node.body[0], lambda _: "raise")
        for statement in node.body:
            self.visit(statement)

    # What only people read, or only a type checker.

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def _source(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._text[start:end].decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset


def _mutant(root: Path, path: Path, mutation: Mutation) -> Mutant:
    """Make a mutant of whole lines: as many as it takes for them to occur once in the file."""
    text = path.read_bytes()
    start = text.rfind(b"\n", 0, mutation.start) + 1
    end = text.find(b"\n", mutation.end) + 1 or len(text)
    before, after = text[start : mutation.start], text[mutation.end : end]
    while text.count(text[start:end]) > 1:
        above = text.rfind(b"\n", 0, start - 1) + 1
        before, start = text[above:start] + before, above
    new = before + mutation.new.encode() + after
    file = path.relative_to(root).as_posix()
    words = [*path.relative_to(root / "synrepl").with_suffix("").parts, str(mutation.line), mutation.operator]
    name = "-".join(words).replace("_", "-").strip("-").replace("--", "-")
    return Mutant(id=name, file=file, old=text[start:end].decode(), new=new.decode(), tests="tests")


class _Tests:
    """The files of tests, and the modules that each imports: itself, or by helpers of other tests."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        for path in sorted((root / "synrepl").rglob("*.py")):
            user = _module(path.relative_to(root).as_posix())
            for module in _imported(path):
                self._users[module].add(user)
        self._direct: defaultdict[str, set[str]] = defaultdict(set)
        self._through: defaultdict[str, set[str]] = defaultdict(set)
        imports = {
            path.relative_to(root).as_posix(): set(_imported(path))
            for path in sorted((root / "tests").rglob("*.py"))
        }
        for name in imports:
            if not Path(name).name.startswith("test_") or name.startswith(SLOW):
                continue
            seen: set[str] = set()
            left = [name]
            while left:
                helper = left.pop()
                for module in imports[helper] - seen:
                    seen.add(module)
                    (self._direct if helper == name else self._through)[module].add(name)
                    if (file := f"{module.replace('.', '/')}.py") in imports:
                        left.append(file)

    def with_stages(self, mutant: Mutant) -> DrawnMutant:
        """Choose the tests: those of the same name, those that import the module, those whose helpers do.

        Then those that import a module which uses it. If no test imports it, those of its package come last.
        """
        module = _module(mutant.file)
        stem = module.rpartition(".")[2]
        direct, through = self._direct[module], self._through[module] - self._direct[module]
        named = {name for name in direct | through if Path(name).stem == f"test_{stem}"}
        near = sorted(direct - named, key=lambda name: (-_shared(name, mutant.file), name))
        far = sorted(through - named, key=lambda name: (-_shared(name, mutant.file), name))
        using = {name for user in self._using(module) for name in self._direct[user]} - direct - through
        users = sorted(using, key=lambda name: (-_shared(name, mutant.file), name))
        stages: list[str] = []
        for files in (sorted(named), near[:MAX_FILES], far[:MAX_FILES], users[:MAX_FILES]):
            plain = [name for name in files if "/trial/" not in name]
            stages += [" ".join(plain)] if plain else []
            stages += [TRIAL + _module(name) for name in files if name not in plain]
        if not direct:
            # A module that is loaded by a text, as the routes are, or that only the whole package uses.
            parts = mutant.package.split("/")
            folders = (f"tests/{mutant.package}", f"tests/{parts[-1]}", f"tests/{parts[0]}")
            stages += [one for one in folders if one not in SLOW and (self._root / one).is_dir()][:1]
        return DrawnMutant(mutant, tuple(stages))

    def _using(self, module: str) -> set[str]:
        """The modules that import this one, or a module that does, up to three steps away."""
        found: set[str] = set()
        last = {module}
        for _ in range(3):
            last = {user for one in last for user in self._users[one]} - found
            found |= last
        return found


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _shared(test: str, file: str) -> int:
    """How many of the folders of a module are in the path of a test."""
    return len(set(Path(file).parent.parts[1:]) & set(Path(test).parts))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
