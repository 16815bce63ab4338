"""Parameters and headers of requests."""

import re
from typing import Any, Final

from synrepl.http_api.kinds import MAX_INTEGER, BadParameter
from synrepl.http_api.route import Route
from synrepl.transports.http.api_error import ApiError

__all__ = ["MAX_TOKEN", "header", "headers", "is_checksum", "read_parameters"]

MAX_TOKEN: Final = MAX_INTEGER

_checksum: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def read_parameters(request: Any, route: Route) -> dict[str, Any]:
    """Return the values of the route's parameters, by name; unknown ones are ignored. Raises `ApiError`."""
    arguments = request.args
    try:
        values = {
            parameter.name: parameter.kind.read(parameter.name, arguments.get(parameter.name.encode(), ()))
            for parameter in route.query
        }
        for parameter in route.headers:
            found = request.requestHeaders.getRawHeaders(parameter.name.encode()) or ()
            values[parameter.name] = parameter.kind.read(parameter.name, found)
    except BadParameter as error:
        raise ApiError(error.code, error.why) from None
    return values


def headers(request: Any, name: str) -> list[str]:
    """Return the values of a header, with U+FFFD for bytes that are not UTF-8, where Twisted would raise."""
    value = request.requestHeaders.getRawHeaders(name.encode()) or ()
    return [value.decode("utf-8", "replace") for value in value]


def header(request: Any, name: str) -> str | None:
    """Return the last value of a header; None if it is absent."""
    value = headers(request, name)
    return value[-1] if value else None


def is_checksum(text: str) -> bool:
    """Whether this is a SHA-256 checksum in hexadecimal."""
    return _checksum.fullmatch(text) is not None
