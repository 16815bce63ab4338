"""The kinds of parameters: what each takes, what it refuses and how, and how clients write it."""

from contextlib import nullcontext
from typing import Any

import pytest

from synrepl.declarations import all_routes
from synrepl.http_api.route import (
    MAX_INTEGER,
    BadParameter,
    Choice,
    Digest,
    Flag,
    InstanceName,
    Kind,
    Misplaced,
    Names,
    Parameter,
    ReaderName,
    Seconds,
    SynapseToken,
    Text,
    WholeNumber,
    WholeNumbers,
)
from synrepl.http_api.routes import APPEND, CHANGELOG, DIGESTS, ROUTES, ROWS
from synrepl.rooms import rooms
from synrepl.transports.http.api import ROUTE_MODULES
from synrepl.transports.http.handlers import _FUNCTIONS, handler_of, handles

D = "0f" * 32

TAKEN: list[tuple[Kind, list[bytes], Any]] = [
    (WholeNumber(7), [], 7),
    (WholeNumber(), [], None),
    (WholeNumber(0, highest=10), [b"11"], 10),
    (WholeNumber(0), [b"9223372036854775807"], MAX_INTEGER),
    (WholeNumber(lowest=-1), [b"-1"], -1),
    (WholeNumbers(most=3), [b"3,1,1"], [3, 1, 1]),
    (Seconds(5.0, highest=60.0), [], 5.0),
    (Seconds(5.0, lowest=1.0, highest=60.0), [b"0.25"], 1.0),
    (Seconds(highest=60.0), [b"1000"], 60.0),
    (Flag(), [], False),
    (Flag(None), [], None),
    (Flag(), [b"true"], True),
    (Flag(None), [b"false"], False),
    (Names(), [b"a,b,a"], frozenset({"a", "b"})),
    (Names(), [b""], frozenset({""})),
    (Names(are_writers=True), [b"master"], frozenset({"master"})),
    (InstanceName(), ["Grüße".encode()], "Grüße"),
    (Digest(), [D.encode()], D),
    (Choice("here"), [b"here"], True),
    (Choice("here"), [], False),
    (Text(), [b"any thing"], "any thing"),
    (SynapseToken(), [b"5", b"6"], 5),
    (ReaderName(), [b"spark-1"], "spark-1"),
    (ReaderName(), [], None),
    (Misplaced("elsewhere"), [], None),
]

REFUSED: list[tuple[Kind, list[bytes], str, str]] = [
    (WholeNumber(), [b"1", b"2"], "bad_request", "x must occur once, not 2 times"),
    (WholeNumber(), [b"\xff"], "bad_request", "x is not UTF-8"),
    (WholeNumber(), [b""], "bad_request", "x must be a whole number from 0 on, not ''"),
    (WholeNumber(), [b"-1"], "bad_request", "x must be a whole number from 0 on, not '-1'"),
    (WholeNumber(lowest=1), [b"0"], "bad_request", "x must be a whole number from 1 on, not '0'"),
    (WholeNumber(), [b"9223372036854775808"], "bad_request", "x must be a whole number from 0 on"),
    (WholeNumber(), ["٣".encode()], "bad_request", "x must be a whole number from 0 on"),
    (WholeNumbers(most=2), [], "bad_request", "x must be 1 to 2 whole numbers, separated by commas"),
    (WholeNumbers(most=2), [b"1,2,3"], "bad_request", "x must be 1 to 2 whole numbers"),
    (WholeNumbers(most=2), [b"1,-2"], "bad_request", "x must be whole numbers from 0 on, not '-2'"),
    (Seconds(highest=1.0), [b"-1"], "bad_request", "x must be a number of seconds, not '-1'"),
    (Seconds(highest=1.0), [b"nan"], "bad_request", "x must be a number of seconds"),
    (Flag(), [b"1"], "bad_request", "x must be true or false, not '1'"),
    (Names(are_writers=True), [b"a b,c"], "bad_writer", "a writer must be one word"),
    (InstanceName(), [b""], "bad_writer", "a writer must be one word"),
    (InstanceName("one word", "bad_request"), [b"a b"], "bad_request", "one word"),
    (Digest(), [D.upper().encode()], "bad_request", "x must be 64 hexadecimal digits in lower case"),
    (Choice("here"), [b"there"], "bad_request", "x must be 'here' or absent, not 'there'"),
    (SynapseToken(), [], "M_MISSING_PARAM", "Missing required integer query parameter x"),
    (SynapseToken(), [b"a"], "M_INVALID_PARAM", "Query parameter x must be an integer"),
    (SynapseToken(), [b"-1"], "M_INVALID_PARAM", "Query parameter x must be a positive integer."),
    (ReaderName(), [b"a", b"b"], "bad_request", "x must occur once"),
    (ReaderName(), [b"\xff"], "bad_request", "x must occur once"),
    (Misplaced("send it in a header"), [b"a"], "bad_request", "send it in a header"),
]


