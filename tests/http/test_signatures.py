"""Signed requests between daemons: valid once, for one daemon, and answered with a proof."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.daemon.peer_secrets import PeerSecrets
from synrepl.errors import NotConnected, ReplicationError
from synrepl.ports.access import ALL_RIGHTS, LOCAL, IssuedKey, Key, Keyring, Right
from synrepl.ports.history import Lease
from synrepl.ports.proofs import KeyRecord, SharedSecret, make_record
from synrepl.ports.response_errors import ApiResponseError, NeverSent
from synrepl.replication.addresses import Address
from synrepl.replication.roles.messages import Claim, PeerStatus
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.headers import CONTENT_DIGEST, content_digest
from synrepl.transports.http.http_client import HttpClient
from synrepl.transports.http.peer_clients import PeerClient
from synrepl.transports.http.signatures import (
    MAX_SPENT,
    NONCE_SECONDS,
    PROOF_HEADER,
    Nonces,
    Signature,
    SignatureChallenge,
    SignedContent,
    Signer,
)
from tests.http.builders import Answer, append_body, post_facts
from tests.http.test_replica_routes import HERE, CopiesCase

SHARED = "shared"
PARIS = Key(name="paris", secret="of paris", rights=frozenset({Right.READ, Right.REPLICATE}))
OSLO = Key(name="oslo", secret="of oslo", rights=ALL_RIGHTS)
LISBON = Key(name="lisbon", secret=None, rights=ALL_RIGHTS)
KEYS = Keyring(SHARED, [PARIS, OSLO, LISBON])


# -- nonces ------------------------------------------------------------------------------------------------


def test_a_nonce_is_valid_once_and_for_some_seconds() -> None:
    """Only those that were spent are remembered, and no longer than they are valid."""
    clock = Clock()
    nonces = Nonces(clock.seconds)
    first, second, third = nonces.make(), nonces.make(), nonces.make()

    assert nonces.spend(first) == ""
    assert nonces.spend(first) == "the nonce was used before"
    clock.advance(NONCE_SECONDS - 0.01)
    assert nonces.spend(second) == ""
    clock.advance(0.01)
    assert nonces.spend(third) == f"the nonce is older than {NONCE_SECONDS:g} seconds"
    assert nonces._spent == {}


@pytest.mark.parametrize("nonce", ["", "x", "0.0.0", ".."])
def test_a_nonce_of_another_daemon_is_not_valid(nonce: str) -> None:
    nonces = Nonces(Clock().seconds)
    others = Nonces(Clock().seconds).make()
    later = "f" + nonces.make()

    for one in (nonce, others, later):
        assert nonces.spend(one) == "the nonce is not of this daemon, or from before its start"


def test_spent_nonces_are_bounded() -> None:
    nonces = Nonces(Clock().seconds)
    for _ in range(MAX_SPENT):
        assert nonces.spend(nonces.make()) == ""

    assert nonces.spend(nonces.make()) == f"more than {MAX_SPENT} requests were signed in 10 seconds"


# -- the answering daemon ----------------------------------------------------------------------------------


class SignedSite(CopiesCase):
    """A primary with a shared secret and keys."""

    def setUp(self) -> None:
        super().setUp()
        self.time = Clock()
        self.site = self.make_guarded(KEYS)

    def make_guarded(self, keys: Keyring) -> Any:
        """The site with these keys, and nonces on the clock of the test."""
        site = self.make_site(roles=self.roles, relays=self.relays, keys=keys, allowed_hosts=("hs.example",))
        site.guard._nonces = Nonces(self.time.seconds)
        return site

    def nonce(self) -> str:
        """A fresh nonce."""
        answer = self.get("/v1/replication", "Authorization: Synrepl")
        self.assertEqual(401, answer.status)
        found = SignatureChallenge.find([answer.headers["www-authenticate"]])
        assert found is not None
        return found.nonce

    def sign(
        self,
        secret: str,
        method: str = "GET",
        path: str = "/v1/replication",
        body: bytes = b"",
        *,
        address: str = HERE.http,
        nonce: str | None = None,
    ) -> Signature:
        """A signature of this request."""
        content = SignedContent(method, path, content_digest(body) if body else "")
        nonce = nonce or self.nonce()
        return Signature.sign(SharedSecret(secret), content, nonce_=nonce, asker="asker", address=address)

    def send(
        self, signature: Signature, method: str = "GET", path: str = "/v1/replication", body: bytes = b""
    ) -> Answer:
        """Send a request with this signature and the digest of its own body."""
        digest = [f"{CONTENT_DIGEST}: {content_digest(body)}"] if body else []
        return self.ask(method, path, body, f"Authorization: {signature.header}", *digest)

    def assert_refused(self, answer: Answer, why: str) -> None:
        """It is refused for this reason."""
        self.assertEqual(401, answer.status, answer.body)
        self.assertIn(why, answer.json()["message"])
        self.assertNotIn(PROOF_HEADER, answer.headers)

    def test_a_signed_request_is_answered_with_a_proof(self) -> None:
        """Of the status and the body, with the secret that signed the request."""
        for secret in (SHARED, "of paris"):
            signature = self.sign(secret)
            answer = self.send(signature)

            self.assertEqual(200, answer.status)
            self.assertEqual(
                signature.answer_proof(SharedSecret(secret), 200, answer.body), answer.headers[PROOF_HEADER]
            )
            self.assertNotIn(secret, str(answer.headers))

    def test_a_signed_request_has_the_rights_of_its_key(self) -> None:
        """A refusal is proven as well."""
        signature = self.sign("of paris", "POST", "/v1/promote", b"{}")
        answer = self.send(signature, "POST", "/v1/promote", b"{}")

        self.assertEqual((403, "no_rights"), (answer.status, answer.json()["error"]))
        self.assertEqual(
            signature.answer_proof(SharedSecret("of paris"), 403, answer.body), answer.headers[PROOF_HEADER]
        )

    def test_a_signature_is_valid_once(self) -> None:
        signature = self.sign(SHARED)
        self.assertEqual(200, self.send(signature).status)

        self.assert_refused(self.send(signature), "the nonce was used before")

    def test_a_signature_is_valid_for_some_seconds(self) -> None:
        signature = self.sign(SHARED)
        self.time.advance(NONCE_SECONDS)

        self.assert_refused(self.send(signature), "the nonce is older than 10 seconds")

    def test_a_signature_for_another_daemon_is_refused(self) -> None:
        """A peer that was asked cannot pass the request on."""
        for address in ("http://evil:9093", "http://hs.example:9094", "https://evil", "https://hs.example:1"):
            self.assert_refused(self.send(self.sign(SHARED, address=address)), "the signature is for")
        for address in (HERE.http, f"{HERE.http}/", "https://hs.example", ""):
            self.assertEqual(200, self.send(self.sign(SHARED, address=address)).status, address)

    def test_a_signature_covers_the_request(self) -> None:
        """Its method, path, query and body."""
        body, other = b'{"force":false}', b'{"force":true }'
        said = ("POST", "/v1/promote", body)
        cases: list[tuple[tuple[str, str, bytes], tuple[str, str, bytes]]] = [
            (("GET", "/v1/promote", body), said),
            (("POST", "/v1/resync", body), said),
            (("POST", "/v1/promote?force=true", body), said),
            (("POST", "/v1/promote", other), said),
        ]
        for signed, sent in cases:
            self.assert_refused(self.send(self.sign(SHARED, *signed), *sent), "the proof is wrong")

    def test_a_body_that_the_signature_does_not_cover_is_refused(self) -> None:
        """Whether it has another digest or none."""
        body = b'{"force":true}'
        none = self.ask(
            "POST",
            "/v1/promote",
            body,
            f"Authorization: {self.sign(SHARED, 'POST', '/v1/promote').header}",
        )
        signature = self.sign(SHARED, "POST", "/v1/promote", b"{}")
        digest = f"{CONTENT_DIGEST}: {content_digest(b'{}')}"
        other = self.ask("POST", "/v1/promote", body, f"Authorization: {signature.header}", digest)

        self.assertEqual((401, 400), (none.status, other.status))
        self.assertIn("does not cover the body", none.json()["message"])
        self.assertEqual("garbled", other.json()["error"])

    def test_a_wrong_secret_spends_no_nonce(self) -> None:
        nonce = self.nonce()

        self.assert_refused(self.send(self.sign("wrong", nonce=nonce)), "the proof is wrong")
        self.assertEqual(200, self.send(self.sign(SHARED, nonce=nonce)).status)

    def test_a_revoked_key_signs_nothing(self) -> None:
        signature = self.sign("of paris")
        self.site = self.make_guarded(Keyring(SHARED))

        self.assert_refused(self.send(signature), "the proof is wrong")

    # -- the asking daemon ---------------------------------------------------------------------------------

    def peer(self, *secrets: str, configured: Sequence[str] = ()) -> PeerClient:
        """A client of this daemon, of another one with these secrets."""
        made = PeerClient(
            self.clock, Credentials(secrets[0], configured=configured), Found(*secrets), "asker"
        )
        self.stub = made._client.client = StubTreq(self.site.resource)
        return made

    def describe(self, peer: PeerClient, address: Address = HERE) -> "Deferred[PeerStatus]":
        """The status of this daemon."""
        asked = Deferred.fromCoroutine(peer.describe(address, must_administer=False))
        self.stub.flush()
        self.stub.flush()
        return asked

    def test_an_answer_that_is_proven_counts(self) -> None:
        """With the first secret that the daemon knows."""
        for secrets in ((SHARED,), ("of paris",), ("unknown", SHARED)):
            self.assertEqual(self.log.uuid, self.successResultOf(self.describe(self.peer(*secrets))).uuid)

    def test_a_daemon_that_knows_another_secret_is_not_believed(self) -> None:
        error = self.failureResultOf(self.describe(self.peer("unknown")), ApiResponseError).value

        self.assertEqual(401, error.status)

    def test_a_daemon_without_a_secret_is_not_believed(self) -> None:
        """As over the native protocol."""
        self.site = self.make_site(roles=self.roles, relays=self.relays)
        error = self.failureResultOf(self.describe(self.peer(SHARED)), NotConnected).value

        self.assertIn("asks for no secret", str(error))

    def test_a_daemon_that_proves_nothing_is_not_believed(self) -> None:
        """It asks for a signature, and answers in any case."""
        self.site = self.make_guarded(KEYS)
        peer = self.peer(SHARED)
        self.site.guard.access = self.access_without_proof

        error = self.failureResultOf(self.describe(peer), NotConnected).value
        self.assertIn("could not prove that it knows the secret", str(error))

    def access_without_proof(self, request: Any) -> Any:
        """What a liar does."""
        if b"proof=" in request.requestHeaders.getRawHeaders(b"authorization")[0]:
            return LOCAL
        raise ApiError("unauthorized", "", headers={b"www-authenticate": b'Synrepl nonce="0"'})

    def test_a_configured_address_may_be_that_of_a_proxy(self) -> None:
        """Another one must be the daemon's own."""
        proxy = Address(http="http://proxy.example")

        described = self.describe(self.peer(SHARED, configured=[proxy.http]), proxy)
        self.assertEqual(self.log.uuid, self.successResultOf(described).uuid)
        self.failureResultOf(self.describe(self.peer(SHARED), proxy), ApiResponseError)

    # -- issued keys ---------------------------------------------------------------------------------------

    def issue(self, name: str = "oslo 2/ü", rights: Iterable[Right] = ALL_RIGHTS) -> tuple[str, KeyRecord]:
        """Accept an issued key; return it as it is shown, and its record."""
        secret = "s" * 43
        record = make_record(secret)
        keys = Keyring(SHARED, [PARIS])
        keys.replace_issued([IssuedKey(name=name, rights=tuple(rights), record=record, made_ms=0)])
        self.site = self.make_guarded(keys)
        return f"{name}.{secret}", record

    def test_the_holder_of_an_issued_key_signs_with_it(self) -> None:
        """And believes a daemon that has its record."""
        secret, _ = self.issue()

        self.assertEqual(self.log.uuid, self.successResultOf(self.describe(self.peer(secret))).uuid)

    def test_an_issued_key_that_looks_like_one_and_is_unknown_is_a_secret(self) -> None:
        """As every other one."""
        secret = f"shared.{'s' * 43}"
        self.site = self.make_guarded(Keyring(secret))

        self.assertEqual(self.log.uuid, self.successResultOf(self.describe(self.peer(secret))).uuid)

    def test_another_issued_key_is_not_believed(self) -> None:
        """Nor a revoked one."""
        secret, _ = self.issue()
        other = secret[:-1] + "x"
        self.failureResultOf(self.describe(self.peer(other)), ApiResponseError)
        self.site = self.make_guarded(Keyring(SHARED))

        self.failureResultOf(self.describe(self.peer(secret)), ApiResponseError)

    def test_a_daemon_with_the_record_alone_asks_the_holder_what_it_is(self) -> None:
        """It gets no more than that."""
        secret, record = self.issue()
        self.site = self.make_guarded(Keyring(secret))
        peer = self.peer(SHARED)
        peer.secrets.signers = [Signer(key="oslo 2/ü", record=record)]  # type: ignore[attr-defined]
        self.assertEqual(self.log.uuid, self.successResultOf(self.describe(peer)).uuid)

        claiming = Deferred.fromCoroutine(
            peer.claim(HERE, Claim(epoch=9, uuid="u", address="a", history=self.log.history))
        )
        self.stub.flush()
        self.stub.flush()
        error = self.failureResultOf(claiming, ApiResponseError).value
        self.assertEqual((403, "no_rights"), (error.status, error.code))

    def test_a_record_proves_nothing_to_others(self) -> None:
        """Another holder, a daemon with a shared secret, and one that has the record too."""
        _, record = self.issue()
        for keys in (Keyring(f"oslo 2/ü.{'t' * 43}"), Keyring(SHARED), None):
            if keys is not None:
                self.site = self.make_guarded(keys)
            else:
                self.issue()
            peer = self.peer(SHARED)
            peer.secrets.signers = [Signer(key="oslo 2/ü", record=record)]  # type: ignore[attr-defined]
            self.failureResultOf(self.describe(peer), ApiResponseError)


