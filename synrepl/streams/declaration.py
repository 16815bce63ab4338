"""Declarations: streams that operators declared, and the `Stream` made from each."""

import re
from collections.abc import Hashable, Mapping
from typing import Any, Final, Literal

from synrepl.streams.stream import FileReference, Stream, row
from synrepl.wire import jsontext
from synrepl.wire.text import MAX_NAME, is_name, printable

TYPES: Final[Mapping[str, Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "json": Any,
    "file": FileReference,
}
MAX_LISTED: Final = 100
"""Maximum number of columns, and of writers, of a stream."""

_name: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_column: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@row
class Declaration:
    """An operator declared a stream. A declaration cannot be changed later.

    `columns` maps names to types, in order (``str``, ``int``, ``float``, ``bool``, ``json`` or ``file``, with
    ``?`` if the value may be null). A ``file`` is an object with the ``sha256`` and the ``size`` of a stored
    file, which is kept as long as a row refers to it. Without `columns` a row has one item, any JSON. `key`
    names columns, or members of that item; with an empty key no row replaces another. Only `writers` may
    write the stream; an empty list means any writer. Facts of `kind` ``ephemeral`` are kept in memory, not in
    the log.
    """

    name: str
    key: list[str]
    kind: Literal["kept", "ephemeral"]
    columns: dict[str, str] | None
    writers: list[str]

    def __post_init__(self) -> None:
        if why := _mistake(self):
            raise ValueError(why)


def _mistake(one: Declaration) -> str:
    if not _name.fullmatch(one.name):
        return f"'{printable(one.name)}' is not a stream's name: a-z, then up to 63 of a-z, 0-9, _, . and -"
    columns = one.columns
    if columns is not None and not 0 < len(columns) <= MAX_LISTED:
        return f"{len(columns)} columns: give 1 to {MAX_LISTED}, or no `columns` at all for rows of any JSON"
    for name, kind in (columns or {}).items():
        if not _column.fullmatch(name):
            return f"{printable(name)} is not the name of a column: a-z, then up to 63 of a-z, 0-9 and _"
        if kind.removesuffix("?") not in TYPES:
            return (
                f"column {name} has the unknown type {printable(kind)}; known are {', '.join(TYPES)},"
                " with ? if the value may be null"
            )
    if len(set(one.key)) < len(one.key):
        return f"the key names a column twice: {printable(', '.join(one.key))}"
    for name in one.key:
        if not _column.fullmatch(name) or (columns is not None and name not in columns):
            return f"the key names {printable(name)}, which is not a column"
        if columns is not None and (kind := columns[name].removesuffix("?")) in ("json", "file"):
            what = "lists" if kind == "json" else "objects"
            return f"the key names {name}, but a column of type {kind} can hold {what}, which no key can"
    if one.kind == "ephemeral" and (files := file_columns(one)):
        return f"column {files[0]} is a file, which facts in memory cannot keep: declare a kept stream"
    if len(one.writers) > MAX_LISTED or not all(map(is_name, one.writers)):
        return f"`writers` must be at most {MAX_LISTED} words of at most {MAX_NAME} printable characters"
    return ""


def difference(known: Declaration, wanted: Declaration) -> str:
    """How a declaration differs from the known one of the same stream; empty if they are equal."""
    pairs = ((name, getattr(known, name), getattr(wanted, name)) for name in known.__struct_fields__)  # type: ignore[attr-defined]  # `row` makes a struct
    texts = ((name, jsontext.dumps(ours), jsontext.dumps(theirs)) for name, ours, theirs in pairs)
    return ", ".join(f"{name} {a.decode()} and not {b.decode()}" for name, a, b in texts if a != b)


def stream_of(declared: Declaration) -> Stream[Any]:
    """Return the stream that was declared. Raises `ConfigError` if it cannot be made."""
    names = tuple(declared.key)
    body: dict[str, Any]
    if declared.columns is not None:
        body = {"__annotations__": {name: _type(kind) for name, kind in declared.columns.items()}}
        key: Any = names or None
    else:

        def check(self: Any) -> None:
            for name in names:
                if not isinstance(self.value, dict) or name not in self.value:
                    raise ValueError(f"value (item 0) is not a JSON object with {name}, which is in the key")
                if isinstance(self.value[name], list | dict):
                    raise ValueError(
                        f"value (item 0) has a list or an object for {name}, which is in the key"
                    )

        def members(row: Any) -> tuple[Hashable, ...]:
            return tuple(row.value[name] for name in names)

        body = {"__annotations__": {"value": Any}, "__post_init__": check}
        key = members if names else None
    rows: type[Any] = row(type("Row", (), body))
    return Stream(
        declared.name,
        rows,
        key=key,
        ephemeral=declared.kind == "ephemeral",
        on_request=True,
        files=file_columns(declared),
    )


def file_columns(declared: Declaration) -> tuple[str, ...]:
    """Return the names of the columns that refer to files."""
    columns = declared.columns or {}
    return tuple(name for name, kind in columns.items() if kind.removesuffix("?") == "file")


def _type(kind: str) -> Any:
    plain = TYPES[kind.removesuffix("?")]
    return plain | None if kind.endswith("?") and plain is not Any else plain
