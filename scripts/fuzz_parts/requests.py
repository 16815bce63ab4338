"""The target of HTTP requests."""

import atexit
import itertools
from typing import Any, Final

from scripts.fuzz_parts.target import MAX_ANSWER, BadAnswer, Target, pieces
from synrepl.errors import NotConnected
from synrepl.replicas.roles.messages import HandOver
from synrepl.replication.addresses import Address
from tests.files.site import DATA, PLACE, FilesSiteCase
from tests.http.builders import CATCH_UP, Talk
from tests.replicas.http.test_replica_routes import CopiesCase, Nobody

__all__ = ["HttpTarget"]


class Unreachable(Nobody):
    """Clients of other daemons, none of which answers."""

    async def hand_over(self, address: Address, asked: HandOver) -> Any:
        raise NotConnected(f"{address} cannot be reached")

    async def digest(self, address: Address, serial: int) -> str | None:
        raise NotConnected(f"{address} cannot be reached")


class Site(CopiesCase, FilesSiteCase):
    """The site of a primary with replicas and files, made by test cases."""

    def setUp(self) -> None:
        super().setUp()
        self.network.__class__ = Unreachable
        self.site = self.make_site(**self.served())

    def runTest(self) -> None:
        """Do nothing: the target sends the requests."""


class HttpTarget(Target):
    """Sends bytes to the real site. The first byte of the input is the seed by which they are split."""

    GETS: Final = [
        "/", "/livez", "/readyz", "/metrics", "/status", "/v1/status", "/v1/replication", "/v1/leases",
        "/v1/streams/receipts/rows?writer=master&from=0&upto=9&limit=5", "/v1/streams/receipts/allocated",
        "/v1/changelog?since=0&limit=5", "/v1/changelog?since=0&epoch_starts=true&receipts=true&digests=true",
        "/v1/changelog?since=0&follow=true&ephemeral=true&streams=receipts", "/v1/extent?since=0&upto=3",
        "/v1/changelog?since=9999999999999999999&wait=1", "/v1/digests?serials=1,2", "/v1/syncing",
        "/v1/commands?since=0&wait=0&limit=10&life=x", "/v1/files/sha256/" + "a" * 64,
        "/v1/files/by-name/media/a%2Fb?wait=0", "/v1/files?prefix=a&after=b&limit=3",
        CATCH_UP + "/receipts/1?from_token=0&upto_token=9",
    ]  # fmt: skip
    SENT: Final = [
        ("POST", "/v1/streams/receipts/facts", b'{"facts":[[["!r:h","m.read","@a:h","$e",null,{"ts":1}]]]}'),
        ("POST", "/v1/streams/typing/facts?files=wait&timeout=1",
         b'{"facts":[[["!r:h",["@a:h"]]]],"idempotency_key":"k","writer":"w"}'),
        ("POST", "/v1/facts", b'{"appends":[{"stream":"push_rules","facts":[[["@a:h"]]]}]}'),
        ("POST", "/v1/commands/ack", b'{"life":"x","number":1}'),
        ("POST", "/v1/leases", b'{"name":"r"}'),
        ("POST", "/v1/native", b""), ("POST", "/v1/native/bytes", b'HELLO {"uuid":"u","name":"n"}\n'),
        ("POST", "/v1/promote", b'{"force":false}'), ("POST", "/v1/resync", b"{}"),
        ("POST", "/v1/handover", b'{"seconds":1,"uuid":"u1"}'),
        ("POST", "/v1/claim", b'{"epoch":2,"uuid":"z","address":"- http://other:9093","history":"h","name":"o"}'),
        ("PUT", "/v1/files/sha256/" + "b" * 64, b"bytes"),
        ("PUT", PLACE, DATA), ("HEAD", PLACE, b""), ("GET", PLACE, b""),
        ("DELETE", "/v1/leases/r", b""), ("OPTIONS", "*", b""),
    ]  # fmt: skip
    HEADERS: Final = [
        "Synrepl-Reader: r", "Range: bytes=0-5,9-", "Accept: application/vnd.apache.arrow.stream",
        "Content-Digest: sha-256=:x:", "Want-Content-Digest: sha-256=1", "Transfer-Encoding: chunked",
        "Content-Type: application/json; charset=utf-8", "Origin: http://localhost", "If-None-Match: W/\"x\"",
        "Synrepl-Connection: " + "0" * 64, "Synrepl-Offset: 1", "Content-Type: application/octet-stream",
        "Authorization: Bearer x", "User-Agent: Synapse/1.66.0", "Expect: 100-continue", "Connection: close",
    ]  # fmt: skip

    def __init__(self) -> None:
        self._site = Site()
        self._made = 0
        atexit.register(self._site.doCleanups)

    def seeds(self) -> list[bytes]:
        asked = [*(("GET", path, b"") for path in self.GETS), *self.SENT]
        headers = itertools.cycle(self.HEADERS)
        return [b"\0" + self._site.request(*one, *extra) for one in asked for extra in ((), (next(headers),))]

    def run(self, data: bytes) -> object:
        seed, text = (*data[:1], 0)[0], data[1:]
        if self._made % 200 == 0:
            # A new log now and then, so that a find can be repeated without all inputs before it.
            self._site.doCleanups()
            self._site.setUp()
        self._made += 1
        talk = Talk(self._site.site)
        for piece in pieces(text, seed):
            if talk.transport.disconnecting:
                break
            talk.say(piece)
        self._site.clock.advance(0.01)
        heard = talk.heard
        talk.leave()
        self._site.clock.advance(0.01)
        if len(heard) > MAX_ANSWER:
            raise BadAnswer(f"an answer of {len(heard)} bytes to a request of {len(text)}")
        first = heard.partition(b"\r\n")[0]
        if b" 500 " in first and CATCH_UP.encode() not in text:
            raise BadAnswer(f"answered with 500: {heard[:2_000].decode('latin-1')}")
        error = heard.partition(b'"error":"')[2].partition(b'"')[0]
        return first, error, len(heard).bit_length()
