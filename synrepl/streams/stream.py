"""Stream declarations: a name, a row type and properties.

::

    @row
    class Typing:
        room_id: str
        user_ids: list[str]

    TYPING = Stream("typing", Typing, key="room_id", monotonic=False, ephemeral=True)

Such a declaration is all that is needed to read and validate rows of any known release, and to write them.
"""

import operator
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Generic, Literal, NoReturn, TypeVar, dataclass_transform, overload

import msgspec

from synrepl.errors import ConfigError, RowError
from synrepl.streams.origin import Origin
from synrepl.streams.shapes import (
    BoolSpelling,
    Declared,
    Projection,
    RowKind,
    ShapeField,
    Shapes,
    array_struct,
    may_hold_float,
    undecodable,
)
from synrepl.wire import jsontext
from synrepl.wire.dialect import NEWEST, Dialect, Release, span

__all__ = ["Bool", "Gone", "Row", "Since", "Stream", "BoolSpelling", "row", "row_values"]

R = TypeVar("R")
T = TypeVar("T")
Row = bytes | list[object] | msgspec.Struct
"""A row: JSON text, a JSON array, or an instance of a `row` class."""

MAX_DEPTH: Final = 256
"""How deep arrays and objects of a row can be nested. Python reads JSON in 1,000 levels less those of the
calls around it, so that what is written in one place could not be read in another."""

_Projections = list[tuple[RowKind, Projection | None]]

# Masters on SQLite write booleans as 1 and 0, those on PostgreSQL as true and false. Rows always hold a bool.
Bool = Annotated[bool, BoolSpelling(accepts=bool | Literal[0, 1], read=bool)]


Checksum = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
"""A SHA-256 in lowercase hexadecimal digits."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of bytes."""


class FileReference(typing.TypedDict):
    """What a row says of a stored file: its checksum and its size."""

    sha256: Checksum
    size: Size


class Since(msgspec.Struct, frozen=True):
    """Marks a field that a release added; rows of earlier releases get the `default`.

    If only a range of releases is known, `release` is the earliest possible one.
    """

    release: str
    default: Any = None


class Gone(msgspec.Struct, frozen=True):
    """A field that rows had `until` a release, after the field `after` (first in the row, if empty).

    Values from those releases are validated against `type`. A `kept` field stays with the row and is sent to
    those releases again; any other field is dropped. A row without the field is sent with the `default`.
    """

    name: str
    after: str = ""
    until: str = ""
    default: Any = None
    type: Any = Any
    kept: bool = False


@overload
@dataclass_transform(frozen_default=True, kw_only_default=True)
def row(declared: type[T]) -> type[T]: ...


@overload
@dataclass_transform(frozen_default=True, kw_only_default=True)
def row(*, tag: str = "", since: str = "", flat_until: str = "") -> Callable[[type[T]], type[T]]: ...


def row(
    declared: type[T] | None = None, *, tag: str = "", since: str = "", flat_until: str = ""
) -> type[T] | Callable[[type[T]], type[T]]:
    """Turn an annotated class into a row type: a frozen struct, written as a JSON array.

    The annotations are the fields of the newest shape, in order; `Since` marks fields that older releases
    lack. Fields have no defaults, as a row on the wire always has all of them.

    * `tag`: the name of this kind of row, for streams with several kinds
    * `since`: the first release that has this kind, as ``"1.67"``
    * `flat_until`: the first release that tags its rows; before it, rows were bare fields

    Raises `ConfigError` for a class without fields, a field with a default, a type that JSON lacks, or a
    default of `Since` that does not fit.

    >>> @row
    ... class Note:
    ...     author: str
    ...     text: str
    >>> Note(author="@ada:hs", text="hello")
    Note(author='@ada:hs', text='hello')
    """
    if declared is None:
        return lambda cls: _row(cls, tag, since, flat_until)
    return _row(declared, tag, since, flat_until)


def _row(declared: type[T], tag: str, since: str, flat_until: str) -> type[T]:
    fields = tuple(
        _field(declared, name, annotation)
        for name, annotation in typing.get_type_hints(declared, include_extras=True).items()
        if typing.get_origin(annotation) is not typing.ClassVar
    )
    if not fields:
        raise ConfigError(f"row {declared.__name__} has no fields")
    body = {
        name: value
        for name, value in vars(declared).items()
        if name not in ("__annotations__", "__dict__", "__weakref__", "__module__", "__qualname__")
    }
    struct = array_struct(
        declared.__name__,
        [(field.name, field.type) for field in fields],
        module=declared.__module__,
        namespace={**body, "_declared": Declared(fields, tag, span(since=since), span(until=flat_until))},
    )
    struct.__qualname__ = declared.__qualname__
    return typing.cast(type[T], struct)


