"""Finds circles of imports: modules of which none can be read, tested or moved without all the others.

A circle that only imports for types (under ``if TYPE_CHECKING``) close is one too: move what both need to a
lower module, or state in a `Protocol` what the lower one needs of the upper one. Only in the folders of
`ENTANGLED` the lower one names the class that made it. An import inside a function is one at run time: it
hides a circle, and does not break it. The ``__init__`` of a package counts where it is imported by its name.

    circles.py FOLDER
"""

import ast
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ENTANGLED: Final = {
    "synrepl.channel.resp": "the port makes connections, which make clients; a command asks the port of its"
    " client for the cache, the channel, the keys and the other clients",
    "synrepl.replicas.roles": "claims, rivals and the manager decide together: each asks the two others for"
    " what they know, and the manager acts",
    "synrepl.replication.serving": "the publisher makes followers; each uses its log, encoders, senders,"
    " broadcasts, commands, epochs and tasks",
    "synrepl.transports.redis": "a link makes two connections, which use its settings, member and state",
}
"""Folders in which imports for types may close a circle, and what the modules need of each other.

That is nearly all that the upper one has: a `Protocol` would be that class once more, and a reader would have
to read both. These modules are read and moved together.
"""


class Import(NamedTuple):
    """A module that imports another one of the same package."""

    by: str
    of: str
    for_types: bool


def module_name(path: Path, folder: Path) -> str:
    """The dotted name of the module in this file, of the package in `folder`."""
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_for_types(node: ast.If) -> bool:
    """Whether this is ``if TYPE_CHECKING``."""
    match node.test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False


def imported_names(nodes: Iterable[ast.AST], *, for_types: bool = False) -> Iterator[tuple[str, bool]]:
    """The dotted names that these nodes import, and whether for types only. All imports are absolute."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, for_types) for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from ((f"{module}.{alias.name}", for_types) for alias in names)
            case ast.If() if is_for_types(node):
                yield from imported_names(node.body, for_types=True)
                yield from imported_names(node.orelse, for_types=for_types)
            case _:
                yield from imported_names(ast.iter_child_nodes(node), for_types=for_types)


def imports_of(folder: Path) -> set[Import]:
    """The imports among the modules of the package in `folder`."""
    modules = {module_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
    found = set()
    for by, path in modules.items():
        for name, for_types in imported_names([ast.parse(path.read_text("utf-8"), str(path))]):
            of = name if name in modules else name.rpartition(".")[0]  # a name in a module
            if of in modules and of != by:
                found.add(Import(by, of, for_types))
    return found


def circles(imports: Iterable[Import]) -> list[list[str]]:
    """The largest sets of modules in which each one leads to every other one."""
    below: dict[str, set[str]] = {}
    for one in imports:
        below.setdefault(one.by, set()).add(one.of)
    reached = {module: _reached(module, below) for module in below}
    found = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
        for module in below
        if module in reached[module]
    }
    return [list(circle) for circle in sorted(found)]


def _reached(module: str, below: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    left = [module]
    while left:
        for other in below.get(left.pop(), ()):
            if other not in reached:
                reached.add(other)
                left.append(other)
    return reached


def complaints(imports: set[Import], entangled: Collection[str] = ()) -> Iterator[str]:
    """Every circle, but for those by imports for types within a folder that is `entangled`."""
    at_run_time = {one for one in imports if not one.for_types}
    errors = circles(at_run_time)
    for circle in errors:
        yield f"circle at run time: {_ties(circle, at_run_time)}"
    used: set[str] = set()
    for circle in circles(imports):
        folders = {module.rpartition(".")[0] for module in circle}
        if circle in errors:
            continue
        if len(folders) > 1 or not folders <= set(entangled):
            yield f"circle by imports for types: {_ties(circle, imports)}"
        used |= folders
    modules = {one.by for one in imports}
    for folder in entangled:
        if folder not in used and any(module.startswith(f"{folder}.") for module in modules):
            yield f"no circle in {folder}: take it off the list of those that have one"


def _ties(circle: Iterable[str], imports: Iterable[Import]) -> str:
    inside = set(circle)
    ties = sorted({(one.by, one.of) for one in imports if {one.by, one.of} <= inside})
    return ", ".join(f"{by} -> {of}" for by, of in ties)


def main(folder: Path) -> int:
    """Print the complaints about this package; return 1 if there are any."""
    found = list(complaints(imports_of(folder), ENTANGLED))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
