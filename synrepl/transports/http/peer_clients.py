"""Clients of other daemons: for files, and for claims, handovers and status."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.http_api.route import HttpRequest, public_url
from synrepl.http_api.routes import CLAIM, DIGESTS, GET_FILE, HANDOVER, PUT_FILE, REPLICATION
from synrepl.ports.gate import Gate
from synrepl.ports.history import LogPosition
from synrepl.ports.response_errors import ApiResponseError, as_response_error
from synrepl.replication.addresses import Address
from synrepl.replication.roles.messages import CannotPromote, Claim, HandOver, PeerStatus
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.headers import content_digest
from synrepl.transports.http.http_client import (
    MAX_ERROR_BYTES,
    BodyChunks,
    HttpClient,
    decode_json,
    request_headers,
    verified_body,
)
from synrepl.transports.http.messages import DigestsAnswer
from synrepl.transports.http.signatures import PROOF_HEADER, SignatureChallenge, SignedContent, Signer
from synrepl.wire.text import printable

T = TypeVar("T")

BLOCK: Final = 256 * 1024
"""Bytes per read."""
TIMEOUT_SECONDS: Final = 10.0
OK: Final = 200
UNAUTHORIZED: Final = 401
CONFLICT: Final = 409
MAX_ANSWER_BYTES: Final = 1024 * 1024


@dataclass(eq=False, repr=False)
class HttpFiles(HttpClient):
    """Client of the files of the daemon at `base_url`; an `IFetchFile`.

    A response may take `timeout` seconds to start (the server verifies a big file first), and then `silence`
    seconds between bytes.
    """

    silence: float = 30.0

    async def fetch(self, sha256: str, offset: int, on_chunk: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `on_chunk` with any bytes from `offset` to the end; await its result before reading on.

        What `on_chunk` raises ends the download: the caller bounds it.
        """
        # 416: the local part is complete already; its checksum will be verified.
        headers, codes = ({"range": [f"bytes={offset}-"]}, {200, 206, 416}) if offset else ({}, {200, 206})
        async with self._exchange(GET_FILE.request(sha256), codes, headers=headers) as (
            url,
            response,
            chunks,
        ):
            if response.code == 416:
                return
            skip = offset
            if response.code == 206:
                skip = 0
                content_range = (response.headers.getRawHeaders("content-range") or [""])[0]
                if not content_range.startswith(f"bytes {offset}-"):
                    raise RemoteProtocolError(
                        f"{url} sent {content_range or 'no range'} instead of the bytes from {offset}"
                    )
            while data := b"".join(await chunks.next()):
                selected = data[skip:]
                skip -= min(skip, len(data))
                if selected:
                    await on_chunk(selected)
            chunks.check_complete()

    async def send(
        self, sha256: str, size: int, read: Callable[[int, int], Awaitable[bytes]], hops: int
    ) -> None:
        """Upload a file, which `read` returns by offset and length; return once it is stored."""
        async with self._exchange(PUT_FILE.request(sha256, hops=hops), {200, 201}, body=_Body(size, read)):
            pass

    @asynccontextmanager
    async def _exchange(
        self,
        request: HttpRequest,
        codes: Collection[int],
        *,
        headers: dict[str, list[str]] | None = None,
        body: "_Body | None" = None,
    ) -> AsyncIterator[tuple[str, Any, BodyChunks]]:
        """Send a request; yield its URL, the response and its body. Any other code raises `ApiResponseError`.

        The timeout restarts while the server reads the request's body.
        """
        url = public_url(request.url(self.base_url))
        response = await self._within(
            self.timeout,
            self._send(request.method, url, headers or {}, body),
            url,
            progress=lambda: 0 if body is None else body.sent,
        )
        chunks = BodyChunks.of(response, url, clock=self.reactor, silence=self.silence)
        try:
            if response.code not in codes:
                raise as_response_error(response.code, await _error_body(chunks), url)
            yield url, response, chunks
        finally:
            chunks.stop()
            if body is not None:
                body.end()


