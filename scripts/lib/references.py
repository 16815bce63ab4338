"""Finds references to things that do not exist, and public classes that share a name.

Names in backticks (docstrings, comments, manual), paths in ``pyproject.toml``, links and citations of the
manual must lead somewhere. A name counts as known if the code uses it anywhere, also as a word of a string;
in the prose of the library itself, only if the library uses it, since tests may name things otherwise.

    references.py [ROOT]
"""

import ast
import builtins
import keyword
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple

CODE: Final = ("synrepl", "tests", "scripts", "pyspark_synrepl", "twisted", "setup.py")
MANUAL: Final = ("README.md", "CONTRIBUTING.md", "docs")
NOT_READ: Final = ("docs/newsfragments/",)
"""Newsfragments tell what was true when they were written."""

EXTERNAL: Final = frozenset(
    {
        "FileNotFoundException",
        "IReactorTime",
        "current_state_deltas",
        "LoggingTransaction",
        "ReplicationDataHandler",
        "process_replication_position",
        "register_new_matrix_user",
        "rule_files",
        "txid_status",
        "enable_full_duplex",
        "proxy_read_timeout",
        "stream_idle_timeout",
        "handle_path",
        "proxy_pass",
        "tcp_proxy",
        "ConnectionPool",
        "readStream",
        "report_stats",
    }
)
"""Names of other projects that no code here uses, or only tests."""

LIBRARY: Final = ("synrepl", "twisted", "setup.py")
"""The part of `CODE` whose names the prose of ``synrepl`` may use."""

