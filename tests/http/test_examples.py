"""The examples of the routes, which are in the manual too: each is sent, and answered so."""

import json
from typing import Any
from urllib.parse import unquote

from synrepl.http_api.all_routes import all_routes
from synrepl.http_api.route import Router
from tests.http.test_replica_routes import CopiesCase

NOT_SHOWN = {
    "file.put",
    "replica.about",
    "native.connect",
    "native.receive",
    "admin.hand_over",
    "admin.claim",
}
"""Requests between daemons, and of bytes."""

PAGES = {"status.status", "status.page", "status.root", "status.metrics", "openapi.describe"}
"""Whose answers are described elsewhere."""


def is_like(expected: Any, found: Any) -> bool:
    """Whether these are equal, but for what is `...` in the expected value."""
    if expected is ...:
        return True
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and expected.keys() == found.keys()
            and all(is_like(value, found[key]) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(expected) == len(found) and all(map(is_like, expected, found))
    return type(expected) is type(found) and bool(expected == found)


class ExampleTests(CopiesCase):
    """A primary whose log has three facts."""

    def setUp(self) -> None:
        super().setUp()
        for user in ("ada", "bob", "eve"):
            self.post("push_rules", [[f"@{user}:hs.example"]])

    def test_each_example_of_a_route_is_answered_as_shown(self) -> None:
        """The status, the type and the content; each of an example for itself."""
        for route in all_routes():
            for example in route.examples:
                self.setUp()
                with self.subTest(route=route.name, target=example.target):
                    answer = self.ask(route.method, example.target, example.body_text.encode())
                    self.clock.advance(0)

                    self.assertEqual(example.status, answer.status, answer.body)
                    kind = route.content_type if example.status < 400 else "application/json"
                    self.assertEqual(kind, answer.headers["content-type"])
                    found = answer.lines() if example.is_lines else answer.json()
                    self.assertTrue(is_like(example.answer, found), json.dumps(found))

    def test_every_route_has_examples(self) -> None:
        """Unless an example would show nothing."""
        without = {route.name for route in all_routes() if not route.examples}

        self.assertEqual(NOT_SHOWN | PAGES, without)

    def test_examples_are_of_their_route(self) -> None:
        """The path fits."""
        for route in all_routes():
            for example in route.examples:
                parts = example.target.partition("?")[0].split("/")
                found = Router(all_routes()).find([unquote(part) for part in parts[1:]])[0]
                self.assertIs(route, found[route.method])