@pytest.mark.parametrize(("kind", "texts", "value"), TAKEN)
def test_valid_parameters_are_parsed(kind: Kind, texts: list[bytes], value: Any) -> None:
    """The value; or the default, if the parameter is absent."""
    assert value == kind.read("x", texts)


@pytest.mark.parametrize(("kind", "texts", "code", "why"), REFUSED)
def test_invalid_parameters_are_refused(kind: Kind, texts: list[bytes], code: str, why: str) -> None:
    """With the code and the message of the response."""
    with pytest.raises(BadParameter) as refused:
        kind.read("x", texts)

    assert code == refused.value.code
    assert why in refused.value.why


@pytest.mark.parametrize(("count", "is_allowed"), [(0, False), (1, True), (3, True), (4, False)])
def test_the_schema_allows_as_many_numbers_as_are_taken(count: int, is_allowed: bool) -> None:
    """Clients that are made from the schema refuse what it forbids before they ask."""
    kind = WholeNumbers(most=3)

    assert is_allowed == (kind.schema["minItems"] <= count <= kind.schema["maxItems"])
    with nullcontext() if is_allowed else pytest.raises(BadParameter):
        kind.read("x", [kind.format([7] * count).encode()])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (WholeNumber(), 7),
        (WholeNumbers(most=9), [1, 2]),
        (Seconds(highest=9.0), 0.25),
        (Flag(), True),
        (Flag(), False),
        (Names(), frozenset({"b", "a"})),
        (Choice("here"), True),
        (Digest(), D),
        (Text(), "any thing"),
    ],
)
def test_formatted_parameters_are_parsed_back(kind: Kind, value: Any) -> None:
    """The text that a client sends means the same at the server."""
    assert value == kind.read("x", [kind.format(value).encode()])


def test_a_request_has_the_path_and_the_given_parameters() -> None:
    """Variable parts are escaped; parameters that are None are left out."""
    assert ("POST", "/v1/streams/a%2Fb%20c/facts") == APPEND.request("a/b c")[:2]
    assert "/v1/digests?serials=1%2C2" == DIGESTS.request(serials=[1, 2]).target
    assert "/v1/streams/s/rows?from=5" == ROWS.request("s", **{"from": 5, "upto": None}).target
    assert "http://h:1/base/v1/changelog?follow=true" == CHANGELOG.request(follow=True).url(
        "http://h:1/base/"
    )


def test_a_client_cannot_send_what_the_route_lacks() -> None:
    """Neither a parameter, nor another number of variable parts."""
    with pytest.raises(KeyError):
        CHANGELOG.request(sinse=5)
    with pytest.raises(TypeError):
        APPEND.request()


def test_each_route_has_a_handler() -> None:
    """One and no other: a second one would be refused when its module is imported."""
    for room in rooms():
        room.import_handlers()
    modules = {route.name: handler_of(route.name).function.__module__ for route in all_routes()}

    assert {module.__name__ for module in ROUTE_MODULES} == {modules[route.name] for route in ROUTES}
    assert _FUNCTIONS.keys() == modules.keys()
    with pytest.raises(ValueError, match="two functions handle POST /v1/"):
        handles(APPEND)(handler_of(CHANGELOG.name).function)


def test_names_are_unique() -> None:
    """Of routes, of their URLs, and of the parameters of each."""
    assert len(all_routes()) == len({route.name for route in all_routes()})
    assert len(all_routes()) == len({(route.method, route.path) for route in all_routes()})
    for route in all_routes():
        parameters: list[Parameter] = [*route.query, *route.headers]
        assert len(parameters) == len({parameter.name for parameter in parameters})
