"""Who may ask: a peer that shows a key that is known here, once; and what that key allows."""

import json
from io import BytesIO
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from synrepl.base.access import ALL_RIGHTS, IssuedKey, Key, Keyring, Right
from synrepl.base.key_records import make_record, make_secret
from tests.http.builders import SiteCase, receipt

SHARED = "shared"
PARIS = Key(name="paris", secret="of paris", rights=frozenset({Right.READ}))
OSLO = Key(name="oslo", secret="of oslo", rights=ALL_RIGHTS, streams=frozenset({"receipts"}))

SHOWN: list[tuple[list[str], str | None]] = [
    ([], None),
    (["Bearer shared"], ""),
    (["bearer shared"], ""),
    (["BEARER  shared "], ""),
    (["Bearer of paris"], "paris"),
    (["Bearer of oslo"], "oslo"),
    (["Bearer of lisbon"], None),
    (["Bearer "], None),
    (["shared"], None),
    (["Basic shared"], None),
    (["Bearer shared", "Bearer shared"], None),
]


class Authorization(SiteCase):
    """A site with a shared secret and two keys."""

    hidden: tuple[tuple[str, str, bytes], ...] = ()
    """More requests of streams that a limited key does not see."""
    bodies: tuple[tuple[str, str, str, int, int], ...] = ()
    """More requests with bodies: method, path, secret, bytes held, status."""

    def setUp(self) -> None:
        super().setUp()
        self.keys = Keyring(SHARED, [PARIS, OSLO])
        self.site = self.make_site(keys=self.keys)

    def asked(self, method: str, path: str, secret: str, body: bytes = b"") -> Any:
        """What is answered to a peer that shows this secret."""
        return self.ask(method, path, body, f"Authorization: Bearer {secret}")

    def test_a_known_secret_is_wanted_once(self) -> None:
        """The scheme has no case (RFC 9110); two headers could be read in two ways."""
        for shown, name in SHOWN:
            with self.subTest(shown):
                answer = self.get("/v1/status", *[f"Authorization: {one}" for one in shown])

                self.assertEqual(401 if name is None else 200, answer.status)

    def test_what_is_said_without_a_key_and_with_a_wrong_one(self) -> None:
        """One line says which, for who wonders."""
        self.assertIn("no key was sent", self.get("/v1/status").json()["message"])
        self.assertIn("unknown or was revoked", self.asked("GET", "/v1/status", "no").json()["message"])

    def test_a_key_that_lacks_a_right_is_told_which(self) -> None:
        """A key for reading can be given to a dashboard."""
        posted = self.asked("POST", "/v1/streams/receipts/facts", "of paris", b'{"facts":[]}')
        declared = self.asked("POST", "/v1/streams", "of paris")

        self.assertEqual([403] * 2, [one.status for one in (posted, declared)])
        self.assertEqual("no_rights", posted.json()["error"])
        self.assertEqual("the key paris lacks the right write: add it in keys_file", posted.json()["message"])
        self.assertIn("administer", declared.json()["message"])
        self.assertEqual(200, self.asked("GET", "/v1/changelog", "of paris").status)

    def test_what_is_said_to_all_processes_is_for_replicas(self) -> None:
        """A key for reading reads facts."""
        answer = self.asked("GET", "/v1/changelog?follow=true&commands=copy-1", "of paris")

        self.assertEqual((403, "no_rights"), (answer.status, answer.json()["error"]))
        self.assertIn("replicate", answer.json()["message"])

    def test_what_workers_send_up_wants_more_than_reading(self) -> None:
        """The lines of USER_IP hold access tokens."""
        read = self.asked("GET", "/v1/commands", "of paris")
        acknowledged = self.asked("POST", "/v1/commands/ack", "of paris", b'{"life":"x","number":0}')

        self.assertEqual([403] * 2, [one.status for one in (read, acknowledged)])
        self.assertIn("administer", read.json()["message"])
        self.assertEqual(200, self.asked("GET", "/v1/syncing", "of paris").status)

    def test_a_key_sees_its_streams_alone(self) -> None:
        """In every way in which streams are read or written."""
        for stream in ("receipts", "push_rules"):
            row = receipt() if stream == "receipts" else ["@ada:hs.example"]
            fact = self.table[stream].canonical_fact(json.dumps([row]).encode())
            self.wait(self.log.append(stream, "master", [fact]))
        for method, path, body in [
            ("GET", "/v1/streams/push_rules/rows", b""),
            ("GET", "/v1/streams/push_rules/allocated", b""),
            ("GET", "/v1/changelog?streams=receipts,push_rules", b""),
            ("GET", "/v1/extent?streams=push_rules", b""),
            ("GET", "/v1/syncing", b""),
            *self.hidden,
            ("POST", "/v1/streams/push_rules/facts", b'{"facts":[[["@b:hs"]]]}'),
            ("POST", "/v1/facts", b'{"appends":[{"stream":"push_rules","facts":[[["@b:hs"]]]}]}'),
        ]:
            with self.subTest(path):
                answer = self.asked(method, path, "of oslo", body)

                self.assertEqual(403, answer.status, answer.body)
                self.assertIn("may not see the stream", answer.json()["message"])
        followed = self.asked("GET", "/v1/changelog", "of oslo").lines()
        self.assertEqual(["receipts"], [line["stream"] for line in followed if "stream" in line])
        self.assertEqual(["receipts"], list(self.asked("GET", "/v1/status", "of oslo").json()["streams"]))

    def test_a_revoked_key_is_refused_from_then_on(self) -> None:
        """Others go on."""
        self.assertEqual(200, self.asked("GET", "/v1/status", "of paris").status)

        self.keys.replace(Keyring(SHARED, [OSLO]))

        self.assertEqual(401, self.asked("GET", "/v1/status", "of paris").status)
        self.assertEqual(200, self.asked("GET", "/v1/status", "of oslo").status)

    def test_a_change_of_rights_ends_open_requests(self) -> None:
        """A changelog that is followed has no end, and a body of appends may have none."""
        body = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked"
        paris, oslo, writer = self.talk(), self.talk(), self.talk()
        for talk, secret in ((paris, "of paris"), (oslo, "of oslo")):
            talk.say(self.request("GET", "/v1/changelog?follow=true", b"", f"Authorization: Bearer {secret}"))
        head = f"POST /v1/appends HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer of oslo\r\n{body}\r\n\r\n"
        writer.say(head.encode())
        self.clock.advance(0)
        self.assertTrue(all(talk.answer().status == 200 for talk in (paris, oslo)))

        self.keys.replace(Keyring(SHARED, [PARIS, replace(OSLO, streams=frozenset({"push_rules"}))]))
        self.site.recheck()

        self.assertEqual([False, True, True], [talk.transport.is_aborted for talk in (paris, oslo, writer)])

    def test_a_doubt_that_lasts_ends_no_request(self) -> None:
        """Its words say since when, and have changed at each look."""
        doubts, secret = count(1), make_secret()
        record = make_record(secret)
        issued = IssuedKey(name="rome", rights=(Right.READ, Right.WRITE), record=record, made_ms=0)
        authority = Mock(doubt=lambda: f"not heard for {next(doubts)} seconds")
        keys = Keyring(SHARED)
        keys.use(authority)
        keys.replace_issued([issued])
        self.site = self.make_site(keys=keys)
        talk = self.talk()
        header = f"Authorization: Bearer rome.{secret}"
        talk.say(self.request("GET", "/v1/changelog?follow=true", b"", header))

        self.site.recheck()
        was_aborted = talk.transport.is_aborted
        authority.doubt = lambda: ""
        self.site.recheck()

        self.assertEqual((200, False, True), (talk.answer().status, was_aborted, talk.transport.is_aborted))

    def test_nothing_is_held_of_a_body_that_may_not_be_sent(self) -> None:
        """Many connections without a key could fill the memory with what nobody reads."""
        for secret, held in (("wrong", 0), (SHARED, 9)):
            for length, body in (
                ("Content-Length: 12", b'{"facts":'),
                ("Transfer-Encoding: chunked", b'9\r\n{"facts":\r\n'),
            ):
                with self.subTest(secret, length=length):
                    talk = self.talk()
                    talk.say(
                        f"POST /v1/facts HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {secret}\r\n".encode()
                    )
                    talk.say(f"{length}\r\n\r\n".encode() + body)

                    (request,) = talk.protocol.requests
                    self.assertEqual(held, request.content.tell())

    def test_nothing_is_held_of_a_body_without_the_right_of_its_route(self) -> None:
        """A key with only the right to read filled the disk with 500 MB; the refusal came at the end."""
        reader = Key(name="r", secret="reads", rights=frozenset({Right.READ}))
        limited = Key(name="l", secret="limited", streams=frozenset({"push_rules"}))
        self.site = self.make_site(keys=Keyring(SHARED, [reader, limited]))
        facts = "/v1/streams/receipts/facts"
        for method, path, secret, held, status in (
            ("POST", facts, "reads", 0, 403),
            ("POST", facts, "limited", 0, 403),
            *self.bodies,
            ("POST", "/v1/nothing", SHARED, 0, 404),
            ("GET", "/v1/status", SHARED, 0, 200),
            ("POST", facts, SHARED, 9, 400),
        ):
            with self.subTest(method, path=path, secret=secret):
                talk = self.talk()
                head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {secret}\r\n"
                talk.say(f"{head}Content-Length: 10\r\n\r\n123456789".encode())
                (request,) = talk.protocol.requests
                self.assertEqual(held, request.content.tell())
                talk.say(b"0")
                self.assertEqual(status, talk.answer().status)

    def test_no_room_is_made_for_a_body_that_may_not_be_sent(self) -> None:
        """Twisted opens a file for one that is large, or of unknown length: each takes a descriptor."""
        for length in ("Content-Length: 200000", "Transfer-Encoding: chunked"):
            with self.subTest(length):
                talk = self.talk()
                talk.say(f"POST /v1/facts HTTP/1.1\r\nHost: h\r\n{length}\r\n\r\n".encode())

                (request,) = talk.protocol.requests
                self.assertIsInstance(request.content, BytesIO)

    def test_health_and_metrics_need_no_key(self) -> None:
        """Probes and scrapers have none."""
        self.assertEqual([200] * 3, [self.get(path).status for path in ("/livez", "/readyz", "/metrics")])