async def _error_body(chunks: BodyChunks) -> bytes:
    """Read the body of an error response, up to the limit, or until the server is silent."""
    body = b""
    with suppress(NotConnected):
        while len(body) < MAX_ERROR_BYTES and (data := b"".join(await chunks.next())):
            body += data
    return body


@implementer(IBodyProducer)
class _Body(Gate):
    """A request body that reads its file as the connection accepts data."""

    pauseProducing = Gate.close
    resumeProducing = Gate.open

    def __init__(self, size: int, read: Callable[[int, int], Awaitable[bytes]]) -> None:
        super().__init__()
        self.length = size
        self.sent = 0
        self._read = read
        self._sending: Deferred[None] | None = None
        self._is_over = False
        self._transport: Any = None

    def startProducing(self, consumer: Any) -> "Deferred[None]":
        # Twisted gives a consumer that counts the bytes; only that knows the connection.
        self._transport = getattr(consumer, "_consumer", None)
        produced: Deferred[None] = Deferred()
        self._sending = Deferred.fromCoroutine(self._send(consumer))

        def done(result: Any) -> None:
            if not self._is_over:
                produced.callback(result)

        self._sending.addBoth(done)
        return produced

    def end(self) -> None:
        """The answer has come, perhaps before the whole body was sent: nothing is read any more.

        Twisted is not told: it would log that a request failed which was answered. So the connection, which
        waits for the rest of the body, is closed here.
        """
        self._is_over = True
        if self._sending is not None:
            self._sending.cancel()
        if self.sent < self.length and self._transport is not None:
            self._transport.abortConnection()

    async def _send(self, consumer: Any) -> None:
        while self.sent < self.length:
            await self.wait_open()
            data = await self._read(self.sent, min(BLOCK, self.length - self.sent))
            self.sent += len(data)
            consumer.write(data)

    def stopProducing(self) -> None:
        self.end()


class SigningClient(HttpClient):
    """Client that sends signed requests, which show no secret, and verifies the proof of each answer."""

    async def _authorization(self, url: str) -> dict[str, list[str]]:
        return {}

    async def call_signed(
        self,
        signer: Signer,
        request: HttpRequest,
        *,
        base_url: str,
        body: bytes | None = None,
        asker: str,
        address: str,
    ) -> tuple[int, bytes]:
        """Send a signed request to the daemon at `address`; return the status and the body of its answer.

        Raises `ApiResponseError` if the daemon knows no such secret, `NotConnected` if it asks for none, or
        if it does not prove that it knows the secret.
        """
        exchange = self._exchange(signer, request, base_url, body, asker, address)
        url = public_url(request.url(base_url))
        answer: tuple[int, bytes] = await self._within(self.timeout, exchange, url)
        return answer

    async def _exchange(
        self,
        signer: Signer,
        request: HttpRequest,
        base_url: str,
        body: bytes | None,
        asker: str,
        address: str,
    ) -> tuple[int, bytes]:
        where = public_url(base_url)
        question = REPLICATION.request()
        response, _ = await self._answer(question, base_url, None, signer.question)
        challenge = SignatureChallenge.find(response.headers.getRawHeaders("www-authenticate"))
        if response.code != UNAUTHORIZED or challenge is None:
            raise NotConnected(
                f"{where} asks for no secret, so it cannot prove that it knows that of this daemon: check"
                " secret_file there"
            )
        digest = "" if body is None else content_digest(body)
        content = SignedContent(request.method, request.target, digest)
        try:
            signed = signer.sign(content, challenge, asker=asker, address=address)
        except ValueError as error:
            raise NotConnected(f"{where} sent a salt that cannot be used: {printable(str(error))}") from error
        response, answer = await self._answer(request, base_url, body, signed.signature.header)
        shown = (response.headers.getRawHeaders(PROOF_HEADER) or [""])[0]
        if signed.signature.is_answer_proof(shown, signed.proofs, response.code, answer):
            return response.code, answer
        if response.code == UNAUTHORIZED:
            raise as_response_error(response.code, answer, where)
        raise NotConnected(f"{where} could not prove that it knows the secret: check secret_file there")

    async def _answer(
        self, request: HttpRequest, base_url: str, body: bytes | None, authorization: str
    ) -> tuple[Any, bytes]:
        url = request.url(base_url)
        headers = request_headers(body) | {"authorization": [authorization]}
        response = await self._send(request.method, url, headers, body)
        return response, await verified_body(response, MAX_ANSWER_BYTES, public_url(url))


