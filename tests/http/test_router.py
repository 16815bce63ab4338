"""Finding the routes of a path."""

from urllib.parse import unquote

import pytest

from synrepl.http_api.route import Route, Router

TABLE = Router(
    [
        Route("one.get", "GET", "/v1/files/{sha256}", ""),
        Route("one.put", "PUT", "/v1/files/{sha256}", ""),
        Route("all.get", "GET", "/v1/files", ""),
        Route("lost.get", "GET", "/v1/files/missing", ""),
        Route("named.get", "GET", "/v1/named/{name:path}", ""),
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
        ("v1/named/a", {"GET"}, {"name": "a"}),
        ("v1/named/media/a b.txt", {"GET"}, {"name": "media/a b.txt"}),
        ("v1/named/a//b/", {"GET"}, {"name": "a//b/"}),
        ("v1/named//a", {"GET"}, {"name": "/a"}),
        ("v1/named/", set(), {}),
        ("v1/named", set(), {}),
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
    """It is in a name, and no name has one, but those that take all parts that are left."""
    assert ({}, {}) == TABLE.find(["v1", "files", "a/b"])
    assert {"name": "a/b/c"} == TABLE.find(["v1", "named", "a/b", "c"])[1]


@pytest.mark.parametrize("name", ["hello.txt", "media/2026/hello world.txt", "a?b#c%2F", "{sha256}", "ä//ö"])
def test_a_name_with_slashes_survives_its_request(name: str) -> None:
    """The path is made of it by the client, and read by the server."""
    (route,) = TABLE.find(["v1", "named", "x"])[0].values()
    target = route.request(name).target

    assert target.startswith("/v1/named/")
    assert {"name": name} == TABLE.find([unquote(part) for part in target[1:].split("/")])[1]
