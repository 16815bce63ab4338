"""The reference of the public API, derived from signatures and docstrings."""

import ast
import inspect
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from textwrap import dedent
from typing import Any, Final, cast, get_args

import msgspec

import synrepl
import synrepl.streams.catalog
import synrepl.testing
from synrepl.config import Settings, settings
from synrepl.config.settings import settings_class
from synrepl.streams.stream import Stream

__all__ = ["library_reference"]

INTRO: Final = """\
This page has every public name of the library, with its signature. All other names may change in any
release.

| package | has |
|---|---|
| `synrepl` | followers, positions, caches, id generators, publishers, errors |
| `synrepl.streams` | the streams of the catalog and the classes of their rows, [below](#streams-and-rows) |
| `synrepl.wire.commands` | the commands of the line protocol, by the names in [Wire](wire.md) |
| `synrepl.testing` | daemons and workers in memory on a fake clock, [below](#synrepl-testing) |
| `synrepl.pipeline.source.data_source` | [`register(spark)`](../howto/spark.md) for Spark without synrepl |
| `synrepl.pipeline.typed` | [`typed` and `columns`](../howto/spark.md): a column for each field |

`import synrepl` imports no Twisted and installs no reactor: each name is loaded on first use. Times are in
seconds, sizes in bytes. Methods must be called in the reactor's thread unless said otherwise."""

GROUPS: Final = {
    "Connect a follower, or serve followers": ("connect", "serve"),
    "Follow streams": ("Follower", "Updates", "FollowerEvent", "VClock"),
    "Keep positions": ("FilePositions", "SQLPositions", "IPositionStore"),
    "Cache results": ("Caches", "Vintage", "Invalidation", "Changes", "InvalidationWriter"),
    "Declare streams": ("Stream", "row", "Since", "Gone", "StreamTable"),
    "Reserve ids": (
        "IdStream", "IdTable", "WriterSession", "MultiWriterIdGenerator", "StreamIdGenerator", "transact",
        "AllocatedIds",
    ),
    "Publish a log": ("Publisher", "Metrics", "Settings"),
    "Choose a release": ("Dialect", "LEGACY", "MIDDLE", "CURRENT", "NATIVE"),
}  # fmt: skip
"""The names of `synrepl` besides errors, by purpose."""

SHOWN: Final = {
    "Metrics": {"watch_caches"},
    "Publisher": {"append", "on_command", "syncing_users", "positions", "linear_position", "stop"},
    "Settings": {"build"},
}
"""The methods on the page, for classes whose other methods are for transports and the daemon."""

WIDTH: Final = 100


def library_reference() -> Iterator[str]:
    """Yield the lines of the page after its title. Raises `AssertionError` if `GROUPS` lacks a name."""
    yield INTRO
    errors = [name for name in synrepl.__all__ if _is_error(getattr(synrepl, name))]
    placed = {name for names in GROUPS.values() for name in names} | set(errors)
    assert placed == set(synrepl.__all__), placed ^ set(synrepl.__all__)
    for title, names in GROUPS.items():
        yield from ("", f"## {title}")
        for name in names:
            yield from _entry(name, getattr(synrepl, name))
    yield from ("", "## Errors", "", "Every error is a `ReplicationError`.", "")
    yield from ("| error | is a | meaning |", "|---|---|---|")
    for name in errors:
        error = getattr(synrepl, name)
        yield f"| `{name}` | `{error.__base__.__name__}` | {_first_sentence(error)} |"
    yield from ("", "## Streams and rows", "")
    yield "In `synrepl.streams`. [Streams](streams.md) has their fields, and the releases that have each."
    yield from ("", "| constant | stream | rows |", "|---|---|---|")
    for name, found in sorted(vars(synrepl.streams.catalog).items()):
        if isinstance(found, Stream):
            rows = ", ".join(f"`{kind.row.__name__}`" for kind in found._kinds)
            yield f"| `{name}` | [`{found.name}`](streams.md#{found.name}) | {rows} |"
    yield from ("", "## synrepl testing")
    for name in synrepl.testing.__all__:
        yield from _entry(name, getattr(synrepl.testing, name))


def _entry(name: str, found: Any) -> Iterator[str]:
    yield from ("", f"### {name}", "")
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        yield f"`{found!r}`"
        return
    if found is not Settings:  # a table has its fields
        yield from _signature(name, found)
    yield from markdown(inspect.getdoc(found) or "")
    if not inspect.isclass(found):
        return
    shared = [base for base in found.__mro__[1:] if base in _public()]
    for base in shared:
        yield from ("", f"`{name}` also has the methods of [`{base.__name__}`](#{base.__name__.lower()}).")
    if found is Settings:
        yield from ("", "| field | type | default | |", "|---|---|---|---|")
        types = {field.name: field.type for field in fields(settings_class())}
        for one in settings():
            meaning = one.help.replace("|", "\\|")
            yield f"| `{one.name}` | `{_type_text(types[one.name])}` | `{one.default_text}` | {meaning} |"
    for member, method in _members(found, shared):
        yield from ("", f"#### {name}.{member}", "")
        yield from _signature(member, method)
        yield from markdown(inspect.getdoc(method) or "")