class IPeerSecrets(Protocol):
    """Knows the secrets for requests to other daemons."""

    def find(self, address: Address, *, must_administer: bool) -> list[Signer]:
        """Return what to sign with, to try, in order; none if requests to this address are not signed.

        With `must_administer`, they are those with this right. Raises `NotConnected` if there is none.
        """


@dataclass(eq=False, repr=False)
class PeerClient:
    """Sends claims, handover requests and questions to other daemons; see `roles.IPeerClient`.

    Requests are signed (`signatures`) with one of `secrets`; an answer counts only if it proves that secret.
    `credentials` has this daemon's own secret, and the addresses that its operator configured. `uuid` is this
    daemon's.
    """

    reactor: Any
    credentials: Credentials
    secrets: IPeerSecrets
    uuid: str

    def __post_init__(self) -> None:
        self._client = SigningClient(self.reactor, secret=self.credentials, timeout=TIMEOUT_SECONDS)

    async def hand_over(self, address: Address, handover: HandOver) -> LogPosition:
        """Request a handover: the primary refuses facts for a while. Returns its position.

        Raises `CannotPromote` if the primary refuses, another `ReplicationError` if the request fails.
        """
        try:
            return await self._call(address, HANDOVER.request(), LogPosition, body=handover)
        except ApiResponseError as error:
            if error.status != CONFLICT:
                raise
            why = f"the primary refuses to hand over: {error.code}: {error.message}"
            raise CannotPromote("handover_refused", why, retryable=error.retryable) from error

    async def claim(self, address: Address, claim: Claim) -> None:
        """Send a claim to another daemon."""
        await self._call(address, CLAIM.request(), msgspec.Raw, body=claim)

    async def describe(
        self, address: Address, *, must_administer: bool, after: int | None = None
    ) -> PeerStatus:
        """Fetch the status of another daemon; with `after` also its first facts after this serial."""
        request = REPLICATION.request(after=after)
        return await self._call(address, request, PeerStatus, must_administer=must_administer)

    async def digest(self, address: Address, serial: int) -> str | None:
        """Fetch a daemon's digest at this serial; None if the daemon does not know it."""
        request = DIGESTS.request(serials=[serial])
        found = await self._call(address, request, DigestsAnswer, must_administer=True)
        return found.digests.get(serial)

    async def prove(self, url: str) -> None:
        """Raise a `ReplicationError` unless the daemon at this URL proves that it knows the own secret."""
        if (secret := self.credentials.secret) is not None:
            await self._client.call_signed(
                Signer.of(secret), REPLICATION.request(), base_url=url, asker=self.uuid, address=url
            )

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._client.stop()

    async def _call(
        self,
        address: Address,
        request: HttpRequest,
        answer: type[T],
        *,
        body: Any = None,
        must_administer: bool = False,
    ) -> T:
        url = address.http
        if not url:
            raise NotConnected(f"cannot ask {address}: its HTTP address is unknown")
        content = None if body is None else msgspec.json.encode(body)
        signers = self.secrets.find(address, must_administer=must_administer)
        if not signers:
            return await self._client.call(request, answer, base_url=url, body=content)
        status, found = await self._call_signed(signers, url, request, content)
        if status != OK:
            raise as_response_error(status, found, public_url(url))
        return decode_json(answer, found, public_url(url))

    async def _call_signed(
        self, signers: Sequence[Signer], url: str, request: HttpRequest, body: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request, signed with the first of these that the daemon knows."""
        address = "" if self.credentials.is_configured(url) else url
        for number, signer in enumerate(signers, 1):
            try:
                return await self._client.call_signed(
                    signer, request, base_url=url, body=body, asker=self.uuid, address=address
                )
            except ApiResponseError:
                if number == len(signers):
                    raise
        raise AssertionError("there is a signer")
