"""Field kinds: how a field of a command is parsed and formatted."""

import typing
from typing import Any, Final

import msgspec

from synrepl.wire import jsontext
from synrepl.wire.dialect import Dialect
from synrepl.wire.text import printable

MAX_INTEGER: Final = 2**63 - 1
MIN_INTEGER: Final = -(2**63)


def show(data: bytes | str) -> str:
    """Return received bytes as text that is safe and short enough for a message or the wire."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    text = ascii(text[:80])
    return text if len(data) <= 80 else f"{text}..."


class FieldKind:
    """The format of a field. With `takes_rest` it may contain spaces, and is the last of its command."""

    takes_rest = False
    grammar = "<{name}>"

    def parse(self, data: bytes) -> Any:
        """Parse the value. Raises ValueError with a message that continues the field's name."""
        raise NotImplementedError

    def format(self, value: Any, dialect: Dialect) -> bytes:
        """Format the value. Raises ValueError likewise, or TypeError for a value of another type."""
        raise NotImplementedError


class _Names(dict[bytes, str]):
    """A cache of decoded names of streams and writers, which repeat. Bounded, as peers choose them."""

    def __missing__(self, data: bytes) -> str:
        if not data:
            raise ValueError("must not be empty")
        text = data.decode("utf-8")
        if len(self) < 10_000 and len(data) < 256:
            self[data] = text
        return text


class Word(FieldKind):
    """Text without spaces."""

    def __init__(self) -> None:
        # A bound C method, as it parses the stream and writer of every row.
        self.parse = _Names().__getitem__  # type: ignore[method-assign, assignment]

    def format(self, value: Any, dialect: Dialect) -> bytes:
        if not value or " " in value or "\n" in value or "\r" in value:
            raise ValueError(f"must be one word, not {show(value)}")
        return typing.cast("str", value).encode("utf-8")


class Integer(FieldKind):
    """A 64-bit integer of at least `least`; only parsing checks the range."""

    grammar = "<{name}: integer>"

    def __init__(self, *, least: int = MIN_INTEGER) -> None:
        self._least = least
        bounded = "" if least == MIN_INTEGER else f" of at least {least}"
        self._must_be = f"must be a 64-bit integer{bounded}"

    def parse(self, data: bytes) -> Any:
        if data.isdigit() and len(data) < 19:
            return int(data)
        digits = data[1:] if data[:1] == b"-" else data
        if not digits.isdigit() or len(digits) > 19 or not self._least <= (value := int(data)) <= MAX_INTEGER:
            raise ValueError(f"{self._must_be}, not {show(data)}")
        return value

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return b"%d" % value


class TokenOr(Integer):
    """A 64-bit integer, or None written as the word `absent`."""

    def __init__(self, absent: str, *, any_case: bool = False) -> None:
        super().__init__()
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


class WordOr(Word):
    """A word; the word `absent` is None."""

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


class Either(FieldKind):
    """One of two words, for True and False."""

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


class Rest(FieldKind):
    """Free text to the end of the line.

    If `optional`, the value is None when the line ends without the space before the text, and empty when it
    ends with that space.
    """

    takes_rest = True
    grammar = "<{name}...>"

    def __init__(self, *, optional: bool = False, may_be_empty: bool = False) -> None:
        self.optional = optional
        self._may_be_empty = may_be_empty or optional
        if optional:
            self.grammar = "[{name}...]"

    def parse(self, data: bytes) -> Any:
        if not data and not self._may_be_empty:
            raise ValueError("must not be empty")
        return data.decode("utf-8")

    def format(self, value: Any, dialect: Dialect) -> bytes:
        if "\n" in value:
            raise ValueError("must not contain a line break")
        if not value and not self._may_be_empty:
            # The peer refuses it, and perhaps with it all that comes over this connection.
            raise ValueError("must not be empty")
        return typing.cast("str", value).encode("utf-8")


class MiddleText(Rest):
    """Text that may contain spaces, followed by single words: parsed from both ends."""

    takes_rest = False
    grammar = "<{name}>"


class JsonValue(FieldKind):
    """JSON to the end of the line, decoded."""

    takes_rest = True
    grammar = "<{name}: JSON>"

    def parse(self, data: bytes) -> Any:
        try:
            return jsontext.loads(data)
        except ValueError as error:
            raise ValueError(f"must be JSON: {error}") from error

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return jsontext.dumps(value, spaced=jsontext.is_spaced(dialect))


class RawJson(JsonValue):
    """JSON to the end of the line, left undecoded for the stream's row decoder."""

    def parse(self, data: bytes) -> Any:
        if not data:
            raise ValueError("must be JSON, not empty")
        return data

    def format(self, value: Any, dialect: Dialect) -> bytes:
        if b"\n" in value:
            raise ValueError("must not contain a line break")
        return typing.cast("bytes", value)


class Body(JsonValue):
    """JSON to the end of the line, decoded as the type `shape` and checked."""

    def __init__(self, shape: Any) -> None:
        self._decoder = msgspec.json.Decoder(shape)

    def parse(self, data: bytes) -> Any:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"is invalid: {printable(str(error))}") from error

    def format(self, value: Any, dialect: Dialect) -> bytes:
        return msgspec.json.encode(value, order="deterministic")


class JsonArray(JsonValue):
    """A JSON array of exactly `length` items, texts, numbers and the like, to the end of the line."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.grammar = "<{name}: JSON array of " + str(length) + ">"

    def parse(self, data: bytes) -> Any:
        value = super().parse(data)
        if not isinstance(value, list) or len(value) != self._length:
            # The value is not shown: USER_IP contains an access token.
            raise ValueError(f"must be a JSON array of {self._length} items")
        if any(isinstance(item, list | dict) for item in value):
            # Nested deeply, it could be read in one place, and not be written in another.
            raise ValueError("must not have arrays or objects in its array")
        return value
