"""Routes, the kinds of their parameters, examples, and the requests that clients make of them."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urlencode, urlsplit, urlunsplit

from synrepl.http_api.shapes import Shape
from synrepl.wire.acks import Acks
from synrepl.wire.scope import NO_STREAM
from synrepl.wire.text import MAX_NAME, is_name

MAX_INTEGER: Final = 2**63 - 1
BAD_WRITER: Final = f"a writer must be one word, without control characters, of at most {MAX_NAME} characters"

_INTEGER: Final = r"-?[0-9]{1,19}"
_SECONDS: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_DIGEST: Final = r"[0-9a-f]{64}"
_STRING: Final = {"type": "string"}
_NATURAL: Final = {"type": "integer", "minimum": 0}


class BadParameter(ValueError):
    """A parameter is invalid, or missing; `why` is the message, `code` the error code of the response."""

    def __init__(self, why: str, code: str = "bad_request") -> None:
        super().__init__(why)
        self.why = why
        self.code = code


class Kind:
    """A kind of parameter, described by a JSON `schema` and, for people, by `words`.

    `default` is the value of an absent parameter, unless `is_required`.
    """

    is_required = False

    def __init__(
        self, default: Any = None, *, schema: Mapping[str, Any] = _STRING, words: str = "text"
    ) -> None:
        self.default = default
        self.schema = dict(schema)
        self.words = words

    def read(self, name: str, values: Sequence[bytes]) -> Any:
        """Return the value of a parameter, from the texts of its occurrences. Raises `BadParameter`."""
        if not values:
            return self.default
        if len(values) > 1:
            raise BadParameter(f"{name} must occur once, not {len(values)} times")
        try:
            text = values[0].decode("utf-8")
        except UnicodeDecodeError:
            raise BadParameter(f"{name} is not UTF-8") from None
        return self.parse(name, text)

    def parse(self, name: str, text: str) -> Any:
        """Return the value of this text. Raises `BadParameter`."""
        return text

    def format(self, value: Any) -> str:
        """Return the text of a value."""
        return str(value)


class Text(Kind):
    """Any text."""


class InstanceName(Kind):
    """An instance name: one printable word. Other text is refused with `why` and `code`."""

    def __init__(self, why: str = BAD_WRITER, code: str = "bad_writer") -> None:
        super().__init__(schema=_STRING | {"minLength": 1, "maxLength": MAX_NAME}, words="word")
        self._why = why
        self._code = code

    def parse(self, name: str, text: str) -> str:
        if not is_name(text):
            raise BadParameter(self._why, self._code)
        return text


class OwnerName(Kind):
    """The owner of an idempotency key: printable text, or empty for the shared secret."""

    def __init__(self) -> None:
        super().__init__(schema=_STRING | {"maxLength": MAX_NAME})

    def parse(self, name: str, text: str) -> str:
        if len(text) > MAX_NAME or not text.isprintable():
            raise BadParameter(f"{name} must be printable text of at most {MAX_NAME} characters")
        return text


class AcksNumber(Kind):
    """The replicas that must have facts on disk: a number of them, or names (`wire.acks.Acks`)."""

    def __init__(self) -> None:
        super().__init__(schema=_STRING, words="number, or names with commas")

    def parse(self, name: str, text: str) -> Acks:
        try:
            return Acks.parse(text)
        except ValueError as error:
            raise BadParameter(f"{name} {error}") from None


class Choice(Kind):
    """True if the parameter is this word, False if it is absent. Other text is refused."""

    def __init__(self, word: str) -> None:
        super().__init__(False, schema=_STRING | {"enum": [word]}, words=f"`{word}`")
        self._word = word

    def parse(self, name: str, text: str) -> bool:
        if text != self._word:
            raise BadParameter(f"{name} must be '{self._word}' or absent, not {text[:40]!r}")
        return True

    def format(self, value: Any) -> str:
        return self._word


class WholeNumber(Kind):
    """A whole number from `lowest` to 2**63 - 1; one over `highest` is reduced to that."""

    def __init__(self, default: int | None = None, *, lowest: int = 0, highest: int = MAX_INTEGER) -> None:
        words = "integer" if highest == MAX_INTEGER else f"integer, {highest:,} at most"
        schema = {"type": "integer", "minimum": lowest}
        super().__init__(default, schema=schema | _default(default), words=words)
        self.lowest = lowest
        self.highest = highest

    def parse(self, name: str, text: str) -> int:
        if not re.fullmatch(_INTEGER, text, re.ASCII) or not self.lowest <= int(text) <= MAX_INTEGER:
            raise BadParameter(f"{name} must be a whole number from {self.lowest} on, not {text[:40]!r}")
        return min(int(text), self.highest)


class WholeNumbers(Kind):
    """From 1 to `most` whole numbers, each from 0 on, separated by commas."""

    is_required = True

    def __init__(self, most: int) -> None:
        schema = {"type": "array", "items": _NATURAL, "minItems": 1, "maxItems": most}
        super().__init__(schema=schema, words=f"integers, {most:,} at most")
        self._most = most

    def read(self, name: str, values: Sequence[bytes]) -> list[int]:
        numbers: list[int] = super().read(name, values or [b""])
        return numbers

    def parse(self, name: str, text: str) -> list[int]:
        parts = text.split(",") if text else []
        if not 0 < len(parts) <= self._most:
            raise BadParameter(f"{name} must be 1 to {self._most} whole numbers, separated by commas")
        for part in parts:
            if not re.fullmatch(_INTEGER, part, re.ASCII) or not 0 <= int(part) <= MAX_INTEGER:
                raise BadParameter(f"{name} must be whole numbers from 0 on, not {part[:40]!r}")
        return [int(part) for part in parts]

    def format(self, value: Collection[int]) -> str:
        return ",".join(map(str, value))


class Seconds(Kind):
    """A time in seconds, not negative; one outside `lowest` to `highest` is replaced by the nearer bound."""

    def __init__(self, default: float = 0.0, *, lowest: float = 0.0, highest: float) -> None:
        schema = {"type": "number", "minimum": 0, "default": default}
        super().__init__(default, schema=schema, words=f"seconds, {lowest:g} to {highest:g}")
        self.lowest = lowest
        self.highest = highest

    def parse(self, name: str, text: str) -> float:
        if not re.fullmatch(_SECONDS, text, re.ASCII):
            raise BadParameter(f"{name} must be a number of seconds, not {text[:40]!r}")
        return max(self.lowest, min(float(text), self.highest))

    def format(self, value: float) -> str:
        return f"{value:g}"


class Flag(Kind):
    """``true`` or ``false``."""

    def __init__(self, default: bool | None = False) -> None:
        super().__init__(default, schema={"type": "boolean"} | _default(default), words="flag")

    def parse(self, name: str, text: str) -> bool:
        if text not in ("true", "false"):
            raise BadParameter(f"{name} must be true or false, not {text[:40]!r}")
        return text == "true"

    def format(self, value: bool) -> str:
        return {True: "true", False: "false"}[value]


class Names(Kind):
    """Names separated by commas. `are_writers`: each must be a valid name of a writer."""

    def __init__(self, *, are_writers: bool = False) -> None:
        super().__init__(schema={"type": "array", "items": _STRING}, words="names, separated by commas")
        self._are_writers = are_writers

    def parse(self, name: str, text: str) -> frozenset[str]:
        names = frozenset(text.split(","))
        if self._are_writers and not all(map(is_name, names)):
            raise BadParameter(BAD_WRITER, "bad_writer")
        return names

    def format(self, value: Collection[str]) -> str:
        return ",".join(sorted(value))


class Digest(Kind):
    """The digest of a log: 64 hexadecimal digits, in lower case."""

    def __init__(self) -> None:
        super().__init__(schema=_STRING | {"pattern": f"^{_DIGEST}$"}, words="64 hexadecimal digits")

    def parse(self, name: str, text: str) -> str:
        if not re.fullmatch(_DIGEST, text, re.ASCII):
            raise BadParameter(f"{name} must be 64 hexadecimal digits in lower case, not {text[:80]!r}")
        return text


class ConnectionId(Digest):
    """The id of a native connection over HTTP: 64 hexadecimal digits, in lower case."""


class SynapseToken(Kind):
    """A required token. Refusals have the codes and the wording of Synapse."""

    is_required = True

    def __init__(self) -> None:
        super().__init__(schema=_NATURAL, words="integer, required")

    def read(self, name: str, values: Sequence[bytes]) -> int:
        if not values:
            raise BadParameter(f"Missing required integer query parameter {name}", "M_MISSING_PARAM")
        text = values[0].decode("latin-1")
        if not re.fullmatch(_INTEGER, text, re.ASCII) or abs(int(text)) > MAX_INTEGER:
            raise BadParameter(f"Query parameter {name} must be an integer", "M_INVALID_PARAM")
        if int(text) < 0:
            raise BadParameter(f"Query parameter {name} must be a positive integer.", "M_INVALID_PARAM")
        return int(text)


class ReaderName(Kind):
    """The header with a reader's name; None if it is absent."""

    def __init__(self) -> None:
        super().__init__(words="word")

    def read(self, name: str, values: Sequence[bytes]) -> str | None:
        if not values:
            return None
        reader = values[0].decode("utf-8", "replace")
        if len(values) > 1 or not is_name(reader) or "\ufffd" in reader:
            raise BadParameter(
                f"{name} must occur once, as one word of at most {MAX_NAME} printable characters"
            )
        return reader


