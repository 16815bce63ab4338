"""Command declarations, and the codecs derived from them.

A command is a class with fields, in the order of the wire. Each field has a kind (how it is written) and a
span of releases. A field that a release lacks takes its default when parsed and is omitted when formatted.
`CommandForm` is one command as one release writes it.
"""

import enum
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar, Final

import msgspec

from synrepl.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire.dialect import Dialect, Span, span
from synrepl.wire.kinds import Body, FieldKind, MiddleText, Rest, show
from synrepl.wire.scope import NO_STREAM

_REQUIRED: Final = object()


class Side(enum.Flag):
    """The sender's side. `BROKER` is a member of a shared channel, which has no sides."""

    SERVER = enum.auto()
    CLIENT = enum.auto()
    BROKER = enum.auto()


SERVER: Final = Side.SERVER
CLIENT: Final = Side.CLIENT
BROKER: Final = Side.BROKER
BOTH: Final = Side.SERVER | Side.CLIENT


class FieldSpec(msgspec.Struct, frozen=True):
    """One field of a command: its kind, the releases that have it, and the default for other releases."""

    kind: Any
    span: Span
    default: Any
    name: str = ""


def field(kind: FieldKind, *, since: str = "", until: str = "", default: Any = _REQUIRED) -> Any:
    """Declare a field of this kind for the releases of a span; in other releases it has the default."""
    return FieldSpec(kind=kind, span=span(since=since, until=until), default=default)


class Command(msgspec.Struct, frozen=True):
    """A line of the wire. The decorators `command` and `json_command` declare its subclasses."""

    NAME: ClassVar[str]
    SENT_BY: ClassVar[Side]
    CHANNEL: ClassVar[str]
    SPAN: ClassVar[Span]
    RIGHT: ClassVar[str | None]
    STREAM: ClassVar[str]
    INSTANCE: ClassVar[str] = ""
    RUN: ClassVar[str] = ""
    ENDS_RUN: ClassVar[bool] = False
    FIELDS: ClassVar[tuple[FieldSpec, ...]]
    IS_JSON: ClassVar[bool] = False
    EXAMPLES: ClassVar[dict[Dialect, str]]


