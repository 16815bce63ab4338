"""HEAD is GET without the body, and who waits for 100 Continue is answered, on every route."""

from synrepl.http_api.routes import ROUTES
from synrepl.transports.http.row_routes import BEHIND_SECONDS
from tests.http.builders import Answer, SiteCase

PAGES = ("/", "/status", "/v1/status", "/metrics", "/livez", "/readyz", "/v1/openapi.json")
ENDLESS = "/v1/changelog?follow=true"


def described(answer: Answer) -> dict[str, str]:
    """The headers, but for those of the connection and of the time."""
    return {
        name: value for name, value in answer.headers.items() if name not in ("date", "transfer-encoding")
    }


class HeadTests(SiteCase):
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
                    self.clock.advance(0 if talk.heard else BEHIND_SECONDS)
                    answers.append(talk.answer())
                    talk.leave()
                get, head = answers
                self.assertEqual((get.status, b""), (head.status, head.body))
                self.assertEqual(described(get), described(head))


class ExpectTests(SiteCase):
    """Clients that send a body once they are asked for it, as curl and proxies do."""

    places: tuple[tuple[str, str], ...] = ()
    """More methods and paths of requests with bodies."""

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

    def test_a_body_that_would_be_refused_is_not_asked_for(self) -> None:
        """Of a peer without the right, and of a URL that is none; the connection then ends."""
        self.site = self.make_site(secret="a-secret-of-the-test")
        for method, path, status in (
            ("POST", "/v1/streams/push_rules/facts", 401),
            ("POST", "/v1/appends", 401),
            *((*place, 401) for place in self.places),
        ):
            for length in ("Content-Length: 999", "Transfer-Encoding: chunked"):
                with self.subTest(path=path, length=length):
                    talk = self.talk()
                    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n{length}"
                    talk.say(f"{head}\r\n\r\n".encode())
                    self.clock.advance(0)
                    answer = talk.answer()
                    self.assertEqual((status, "close"), (answer.status, answer.headers["connection"]))
                    self.assertIn("bearer", answer.headers["www-authenticate"].lower())
                    self.assertEqual("unauthorized", answer.json()["error"])
                    talk.say(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    self.assertNotIn(b"HTTP/1.1 200", talk.heard)
                    self.clock.advance(11)
                    self.assertTrue(talk.transport.disconnecting)
                    talk.leave()

    def test_a_url_that_is_none_is_refused_before_the_body(self) -> None:
        """And a method that it does not have."""
        for path, status in (("/v1/nothing", 404), ("/v1/status", 405)):
            with self.subTest(path=path):
                talk = self.talk()
                talk.say(self.request("POST", path, b"x" * 99, "Expect: 100-continue")[:-99])
                self.clock.advance(0)
                self.assertEqual(
                    (status, "close"), (talk.answer().status, talk.answer().headers["connection"])
                )
