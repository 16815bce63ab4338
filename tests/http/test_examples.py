"""The examples of the routes, which are in the manual too: each is sent, and answered so."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from synrepl.http_api.route import Route, Router
from synrepl.http_api.routes import ROUTES
from tests.http.builders import SiteCase

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


class ExampleCase(SiteCase):
    """A primary whose log has three facts."""

    routes: Sequence[Route] = ()

    def setUp(self) -> None:
        super().setUp()
        for user in ("ada", "bob", "eve"):
            self.post("push_rules", [[f"@{user}:hs.example"]])

    def check_answers(self) -> None:
        """Each example is answered as shown: the status, the type and the content; each for itself."""
        for route in self.routes:
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


class ExampleTests(ExampleCase):
    """The routes of the core."""

    routes = ROUTES

    def test_each_example_of_a_route_is_answered_as_shown(self) -> None:
        """The status, the type and the content; each of an example for itself."""
        self.check_answers()

    def test_every_route_has_examples(self) -> None:
        """Unless an example would show nothing."""
        self.assertEqual(PAGES, {route.name for route in ROUTES if not route.examples})

    def test_examples_are_of_their_route(self) -> None:
        """The path fits."""
        for route in ROUTES:
            for example in route.examples:
                parts = example.target.partition("?")[0].split("/")
                found = Router(ROUTES).find([unquote(part) for part in parts[1:]])[0]
                self.assertIs(route, found[route.method])
