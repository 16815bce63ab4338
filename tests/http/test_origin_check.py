"""A web page on the same machine can reach loopback: it must neither write here nor read."""

from twisted.internet.defer import Deferred

from tests.http.builders import SiteCase

BODY = b'{"facts":[[["!r:hs","m.read","@a:hs","$e",null,{"ts":1}]]]}'
FACTS = "/v1/streams/receipts/facts"


class CrossSiteRequests(SiteCase):
    """Without a secret, as on loopback by default. Headers are those that browsers send."""

    def refusal(self, code: str, method: str, path: str, *headers: str, body: bytes = b"") -> None:
        """It is refused with this code, and nothing was stored."""
        answer = self.ask(method, path, body, *headers)

        self.assertEqual(code, answer.json()["error"], answer.body)
        self.assertEqual(415 if code == "content_type" else 403, answer.status)
        self.assertEqual(0, self.log.head.serial)

    def test_a_page_of_another_site_cannot_post(self) -> None:
        """A form or fetch() without a preflight: text/plain, urlencoded, multipart."""
        self.refusal(
            "foreign_origin",
            "POST",
            FACTS,
            "Origin: https://evil.example",
            "Sec-Fetch-Site: cross-site",
            "Content-Type: text/plain",
            body=BODY,
        )

    def test_a_page_of_another_port_of_this_machine_cannot_post(self) -> None:
        """Another program's page on localhost is another origin, though the same site."""
        self.refusal("foreign_origin", "POST", FACTS, "Origin: http://localhost:3000", body=BODY)
        self.refusal("foreign_origin", "POST", FACTS, "Sec-Fetch-Site: same-site", body=BODY)

    def test_the_answer_tells_what_a_proxy_asked_for(self) -> None:
        """nginx asks for the daemon's address if nothing else is said: pages of the own site are refused."""
        answer = self.ask("POST", FACTS, BODY, "Origin: https://sync.example.org", "Host: 127.0.0.1:9093")

        said = answer.json()["message"]
        self.assertIn("a page of https://sync.example.org", said)
        self.assertIn("Host 127.0.0.1:9093", said)
        self.assertIn("a proxy", said)

    def test_a_page_without_an_origin_cannot_post(self) -> None:
        """A sandboxed frame, or a file, says null."""
        self.refusal("foreign_origin", "POST", FACTS, "Origin: null", body=BODY)

    def test_an_image_of_another_site_is_not_answered(self) -> None:
        """<img src="http://localhost:9093/v1/changelog">."""
        self.refusal(
            "foreign_origin", "GET", "/v1/changelog", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"
        )

    def test_an_origin_that_is_no_url_is_refused(self) -> None:
        """The connection was cut without an answer, and a traceback was logged."""
        for origin in ("http://[", "http://[::1", "http://[not-an-address]", "http://a\u2100"):
            with self.subTest(origin):
                self.refusal("foreign_origin", "POST", FACTS, f"Origin: {origin}", body=BODY)

    def test_a_host_that_is_no_name_is_a_bad_request(self) -> None:
        """The library that finds the path raised an error for it: 500, with a traceback in the log."""
        for host in ("a..b", "x" * 64, "local\x85ost", "\u00ad"):
            with self.subTest(host):
                talk = self.talk()
                talk.say(self.request("GET", "/readyz", b"", f"Host: {host}"))

                self.assertEqual((400, "bad_request"), (talk.answer().status, talk.answer().json()["error"]))
        self.assertEqual([], self.flushLoggedErrors())

    def test_headers_that_are_not_utf_8_are_no_error_of_ours(self) -> None:
        """Each was answered with 500, and a traceback was logged. What cannot be read asks for nothing."""
        cases = [
            (200, b"GET /v1/changelog?since=0", b"Accept", b""),
            (200, b"GET /_synapse/replication/get_repl_stream_updates/receipts/1?from_token=0&upto_token=0",
             b"User-Agent", b""),
            (200, b"POST /v1/streams/receipts/facts", b"Content-Digest", BODY),
            (400, b"GET /v1/changelog?since=0", b"Synrepl-Reader", b""),
        ]  # fmt: skip
        for status, asked, header, body in cases:
            with self.subTest(header):
                talk = self.talk()
                talk.say(
                    b"%b HTTP/1.1\r\nHost: localhost\r\n%b: \xff\xd8\r\nContent-Length: %d\r\n"
                    b"Content-Type: application/json\r\n\r\n%b" % (asked, header, len(body), body)
                )

                self.assertEqual(status, talk.answer().status, talk.answer().body)
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_name_that_was_rebound_to_loopback_reads_nothing(self) -> None:
        """To the browser evil.example is the page's own origin, so that the page may read the answers."""
        for path in ("/v1/status", "/status", "/v1/changelog", "/metrics", "/readyz", "/livez"):
            with self.subTest(path):
                self.refusal("foreign_host", "GET", path, "Host: evil.example:9093")

    def test_a_name_that_only_ends_like_this_machine_reads_nothing(self) -> None:
        """Anybody can have one."""
        for host in (
            "evil.notlocalhost",
            "localhost.evil.example",
            "evil.example.",
            "127.0.0.1.evil.example",
        ):
            with self.subTest(host):
                self.refusal("foreign_host", "GET", "/v1/status", f"Host: {host}")

    def test_a_form_of_another_site_cannot_navigate_here(self) -> None:
        """To follow a link is harmless; to send a form is not, though the browser calls both navigation."""
        self.refusal(
            "foreign_origin",
            "POST",
            FACTS,
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Mode: navigate",
            "Sec-Fetch-Dest: document",
            body=BODY,
        )

    def test_a_body_that_is_not_json_by_its_type_is_refused(self) -> None:
        """No page can send application/json without asking first, by OPTIONS, which is refused."""
        for kind in ("text/plain", "multipart/form-data; boundary=x", "x"):
            with self.subTest(kind):
                self.refusal("content_type", "POST", FACTS, f"Content-Type: {kind}", body=BODY)
        form = "Content-Type: application/x-www-form-urlencoded"
        for browser in ("Sec-Fetch-Site: none", "Origin: http://localhost", "Referer: http://localhost/"):
            with self.subTest(browser):
                self.refusal("content_type", "POST", FACTS, form, browser, body=BODY)
        self.assertEqual(405, self.ask("OPTIONS", FACTS).status)

    def test_nothing_is_changed_by_get(self) -> None:
        """A lease takes a header that no page can send."""
        answer = self.get("/v1/changelog?reader=page")

        self.assertEqual(400, answer.status)
        self.assertIn("Synrepl-Reader", answer.json()["message"])

    def test_what_people_and_programs_send_is_answered(self) -> None:
        """curl, a worker of Synapse, a container's name, our own page, a link to it."""
        for headers in [
            ("Host: 127.0.0.1:9093",),
            ("Host: [::1]:9093",),
            ("Host: localhost:9093",),
            ("Host: synrepl:9093",),
            ("Host: event_persister1",),
            ("Host: dev.localhost",),
            ("Host: localhost:9093", "Origin: http://localhost:9093", "Sec-Fetch-Site: same-origin"),
            ("Host: localhost:9093", "Sec-Fetch-Site: none"),
            ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
        ]:
            with self.subTest(headers):
                self.assertEqual(200, self.get("/status", *headers).status)
        for kind in (
            "application/json",
            "Application/JSON; charset=x",
            "application/x-www-form-urlencoded",
            "",
        ):
            said = [f"Content-Type: {kind}"] if kind else []
            answer = self.ask("POST", FACTS, BODY, "Host: localhost", *said)
            self.assertEqual(200, answer.status, answer.body)

    def test_other_names_can_be_allowed(self) -> None:
        """Behind a name of one's own."""
        self.site = self.make_site(allowed_hosts=("Log.example.org",))

        self.assertEqual(200, self.get("/v1/status", "Host: log.example.org:9093").status)
        self.assertEqual(403, self.get("/v1/status", "Host: other.example.org").status)

    def test_a_name_that_a_replica_learns_is_allowed_at_once(self) -> None:
        """The log has it with the first copy, without a restart."""
        self.assertEqual(403, self.get("/v1/status", "Host: Learned.example").status)

        self.successResultOf(Deferred.fromCoroutine(self.log.note(server_name="learned.example:8448")))

        self.assertEqual(200, self.get("/v1/status", "Host: Learned.example").status)

    def test_a_secret_proves_more_than_any_header(self) -> None:
        """Who shows it may come by any name; a page cannot know it."""
        self.site = self.make_site(secret="s3cret")
        shown = "Authorization: Bearer s3cret"

        self.assertEqual(200, self.get("/v1/status", "Host: log.example.org", shown).status)
        self.assertEqual(401, self.get("/v1/status", "Host: log.example.org").status)
