"""Typed streams: rows as columns with names and types, from the declarations of the streams.

::

    from synrepl.pipeline.typed import columns, typed

    receipts = typed(spark.read.format("delta").load("archive"), "receipts")
    columns("receipts")  # (("room_id", "string"), ("receipt_type", "string"), ...)

`typed` computes in SQL expressions, so that executors need neither Python nor synrepl. The source
``format("synrepl")`` with the option `stream` has the same columns.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from synrepl.errors import UnknownStream
from synrepl.pipeline.source.rows import Column, Form, Layout, declared_layout, make_layout
from synrepl.streams.shapes import ShapeField
from synrepl.streams.stream import Stream
from synrepl.streams.table import StreamTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["catalog_layouts", "columns", "layout_of", "typed"]

ITEMS: Final = "__items"
KIND: Final = "__kind"
TYPES: Final = "__types"
FORM: Final = "__form"

PLAIN: Final[Mapping[Any, str]] = {
    str: "string",
    int: "long",
    bool: "boolean",
    None: "null",
    types.NoneType: "null",
}


def columns(stream: str, declared: Iterable[Mapping[str, Any]] = ()) -> tuple[tuple[str, str], ...]:
    """Return the names and SQL types (string, bigint, boolean) of a stream's own columns.

    Values of other types are JSON text. `declared` are the declared streams, as ``GET /v1/streams`` lists
    them. Raises `UnknownStream`.
    """
    return tuple((one.name, one.sql_type) for one in layout_of(stream, declared).columns)


def typed(frame: "DataFrame", stream: str, declared: Iterable[Mapping[str, Any]] = ()) -> "DataFrame":
    """Return the rows of a stream with its own columns, after those of the frame.

    `frame` has the column `row`; it is an archive, a snapshot, or read from the source, also as a stream. If
    it has a column `stream`, other streams are left out. Columns that an old row lacks are null; so are all
    columns of a row that does not fit the declaration. Raises `UnknownStream`.
    """
    from pyspark.sql import functions

    layout = layout_of(stream, declared)
    shown = list(frame.columns)
    if "stream" in shown:
        frame = frame.where(functions.col("stream") == stream)
    # One step for each expression that is used several times: Spark computes it once for each row.
    frame = frame.selectExpr("*", f"try_cast(try_parse_json(row) AS ARRAY<VARIANT>) AS {ITEMS}")
    if layout.is_tagged:
        kind = f"CASE WHEN size({ITEMS}) = 2 THEN try_variant_get(get({ITEMS}, 0), '$', 'string') END"
        items = f"try_cast(get({ITEMS}, 1) AS ARRAY<VARIANT>) AS {ITEMS}"
        frame = frame.selectExpr(*_quoted(shown), f"{kind} AS {KIND}", items)
    frame = frame.selectExpr("*", f"transform({ITEMS}, item -> schema_of_variant(item)) AS {TYPES}")
    forms = " ".join(f"WHEN {_fits(layout, form)} THEN {at}" for at, form in enumerate(layout.forms))
    frame = frame.selectExpr("*", f"CASE {forms} END AS {FORM}")
    return frame.selectExpr(*_quoted(shown), *(_column(layout, at) for at in range(len(layout.columns))))


def layout_of(stream: str, declared: Iterable[Mapping[str, Any]] = ()) -> Layout:
    """Return the layout of a stream. Raises `UnknownStream`."""
    layout = catalog_layouts().get(stream)
    if layout is not None:
        return layout
    for one in declared:
        if one["name"] == stream:
            return declared_layout(one)
    raise UnknownStream(stream)


@cache
def catalog_layouts() -> Mapping[str, Layout]:
    """Return the layouts of the streams of Synapse and of synrepl, by name."""
    return {stream.name: _layout(stream) for stream in StreamTable.default()}


def _layout(stream: Stream[Any]) -> Layout:
    return make_layout(
        (kind.tag, [("" if field.gone and not field.kept else field.name, _type(field)) for field in shape])
        for kind in stream._kinds  # the shapes of all releases, the newest first
        for shape in kind.shapes.known
    )


def _type(field: ShapeField) -> str:
    found = _names(field.type) - {"null"}
    return found.pop() if len(found) == 1 else "json"


def _names(annotation: Any) -> set[str]:
    """Return the types of columns that values of this annotation need."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _names(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(_names, arguments))
    if origin is Literal:
        return {PLAIN.get(type(value), "json") for value in arguments}
    return {PLAIN.get(annotation, "json")}


def _fits(layout: Layout, form: Form) -> str:
    conditions = [f"size({ITEMS}) = {len(form.items)}"]
    if form.tag:
        conditions.append(f"{KIND} = '{form.tag}'")
    for index, at in enumerate(form.items):
        if at >= 0 and layout.columns[at].type != "json":
            variant = layout.columns[at].sql_type.upper()
            conditions.append(f"get({TYPES}, {index}) IN ('{variant}', 'VOID')")
    return " AND ".join(conditions)


def _column(layout: Layout, at: int) -> str:
    column = layout.columns[at]
    cases = [
        f"WHEN {number} THEN {_value(column, form.items.index(at))}"
        for number, form in enumerate(layout.forms)
        if at in form.items
    ]
    if layout.is_tagged and at == 0:
        cases = [f"WHEN {number} THEN {KIND}" for number in range(len(layout.forms))]
    return f"CASE {FORM} {' '.join(cases)} END AS `{column.name}`"


def _value(column: Column, index: int) -> str:
    value = f"get({ITEMS}, {index})"
    if column.type == "json":
        return f"CASE WHEN get({TYPES}, {index}) != 'VOID' THEN to_json({value}) END"
    return f"try_variant_get({value}, '$', '{column.sql_type}')"


def _quoted(names: Iterable[str]) -> list[str]:
    return [f"`{name.replace('`', '``')}`" for name in names]
