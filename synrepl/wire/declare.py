"""How a command is declared, and the codec that follows from the declaration.

A command is a class with fields, in the order of the wire. Each field has a kind (how it is written) and
a span of releases; a field that a release does not have takes its default when read and is left off when
written. `Form` is one command as one release writes it.
"""

import enum
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire import jsontext
from synrepl.wire.dialect import Dialect, Release, Span, span

__all__ = [
    "BOTH",
    "BROKER",
    "CLIENT",
    "SERVER",
    "Command",
    "Form",
    "Side",
    "command",
    "either",
    "integer",
    "json_array",
    "json_rest",
    "json_value",
    "middle_text",
    "rest",
    "show",
    "token_or",
    "word",
]

MAX_INTEGER: Final = 2**63 - 1
_REQUIRED: Final = object()


class Side(enum.Flag):
    """Who sends. `BROKER` is a process on a shared channel, where there are no sides."""

    SERVER = enum.auto()
    CLIENT = enum.auto()
    BROKER = enum.auto()


SERVER: Final = Side.SERVER
CLIENT: Final = Side.CLIENT
BROKER: Final = Side.BROKER
BOTH: Final = Side.SERVER | Side.CLIENT


def show(data: bytes | str) -> str:
    """Somebody's bytes, safe and short enough to stand in a message or on the wire."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    text = ascii(text[:80])
    return text if len(data) <= 80 else f"{text}..."


# -- kinds of fields -----------------------------------------------------------------------------------


class Kind:
    """How one field is written. `takes_rest`: it may hold spaces, so it ends the line."""

    takes_rest = False
    grammar = "<{name}>"

    def parse(self, data: bytes) -> Any:
        """The value; raises ValueError with words that fit after the field's name."""
        raise NotImplementedError

    def format(self, value: Any, dialect: Dialect) -> bytes:
        """The bytes; raises ValueError likewise."""
        raise NotImplementedError


class _Names(dict[bytes, str]):
    """Stream and writer names come again and again: decode each once. Bounded, as peers choose them."""

    def __missing__(self, data: bytes) -> str:
        if not data:
            raise ValueError("must not be empty")
        text = data.decode("utf-8")
        if len(self) < 10_000 and len(data) < 256:
            self[data] = text
        return text


class _Word(Kind):
    def __init__(self) -> None:
        # A bound C method: every row's stream and writer pass here.
        self.parse = _Names().__getitem__  # type: ignore[method-assign, assignment]

    def format(self, value: Any, dialect: Dialect) -> bytes:
        if not value or " " in value or "\n" in value or "\r" in value:
            raise ValueError(f"must be one word, not {show(value)}")
        return typing.cast("str", value).encode("utf-8")


class _Integer(Kind):
    grammar = "<{name}: integer>"

    def parse(self, data: bytes) -> Any:
        if data.isdigit() and len(data) < 19:
            return int(data)
        digits = data[1:] if data[:1] == b"-" else data
        if not digits.isdigit() or len(digits) > 19 or abs(value := int(data)) > MAX_INTEGER:
            raise ValueError(f"must be a 64-bit integer, not {show(data)}")
        return value

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return b"%d" % value


class _TokenOr(_Integer):
    """An integer, or a word that stands for None."""

    def __init__(self, absent: str, *, any_case: bool) -> None:
        self._absent = absent.encode("ascii")
        self._any_case = any_case
        self.grammar = "<{name}: integer or " + absent + ">"

    def parse(self, data: bytes) -> Any:
        if data.isdigit() and len(data) < 19:
            return int(data)
        if data == self._absent or (self._any_case and data.upper() == self._absent):
            return None
        try:
            return super().parse(data)
        except ValueError:
            raise ValueError(
                f"must be a 64-bit integer or {self._absent.decode()}, not {show(data)}"
            ) from None

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return self._absent if value is None else b"%d" % value


class _WordOr(_Word):
    """A word, or another that stands for None."""

    def __init__(self, absent: str) -> None:
        super().__init__()
        self._absent = absent
        self._read_word = self.parse
        self.parse = self._parse_or_none  # type: ignore[method-assign]

    def _parse_or_none(self, data: bytes) -> Any:
        text = self._read_word(data)
        return None if text == self._absent else text

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return super().format(self._absent if value is None else value, dialect)