T = typing.TypeVar("T")


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def command(
    name: str,
    *,
    sent_by: Side,
    right: str | None = "",
    stream: str = NO_STREAM,
    since: str = "",
    until: str = "",
    channel: str = "",
    instance: str = "",
    run: str = "",
    ends_run: bool = False,
) -> Callable[[type[T]], type[T]]:
    """Declare a command: its name, its senders, and the releases that have it.

    `right` is what a client needs to send it (None: nothing, not even a key; empty: no client sends it), and
    `stream` the stream that it concerns, or a word of `synrepl.wire.scope`. `instance` is the member that
    names the process for which it speaks, or a list that begins with its name; `run` is the member that names
    a run of a process, and `ends_run` that it is over.

    Fields are class attributes made by `field`, in the order of the wire.
    `EXAMPLES` maps dialects to lines; each line must parse and format back to itself. With `channel`, a
    broker carries the command on a channel of its own: the main channel's name, ``/`` and `channel`.
    """

    def make(declared: type[T]) -> type[T]:
        types = typing.get_type_hints(declared)
        fields = tuple(
            msgspec.structs.replace(field.default, name=field.name)
            for field in msgspec.structs.fields(typing.cast("type[msgspec.Struct]", declared))
        )
        # Required fields first, as the hot path makes Structs by index.
        members: list[Any] = [(f.name, types[f.name]) for f in fields if f.default is _REQUIRED]
        members += [(f.name, types[f.name], f.default) for f in fields if f.default is not _REQUIRED]
        methods = (FunctionType, property)
        namespace = {
            key: value
            for key, value in vars(declared).items()
            if key in ("__doc__", "EXAMPLES") or isinstance(value, methods)
        }
        namespace |= {
            "NAME": name,
            "SENT_BY": sent_by,
            "CHANNEL": channel,
            "SPAN": span(since=since, until=until),
            "RIGHT": right,
            "STREAM": stream,
            "INSTANCE": instance,
            "RUN": run,
            "ENDS_RUN": ends_run,
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


def json_command(
    name: str, *, sent_by: Side, since: str, right: str | None = "", stream: str = NO_STREAM
) -> Callable[[type[T]], type[T]]:
    """Declare a command that is one JSON object: the members of this subclass of `Command` are its fields."""

    def declare(declared: type[T]) -> type[T]:
        made = typing.cast("type[Command]", declared)
        made.NAME, made.SENT_BY, made.CHANNEL, made.SPAN = name, sent_by, "", span(since=since)
        made.RIGHT, made.STREAM = right, stream
        made.FIELDS = (FieldSpec(kind=Body(made), span=made.SPAN, default=_REQUIRED, name="body"),)
        made.IS_JSON = True
        return declared

    return declare


class CommandForm:
    """One command as one release writes it: parses what follows its name, and formats the line."""

    def __init__(self, made: type[Command], dialect: Dialect) -> None:
        self.command = made
        self._dialect = dialect
        self.fields = tuple(field for field in made.FIELDS if dialect.release in field.span)
        self._name = made.NAME.encode("ascii")
        self._middle = next(
            (i for i, field in enumerate(self.fields) if isinstance(field.kind, MiddleText)), None
        )
        indexes = {field.name: index for index, field in enumerate(self.fields)}
        # The index of each Struct member's field in this form; None: the member has its default.
        self._order = [indexes.get(name) for name in made.__struct_fields__]
        self.parse: Callable[[bytes], Command] = self._unrolled() or self._parse

    def grammar(self) -> str:
        """The line as the documentation shows it."""
        return " ".join([self.command.NAME, *(f.kind.grammar.format(name=f.name) for f in self.fields)])

    def _unrolled(self) -> Callable[[bytes], Command] | None:
        """Return a parser without loops for forms like RDATA: 3 or 4 fields, the last takes the rest."""
        present = [index for index in self._order if index is not None]
        if self._middle is not None or self._order[: len(present)] != present or not present:
            return None
        kinds = [self.fields[index].kind.parse for index in present]
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
        if self.command.IS_JSON:
            return typing.cast("Command", values[0])
        by_name = {field.name: value for field, value in zip(self.fields, values, strict=True)}
        return self.command(**by_name)

    def _split(self, arguments: bytes) -> list[bytes]:
        count = len(self.fields)
        if count == 0:
            if arguments:
                raise RemoteProtocolError(f"cannot parse {self.command.NAME}: it takes no arguments")
            return []
        if self._middle is not None:
            following = count - self._middle - 1
            parts = arguments.split(b" ", self._middle)
            parts[-1:] = parts[-1].rsplit(b" ", following)
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
        """Parse a line that is only the name. Raises RemoteProtocolError if the command needs more."""
        if not self.fields:
            return self.command()
        if len(self.fields) == 1 and isinstance(kind := self.fields[0].kind, Rest) and kind.optional:
            return self.command(**{self.fields[0].name: None})
        raise RemoteProtocolError(f"cannot parse {self.command.NAME}: expected {self.grammar()}, got nothing")

    def format(self, value: Command) -> bytes:
        """Format the line without its end. Raises LocalProtocolError if a value does not fit its field."""
        parts, is_json = [self._name], self.command.IS_JSON
        try:
            for field in self.fields:
                member = value if is_json else getattr(value, field.name)
                if member is None and isinstance(field.kind, Rest) and field.kind.optional:
                    continue
                parts.append(field.kind.format(member, self._dialect))
        except (ValueError, TypeError, RecursionError) as error:
            raise LocalProtocolError(f"cannot format {self.command.NAME}: {field.name} {error}") from error
        return b" ".join(parts)