_SPAN: Final = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+?)\1(?!`)")
_PATH: Final = re.compile(r"[\w.*/-]*\w\.(?:py|tac|md|toml|yaml|sh|json|html|svg|png)")
_FOLDER: Final = re.compile(r"(?:synrepl|tests|scripts|docs|contrib)(?:/[\w.*-]+)+/?")
_DOTTED: Final = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)+(?:\(\))?")
_CLASS: Final = re.compile(r"_?[A-Z]+[a-z]+[a-z0-9]*(?:[A-Z]\w*)*(?:\(\))?")
_SNAKE: Final = re.compile(r"_?[a-z]\w*_\w+(?:\(\))?|[a-z]\w*\(\)")
_LINKED: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_CITED: Final = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")
_METRIC: Final = re.compile(r"synrepl_(\w+?)(?:_total|_bucket|_sum|_count)?")
_COMMENT: Final = re.compile(r"(?:^|\s)# .*")
_WORD: Final = re.compile(r"\w+")


class Complaint(NamedTuple):
    """A reference that leads nowhere, or a class that shares its name with another one."""

    file: Path
    line: int
    what: str


class Module:
    """What a module says, uses and defines."""

    def __init__(self, tree: ast.Module) -> None:
        self.docstrings: list[ast.Constant] = []
        """Strings that stand alone as a statement."""
        self._alone: set[int] = set()
        self.names: set[str] = set()
        self.packages: set[str] = set()
        """The packages that it imports from."""
        self.classes = [
            (node.name, node.lineno)
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        """The public ones, with their lines."""
        for node in ast.walk(tree):
            if (read := self._READ.get(type(node))) is not None:
                read(self, node)

    def _read_name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def _read_attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)

    def _read_argument(self, node: ast.arg | ast.keyword) -> None:
        if node.arg is not None:
            self.names.add(node.arg)

    def _read_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.names.add(node.name)

    def _read_import(self, node: ast.Import) -> None:
        self.packages.update(alias.name.partition(".")[0] for alias in node.names)

    def _read_import_from(self, node: ast.ImportFrom) -> None:
        if node.module is not None and not node.level:
            self.packages.add(node.module.partition(".")[0])

    def _read_alias(self, node: ast.alias) -> None:
        self.names.update(node.name.split("."), [node.asname] if node.asname else [])

    def _read_expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            self.docstrings.append(node.value)
            self._alone.add(id(node.value))

    def _read_constant(self, node: ast.Constant) -> None:
        # A walk goes level by level: the statement that a docstring is came before it.
        if isinstance(node.value, str) and id(node) not in self._alone:
            self.names.update(_WORD.findall(node.value))
        elif isinstance(node.value, bytes):
            self.names.update(_WORD.findall(node.value.decode("utf-8", "replace")))

    _READ: Final[dict[type[ast.AST], Callable[..., None]]] = {
        ast.Name: _read_name,
        ast.Attribute: _read_attribute,
        ast.arg: _read_argument,
        ast.keyword: _read_argument,
        ast.FunctionDef: _read_definition,
        ast.AsyncFunctionDef: _read_definition,
        ast.ClassDef: _read_definition,
        ast.Import: _read_import,
        ast.ImportFrom: _read_import_from,
        ast.alias: _read_alias,
        ast.Expr: _read_expression,
        ast.Constant: _read_constant,
    }


class Tree:
    """The files of a checkout, and the names that its code uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = [
            path
            for top in CODE
            for path in sorted([root / top] if (root / top).is_file() else (root / top).rglob("*.py"))
        ]
        self.manual = [
            path
            for top in MANUAL
            for path in sorted([root / top] if (root / top).is_file() else (root / top).rglob("*.md"))
            if not path.relative_to(root).as_posix().startswith(NOT_READ)
        ]
        # Trees are not kept: the garbage collector would look through all of them again and again.
        self.modules = {path: Module(ast.parse(path.read_text("utf-8"))) for path in self.python}

    @cached_property
    def files(self) -> list[str]:
        """Every file that is not hidden or built, relative to the root."""
        found = []
        for path in self.root.rglob("*"):
            parts = path.relative_to(self.root).parts
            if path.is_file() and not any(
                part.startswith(".") or part == "__pycache__" for part in parts[:-1]
            ):
                found.append("/".join(parts))
        found += [path.relative_to(self.root).as_posix() for path in self.root.glob(".ci/*")]
        return found

    @cached_property
    def packages(self) -> set[str]:
        """The packages of other projects that the code imports."""
        found = {name for module in self.modules.values() for name in module.packages}
        return found - {"synrepl", "tests", "scripts", "pyspark_synrepl"}

    @cached_property
    def names(self) -> set[str]:
        """Identifiers, names of modules and folders, and words in strings that are no docstrings."""
        return self._names_in(CODE)

    @cached_property
    def library_names(self) -> set[str]:
        """Those that the library uses, and the names of all modules and folders."""
        return self._names_in(LIBRARY)

    def _names_in(self, tops: Collection[str]) -> set[str]:
        found = {*dir(builtins), *keyword.kwlist, *EXTERNAL}
        for path, module in self.modules.items():
            parts = path.relative_to(self.root).with_suffix("").parts
            found.update(parts, module.names if path.relative_to(self.root).parts[0] in tops else ())
        return found

    def names_for(self, file: Path) -> set[str]:
        """The names that the prose of this file may use."""
        return self.library_names if file.is_relative_to(self.root / "synrepl") else self.names

    @cache  # noqa: B019  # one tree lives as long as the program
    def listings(self, page: Path) -> str:
        """The listings of a page of the manual: they show files that a reader writes."""
        if page.suffix != ".md":
            return ""
        shown = {number for number, _ in manual_of(page)}
        lines = page.read_text("utf-8").split("\n")
        return "\n".join(line for number, line in enumerate(lines, 1) if number not in shown)

    def has_file(self, text: str, near: Path) -> bool:
        """Whether a file or folder ends so, or matches the pattern."""
        text = text.removeprefix("./").rstrip("/")
        if (near.parent / text).exists() or (self.root / text).exists():
            return True
        if "*" in text:
            return any(fnmatch(name, text) or fnmatch(name, f"*/{text}") for name in self.files)
        return any(
            name == text or name.endswith(f"/{text}") or f"/{text}/" in f"/{name}" for name in self.files
        )


def prose_of(path: Path, docstrings: Iterable[ast.Constant]) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module, each line with its number."""
    for node in docstrings:
        for number, line in enumerate(str(node.value).split("\n")):
            yield node.lineno + number, line
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if comment := _COMMENT.search(line):
            yield number, comment[0]


def manual_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page that are no listing."""
    is_listing = False
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if line.lstrip().startswith("```"):
            is_listing = not is_listing
        elif not is_listing and not line.startswith("    "):
            yield number, line


def wrong_span(tree: Tree, text: str, near: Path) -> bool:
    """Whether the text of a code span names something that is not there."""
    if re.search(r"[<>{}$\s:=\[\]]|\.\.\.|[A-Z]{2,}/", text):
        return False
    names = tree.names_for(near)
    if _PATH.fullmatch(text) or _FOLDER.fullmatch(text):
        # The code may write a file of this name, but no module into a folder of ours.
        is_module = text.endswith(".py") and "/" in text and tree.has_file(str(Path(text).parent), near)
        written = (not is_module and Path(text).stem in names) or text in tree.listings(near)
        return not (Path(text).stem.isupper() or written or tree.has_file(text, near))
    name = text.removesuffix("()")
    if (metric := _METRIC.fullmatch(name)) and metric[1] in names:
        return False
    if _DOTTED.fullmatch(text):
        parts = name.split(".")
        if parts[0] in tree.packages or parts[0] not in names:
            return False
        return any(part not in names and not part.isdigit() for part in parts)
    if _CLASS.fullmatch(text) or _SNAKE.fullmatch(text):
        return name not in names
    return False


@cache
def anchors_of(page: Path) -> set[str]:
    """The anchors of a page: those of its headings, as GitHub makes them, and those that it sets."""
    found = set()
    for _, line in manual_of(page):
        if line.startswith("#"):
            title = _LINKED.sub(r"\1", line.lstrip("#").strip()).lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
        found.update(re.findall(r'<a (?:id|name)="([\w-]+)"', line))
    return found


def wrong_target(tree: Tree, target: str, near: Path) -> bool:
    """Whether a link or citation leads to a page or heading that is not there."""
    if re.match(r"[a-z]+:", target):
        return False
    page, _, anchor = target.partition("#")
    path = near if not page else tree.root / page if page.startswith("docs/") else near.parent / page
    if not path.exists():
        return True
    return bool(anchor) and path.suffix == ".md" and anchor not in anchors_of(path)


def complaints(root: Path) -> Iterator[Complaint]:
    """Everything that leads nowhere, and every public class that shares its name with another one."""
    tree = Tree(root)
    texts = [(path, prose_of(path, module.docstrings)) for path, module in tree.modules.items()]
    texts += [(path, manual_of(path)) for path in tree.manual]
    for path, lines in texts:
        for number, line in lines:
            for span in _SPAN.finditer(line):
                if wrong_span(tree, span[2], path):
                    yield Complaint(path, number, f"`{span[2]}` does not exist")
            targets = _LINK.findall(line) if path.suffix == ".md" else _CITED.findall(line)
            for target in targets:
                if wrong_target(tree, target, path):
                    yield Complaint(path, number, f"{target} leads nowhere")
    settings = root / "pyproject.toml"
    for number, line in enumerate(settings.read_text("utf-8").split("\n"), 1):
        for text in re.findall(r'"((?:synrepl|tests|scripts)[/.][\w./*-]+)"', line):
            path = text if "/" in text else text.removesuffix(".*").replace(".", "/")
            module = path.rpartition("/")[0]  # of a name in a module
            if not any(tree.has_file(one, settings) for one in (path, f"{path}.py", f"{module}.py")):
                yield Complaint(settings, number, f"{text} does not exist")
    yield from shared_names(tree)


def shared_names(tree: Tree) -> Iterator[Complaint]:
    """Public classes of the library that share a name."""
    places: defaultdict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path, module in tree.modules.items():
        if path.is_relative_to(tree.root / "synrepl"):
            for name, line in module.classes:
                places[name].append((path, line))
    for name, found in places.items():
        for path, line in found[1:]:
            other = found[0][0].relative_to(tree.root)
            yield Complaint(path, line, f"class {name} has the name of another one in {other}")


def main(root: Path) -> int:
    """Print the complaints about this checkout; return 1 if there are any."""
    found = sorted(set(complaints(root)))
    for complaint in found:
        print(f"{complaint.file.relative_to(root)}:{complaint.line}: {complaint.what}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
