"""Unknown fields of the routes of replicas: refused, with the nearest known name."""

import json

from synrepl.transports.http.bodies import decode_body
from synrepl.transports.http.handlers import handler_of
from tests.http import test_unknown_names as core


class UnknownNamesTests(core.UnknownNamesTests):
    """The core's tests, and those of the fields of replicas."""

    def test_the_nearest_field_is_named(self) -> None:
        for path, body, near in (
            ("/v1/leases", {"nmae": "a"}, "name"),
            ("/v1/promote", {"forc": True}, "force"),
        ):
            with self.subTest(path):
                told = self.refusal(self.ask("POST", path, json.dumps(body).encode()))

                self.assertIn("unknown field", told)
                self.assertTrue(told.endswith(f"; did you mean {near}?"), told)

    def test_a_request_without_fields_takes_none(self) -> None:
        self.assertIn("this request has no fields", self.refusal(self.ask("POST", "/v1/resync", b'{"x":1}')))

    def test_daemons_may_send_more_than_an_older_one_knows(self) -> None:
        for name, body in (
            ("admin.hand_over", {"seconds": 1.0}),
            ("admin.claim", {"epoch": 1, "uuid": "u", "address": "-", "history": "h"}),
        ):
            decoder = handler_of(name).decoder
            assert decoder is not None

            decoded = decode_body(decoder, json.dumps(body | {"added_later": True}).encode())

            self.assertEqual(body, {field: getattr(decoded, field) for field in body})
