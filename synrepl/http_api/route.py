"""Routes, their parameters and examples, and the requests that clients make of them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from synrepl.http_api.kinds import Kind, Misplaced

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
    """A parameter of a query, or a header: its name, its kind, and its meaning for people."""

    name: str
    kind: Kind
    text: str = ""

    @property
    def is_documented(self) -> bool:
        """Whether clients may send it."""
        return not isinstance(self.kind, Misplaced)


class HttpRequest(NamedTuple):
    """A request of a route, as every HTTP client can send it. `target` is the path with the query."""

    method: str
    target: str

    def url(self, base_url: str) -> str:
        """Return the URL at the daemon with this address."""
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

    `name` is that of its handler: module and function (``row.page`` is `page` in `row_routes`). The
    signature of the handler has the structs of body and answer. Parts of `path` in braces are variable.
    `right` is what the peer needs (None: not even a key); `stream` the stream that it must see, if the path
    names none. `errors` are codes besides those of every route. `max_body` is in bytes (None: the daemon's
    own limit). `other_types` are those that `Accept` can ask for instead of `content_type`.
    """

    name: str
    method: str
    path: str
    summary: str
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    content_type: str = JSON
    right: str | None = "read"
    stream: str = ""
    errors: tuple[str, ...] = ()
    max_body: int | None = None
    other_types: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()

    @property
    def variables(self) -> list[str]:
        """The names of the variable parts of the path."""
        return re.findall(r"{(\w+)}", self.path)

    def request(self, *parts: str, **query: Any) -> HttpRequest:
        """Make a request with these variable parts and parameters; parameters that are None are left out."""
        names = self.variables
        if len(parts) != len(names):
            raise TypeError(f"{self.path} has {len(names)} variable parts, not {len(parts)}")
        path = self.path.format(
            **{name: quote(part, safe="") for name, part in zip(names, parts, strict=True)}
        )
        kinds = {parameter.name: parameter.kind for parameter in self.query}
        pairs = [(name, kinds[name].format(value)) for name, value in query.items() if value is not None]
        return HttpRequest(self.method, f"{path}?{urlencode(pairs)}" if pairs else path)


class RouteTable:
    """Finds the routes of a path.

    A part in braces matches any text that is not empty and has no slash. A literal part is preferred to it::

        routes, variables = RouteTable(ROUTES).find(["v1", "streams", "events", "facts"])
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._paths: dict[int, list[tuple[list[str], Mapping[str, Route]]]] = {}
        for path in sorted(by_path, key=lambda path: path.replace("{", "\U0010ffff")):
            parts = path[1:].split("/")
            self._paths.setdefault(len(parts), []).append((parts, by_path[path]))

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
        return {}, {}
