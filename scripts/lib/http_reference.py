"""The page about HTTP: prose from a file, and tables, examples and codes from the declarations."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from synrepl.base.rights import Operation, route_operation
from synrepl.declarations import all_error_codes, all_routes
from synrepl.http_api.route import Example, Parameter, Route
from synrepl.transports.http import api as _ties_handlers  # noqa: F401
from synrepl.transports.http.openapi_routes import build_description
from synrepl.wire.error_codes import RETRYABLE_STATUSES, ErrorCode
from synrepl.wire.scope import ALL_STREAMS, NAMED_STREAMS, NO_STREAM, SEEN_STREAMS

__all__ = ["BASE_URL", "http_reference"]

PROSE: Final = Path(__file__).with_suffix(".md")
"""The prose of the page. A line ``<!-- route: NAME -->`` is replaced by the section of that route."""

BASE_URL: Final = "http://127.0.0.1:9093"

_MARK: Final = re.compile(r"<!-- (endpoints|errors|route: (\S+)) -->")


def http_reference() -> list[str]:
    """Return the lines of the page, without its title. Routes that the prose does not mention come last."""
    schemas = build_description()["components"]["schemas"]
    routes = {route.name: route for route in all_routes()}
    lines: list[str] = []
    for line in PROSE.read_text("utf-8").splitlines():
        match = _MARK.fullmatch(line)
        if match is None:
            lines.append(line)
        elif match[2]:
            lines += _route(routes.pop(match[2]), schemas)
        else:
            lines += _endpoints() if match[1] == "endpoints" else _errors()
    for route in routes.values():
        lines += ["", *_route(route, schemas)]
    return lines


def _endpoints() -> Iterator[str]:
    yield "| endpoint | right | streams | effect |"
    yield "|---|---|---|---|"
    for route in all_routes():
        title = _title(route)
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        takes = f"{route.right or 'none'} | {streams_of(route_operation(route))}"
        yield f"| [`{title}`](#{anchor}) | {takes} | {route.summary} |"


def streams_of(operation: Operation) -> str:
    """Return the streams that an operation concerns, in words."""
    words = {NO_STREAM: "", NAMED_STREAMS: "the named", SEEN_STREAMS: "the seen", ALL_STREAMS: "all"}
    return words.get(operation.streams, f"`{operation.streams}`")


def _errors() -> Iterator[str]:
    yield "| status | code | when | what to do | retry |"
    yield "|---|---|---|---|---|"
    for code, kind in sorted(all_error_codes().items(), key=lambda item: (item[1].status, item[0])):
        yield f"| {kind.status} | `{code}` | {kind.means} | {kind.action} | {_retry(kind)} |"


def _retry(kind: ErrorCode) -> str:
    is_retryable = kind.status in RETRYABLE_STATUSES if kind.retryable is None else kind.retryable
    if not is_retryable:
        return "no"
    return "yes" if kind.retry_after is None else f"after {kind.retry_after} s"


def _title(route: Route) -> str:
    return f"{route.method} {route.template}"


def _route(route: Route, schemas: dict[str, Any]) -> Iterator[str]:
    right = f"the right `{route.right}`" if route.right else "no right"
    yield f"## {_title(route)}"
    yield ""
    yield f"{route.summary} Requires {right}."
    parameters = [one for one in (*route.query, *route.headers) if one.is_documented]
    if parameters:
        yield ""
        yield "| parameter | value | default | |"
        yield "|---|---|---|---|"
        for parameter in parameters:
            where = " (header)" if parameter in route.headers else ""
            yield (
                f"| `{parameter.name}`{where} | {parameter.kind.words} | {_default(parameter)}"
                f" | {parameter.text} |"
            )
    yield from _body(route, schemas)
    for example in route.examples:
        yield ""
        yield from _example(route, example)
    if route.errors:
        yield ""
        yield f"Errors: {', '.join(f'`{code}`' for code in dict.fromkeys(route.errors))}."


def _default(parameter: Parameter) -> str:
    default = parameter.kind.default
    if default is None or isinstance(default, bool):
        return "required" if parameter.kind.is_required else ""
    return f"`{default}`" if isinstance(default, str) else f"{default:g}"


def _body(route: Route, schemas: dict[str, Any]) -> Iterator[str]:
    operation = build_description()["paths"][route.template][route.method.lower()]
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if schema is None:
        return
    struct = schemas[schema["$ref"].rpartition("/")[2]]
    yield ""
    yield "| key of the body | value | |"
    yield "|---|---|---|"
    required = struct.get("required", [])
    for name, value in struct["properties"].items():
        note = "required" if name in required else _text(value.get("default", ""))
        yield f"| `{name}` | {_type(value)} | {note} |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"object ({schema['$ref'].rpartition('/')[2]})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    return str(schema.get("type", "any"))


def _example(route: Route, example: Example) -> Iterator[str]:
    method = "" if route.method in ("GET", "POST") else f"-X {route.method} "
    target = f"'{BASE_URL}{example.target}'" if "?" in example.target else f"{BASE_URL}{example.target}"
    body = "" if example.body is None else f" --json '{example.body_text}'"
    yield f"    curl {method}{target}{body}"
    yield ""
    if example.status != 200:
        yield f"{example.status}:"
        yield ""
    yield "```json"
    answers = example.answer if example.is_lines else [example.answer]
    yield from map(_text, answers)
    yield "```"


def _text(value: Any) -> str:
    """Encode a value as JSON; a value that differs from run to run (``...``) becomes ``"..."``."""
    return "" if value == "" else json.dumps(value, separators=(",", ":"), default=lambda _: "...")
