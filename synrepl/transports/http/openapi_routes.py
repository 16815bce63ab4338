"""Handler of the description of the API in OpenAPI 3.1, made from the routes and their handlers."""

from functools import cache
from typing import Any, Final

import msgspec

from synrepl.base.version import daemon_version
from synrepl.declarations import all_error_codes, all_routes
from synrepl.http_api.route import JSON, Parameter, Route
from synrepl.http_api.routes import OCTETS, OPENAPI
from synrepl.rooms import rooms
from synrepl.transports.http.call import Call
from synrepl.transports.http.handlers import Handler, handler_of, handles
from synrepl.wire import jsontext

REFERENCE: Final = "#/components/schemas/{name}"
BINARY: Final = {"type": "string", "format": "binary"}
COMMON_ERRORS: Final = ("bad_request", "unauthorized", "no_rights", "internal")
"""Codes that every route which needs a right can answer."""


class ErrorAnswer(msgspec.Struct):
    """A refused request: a code for programs, a message for people. Some codes have more fields."""

    error: str
    message: str
    retryable: bool | msgspec.UnsetType = msgspec.UNSET


class SynapseError(msgspec.Struct):
    """A refused request, in Synapse's form."""

    errcode: str
    error: str


@handles(OPENAPI)
async def describe(call: Call) -> bytes:
    """Return the description; it is made on the first request, in a thread."""
    return await call.context.thread.run(_encoded_description)


@cache
def _encoded_description() -> bytes:
    return jsontext.dumps(build_description())


@cache
def build_description() -> dict[str, Any]:
    """Build the OpenAPI document."""
    for room in rooms():
        room.import_handlers()
    handlers = [handler_of(route.name) for route in all_routes()]
    kinds = {kind for handler in handlers for kind in (handler.body, handler.answer)} - {None, bytes}
    ordered = [ErrorAnswer, SynapseError, *sorted(kinds, key=lambda kind: kind.__name__)]
    _, components = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route, handler in zip(all_routes(), handlers, strict=True):
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, handler)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "synrepl",
            "version": daemon_version(),
            "description": "Append facts to the log of a daemon, read and follow it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"secret": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, handler: Handler) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name.replace(".", "_"),
        "tags": [route.name.partition(".")[0]],
        "summary": route.summary.rstrip("."),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in route.variables
            ),
            *(_parameter(one, "query") for one in route.query if one.is_documented),
            *(_parameter(one, "header") for one in route.headers),
        ],
        "responses": _responses(route, handler.answer),
    }
    # Without a secret, every request is accepted from this machine.
    operation["security"] = [] if route.right is None else [{"secret": []}, {}]
    if handler.body is bytes:
        operation["requestBody"] = {"required": True, "content": {route.body_type: {"schema": BINARY}}}
    elif handler.body is not None:
        content = {JSON: {"schema": _reference(handler.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.method == "PUT":
        operation["requestBody"] = {"required": True, "content": {OCTETS: {"schema": BINARY}}}
    return operation


def _parameter(parameter: Parameter, where: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": where,
        "required": parameter.kind.is_required,
        "description": parameter.text,
        "schema": parameter.kind.schema,
    }
    if described["schema"].get("type") == "array":
        described |= {"style": "form", "explode": False}  # separated by commas
    return described


def _responses(route: Route, answer: Any) -> dict[str, Any]:
    media_type = route.content_type.partition(";")[0]
    if answer is not None:
        schema = _reference(answer)
    else:
        schema = {"type": "object"} if media_type == JSON else {"type": "string"}
    content: dict[str, Any] = {media_type: {"schema": schema}}
    for other in route.other_types:
        content[other] = {"schema": BINARY}
    responses: dict[str, Any] = {"200": {"description": "the answer", "content": content}}
    codes = [*route.errors, *(COMMON_ERRORS if route.right is not None else ())]
    kinds = all_error_codes()
    by_status: dict[int, list[str]] = {}
    for code in sorted(set(codes)):
        by_status.setdefault(kinds[code].status, []).append(code)
    error = _reference(SynapseError if route.path.startswith("/_synapse/") else ErrorAnswer)
    for status, found in sorted(by_status.items()):
        text = "; ".join(f"{code}: {kinds[code].means}" for code in found)
        responses[str(status)] = {"description": text, "content": {JSON: {"schema": error}}}
    return responses


def _reference(kind: Any) -> dict[str, str]:
    return {"$ref": REFERENCE.format(name=kind.__name__)}