class Found:
    """These secrets, for each address."""

    def __init__(self, *secrets: str) -> None:
        self.signers = list(map(Signer.of, secrets))

    def find(self, address: Address, *, must_administer: bool) -> list[Signer]:
        return self.signers


# -- which secret for which address ------------------------------------------------------------------------


def lease(uuid: str, key: str | None, address: str, made_ms: int = 0, **more: Any) -> Lease:
    """A lease that this key made."""
    return Lease(
        uuid=uuid,
        name=uuid,
        registered=True,
        serial=0,
        made_ms=made_ms,
        key=key,
        address=f"- {address}",
        **more,
    )


LEASES = [
    lease("p", "paris", "http://paris"),
    lease("o", "oslo", "http://oslo"),
    lease("s", "", "http://same"),
    lease("l", "lisbon", "http://lisbon"),
    lease("n", None, "http://nobody"),
    lease("r", "revoked", "http://revoked"),
    lease("old", "paris", "http://both", 1),
    lease("new", "second", "http://both", 2),
    lease("first", "paris", "http://oslo", 0),
]


@pytest.mark.parametrize(
    ("own", "url", "any_key", "administers"),
    [
        (SHARED, "http://configured", [SHARED], [SHARED]),
        (SHARED, "http://unknown", [SHARED], [SHARED]),
        (SHARED, "http://paris", ["of paris", SHARED], [SHARED]),
        (SHARED, "http://oslo", ["of oslo", SHARED], ["of oslo", SHARED]),
        (SHARED, "http://same", [SHARED], [SHARED]),
        (SHARED, "http://both", ["of paris", SHARED], [SHARED]),
        (SHARED, "http://revoked", [SHARED], [SHARED]),
        (None, "http://unknown", [], None),
        (None, "http://paris", ["of paris"], None),
        (None, "http://oslo", ["of oslo"], ["of oslo"]),
        (None, "http://lisbon", [], []),
        (None, "http://nobody", [], None),
    ],
)
def test_the_secret_for_an_address_is_that_of_its_lease_or_the_own_one(
    own: str | None, url: str, any_key: list[str], administers: list[str] | None
) -> None:
    """None: such an answer could not be believed, whatever it was."""
    second = Key(name="second", secret="of second", rights=PARIS.rights)
    keys = Keyring(own, [PARIS, OSLO, LISBON, second])
    made = PeerSecrets(keys, Credentials(own, configured=["http://configured"]), lambda: LEASES)

    assert made.find(Address(http=url), must_administer=False) == list(map(Signer.of, any_key))
    if administers is None:
        with pytest.raises(NotConnected, match="no key with the right administer"):
            made.find(Address(http=url), must_administer=True)
    else:
        assert made.find(Address(http=url), must_administer=True) == list(map(Signer.of, administers))


