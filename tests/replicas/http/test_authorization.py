"""The rights that the routes of replicas want."""

from synrepl.base.access import Key, Keyring, Right
from tests.http.builders import SiteCase

SHARED = "shared"
PARIS = Key(name="paris", secret="of paris", rights=frozenset({Right.READ}))


class Authorization(SiteCase):
    """A site with a shared secret and a key for reading."""

    def setUp(self) -> None:
        super().setUp()
        self.site = self.make_site(keys=Keyring(SHARED, [PARIS]))

    def test_a_key_that_lacks_a_right_is_told_which(self) -> None:
        """A key for reading can be given to a dashboard."""
        paris = "Authorization: Bearer of paris"
        promoted = self.ask("POST", "/v1/promote", b"", paris)
        joined = self.ask("POST", "/v1/native", b"", paris)

        self.assertEqual([403] * 2, [one.status for one in (promoted, joined)])
        self.assertIn("administer", promoted.json()["message"])
        self.assertIn("replicate", joined.json()["message"])

    def test_nothing_is_held_of_a_body_without_the_right_of_its_route(self) -> None:
        """A key with only the right to read filled the disk with 500 MB; the refusal came at the end."""
        talk = self.talk()
        head = "POST /v1/resync HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer of paris\r\n"
        talk.say(f"{head}Content-Length: 10\r\n\r\n123456789".encode())
        (request,) = talk.protocol.requests
        self.assertEqual(0, request.content.tell())
        talk.say(b"0")
        self.assertEqual(403, talk.answer().status)

    def test_a_body_that_would_be_refused_is_not_asked_for(self) -> None:
        """The connection then ends."""
        for length in ("Content-Length: 999", "Transfer-Encoding: chunked"):
            with self.subTest(length=length):
                talk = self.talk()
                head = (
                    f"POST /v1/native/bytes HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n{length}"
                )
                talk.say(f"{head}\r\n\r\n".encode())
                self.clock.advance(0)
                answer = talk.answer()
                self.assertEqual((401, "close"), (answer.status, answer.headers["connection"]))
                self.assertIn("bearer", answer.headers["www-authenticate"].lower())
                self.assertEqual("unauthorized", answer.json()["error"])
                talk.leave()


class WithoutSecrets(SiteCase):
    """No secret is configured: who asks may be anybody that reaches the port."""

    def test_from_this_machine_everything_may_be_asked(self) -> None:
        """A single daemon on loopback works without any set-up."""
        self.assertEqual(404, self.ask("POST", "/v1/promote").status)  # this site has no copies

    def test_from_another_machine_one_can_read_and_write_alone(self) -> None:
        """The operator said --insecure; who is primary is nothing that a stranger decides."""
        for path in ("promote", "resync", "handover", "claim", "leases", "native", "native/bytes"):
            with self.subTest(path):
                talk = self.talk(peer="192.168.0.7")
                talk.say(self.request("POST", f"/v1/{path}", b"{}", "Host: 192.168.0.1"))

                self.assertEqual(403, talk.answer().status)
                self.assertIn("only with a secret", talk.answer().json()["message"])
