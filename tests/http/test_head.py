"""HEAD is GET without the body, and who waits for 100 Continue is answered, on every route."""

from synrepl.http_api.routes import ROUTES
from tests.http.builders import Answer
from tests.http.test_replica_routes import CopiesCase

PAGES = ("/", "/status", "/v1/status", "/metrics", "/livez", "/readyz", "/v1/openapi.json")
ENDLESS = "/v1/changelog?follow=true"


def described(answer: Answer) -> dict[str, str]:
    """The headers, but for those of the connection and of the time."""
    return {
        name: value for name, value in answer.headers.items() if name not in ("date", "transfer-encoding")
    }


class HeadTests(CopiesCase):
    """Answers without a body."""

    def test_head_is_get_without_the_body(self) -> None:
        """The status and every header; errors and answers without an end too."""
        examples = [one.target for route in ROUTES if route.method == "GET" for one in route.examples]
        for target in (*examples, *PAGES, ENDLESS, "/v1/nothing"):
            self.setUp()
            with self.subTest(target=target):
                answers = []
                for method in ("GET", "HEAD"):
                    talk = self.talk()
                    talk.say(self.request(method, target))
                    self.clock.advance(0)
                    answers.append(talk.answer())
                    talk.leave()
                get, head = answers
                self.assertEqual((get.status, b""), (head.status, head.body))
                self.assertEqual(described(get), described(head))


class ExpectTests(CopiesCase):
    """Clients that send a body once they are asked for it, as curl and proxies do."""

    def test_every_route_with_a_body_asks_for_it(self) -> None:
        """And answers then; nobody waits for ever."""
        for route in ROUTES:
            if route.method in ("POST", "PUT"):
                with self.subTest(route=route.name):
                    path = route.template.replace("{stream}", "push_rules").replace("{sha256}", "0" * 64)
                    talk = self.talk()
                    talk.say(self.request(route.method, path, b"{}", "Expect: 100-continue")[:-2])
                    self.assertEqual(b"HTTP/1.1 100 Continue\r\n\r\n", talk.heard)
                    talk.say(b"{}")
                    self.clock.advance(0)
                    self.assertRegex(talk.heard, rb"\r\n\r\nHTTP/1.1 [2-5]")
                    talk.leave()
