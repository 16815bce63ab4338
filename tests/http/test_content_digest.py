"""Bodies that were changed on the way: nothing of one is taken, and nobody takes such an answer for true."""

import json

from twisted.internet.defer import ensureDeferred
from twisted.web.http_headers import Headers

from synrepl.errors import NotConnected
from synrepl.http_api.routes import APPEND_BATCH
from synrepl.transports.http.headers import content_digest, matches_digest
from synrepl.transports.http.http_client import HttpClient
from tests.http.builders import SiteCase, receipt

FACTS = "/v1/streams/receipts/facts"
BODY = json.dumps({"facts": [[receipt()]]}).encode()


class IntactTests(SiteCase):
    """Daemons that pass facts on, and a wire that changes them."""

    def test_a_body_that_was_changed_is_refused_and_nothing_is_kept(self) -> None:
        """A changed letter in a row makes a good row of another room."""
        changed = BODY.replace(b"@ada", b"@adb")
        self.assertNotEqual(BODY, changed)
        answer = self.ask("POST", FACTS, changed, f"Content-Digest: {content_digest(BODY)}")
        said = answer.json()
        self.assertEqual((400, "garbled", True), (answer.status, said["error"], said["retryable"]))
        self.assertEqual(0, self.log.head.serial)

    def test_a_body_that_came_well_is_taken(self) -> None:
        """With a digest of ours, of another kind, or none."""
        for header in (
            f"Content-Digest: {content_digest(BODY)}",
            "Content-Digest: md5=:AAAA:",
            "X-Nothing: 1",
        ):
            self.assertEqual(200, self.ask("POST", FACTS, BODY, header).status)
        self.assertEqual(3, self.log.head.serial)

    def test_answers_say_their_digest_if_that_is_asked_for(self) -> None:
        """Also those that refuse."""
        for path in ("/v1/status", "/v1/streams/nope/rows"):
            answer = self.ask("GET", path, b"", "Want-Content-Digest: sha-256=1")
            self.assertEqual(content_digest(answer.body), answer.headers["content-digest"])
            self.assertNotIn("content-digest", self.ask("GET", path).headers)

    def test_an_answer_that_was_changed_is_no_answer(self) -> None:
        """What became of the request nobody knows then."""
        http = HttpClient(
            self.clock, client=_Client(b'{"first_serial":7}', content_digest(b'{"first_serial":3}'))
        )
        asked = ensureDeferred(http.read(APPEND_BATCH.request(), base_url="http://h", body=b"{}"))
        self.failureResultOf(asked, NotConnected)

    def test_of_other_digests_nothing_is_known(self) -> None:
        """They are no reason to refuse."""
        self.assertTrue(matches_digest(b"a", None))
        self.assertTrue(matches_digest(b"a", ["sha-512=:AAAA:"]))
        self.assertTrue(matches_digest(b"a", [f"sha-512=:AAAA:, {content_digest(b'a')}"]))
        self.assertFalse(matches_digest(b"a", [f"sha-512=:AAAA:, {content_digest(b'b')}"]))


class _Client:
    """A treq client whose every answer is this one."""

    def __init__(self, body: bytes, digest: str) -> None:
        self.code = 200
        self.headers = Headers({"content-digest": [digest]})
        self._body = body

    async def request(self, *given: object, **more: object) -> "_Client":
        """The answer's beginning."""
        return self

    def deliverBody(self, protocol: object) -> None:
        """And the rest of it."""
        from twisted.python.failure import Failure
        from twisted.web.client import ResponseDone

        protocol.dataReceived(self._body)  # type: ignore[attr-defined]
        protocol.connectionLost(Failure(ResponseDone()))  # type: ignore[attr-defined]
