"""Finding the routes of a path."""

import pytest

from synrepl.http_api.route import Route, Router

TABLE = Router(
    [
        Route("one.get", "GET", "/v1/files/{sha256}", ""),
        Route("one.put", "PUT", "/v1/files/{sha256}", ""),
        Route("all.get", "GET", "/v1/files", ""),
        Route("lost.get", "GET", "/v1/files/missing", ""),
        Route("rows.get", "GET", "/v1/streams/{stream}/rows", ""),
    ]
)


@pytest.mark.parametrize(
    ("path", "methods", "variables"),
    [
        ("v1/files", {"GET"}, {}),
        ("v1/files/abc", {"GET", "PUT"}, {"sha256": "abc"}),
        ("v1/files/missing", {"GET"}, {}),
        ("v1/streams/events/rows", {"GET"}, {"stream": "events"}),
        ("v1/streams/{stream}/rows", {"GET"}, {"stream": "{stream}"}),
        ("v1/files/", set(), {}),
        ("/v1/files", set(), {}),
        ("v1//files", set(), {}),
        ("v1/streams//rows", set(), {}),
        ("v1/streams/events", set(), {}),
        ("v1/streams/events/rows/", set(), {}),
        ("V1/files", set(), {}),
        ("", set(), {}),
    ],
)
def test_a_path_has_the_routes_of_its_methods(
    path: str, methods: set[str], variables: dict[str, str]
) -> None:
    """A literal part wins over a variable one; an empty part is none."""
    routes, found = TABLE.find(path.split("/"))

    assert (methods, variables) == (set(routes), found)


def test_a_slash_that_was_escaped_parts_nothing() -> None:
    """It is in a name, and no name has one."""
    assert ({}, {}) == TABLE.find(["v1", "files", "a/b"])