class WithoutSecrets(SiteCase):
    """No secret is configured: who asks may be anybody that reaches the port."""

    def test_from_this_machine_everything_may_be_asked(self) -> None:
        """A single daemon on loopback works without any set-up."""
        self.assertEqual(200, self.post("receipts", [receipt()]).status)
        self.assertEqual(200, self.ask("GET", "/v1/streams").status)

    def test_from_another_machine_one_can_read_and_write_alone(self) -> None:
        """The operator said --insecure; what streams there are is nothing that a stranger decides."""
        for path in ("streams", "refused/replay", "refused/remove"):
            with self.subTest(path):
                talk = self.talk(peer="192.168.0.7")
                talk.say(self.request("POST", f"/v1/{path}", b"{}", "Host: 192.168.0.1"))

                self.assertEqual(403, talk.answer().status)
                self.assertIn("only with a secret", talk.answer().json()["message"])


def test_a_keyring_tells_nothing_of_its_secrets() -> None:
    """It may be logged."""
    keys = Keyring("shared", [PARIS])

    assert "shared" not in repr(keys)
    assert "of paris" not in repr(PARIS)


@pytest.mark.parametrize("shown", ["", "s", "share", "shared ", "Shared", "of pari", "of\xa0paris"])
def test_a_part_of_a_secret_or_an_empty_one_is_refused(shown: str) -> None:
    """Not its beginning, and not the nothing of a key that has no secret."""
    keys = Keyring(SHARED, [PARIS, Key(name="rome", secret=None)])

    assert keys.find(shown.encode()) is None
    assert ["", "paris"] == [key.name for secret in (b"shared", b"of paris") if (key := keys.find(secret))]


def test_a_certificate_is_no_proof_for_a_key_with_a_secret() -> None:
    """Whoever may ask the CA for a name could take its place."""
    keys = Keyring(SHARED, [PARIS, Key(name="rome", secret=None)])

    assert ["rome"] == [name for name in ("paris", "rome", "berlin", "") if keys.access_by_certificate(name)]
