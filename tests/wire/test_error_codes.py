"""Every error code is in one table, and each code of the table is used."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from synrepl.declarations import all_error_codes, all_routes
from synrepl.transports.http.api_error import ApiError

SOURCE: Final = Path(__file__).resolve().parents[2] / "synrepl"
DECLARING: Final = {*SOURCE.glob("*/error_codes.py"), SOURCE / "http_api/routes.py"}

ERROR_CODES: Final = all_error_codes()

RAISING: Final = {
    "ApiError": 0,
    "BadParameter": 1,
    "CannotPromote": 0,
    "ClaimRefused": 0,
    "InstanceName": 1,
    "NotForwarded": 0,
    "ReadOnlyHere": 0,
    "_refusal": 1,
    "refusal": 0,
}
"""What makes an error from a code, and at which position the code is."""


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    """The modules that use codes."""
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path not in DECLARING]
    return [(path, ast.parse(path.read_text("utf-8"))) for path in paths]


def codes_of(tree: ast.AST) -> Iterator[str]:
    """The codes that errors are made from here, as far as they are literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISING:
            position = RAISING[node.func.id]
            code = node.args[position] if position < len(node.args) else None
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                yield code.value


def test_no_error_has_a_code_that_is_not_in_the_table() -> None:
    """It would have no status, and no entry in the manual."""
    found = [
        f"{path.name}: {code}" for path, tree in trees() for code in codes_of(tree) if code not in ERROR_CODES
    ]

    assert [] == found


def test_every_code_of_the_table_is_used() -> None:
    """A code that nothing sends would mislead whoever reads the manual."""
    literals = {
        node.value
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert [] == sorted(ERROR_CODES.keys() - literals)


def test_routes_name_codes_of_the_table() -> None:
    """And none twice."""
    for route in all_routes():
        assert set(route.errors) <= ERROR_CODES.keys(), route.name


@pytest.mark.parametrize("code", ERROR_CODES)
def test_an_error_has_the_status_and_the_headers_of_its_code(code: str) -> None:
    """Unless it is given another status."""
    kind, error, other = ERROR_CODES[code], ApiError(code, "why"), ApiError(code, "why", status=599)

    assert kind.status == error.status
    assert kind.retryable is error.more.get("retryable")
    retry_after = error.headers.get(b"retry-after")
    assert kind.retry_after == (None if retry_after is None else int(retry_after))
    assert (599, {}, {}) == (other.status, other.more, other.headers)
