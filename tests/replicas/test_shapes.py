"""Shapes of the JSON of replicas."""

from synrepl.http_api.shapes import find_mismatch
from synrepl.replicas.shapes import STATUS


def test_a_part_that_may_be_null_is_checked_if_it_is_there() -> None:
    """A replica has an upstream, and a primary has none."""
    assert find_mismatch(None, STATUS["upstream"]) == ""
    assert find_mismatch({"state": 7}, STATUS["upstream"]) == "the value should be null or an object"