class Misplaced(Kind):
    """A parameter that is refused in the query; the message says where it belongs."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def parse(self, name: str, text: str) -> None:
        raise BadParameter(self._why)


def _default(value: object) -> dict[str, object]:
    return {} if value is None else {"default": value}


JSON: Final = "application/json"


def public_url(url: str) -> str:
    """Return the URL without user and password, for messages.

    A text that is no URL loses everything between its scheme and its last @.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # an invalid port raises here
    except ValueError:
        host = None
    if not host:
        return re.sub(r"(?s)^([\w+.-]+://)?.*@", r"\1", url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class Parameter(NamedTuple):
    """A parameter of a query, or a header: its name, its kind, and its meaning for people.

    Sending it takes the `right`, besides that of the route.
    """

    name: str
    kind: Kind
    text: str = ""
    right: str = ""

    @property
    def is_documented(self) -> bool:
        """Whether clients may send it."""
        return not isinstance(self.kind, Misplaced)


class HttpRequest(NamedTuple):
    """A request of a route, as every HTTP client can send it. `target` is the path with the query.

    `answer` is the shape of a successful JSON response, as far as clients use it (`shapes`); None: any.
    """

    method: str
    target: str
    answer: Shape = None

    def url(self, base_url: str) -> str:
        """Return the URL of this request at the daemon with this base URL."""
        return base_url.rstrip("/") + self.target


class Example(NamedTuple):
    """A request with `body`, and its response: `answer` is JSON, or with `is_lines` a list of JSON lines.

    Values that differ from run to run are ``...`` in the answer.
    """

    target: str
    answer: Any = None
    body: Any = None
    status: int = 200
    is_lines: bool = False

    @property
    def body_text(self) -> str:
        """The body as it is sent."""
        return "" if self.body is None else json.dumps(self.body)


class Route(NamedTuple):
    """An operation of the API.

    `name` is that of the operation, with its group (``row.page``). Parts of `path` in braces are
    variable; a last one as in ``{name:path}`` stands for all parts that are left, with their slashes. `right`
    is what the peer needs (None: not even a key). `stream` is the stream that it must see, or a word of
    `synrepl.wire.scope`; a path with ``{stream}`` names one. `errors` are codes besides the common ones
    (``bad_request``, ``no_rights``). `max_body` is in bytes (None: the daemon's own limit).
    A body has the type `body_type`; a handler gets one that is not JSON as bytes.
    With `streams_body` the handler begins before the body has arrived, and reads it as a `BodyStream`.
    `Accept` can request one of `other_types`. `answer` is that of `HttpRequest`.
    """

    name: str
    method: str
    path: str
    summary: str
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    content_type: str = JSON
    right: str | None = "read"
    stream: str = NO_STREAM
    errors: tuple[str, ...] = ()
    max_body: int | None = None
    body_type: str = JSON
    streams_body: bool = False
    other_types: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    answer: Shape = None

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it, which knows no part with slashes."""
        return self.path.replace(":path}", "}")

    @property
    def variables(self) -> list[str]:
        """The names of the variable parts of the path."""
        return re.findall(r"{(\w+)}", self.template)

    def request(self, *parts: str, **query: Any) -> HttpRequest:
        """Make a request with these parts of the path and query parameters, without those that are None."""
        names = self.variables
        if len(parts) != len(names):
            raise TypeError(f"{self.path} has {len(names)} variable parts, not {len(parts)}")
        path = self.path
        for name, part in zip(names, parts, strict=True):
            path = path.replace(f"{{{name}}}", quote(part, safe=""))
            path = path.replace(f"{{{name}:path}}", quote(part, safe="/"))
        kinds = {parameter.name: parameter.kind for parameter in self.query}
        pairs = [(name, kinds[name].format(value)) for name, value in query.items() if value is not None]
        return HttpRequest(self.method, f"{path}?{urlencode(pairs)}" if pairs else path, self.answer)


SHORT_PATH: Final = 200
"""Paths of up to so many bytes are remembered with their routes."""


class Router:
    """Finds the routes of a path.

    A part in braces matches any text that is not empty and has no slash, a last part as in ``{name:path}``
    any text that is not empty. A literal part is preferred to them::

        routes, variables = Router(ROUTES).find(["v1", "streams", "events", "facts"])
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._paths: dict[int, list[tuple[list[str], Mapping[str, Route]]]] = {}
        self._prefixes: list[tuple[list[str], str, Mapping[str, Route]]] = []
        # The same few paths are requested again and again.
        self._find_short = lru_cache(maxsize=512)(self._find_path)
        for path in sorted(by_path, key=lambda path: path.replace("{", "\U0010ffff")):
            parts = path[1:].split("/")
            if parts[-1].endswith(":path}"):
                self._prefixes.append((parts[:-1], parts[-1][1:-6], by_path[path]))
                continue
            self._paths.setdefault(len(parts), []).append((parts, by_path[path]))

    def find_path(self, path: bytes) -> tuple[Mapping[str, Route], Mapping[str, str]]:
        """Return what `find` does for the path of a URL, in which characters may be quoted.

        Raises `UnicodeDecodeError` unless it is UTF-8.
        """
        return self._find_short(path) if len(path) <= SHORT_PATH else self._find_path(path)

    def _find_path(self, path: bytes) -> tuple[Mapping[str, Route], Mapping[str, str]]:
        return self.find([unquote_to_bytes(part).decode("utf-8") for part in path[1:].split(b"/")])

    def find(self, parts: Sequence[str]) -> tuple[Mapping[str, Route], dict[str, str]]:
        """Return the routes of this path by method, and its variable parts; no routes for an unknown path."""
        for declared, routes in self._paths.get(len(parts), ()):
            variables: dict[str, str] = {}
            for name, part in zip(declared, parts, strict=True):
                if name.startswith("{") and part and "/" not in part:
                    variables[name[1:-1]] = part
                elif name != part:
                    break
            else:
                return routes, variables
        for prefix, name, routes in self._prefixes:
            if list(parts[: len(prefix)]) == prefix and (rest := "/".join(parts[len(prefix) :])):
                return routes, {name: rest}
        return {}, {}
