"""The examples of the routes of rooms, at a primary that may have replicas: each is sent, and answered so."""

from urllib.parse import unquote

from synrepl.declarations import all_routes
from synrepl.http_api.route import Router
from synrepl.http_api.routes import ROUTES
from tests.http.test_examples import ExampleCase
from tests.replicas.http.test_replica_routes import CopiesCase

NOT_SHOWN = {
    "replica.about",
    "native.connect",
    "native.receive",
    "admin.hand_over",
    "admin.claim",
}
"""Requests between daemons, and of bytes."""


class RoomExampleTests(ExampleCase, CopiesCase):
    """A primary with all that its copies ask for."""

    routes = tuple(route for route in all_routes() if route not in ROUTES)

    def test_each_example_of_a_route_is_answered_as_shown(self) -> None:
        """The status, the type and the content; each of an example for itself."""
        self.check_answers()

    def test_every_route_has_examples(self) -> None:
        """Unless an example would show nothing."""
        without = {route.name for route in self.routes if not route.examples}
        self.assertEqual(NOT_SHOWN, without - {"file.put"})

    def test_examples_are_of_their_route(self) -> None:
        """The path fits."""
        for route in self.routes:
            for example in route.examples:
                parts = example.target.partition("?")[0].split("/")
                found = Router(all_routes()).find([unquote(part) for part in parts[1:]])[0]
                self.assertIs(route, found[route.method])
