"""Rows: their schema in Arrow and Spark, the conversion of facts to rows, and the columns of one stream.

A row is a JSON array without names, whose items depend on the release that wrote it. A layout tells how tasks
decode rows into columns. It is plain data that travels to tasks by value; `synrepl.pipeline.typed` makes it
from the declarations in `synrepl.streams`.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

FACTS: Final = pa.schema(
    [
        pa.field("serial", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("writer", pa.string(), nullable=False),
        pa.field("prev_token", pa.int64(), nullable=False),
        pa.field("token", pa.int64(), nullable=False),
        pa.field("rows", pa.string(), nullable=False),
        pa.field("committed_at_ms", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)
"""The schema of a daemon's response: a line per fact, with its rows as a JSON array."""

ROWS: Final = pa.schema(
    [
        *(FACTS.field(name) for name in ("serial", "epoch", "stream", "writer", "prev_token", "token")),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("row", pa.string()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        FACTS.field("digest"),
    ]
)
"""The schema of rows: a line per row.

`seq` is the index of the row in its fact, from 0. `row` is its canonical JSON text, null in the only line of
a fact without rows (which certifies the position of its writer). `key` is the key of the row as a JSON array
(a row replaces older rows of the same stream and key), null if the row has no known key.
"""

PARQUET: Final = {
    "compression": "zstd",
    "use_dictionary": ["epoch", "stream", "writer", "seq"],
    "column_encoding": dict.fromkeys(
        ["serial", "prev_token", "token", "committed_at"], "DELTA_BINARY_PACKED"
    ),
    "write_page_checksum": True,
}
"""The options of Parquet files of rows: dictionaries of repeated values, differences of ascending ones.

The checksums of pages are for other programs; footers have none. Here the SHA-256 of a file decides.

With the defaults of pyarrow files are a third larger, and take twice the time to write.
"""

GROUP_ROWS: Final = 128 * 1024
"""Rows per row group of a Parquet file, the unit that readers load."""

DECODED_ROWS: Final = 256
"""Rows that are decoded from JSON at once. With more, Python searches the values for garbage while it makes
them: with the 65,536 rows of a file's batches that took two thirds of the time and more."""

COLUMNS: Final[tuple[str, ...]] = tuple(ROWS.names)

_SQL: Final = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def row_schema(columns: tuple[str, ...], own: Iterable[Any] = ()) -> Any:
    """Return the Arrow schema of these columns, in this order; `own` are the columns of a layout."""
    known = {field.name: field for field in (*ROWS, *own)}
    return pa.schema([known[name] for name in columns])


def spark_schema(columns: tuple[str, ...], own: Iterable[Any] = ()) -> str:
    """Return the Spark schema of these columns, as DDL."""
    return ", ".join(
        f"`{field.name}` {_SQL[field.type]}" + ("" if field.nullable else " NOT NULL")
        for field in row_schema(columns, own)
    )


def split_items(rows: str) -> list[str]:
    """Return the texts of the items of a JSON array in canonical form, unchanged."""
    # Local, since a module-level object cannot be pickled by value.
    decode = json.JSONDecoder().raw_decode
    found: list[str] = []
    at = 1
    while rows[at] != "]":
        _, end = decode(rows, at)
        found.append(rows[at:end])
        at = end + 1 if rows[end] == "," else end
    return found


def explode(facts: Any) -> Any:
    """Convert a record batch of facts (`FACTS`) to one of rows (`ROWS`), with null keys.

    Most facts have one row, whose text is the array without its brackets. Only facts that contain ``],[`` or
    that have no rows are parsed.
    """
    texts = facts["rows"]
    is_plain = pc.and_(pc.invert(pc.match_substring(texts, "],[")), pc.not_equal(texts, "[]"))
    if pc.all(is_plain, min_count=0).as_py():
        zeros = pa.repeat(pa.scalar(0, pa.int32()), len(facts))
        return _rows(facts, zeros, pc.utf8_slice_codeunits(texts, 1, -1))
    indexes: list[int] = []
    seqs: list[int] = []
    rows: list[str | None] = []
    for index, (text, plain) in enumerate(zip(texts.to_pylist(), is_plain.to_pylist(), strict=True)):
        found: list[Any] = [text[1:-1]] if plain else split_items(text) or [None]
        indexes += [index] * len(found)
        seqs += range(len(found))
        rows += found
    return _rows(facts.take(pa.array(indexes)), pa.array(seqs, pa.int32()), pa.array(rows, pa.string()))


def _rows(facts: Any, seqs: Any, rows: Any) -> Any:
    computed = {
        "seq": seqs,
        "key": pa.nulls(len(facts), pa.string()),
        "row": rows,
        "committed_at": pc.multiply(facts["committed_at_ms"], 1000).cast(pa.timestamp("us", tz="UTC")),
    }
    columns = [computed[name] if name in computed else facts[name] for name in ROWS.names]
    return pa.record_batch(columns, schema=ROWS)


RESERVED: Final = frozenset({*COLUMNS, "date", "last"})
"""The columns of the source, of archives and of snapshots. A field of such a name gets a ``_`` after it."""

TYPES: Final[Mapping[str, tuple[Any, Any]]] = {
    "string": (pa.string(), str),
    "long": (pa.int64(), int),
    "boolean": (pa.bool_(), bool),
    "json": (pa.string(), None),
}
"""The Arrow type and the Python type of each type of column; ``json`` accepts any value."""

DECLARED_TYPES: Final = {"str": "string", "int": "long", "bool": "boolean"}


@dataclass(frozen=True)
class Column:
    """A column: its name, and one of `TYPES`."""

    name: str
    type: str

    @property
    def sql_type(self) -> str:
        """The type in SQL."""
        return _SQL[self.arrow_type]

    @property
    def arrow_type(self) -> Any:
        """The type in Arrow."""
        return TYPES[self.type][0]


@dataclass(frozen=True)
class Form:
    """A shape of rows: the `tag` of its kind, if the stream has several, and the column of each item.

    An item without a column (-1) is not shown. A stream has one form of each tag and number of items.
    """

    tag: str
    items: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The columns of a stream, and the forms of its rows. In a stream with tags, column 0 has the tag."""

    columns: tuple[Column, ...]
    forms: tuple[Form, ...]

    @property
    def fields(self) -> tuple[Any, ...]:
        """The columns as Arrow fields."""
        return tuple(pa.field(column.name, column.arrow_type) for column in self.columns)

    @property
    def is_tagged(self) -> bool:
        """Whether rows are ``[tag, [items...]]``."""
        return any(form.tag for form in self.forms)


def make_layout(forms: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> Layout:
    """Return the layout of a stream from its forms: a tag, and the name and type of each item.

    An item without a name has no column. Of two forms with one tag and number of items the first counts. A
    field with different types in different forms is ``json``.
    """
    first: dict[tuple[str, int], Sequence[tuple[str, str]]] = {}
    for tag, items in forms:
        first.setdefault((tag, len(items)), items)
    types: dict[str, str] = {"kind": "string"} if any(tag for tag, _ in first) else {}
    for name, kind in chain.from_iterable(first.values()):
        if name and types.setdefault(name, kind) != kind:
            types[name] = "json"
    at = {"": -1} | {name: index for index, name in enumerate(types)}
    columns: list[Column] = []
    for name, kind in types.items():
        shown = name
        while shown in RESERVED or (shown != name and shown in types):
            shown += "_"
        columns.append(Column(shown, kind))
    ordered = (Form(tag, tuple(at[name] for name, _ in items)) for (tag, _), items in first.items())
    return Layout(tuple(columns), tuple(ordered))


def declared_layout(declared: Mapping[str, Any]) -> Layout:
    """Return the layout of a declared stream, as ``GET /v1/streams`` lists it."""
    columns = declared.get("columns") or {"value": "json"}
    items = [(name, DECLARED_TYPES.get(kind.removesuffix("?"), "json")) for name, kind in columns.items()]
    return make_layout([("", items)])


def decode_rows(layout: Layout, rows: Any, names: Collection[str] | None = None) -> dict[str, Any]:
    """Decode an Arrow array of rows into the columns of the layout, or those of these names, by name.

    A row that fits no form, or has a value of another type, has nulls only.
    """
    parts = [rows.slice(at, DECODED_ROWS) for at in range(0, len(rows) or 1, DECODED_ROWS)]
    found = [_decode(layout, part, names) for part in parts]
    return {name: pa.concat_arrays([one[name] for one in found]) for name in found[0]}


def _decode(layout: Layout, rows: Any, names: Collection[str] | None) -> dict[str, Any]:
    """Decode a few rows."""
    wanted = [names is None or column.name in names for column in layout.columns]
    # Made once: each call of json.dumps with options would make one.
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
    groups = _group_items(layout, _parse(rows.to_pylist()))
    found: list[Any] = [[None] * len(rows) for _ in layout.columns]
    for form in layout.forms:
        indexes, values = groups.get((form.tag, len(form.items)), ([], []))
        types = [TYPES[layout.columns[at].type][1] if at >= 0 else None for at in form.items]
        if not all(map(_fits, types, zip(*values, strict=True))):
            fitting = [all(map(_fits, types, zip(items, strict=True))) for items in values]
            indexes, values = list(compress(indexes, fitting)), list(compress(values, fitting))
        if not values:
            continue
        columns = [*zip(form.items, zip(*values, strict=True), strict=True)]
        if form.tag:
            columns.append((0, (form.tag,) * len(values)))
        for at, column in columns:
            if at < 0 or not wanted[at]:
                continue
            of: Sequence[Any] = column
            if layout.columns[at].type == "json":
                of = [None if value is None else encode(value) for value in column]
            if len(of) == len(rows):
                found[at] = of
            else:
                for index, value in zip(indexes, of, strict=True):
                    found[at][index] = value
    return {
        column.name: _array(values, column.arrow_type)
        for column, values, is_wanted in zip(layout.columns, found, wanted, strict=True)
        if is_wanted
    }


def _group_items(
    layout: Layout, rows: list[Any]
) -> dict[tuple[str, int], tuple[Sequence[int], Sequence[list[Any]]]]:
    """Return the indexes and the items of the rows that are arrays, by their tag and number of items."""
    is_tagged = layout.is_tagged
    if not is_tagged and rows and set(map(type, rows)) == {list} and len(sizes := set(map(len, rows))) == 1:
        return {("", sizes.pop()): (range(len(rows)), rows)}
    groups: dict[tuple[str, int], tuple[list[int], list[list[Any]]]] = {}
    for index, row in enumerate(rows):
        tag, items = "", row
        if is_tagged:
            if not (type(row) is list and len(row) == 2 and type(row[0]) is str):
                continue
            tag, items = row
        if type(items) is list:
            indexes, values = groups.setdefault((tag, len(items)), ([], []))
            indexes.append(index)
            values.append(items)
    return {**groups}


def _parse(texts: list[str | None]) -> list[Any]:
    """Parse rows at once, which is twice as fast, or one by one if a row is not JSON (its value is null)."""
    try:
        found: list[Any] = json.loads(f"[{','.join(text or 'null' for text in texts)}]")
    except (ValueError, RecursionError):
        found = []
    if len(found) == len(texts):
        return found
    return [None] if len(texts) == 1 else [value for text in texts for value in _parse([text])]


def _fits(kind: Any, values: tuple[Any, ...]) -> bool:
    """Whether these values are null or of this Python type. Integers have 64 bits."""
    if kind is None:
        return True
    if not set(map(type, values)) <= {kind, type(None)}:
        return False
    return kind is not int or all(value is None or -(2**63) <= value < 2**63 for value in values)


def _array(values: Any, kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # Half of a surrogate pair, which JSON can write.
        return pa.array([value and value.encode("utf-8", "replace").decode() for value in values], kind)
