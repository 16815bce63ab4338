"""Shapes of responses: what clients rely on, and the first part of a response that is otherwise."""

from typing import Any

import pytest

from synrepl.http_api.shapes import find_mismatch


@pytest.mark.parametrize(
    ("value", "shape", "mismatch"),
    [
        ("x", str, ""),
        (1, str, "the value should be a text"),
        (1, int, ""),
        (True, int, "the value should be an integer"),
        (1.5, int, "the value should be an integer"),
        (2**63, int, "the value should be an integer"),
        (1, float, ""),
        (1.5, float, ""),
        (float("inf"), float, "the value should be a number"),
        (float("nan"), float, "the value should be a number"),
        (10**400, float, "the value should be a number"),
        (True, bool, ""),
        (1, bool, "the value should be true or false"),
        (None, (int, None), ""),
        ("x", (int, None), "the value should be an integer or null"),
        ([1, 2], [int], ""),
        ([1, "x"], [int], "[1] should be an integer"),
        ({}, [int], "the value should be a list"),
        ({"a": 1, "b": 2}, {"a": int}, ""),
        ({"b": 2}, {"a": int}, "a should be an integer"),
        ({"a": {"b": [{"c": 1}, {"c": ""}]}}, {"a": {...: [{"c": int}]}}, "a.b[1].c should be an integer"),
        ([], {...: int}, "the value should be an object"),
        ({"x" * 90: "y"}, {...: int}, "x" * 40 + " should be an integer"),
    ],
)
def test_the_first_part_that_differs_is_named(value: Any, shape: Any, mismatch: str) -> None:
    """With its place, so that a bug report says something."""
    assert mismatch == find_mismatch(value, shape)
