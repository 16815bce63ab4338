"""Unknown parameters and fields of ``/v1``: refused, with the nearest known name."""

import json
from typing import Any

from synrepl.declarations import all_routes
from tests.http.builders import SiteCase


class UnknownNamesTests(SiteCase):
    """A misspelled name once did nothing, and nobody was told."""

    def refusal(self, answer: Any) -> str:
        self.assertEqual((400, "bad_request"), (answer.status, answer.json()["error"]))
        return str(answer.json()["message"])

    def test_every_route_refuses_an_unknown_parameter(self) -> None:
        for route in all_routes():
            if not route.path.startswith("/v1/") or route.method == "PUT":
                continue
            path = route.template.replace("{stream}", "push_rules").replace("{sha256}", "0" * 64)
            path = path.format(uuid="u", name="n") if "{" in path else path
            body = b"{}" if route.method == "POST" else b""
            with self.subTest(path):
                answer = self.ask(route.method, f"{path}?wiat=1", body, f"Content-Type: {route.body_type}")

                self.assertIn("unknown parameter 'wiat'", self.refusal(answer))

    def test_the_nearest_parameter_is_named(self) -> None:
        told = self.refusal(self.ask("GET", "/v1/changelog?since=0&streems=push_rules"))

        self.assertEqual("unknown parameter 'streems'; did you mean streams?", told)

    def test_routes_of_others_take_what_they_are_given(self) -> None:
        """Synapse, Prometheus and load balancers may add parameters."""
        for path in ("/metrics?x=1", "/livez?x=1", "/readyz?x=1", "/status?x=1"):
            self.assertEqual(200, self.ask("GET", path).status, path)
        path = "/_synapse/replication/get_repl_stream_updates/push_rules/t?from_token=0&upto_token=0&x=1"
        self.assertEqual(200, self.ask("GET", path).status)

    def test_the_nearest_field_is_named(self) -> None:
        for path, body, near in (
            ("/v1/streams/push_rules/facts", {"fact": []}, "facts"),
            ("/v1/streams/push_rules/facts", {"facts": [], "idempotency-key": "a"}, "idempotency_key"),
            ("/v1/facts", {"appends": [{"steam": "push_rules", "facts": []}]}, "stream"),
            ("/v1/commands/ack", {"life": "a", "nubmer": 1, "number": 1}, "number"),
        ):
            with self.subTest(path):
                told = self.refusal(self.ask("POST", path, json.dumps(body).encode()))

                self.assertIn("unknown field", told)
                self.assertTrue(told.endswith(f"; did you mean {near}?"), told)