class _Either(Kind):
    """One of two words: True and False."""

    def __init__(self, yes: str, no: str) -> None:
        self._words = {yes.encode(): True, no.encode(): False}
        self._texts = {value: text for text, value in self._words.items()}
        self.grammar = f"{yes}|{no}"

    def parse(self, data: bytes) -> Any:
        if data not in self._words:
            words = " or ".join(word.decode() for word in self._words)
            raise ValueError(f"must be {words}, not {show(data)}")
        return self._words[data]

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return self._texts[bool(value)]


class _Rest(Kind):
    """Free text to the end of the line. `optional`: the space before it may be missing, which is None."""

    takes_rest = True
    grammar = "<{name}...>"

    def __init__(self, *, optional: bool, may_be_empty: bool, ignored: bool) -> None:
        self.optional = optional
        self.ignored = ignored
        self._may_be_empty = may_be_empty
        if optional:
            self.grammar = "[{name}...]"

    def parse(self, data: bytes) -> Any:
        if not data and not self._may_be_empty:
            raise ValueError("must not be empty")
        return data.decode("utf-8")

    def format(self, value: Any, dialect: Dialect) -> bytes:
        if "\n" in value:
            raise ValueError("must not hold a line break")
        return typing.cast("str", value).encode("utf-8")


class _MiddleText(_Rest):
    """Text that may hold spaces although single words follow it: read from both ends."""

    takes_rest = False
    grammar = "<{name}>"

    def __init__(self) -> None:
        super().__init__(optional=False, may_be_empty=False, ignored=False)


class _RawJson(Kind):
    """JSON to the end of the line, handed on unread: the stream's row decoder reads it, once."""

    takes_rest = True
    grammar = "<{name}: JSON>"

    def parse(self, data: bytes) -> Any:
        if not data:
            raise ValueError("must be JSON, not nothing")
        return data

    def format(self, value: Any, dialect: Dialect) -> bytes:
        if b"\n" in value:
            raise ValueError("must not hold a line break")
        return typing.cast("bytes", value)


class _JsonValue(Kind):
    """JSON to the end of the line, read here."""

    takes_rest = True
    grammar = "<{name}: JSON>"

    def parse(self, data: bytes) -> Any:
        try:
            return jsontext.loads(data)
        except ValueError as error:
            raise ValueError(f"must be JSON: {error}") from error

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return jsontext.dumps(value, spaced=jsontext.is_spaced(dialect))


