"""Row shapes: how one kind of row looked in each release, and conversion between shapes.

A row is a JSON array without names, so its shape is the order of its fields in some release
(docs/reference/peers.md#row-shapes). Received rows of any known shape are upgraded to the newest one
(`Shapes.read`). Sent rows are projected from the newest shape to the fields that a release knows
(`RowKind.project`). All other code sees the newest shape only.

Newer releases dropped some fields that older followers need. If such a field is `kept` and its value is not
the default, the row carries it after the fields of the newest shape. That longer shape is read like any
other. Logs and replicas keep the field; of homeserver peers only releases that have it receive it.
"""

import re
import types
import typing
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, Final, Literal

import msgspec

from synrepl.errors import ConfigError
from synrepl.wire import jsontext
from synrepl.wire.dialect import ALWAYS, Dialect, Release, Span

# Exceptions of the decoder on hostile text: bad JSON, bad UTF-8, huge numbers, deep nesting.
undecodable = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

_FLOAT = re.compile(rb"[0-9][.eE]")
_NO_DEFAULT: Any = object()

# Without `gc`: rows hold only what JSON has, and the garbage collector need not run for each 700 of them.
array_struct: Final = partial(
    msgspec.defstruct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False
)
"""Make a class of rows, which are written as JSON arrays."""


class BoolSpelling(msgspec.Struct, frozen=True):
    """Marks a boolean that some masters write differently (docs/reference/peers.md#json).

    `accepts` is the type of the accepted values; `read` converts one to a bool.
    """

    accepts: Any
    read: Callable[[Any], bool]