def test_nothing_is_signed_where_no_secret_is_configured() -> None:
    made = PeerSecrets(Keyring(), Credentials(configured=[]), lambda: LEASES)

    assert made.find(Address(http="http://paris"), must_administer=True) == []


# -- sending the secret itself -----------------------------------------------------------------------------


class Recorder:
    """A treq client that records what it is given; nothing answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def request(self, method: str, url: str, **options: Any) -> "Deferred[Any]":
        self.sent.append({"url": url, **options["headers"]})
        return Deferred()


class Gate:
    """Credentials whose proofs succeed for `proven`; `asked` are the URLs that had to be proven."""

    def __init__(self, *, error: ReplicationError | None = None) -> None:
        self.asked: list[str] = []
        self.error = error
        self.credentials = Credentials(SHARED, configured=["http://configured"])
        self.credentials.prove = self.prove
        self.client = Recorder()

    async def prove(self, url: str) -> None:
        self.asked.append(url)
        if self.error is not None:
            raise self.error

    def append(self, url: str) -> "Deferred[Any]":
        """Send a request to this URL."""
        client = HttpClient(Clock(), url, secret=self.credentials, client=self.client)
        done = Deferred.fromCoroutine(post_facts(client, "s", append_body([[["x"]]])))
        done.addErrback(lambda failure: failure.value)
        return done


BEARER = [f"Bearer {SHARED}"]


def test_the_secret_goes_to_a_configured_address_at_once() -> None:
    gate = Gate()
    gate.append("http://configured")
    gate.append("http://configured/base")

    assert [one["authorization"] for one in gate.client.sent] == [BEARER, BEARER]
    assert gate.asked == []


def test_the_secret_goes_to_another_address_after_a_proof() -> None:
    """Once for each address and secret."""
    gate = Gate()
    for url in ("http://other", "http://other", "http://configured.evil", "http://configured:1"):
        gate.append(url)
    assert gate.asked == ["http://other", "http://configured.evil", "http://configured:1"]
    assert [one["authorization"] for one in gate.client.sent] == [BEARER] * 4

    gate.credentials.replace(Credentials("fresh"))
    gate.append("http://other")

    assert gate.asked[3:] == ["http://other"]
    assert gate.client.sent[-1]["authorization"] == ["Bearer fresh"]


@pytest.mark.parametrize("is_started", [True, False])
def test_the_secret_is_not_sent_without_a_proof(is_started: bool) -> None:
    """Nor is anything else."""
    gate = Gate(error=NotConnected("it could not prove that it knows the secret"))
    if not is_started:
        gate.credentials.prove = None
    errors: list[Any] = []
    gate.append("http://evil").addCallback(errors.append)

    assert isinstance(errors[0], NeverSent)
    assert "a peer named http://evil" in str(errors[0])
    assert gate.client.sent == []
    assert SHARED not in json.dumps(str(errors))