class _JsonArray(_JsonValue):
    """A JSON array of a known length to the end of the line."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.grammar = "<{name}: JSON array of " + str(length) + ">"

    def parse(self, data: bytes) -> Any:
        value = super().parse(data)
        if not isinstance(value, list) or len(value) != self._length:
            # What came is not shown: USER_IP holds an access token.
            raise ValueError(f"must be a JSON array of {self._length}")
        return value


class Field(msgspec.Struct, frozen=True):
    """One field of a command: its kind, the releases that have it, and what stands in where it is not."""

    kind: Any
    span: Span
    default: Any
    name: str = ""


def _field(kind: Kind, since: str, until: str, default: Any) -> Any:
    return Field(kind=kind, span=span(since=since, until=until), default=default)


def word(*, since: str = "", until: str = "", default: Any = _REQUIRED, none: str | None = None) -> Any:
    """Text without spaces; the word `none`, if given, stands for None."""
    return _field(_Word() if none is None else _WordOr(none), since, until, default)


def integer(*, since: str = "", until: str = "", default: Any = _REQUIRED) -> Any:
    """A 64-bit integer."""
    return _field(_Integer(), since, until, default)


def token_or(
    absent: str, *, since: str = "", until: str = "", default: Any = _REQUIRED, any_case: bool = False
) -> Any:
    """A 64-bit integer, or None written as the word `absent`."""
    return _field(_TokenOr(absent, any_case=any_case), since, until, default)


def either(yes: str, no: str, *, since: str = "", until: str = "", default: Any = _REQUIRED) -> Any:
    """True and False as two words."""
    return _field(_Either(yes, no), since, until, default)


def rest(
    *,
    since: str = "",
    until: str = "",
    default: Any = _REQUIRED,
    optional: bool = False,
    may_be_empty: bool = False,
    ignored: bool = False,
) -> Any:
    """Free text to the end of the line.

    With `optional` a missing argument is None, which differs from an empty one by a space. `ignored` text
    means nothing to anybody, so it cannot tell which release a peer speaks.
    """
    kind = _Rest(optional=optional, may_be_empty=may_be_empty or optional, ignored=ignored)
    return _field(kind, since, until, default)


def middle_text(*, since: str = "", until: str = "", default: Any = _REQUIRED) -> Any:
    """Text that may hold spaces although single words follow it."""
    return _field(_MiddleText(), since, until, default)


def json_rest(*, since: str = "", until: str = "", default: Any = _REQUIRED) -> Any:
    """JSON to the end of the line as bytes, not read yet."""
    return _field(_RawJson(), since, until, default)


def json_value(*, since: str = "", until: str = "", default: Any = _REQUIRED) -> Any:
    """JSON to the end of the line."""
    return _field(_JsonValue(), since, until, default)


def json_array(length: int, *, since: str = "", until: str = "", default: Any = _REQUIRED) -> Any:
    """A JSON array of exactly so many items to the end of the line."""
    return _field(_JsonArray(length), since, until, default)


# -- commands ------------------------------------------------------------------------------------------


class Command(msgspec.Struct, frozen=True):
    """A line of the wire. Subclasses are made by `command`."""

    NAME: ClassVar[str]
    SENT_BY: ClassVar[Side]
    SPAN: ClassVar[Span]
    FIELDS: ClassVar[tuple[Field, ...]]
    EXAMPLES: ClassVar[dict[Dialect, str]]


T = typing.TypeVar("T")


@typing.dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(word, integer, token_or, either, rest, middle_text, json_rest, json_value, json_array),
)
def command(name: str, *, sent_by: Side, since: str = "", until: str = "") -> Callable[[type[T]], type[T]]:
    """Declare a command: its name, who may send it, and the releases that have it.

    Fields are class attributes made by `word`, `integer` and their like, in the order of the wire.
    `EXAMPLES` maps dialects to lines; each must parse and format back to itself.
    """

    def make(declared: type[T]) -> type[T]:
        types = typing.get_type_hints(declared)
        fields = tuple(
            msgspec.structs.replace(field.default, name=field.name)
            for field in msgspec.structs.fields(typing.cast("type[msgspec.Struct]", declared))
        )
        # Required fields first, so that a Struct can be made by position: that is what the hot path does.
        members: list[Any] = [(f.name, types[f.name]) for f in fields if f.default is _REQUIRED]
        members += [(f.name, types[f.name], f.default) for f in fields if f.default is not _REQUIRED]
        kept = ("__doc__", "__repr__", "EXAMPLES")
        namespace = {key: value for key, value in vars(declared).items() if key in kept}
        namespace |= {
            "NAME": name,
            "SENT_BY": sent_by,
            "SPAN": span(since=since, until=until),
            "FIELDS": fields,
        }
        made = msgspec.defstruct(
            declared.__name__,
            members,
            bases=(Command,),
            module=declared.__module__,
            namespace=namespace,
            frozen=True,
        )
        return typing.cast("type[T]", made)

    return make


class Form:
    """One command as one release writes it: parses and formats what follows its name."""

    def __init__(self, made: type[Command], dialect: Dialect) -> None:
        self.command = made
        self._dialect = dialect
        self.fields = tuple(field for field in made.FIELDS if dialect.release in field.span)
        self._name = made.NAME.encode("ascii")
        self._spread = next(
            (i for i, field in enumerate(self.fields) if isinstance(field.kind, _MiddleText)), None
        )
        self._order = self._struct_order()
        self.parse: Callable[[bytes], Command] = self._unrolled() or self._parse

    @property
    def is_decisive(self) -> bool:
        """Whether a peer that writes this command so has shown what it speaks, ignored text aside."""
        return any(isinstance(field.kind, _Rest) and field.kind.ignored for field in self.fields)

    def grammar(self) -> str:
        """The line as documentation shows it."""
        return " ".join([self.command.NAME, *(f.kind.grammar.format(name=f.name) for f in self.fields)])

    def _struct_order(self) -> list[int | None]:
        """For each member of the Struct the place of its field in this form; None takes the default."""
        places = {field.name: place for place, field in enumerate(self.fields)}
        return [places.get(name) for name in self.command.__struct_fields__]

    def _unrolled(self) -> Callable[[bytes], Command] | None:
        """A parser without loops for the two shapes that every row comes in (RDATA)."""
        present = [place for place in self._order if place is not None]
        if self._spread is not None or self._order[: len(present)] != present or not present:
            return None
        kinds = [self.fields[place].kind.parse for place in present]
        last = len(self.fields) - 1
        if not (self.fields[last].kind.takes_rest and len(present) in (3, 4)):
            return None
        make: Callable[..., Command] = self.command
        fail = self._parse
        if len(present) == 3:
            a, b, c = present
            read_a, read_b, read_c = kinds

            def parse3(arguments: bytes) -> Command:
                try:
                    parts = arguments.split(b" ", 2)
                    return make(read_a(parts[a]), read_b(parts[b]), read_c(parts[c]))
                except (ValueError, IndexError):
                    return fail(arguments)

            return parse3
        a, b, c, d = present
        read_a, read_b, read_c, read_d = kinds

        def parse4(arguments: bytes) -> Command:
            try:
                parts = arguments.split(b" ", 3)
                return make(read_a(parts[a]), read_b(parts[b]), read_c(parts[c]), read_d(parts[d]))
            except (ValueError, IndexError):
                return fail(arguments)

        return parse4

    def _parse(self, arguments: bytes) -> Command:
        """Any form, and the words for what is wrong. Raises RemoteProtocolError."""
        parts = self._split(arguments)
        values = []
        for field, part in zip(self.fields, parts, strict=True):
            try:
                values.append(field.kind.parse(part))
            except UnicodeDecodeError:
                raise RemoteProtocolError(
                    f"cannot parse {self.command.NAME}: {field.name} is not UTF-8"
                ) from None
            except ValueError as error:
                raise RemoteProtocolError(f"cannot parse {self.command.NAME}: {field.name} {error}") from None
        by_name = {field.name: value for field, value in zip(self.fields, values, strict=True)}
        return self.command(**by_name)

    def _split(self, arguments: bytes) -> list[bytes]:
        count = len(self.fields)
        if count == 0:
            if arguments:
                raise RemoteProtocolError(f"cannot parse {self.command.NAME}: it takes no argument")
            return []
        if self._spread is not None:
            behind = count - self._spread - 1
            parts = arguments.split(b" ", self._spread)
            parts[-1:] = parts[-1].rsplit(b" ", behind)
        elif self.fields[-1].kind.takes_rest:
            parts = arguments.split(b" ", count - 1)
        else:
            parts = arguments.split(b" ")
        if len(parts) != count or (count == 1 and not arguments and not self.fields[0].kind.takes_rest):
            raise RemoteProtocolError(
                f"cannot parse {self.command.NAME}: expected {self.grammar()}, got {show(arguments)}"
            )
        return parts

    def parse_bare(self) -> Command:
        """The command with nothing after its name, not even a space. Raises RemoteProtocolError."""
        if not self.fields:
            return self.command()
        if len(self.fields) == 1 and isinstance(kind := self.fields[0].kind, _Rest) and kind.optional:
            return self.command(**{self.fields[0].name: None})
        raise RemoteProtocolError(f"cannot parse {self.command.NAME}: expected {self.grammar()}, got nothing")

    def format(self, value: Command) -> bytes:
        """The line, without its end. Raises LocalProtocolError if the value cannot be written."""
        parts = [self._name]
        try:
            for field in self.fields:
                member = getattr(value, field.name)
                if member is None and isinstance(field.kind, _Rest) and field.kind.optional:
                    continue
                parts.append(field.kind.format(member, self._dialect))
        except (ValueError, TypeError) as error:
            raise LocalProtocolError(f"cannot write {self.command.NAME}: {field.name} {error}") from error
        return b" ".join(parts)


def exists(made: type[Command], release: Release) -> bool:
    """Whether this release has this command."""
    return release in made.SPAN