class ShapeField(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One item of a row, and the releases that have it.

    `type` is the type in the newest shape; `spelling` lists other accepted spellings of a boolean. A `gone`
    field is in some older shape but not in the newest one. `default` is the field's value for rows that lack
    the field, both received and sent. The value of a `kept` field stays with the row.
    """

    name: str
    type: Any
    spelling: BoolSpelling | None = None
    span: Span = ALWAYS
    default: Any = _NO_DEFAULT
    gone: bool = False
    kept: bool = False


Shape = tuple[ShapeField, ...]


def may_hold_float(annotation: Any) -> bool:
    """Whether values of this type can hold a float, or any value.

    Apart from escapes of text, only floats are written differently by JSON encoders. Raises ConfigError for
    types that JSON lacks.
    """
    if annotation in (str, int, bool, None, types.NoneType):
        return False
    if annotation in (float, Any, object, list, dict):
        return True
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Literal:
        return False
    if origin is dict and arguments[0] is not str:
        raise ConfigError(f"{annotation} cannot be in a row: the keys of JSON objects must be strings")
    if typing.is_typeddict(annotation):
        answers = [may_hold_float(member) for member in typing.get_type_hints(annotation).values()]
        return any(answers)
    if origin in (list, dict, typing.Union, types.UnionType, typing.Annotated):
        inner = arguments[:1] if origin is typing.Annotated else arguments
        answers = [may_hold_float(argument) for argument in inner]  # Check all: each may raise.
        return any(answers)
    raise ConfigError(
        f"{annotation} cannot be in a row: use what JSON has, such as str, int, list[str] or None"
    )


class _RowDecoder:
    """Decodes one shape with one spelling of booleans, and upgrades its rows to the newest shape."""

    __slots__ = ("decode", "extras", "is_newest", "items", "indexes", "strict", "converters", "wider")

    def __init__(
        self,
        newest: type[Any],
        shape: Shape,
        final: Shape,
        kept: Shape,
        kept_row: Any,
        *,
        strict: "_RowDecoder | None",
    ) -> None:
        self.items = len(shape)
        self.strict = strict
        # Kept fields that rows of this shape may have, besides those of the newest shape.
        fields = kept if set(kept) & set(shape) else ()
        self.wider = kept_row if fields else newest
        self.extras = tuple((shape.index(one) if one in shape else -1, one.default) for one in fields)
        # Converters of booleans that may be spelled differently, by index.
        self.converters = {
            index: field.spelling.read
            for index, field in enumerate(shape)
            if strict is not None and field.spelling is not None
        }
        self.is_newest = shape == final and not self.converters
        self.indexes = tuple(
            (shape.index(field), None) if field in shape else (-1, field.default) for field in final
        )
        struct: Any = newest
        if not self.is_newest:
            struct = array_struct(
                newest.__name__,
                [
                    (field.name, field.spelling.accepts if strict and field.spelling else field.type)
                    for field in shape
                ],
            )
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(struct).decode

    def upgrade(self, row: Any, newest: type[Any]) -> tuple[Any, bool]:
        """Return the row in its newest shape, and whether each boolean was written as true or false."""
        values = list(msgspec.structs.astuple(row))
        plain = True
        for index, read in self.converters.items():
            value = values[index]
            if value is not True and value is not False:
                plain = False
                values[index] = read(value)
        fields = [default if at < 0 else values[at] for at, default in self.indexes]
        if any(at >= 0 and values[at] != default for at, default in self.extras):
            extras = [default if at < 0 else values[at] for at, default in self.extras]
            return self.wider(*fields, *extras), plain
        return newest(*fields), plain


class Shapes:
    """Reads rows of any known shape, the likeliest first.

    The shape that matched last for a release is tried first, so a consistent peer costs one decode per row.
    If two shapes have the same number of items, the declared shape of the release always comes first. Rows of
    the type `kept_row` have the fields `kept` of older releases after those of the newest shape.
    """

    def __init__(
        self,
        newest: type[Any],
        final: Shape,
        by_release: list[tuple[Release, Shape]],
        kept: Shape = (),
        kept_row: Any = None,
    ) -> None:
        self.newest = newest
        self._by_release = by_release
        shapes = [shape for _, shape in reversed(by_release)]
        if kept:
            shapes.append(final + kept)
        self.known: tuple[Shape, ...] = tuple(dict.fromkeys(shapes))
        self._kept = kept
        self._kept_row = kept_row
        self._final = final
        self._decoders: dict[Shape, list[_RowDecoder]] = {}
        # Here, so that a type of a field that cannot be read is noticed when it is declared.
        for shape in self.known[:1]:
            self._decoders_of(shape)
        lengths = [len(shape) for shape in self.known]
        self._ambiguous = {length for length in lengths if lengths.count(length) > 1}
        self._last: dict[Release, _RowDecoder] = {}

    def read(self, text: bytes, release: Release) -> Any:
        """The row in `text`, in the newest shape; None if it has no known shape."""
        decoder = self._last.get(release)
        if decoder is not None:
            try:
                row = decoder.decode(text)
            except undecodable:
                return self._search(text, release)
            return row if decoder.is_newest else self._upgrade(row, decoder, release)
        return self._search(text, release)

    def is_newest(self, release: Release) -> bool:
        """Whether the shape that matched last for this release is the newest one."""
        decoder = self._last.get(release)
        return decoder is not None and decoder.is_newest

    def read_many(self, texts: list[bytes], release: Release) -> list[Any] | None:
        """The rows in these texts; None if they must be read one by one."""
        if not self.is_newest(release):
            return None
        decode = self._last[release].decode
        try:
            return [decode(text) for text in texts]
        except undecodable:
            return None

    def of(self, release: Release) -> Shape:
        """The declared shape of this release; the oldest known shape if the release is older."""
        own = self._by_release[0][1]
        for since, shape in self._by_release:
            if since <= release:
                own = shape
        return own

    def _search(self, text: bytes, release: Release) -> Any:
        own = self.of(release)
        for shape in (own, *(shape for shape in self.known if shape is not own)):
            for decoder in self._decoders_of(shape):
                try:
                    row = decoder.decode(text)
                except undecodable:
                    continue
                if shape is own or len(shape) not in self._ambiguous:
                    self._last[release] = decoder
                return row if decoder.is_newest else self._upgrade(row, decoder, release)
        return None

    def _decoders_of(self, shape: Shape) -> "list[_RowDecoder]":
        """Return the decoders of a shape, made on first use: most peers are of few releases."""
        if (found := self._decoders.get(shape)) is None:
            make = partial(_RowDecoder, self.newest, shape, self._final, self._kept, self._kept_row)
            found = [strict := make(strict=None)]
            if any(field.spelling for field in shape):
                found.append(make(strict=strict))
            self._decoders[shape] = found
        return found

    def _upgrade(self, row: Any, decoder: _RowDecoder, release: Release) -> Any:
        upgraded, plain = decoder.upgrade(row, self.newest)
        if plain and decoder.strict is not None and self._last.get(release) is decoder:
            self._last[release] = decoder.strict
        return upgraded


class Projection(msgspec.Struct, frozen=True):
    """How one kind of row is written for a release.

    `pick` takes what is written from the row's items, followed by `more`: the JSON texts of the kept fields'
    defaults, for a row without kept fields, and of the defaults of fields that no newest row has. The newest
    shape has `newest` fields. `head` and `tail` are what is around the items of a tagged row.
    """

    head: bytes
    tail: bytes
    pick: Callable[[list[bytes | msgspec.Raw]], Iterable[bytes | msgspec.Raw]]
    more: list[bytes]
    newest: int
    is_spaced: bool
    is_whole: bool

    def text(self, items: list[bytes | msgspec.Raw]) -> bytes:
        """The text of a row with these items."""
        if self.more:
            items = items + self.more[len(items) - self.newest :]
        return self.head + jsontext.join(self.pick(items), spaced=self.is_spaced) + self.tail


class Declared(msgspec.Struct, frozen=True):
    """What a class of rows declares. If `flat` has an end, its rows had no tag in the releases before."""

    fields: Shape
    tag: str
    span: Span
    flat: Span


class RowKind:
    """One kind of row of a stream, over all releases.

    Most streams have one kind. Rows of several kinds are tagged: ``["ev",[...]]``. If the `flat` span has an
    end, rows were bare fields until that release.
    """

    def __init__(self, row: type[Any], declared: Declared, gone: Iterable[tuple[str, ShapeField]]) -> None:
        self.row = row
        self.tag = tag = declared.tag
        self.span = declared.span
        self.flat = declared.flat
        self.head = b"[" + jsontext.dumps(tag) + b"," if tag else b""
        self.tail = b"]" if tag else b""
        self._final = final = declared.fields
        self._fields = _in_order(final, list(gone))
        self.kept = tuple(field for field in self._fields if field.kept)
        """The kept fields of older releases."""
        self.kept_row: Any = row
        """The type of rows that have the kept fields after those of the newest shape."""
        if self.kept:
            fields = [(field.name, field.type) for field in self.kept]
            self.kept_row = array_struct(row.__name__, fields, bases=(row,), module=row.__module__)
        self._may_hold_float = any(
            may_hold_float(field.type) for field in self._fields if field.kept or not field.gone
        )
        self.shapes = Shapes(row, final, self._releases(flat=False), self.kept, self.kept_row)
        tagged: Any = tuple[Literal[tag], row]  # type: ignore[valid-type]
        self._decode_tagged = msgspec.json.Decoder(tagged).decode
        self.flat_shapes = Shapes(row, final, self._releases(flat=True)) if self.flat.until else None

    def shape(self, release: Release) -> Shape:
        """The fields that rows of this kind have in a release, in order."""
        return tuple(field for field in self._fields if release in field.span)

    def read_many_tagged(self, texts: list[bytes], release: Release) -> list[Any] | None:
        """The rows after this kind's tag in these texts; None if they must be read one by one."""
        if not self.shapes.is_newest(release):
            return None
        decode = self._decode_tagged
        try:
            return [decode(text)[1] for text in texts]
        except undecodable:
            return None

    def write(self, row: Any) -> bytes:
        """The canonical text of a checked row.

        msgspec writes the same text as `jsontext`, with these exceptions: it does not escape non-ASCII and
        0x7f, and it writes exponents differently: 1e16 rather than 1e+16.
        """
        text = msgspec.json.encode(row)
        if not text.isascii() or b"\x7f" in text or (self._may_hold_float and _FLOAT.search(text)):
            text = jsontext.dumps(msgspec.structs.astuple(row))
        return self.head + text + self.tail if self.head else text

    def projection_for(self, dialect: Dialect) -> Projection | None:
        """How rows of this kind are written for a release; None if the release does not know them."""
        release = dialect.release
        if release not in self.span:
            return None
        shape = self.shape(release)
        is_flat = self._is_flat(release)
        is_spaced = jsontext.is_spaced(dialect)
        whole = self._final + self.kept
        all_fields = whole + tuple(field for field in shape if field not in whole)
        head = self.head[:-1] + b", " if self.head and is_spaced else self.head
        return Projection(
            head=b"" if is_flat else head,
            tail=b"" if is_flat else self.tail,
            pick=_picker([*map(all_fields.index, shape)]),
            more=[jsontext.dumps(field.default) for field in all_fields[len(self._final) :]],
            newest=len(self._final),
            is_spaced=is_spaced,
            is_whole=shape == self._final and not is_flat and not is_spaced,
        )

    def project(self, canonical: bytes, projection: Projection) -> bytes:
        """Convert a canonical row of this kind to the text for a release."""
        if projection.is_whole:
            return self.without_kept(canonical)
        return projection.text(jsontext.split_raw(canonical[len(self.head) : -1] if self.head else canonical))

    def without_kept(self, canonical: bytes) -> bytes:
        """Remove from a canonical row the fields that newer releases dropped."""
        if not self.kept:
            return canonical
        items = jsontext.split_raw(canonical[len(self.head) : -1] if self.head else canonical)
        if len(items) <= len(self._final):
            return canonical
        return self.head + jsontext.join(items[: len(self._final)]) + self.tail

    def _releases(self, *, flat: bool) -> list[tuple[Release, Shape]]:
        """Every release that changed the shape, oldest first, with its shape."""
        spans = [self.span, self.flat, *(field.span for field in self._fields)]
        releases = {(0, 0, 0), *(s.since for s in spans), *(s.until for s in spans if s.until)}
        return [
            (release, self.shape(release)) for release in sorted(releases) if self._is_flat(release) == flat
        ]

    def _is_flat(self, release: Release) -> bool:
        return self.flat.until is not None and release in self.flat


def _picker(indexes: list[int]) -> Callable[[Any], Any]:
    """Return a function that returns the items at these indexes of a list."""
    return itemgetter(*indexes) if len(indexes) > 1 else lambda items: [items[at] for at in indexes]


def _in_order(final: Shape, gone: list[tuple[str, ShapeField]]) -> Shape:
    """All fields of all shapes in one order: each dropped field after the field it followed."""
    fields = [field for after, field in gone if not after]
    for field in final:
        fields.append(field)
        fields.extend(dropped for after, dropped in gone if after == field.name)
    return tuple(fields)