def _field(declared: type[Any], name: str, annotation: Any) -> ShapeField:
    of = f"field {name} of row {declared.__name__}"
    if hasattr(declared, name):
        raise ConfigError(f"{of} must not have a default: a row on the wire always has all its fields")
    kind, marks = annotation, []
    if typing.get_origin(annotation) is Annotated:
        kind, *marks = typing.get_args(annotation)
    spelling = next((mark for mark in marks if isinstance(mark, BoolSpelling)), None)
    since = next((mark for mark in marks if isinstance(mark, Since)), None)
    may_hold_float(kind)  # Raises ConfigError for types that JSON lacks.
    if since is None:
        return ShapeField(name=name, type=kind, spelling=spelling)
    _check_default(of, since.default, kind)
    return ShapeField(
        name=name, type=kind, spelling=spelling, span=span(since=since.release), default=since.default
    )


def _check_default(of: str, default: Any, kind: Any) -> None:
    try:
        msgspec.convert(default, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the default of {of} does not fit its type: {error}") from error


def row_values(row: msgspec.Struct) -> list[object]:
    """The JSON array of an instance of a `row` class, with its tag if it has one."""
    values: list[object] = list(msgspec.structs.astuple(row))
    tag = row._declared.tag  # type: ignore[attr-defined]  # `row` sets it
    return [tag, values] if tag else values


class Stream(Generic[R]):
    """A stream: its name, its row type, and its properties.

    `rows` is one `row` type, or a union of tagged ones. The keyword arguments are attributes, too, apart from
    the last two items:

    * `key`: a field, a tuple of fields, or a function of a row; the attribute is a function in each case. A
      row replaces earlier rows of the same key. None: no row replaces another.
    * `monotonic`: tokens never go back. If False, they start again when the writer restarts.
    * `ephemeral`: facts are kept in memory, not in the log.
    * `ordered`: facts arrive in the order of their tokens. For exceptions see docs/reference/peers.md#tokens
    * `descends`: a burst of facts arrives in descending order of tokens. Implies that it is not `ordered`.
    * `any_writer`: any writer may send facts of the others under its own name. Current Synapse does not
      filter the rows of such a stream by writer (docs/reference/peers.md#redis-repeated).
    * `on_request`: over TCP only followers that name the stream receive it; it never goes onto Redis.
    * `files`: the fields that refer to a stored file (`FileReference`, or None).
    * `origin`: the least trusted way in which facts may come into a daemon's log (`Origin`).
    * `tombstone`: a function that tells whether a row deletes its key, or one for each kind of row that can.
      None: no row does. `lasting_heads` are the first bytes of the kinds of rows that cannot.
    * `since`, `until`: the releases that have the stream, as ``"1.67"``; the attribute is `span`.
    * `gone`: fields that newer releases dropped.

    Raises `ConfigError` for a name that is not one printable word, a class that is no row, several kinds of
    row without tags, a key or the `after` of a `Gone` that is not a field, or a default of the wrong type.

    >>> @row
    ... class Note:
    ...     author: str
    ...     text: str
    >>> NOTES = Stream("notes", Note, key="author")
    >>> NOTES.encode(Note(author="@ada:hs", text="hello"))
    b'["@ada:hs","hello"]'
    >>> NOTES.decode(b'["@ada:hs", "hello"]', NEWEST)
    Note(author='@ada:hs', text='hello')
    """

    def __init__(
        self,
        name: str,
        rows: type[R] | UnionType,
        *,
        key: str | tuple[str, ...] | Callable[[R], tuple[Hashable, ...]] | None = None,
        monotonic: bool = True,
        ephemeral: bool = False,
        ordered: bool = True,
        descends: bool = False,
        any_writer: bool = False,
        on_request: bool = False,
        files: tuple[str, ...] = (),
        origin: Origin = Origin.SOURCE,
        tombstone: Callable[[R], bool] | Mapping[type[Any], Callable[[Any], bool]] | None = None,
        since: str = "",
        until: str = "",
        gone: Iterable[Gone] = (),
    ) -> None:
        # The wire splits commands at single spaces, so a name cannot contain one.
        if not name or not name.isprintable() or " " in name:
            raise ConfigError(f"{name!r} cannot be the name of a stream: it needs to be one printable word")
        self.name = name
        self.monotonic = monotonic
        self.ephemeral = ephemeral
        self.ordered = ordered and not descends
        self.descends = descends
        self.any_writer = any_writer
        self.on_request = on_request
        self.files = files
        self.origin = origin
        self.refusal: Callable[[R], str] | None = None
        """Why a new fact cannot have a row, though older logs may have it (empty: it can)."""
        self.span = span(since=since, until=until)
        classes = typing.get_args(rows) if isinstance(rows, UnionType) else (rows,)
        self._kinds = [self._kind(cls, list(gone)) for cls in classes]
        self._by_class = {cls: kind for kind in self._kinds for cls in (kind.row, kind.kept_row)}
        self._keeps = any(kind.kept for kind in self._kinds)
        self._by_tag = {kind.tag: kind for kind in self._kinds}
        if len(self._by_tag) != len(classes) or (len(classes) > 1 and "" in self._by_tag):
            raise ConfigError(f"each kind of row of stream {name} needs a tag of its own")
        self._tagged = [(kind.head, len(kind.head), kind.shapes) for kind in self._kinds]
        self.lasting_heads: tuple[bytes, ...] = ()
        self.tombstone: Callable[[R], bool] | None
        if isinstance(tombstone, Mapping):
            tests = tuple(tombstone.items())
            self.tombstone = lambda row: any(isinstance(row, kind) and test(row) for kind, test in tests)
            self.lasting_heads = tuple(kind.head for kind in self._kinds if kind.row not in tombstone)
        else:
            self.tombstone = tombstone
        self._only: Shapes | None = None if self._kinds[0].tag else self._kinds[0].shapes
        self.key = self._key_of(key)
        self._projections: dict[Release, tuple[_Projections, bool]] = {}

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def decode(self, data: bytes, dialect: Dialect) -> R:
        """Decode the JSON text of one row to the newest shape.

        Accepts the shape of any known release; if several fit, that of `dialect` wins. Kept fields of older
        releases become extra attributes. Raises `RowError`.
        """
        found: R | None = None
        if self._only is not None:
            found = self._only.read(data, dialect.release)
        else:
            for head, length, shapes in self._tagged:
                # The text between the tag and the last bracket is the row proper, whole and unchanged.
                if data.startswith(head) and data[-1] == 93:
                    found = shapes.read(data[length:-1], dialect.release)
                    break
            if found is None:
                found = self._read_oddly_tagged(data, dialect.release)
        if found is None:
            self._refuse(data, dialect.release)
        return found

    def decode_many(self, texts: list[bytes], dialect: Dialect) -> list[R]:
        """Decode rows as `decode` does, for less than half the cost if all have one kind's newest shape."""
        found: list[Any] | None = None
        if self._only is not None:
            found = self._only.read_many(texts, dialect.release)
        elif texts:
            for kind in self._kinds:
                if texts[0].startswith(kind.head):
                    found = kind.read_many_tagged(texts, dialect.release)
                    break
        return [self.decode(text, dialect) for text in texts] if found is None else found

    def canonical(self, data: Row, dialect: Dialect = NEWEST) -> bytes:
        """Validate a row, and return its newest shape as canonical JSON text. Raises `RowError`.

        An instance of a `row` class has the newest shape, whatever the `dialect`.
        """
        if isinstance(data, msgspec.Struct):
            if type(data) not in self._by_class:
                raise RowError(stream=self.name, why=f"{type(data).__name__} is not a row of this stream")
            data, dialect = row_values(data), NEWEST
        if not isinstance(data, bytes):
            data = self._text(data)
        found = self.decode(data, dialect)
        try:
            text = self._by_class[type(found)].write(found)
        except undecodable as error:
            raise RowError(stream=self.name, why=f"cannot be written: {error}") from error
        if jsontext.is_deeper(text, MAX_DEPTH):
            raise RowError(stream=self.name, why=f"it is nested too deeply: at most {MAX_DEPTH} levels")
        return text

    def canonical_fact(self, rows: bytes | Sequence[Row], dialect: Dialect = NEWEST) -> bytes:
        """Validate the rows of a fact, and return them as canonical JSON text.

        `rows` is the text of a JSON array, or a sequence of rows. Raises `RowError` for any other text, an
        empty array, or a bad row, or one that new facts cannot have; its `index` is the position of that row.
        """
        items: Sequence[Row]
        if isinstance(rows, bytes):
            try:
                items = jsontext.split(rows)
            except ValueError as error:
                why = f"the rows are not a JSON array: {jsontext.why_refused(rows, error)}"
                raise RowError(stream=self.name, why=why) from error
        else:
            items = rows
        if not items:
            raise RowError(stream=self.name, why="a fact has at least one row; this one has none")
        texts: list[bytes] = []
        for item in items:
            try:
                text = self.canonical(item, dialect)
                if self.refusal is not None and (why := self.refusal(self.decode(text, NEWEST))):
                    raise RowError(stream=self.name, why=why)
                texts.append(text)
            except RowError as error:
                raise RowError(stream=self.name, why=error.why, index=len(texts)) from error
        return jsontext.join(texts)

    def encode(self, row: R) -> bytes:
        """Encode a row as canonical JSON text. Raises `RowError` if a value does not fit its field."""
        return self.canonical(typing.cast(msgspec.Struct, row))

    def project(self, canonical: bytes, dialect: Dialect) -> bytes | None:
        """Convert a canonical row to the fields and spacing of a release; None if that lacks the kind of row.

        Returns the same bytes object if nothing differs.
        """
        projections, is_whole = self._projections.get(dialect.release) or self._plan(dialect)
        return canonical if is_whole else self._project(canonical, projections)

    def _project(self, canonical: bytes, projections: _Projections) -> bytes | None:
        for kind, projection in projections:
            if canonical.startswith(kind.head):
                return kind.project(canonical, projection) if projection is not None else None
        raise RowError(stream=self.name, why="not a canonical row of this stream")

    def project_facts(self, facts: Sequence[bytes], dialect: Dialect) -> list[list[bytes]] | None:
        """Convert the canonical rows of several facts, as `project_fact` does each; together that takes half
        the time. None if it cannot be done together, such as since one is not canonical.
        """
        projections, is_whole = self._projections.get(dialect.release) or self._plan(dialect)
        if is_whole:
            return jsontext.split_all(facts)
        split = jsontext.split_all_items(facts, tagged=self._only is None)
        by_tag = {kind.tag: projection for kind, projection in projections}
        if split is None or not all(tag in by_tag for rows in split for tag, _ in rows):
            return None
        return [
            [projection.text(items) for tag, items in rows if (projection := by_tag[tag]) is not None]
            for rows in split
        ]

    def project_fact(self, rows: bytes, dialect: Dialect) -> list[bytes]:
        """Convert the canonical rows of a fact for a release; kinds of row that it lacks are left out."""
        texts = jsontext.split(rows)
        projections, is_whole = self._projections.get(dialect.release) or self._plan(dialect)
        if is_whole:
            return texts
        return [text for text in [self._project(text, projections) for text in texts] if text is not None]

    def project_newest(self, rows: bytes) -> list[bytes]:
        """Convert the canonical rows of a fact to the newest shape, without kept fields."""
        texts = jsontext.split(rows)
        if not self._keeps:
            return texts
        heads = [(kind.head, kind) for kind in self._kinds]
        return [
            next((kind.without_kept(text) for head, kind in heads if text.startswith(head)), text)
            for text in texts
        ]

    def shape(self, dialect: Dialect, tag: str = "") -> tuple[str, ...]:
        """Field names in a release, of the kind of row with `tag` or of the first; empty if there is none."""
        kind = self._by_tag[tag] if tag else self._kinds[0]
        if dialect.release not in self.span or dialect.release not in kind.span:
            return ()
        return tuple(field.name for field in kind.shape(dialect.release))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the kinds of rows; empty if rows are not tagged."""
        return tuple(tag for tag in self._by_tag if tag)

    def _kind(self, cls: type[Any], gone: list[Gone]) -> RowKind:
        declared = getattr(cls, "_declared", None)
        if not isinstance(declared, Declared):
            raise ConfigError(f"{cls!r} is not a row of stream {self.name}: decorate it with @row")
        names = {field.name for field in declared.fields}
        dropped = []
        for old in gone:
            of = f"field {old.name}, gone from stream {self.name},"
            if old.after and old.after not in names:
                raise ConfigError(f"{of} cannot follow {old.after}: {cls.__name__} has no field {old.after}")
            _check_default(of, old.default, old.type)
            field = ShapeField(
                name=old.name,
                type=old.type,
                span=span(until=old.until),
                default=old.default,
                gone=True,
                kept=old.kept,
            )
            dropped.append((old.after, field))
        return RowKind(cls, declared, dropped)

    def _key_of(
        self, key: str | tuple[str, ...] | Callable[[R], tuple[Hashable, ...]] | None
    ) -> Callable[[R], tuple[Hashable, ...]] | None:
        if key is None or callable(key):
            return key
        names = (key,) if isinstance(key, str) else key
        for kind in self._kinds:
            for name in names:
                if name not in kind.row.__struct_fields__:
                    raise ConfigError(
                        f"the key of stream {self.name} names {name!r}, which is no field of its rows"
                    )
        get = operator.attrgetter(*names)
        if len(names) == 1:
            return lambda row: (get(row),)
        return get

    def _plan(self, dialect: Dialect) -> tuple[_Projections, bool]:
        is_known = dialect.release in self.span
        projections = [(kind, kind.projection_for(dialect) if is_known else None) for kind in self._kinds]
        plan = (
            projections,
            not self._keeps
            and all(projection is not None and projection.is_whole for _, projection in projections),
        )
        self._projections[dialect.release] = plan
        return plan

    def _read_oddly_tagged(self, data: bytes, release: Release) -> Any:
        """Read a tagged row with unusual spacing, or a row from before tags."""
        try:
            items = jsontext.split(data)
            tag = msgspec.json.decode(items[0]) if len(items) == 2 else None
        except undecodable:
            return None
        if isinstance(tag, str) and tag in self._by_tag:
            return self._by_tag[tag].shapes.read(items[1], release)
        for kind in self._kinds:
            if kind.flat_shapes is not None:
                found = kind.flat_shapes.read(data, release)
                if found is not None:
                    return found
        return None

    def _text(self, values: list[object]) -> bytes:
        try:
            return jsontext.dumps(values)
        except (TypeError, ValueError, RecursionError) as error:
            raise RowError(stream=self.name, why=f"cannot be written as JSON: {error}") from error

    def _refuse(self, data: bytes, release: Release) -> NoReturn:
        try:
            value = msgspec.json.decode(data)
        except RecursionError:
            why = "nested too deeply"
        except undecodable as error:
            why = "not UTF-8" if not _is_utf8(data) else f"not JSON: {jsontext.why_refused(data, error)}"
            if b"NaN" in data or b"Infinity" in data:
                why += " (NaN and Infinity are not JSON)"
        else:
            why = self._why(value, release)
        raise RowError(stream=self.name, why=why)

    def _why(self, value: Any, release: Release) -> str:
        if not isinstance(value, list):
            return f"a row must be a JSON array, not {type(value).__name__}"
        if self._only is not None:
            return _misfit(value, self._only, release)
        if len(value) == 2 and isinstance(value[0], str):
            kind = self._by_tag.get(value[0])
            if kind is None:
                return f"{value[0]!r} is not a kind of row; known are {', '.join(self._by_tag)}"
            if not isinstance(value[1], list):
                return f"the row after {kind.tag!r} must be a JSON array, not {type(value[1]).__name__}"
            return f"{kind.tag}: {_misfit(value[1], kind.shapes, release)}"
        for kind in self._kinds:
            if kind.flat_shapes and len(value) in {len(shape) for shape in kind.flat_shapes.known}:
                return f"untagged: {_misfit(value, kind.flat_shapes, release)}"
        return f"found {_items(len(value))}; expected a tag ({', '.join(self._by_tag)}) and a row"


def _misfit(values: list[Any], shapes: Shapes, release: Release) -> str:
    fitting = [shape for shape in (shapes.of(release), *shapes.known) if len(shape) == len(values)]
    if not fitting:
        lengths = sorted({len(shape) for shape in shapes.known})
        return f"found {_items(len(values))}; rows of known releases have {' or '.join(map(str, lengths))}"
    for index, (field, value) in enumerate(zip(fitting[0], values, strict=True)):
        try:
            msgspec.convert(value, field.spelling.accepts if field.spelling else field.type)
        except undecodable as error:
            return f"{field.name} (item {index}): {error}"
    try:
        msgspec.convert(values, shapes.newest)
    except undecodable as error:
        return str(error)
    return f"does not fit the fields {', '.join(field.name for field in fitting[0])}"


def _is_utf8(data: bytes) -> bool:
    """Whether the data is UTF-8: msgspec raises an error of its own if not, since 0.23."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _items(count: int) -> str:
    return f"{count} item" if count == 1 else f"{count} items"