def _type_text(of: Any) -> str:
    """The name of a type in a table, where a bar would end the cell."""
    text = of.__name__ if isinstance(of, type) and not get_args(of) else str(of)
    return re.sub(r"\b\w+\.", "", text).replace("|", "\\|")


@cache
def _public() -> frozenset[Any]:
    found = [getattr(module, name) for module in (synrepl, synrepl.testing) for name in module.__all__]
    return frozenset(one for one in found if inspect.isclass(one))


def _members(cls: type, shared: list[type]) -> Iterator[tuple[str, Any]]:
    """The documented public methods and properties, those of bases without an entry of their own included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if _is_ours(base) and base not in shared:
            found.update(vars(base))
    shown = SHOWN.get(cls.__name__, found.keys())
    for name, member in found.items():
        is_callable = isinstance(member, (property, staticmethod, classmethod, types.FunctionType))
        if is_callable and not name.startswith("_") and name in shown and inspect.getdoc(member):
            yield name, member


def _signature(name: str, found: Any) -> Iterator[str]:
    """How `found` is declared in the source, in a fence, with a line for each parameter if it is long."""
    if isinstance(found, property):
        yield from ("```python", f"{name}: {_text(_definition(found.fget).returns)}", "```", "")
        return
    texts: list[str]
    if inspect.isclass(found):
        head, end = f"class {name}", ""
        if issubclass(found, msgspec.Struct) or is_dataclass(found):
            texts = _fields(found)
        elif inspect.isfunction(found.__init__) and _is_ours(found.__init__):
            texts = _parameters(_definition(found.__init__), is_method=True)
        else:
            texts = []
    else:
        function = inspect.unwrap(getattr(found, "__func__", found))
        definition = _definition(function)
        head = f"{'async ' * isinstance(definition, ast.AsyncFunctionDef)}def {name}"
        is_method = "." in function.__qualname__ and not isinstance(found, staticmethod)
        texts = _parameters(definition, is_method=is_method)
        end = f" -> {_text(definition.returns)}"
    line = f"{head}({', '.join(texts)}){end}"
    if len(line) > WIDTH:
        line = "\n".join([f"{head}(", *(f"    {text}," for text in texts), f"){end}"])
    yield from ("```python", line, "```", "")


def _definition(function: Any) -> "ast.FunctionDef | ast.AsyncFunctionDef":
    node = ast.parse(dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node


def _parameters(node: "ast.FunctionDef | ast.AsyncFunctionDef", *, is_method: bool) -> list[str]:
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
    texts = [_parameter(*pair) for pair in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        texts.insert(len(given.posonlyargs), "/")
    if given.vararg is not None:
        texts.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        texts.append("*")
    texts += [_parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        texts.append(f"**{_parameter(given.kwarg, None)}")
    return texts[is_method:]


def _parameter(declared: ast.arg, default: ast.expr | None) -> str:
    text = declared.arg if declared.annotation is None else f"{declared.arg}: {_text(declared.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _fields(struct: type) -> list[str]:
    """The fields of a struct as parameters."""
    body = cast(ast.ClassDef, ast.parse(dedent(inspect.getsource(struct))).body[0]).body
    kinds = {one.kind for one in inspect.signature(struct).parameters.values()}
    return ["*"] * (kinds == {inspect.Parameter.KEYWORD_ONLY}) + [
        "*"
        if ast.unparse(node.annotation) == "KW_ONLY"
        else f"{ast.unparse(node.target)}: {_text(node.annotation)}"
        + ("" if node.value is None else f" = {ast.unparse(node.value)}")
        for node in body
        if isinstance(node, ast.AnnAssign)
    ]


def _text(annotation: ast.expr | None) -> str:
    if annotation is None:
        return "None"
    return str(annotation.value) if isinstance(annotation, ast.Constant) else ast.unparse(annotation)


def _is_ours(found: Any) -> bool:
    return str(found.__module__).partition(".")[0] == "synrepl"


def _is_error(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Exception)


def _first_sentence(found: Any) -> str:
    paragraph = (inspect.getdoc(found) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


def markdown(docstring: str, language: str = "python") -> Iterable[str]:
    """Return a docstring as Markdown: fences go around doctests, and around blocks after a double colon.

    These blocks are in `language`.
    """
    lines: list[str] = []
    fence = ""
    is_code_next = False
    for line in docstring.splitlines():
        is_indented = line.startswith("    ")
        if fence == "```" and line and not is_indented:
            _close(lines)
            fence = ""
        elif fence == "doctest" and not line:
            lines.append("```")
            fence = ""
        if not fence and line.startswith(">>> "):
            lines += ["```pycon"]
            fence = "doctest"
        elif not fence and is_code_next and is_indented:
            lines += [f"```{language}"]
            fence = "```"
        if line.endswith("::") and not fence:
            is_code_next = True
            lines += [line[:-1]] if line != "::" else []
            continue
        is_code_next &= not line or bool(fence)
        if line or fence or not lines or lines[-1]:
            lines.append(line[4:] if fence == "```" else line)
    if fence == "```":
        _close(lines)
    elif fence:
        lines.append("```")
    return lines


def _close(lines: list[str]) -> None:
    """End a fence before the empty lines at the end."""
    count = 0
    while not lines[-1]:
        lines.pop()
        count += 1
    lines += ["```", *[""] * count]
