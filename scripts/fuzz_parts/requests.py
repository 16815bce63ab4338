"""Requests over HTTP."""

import atexit
from typing import Final

from scripts.fuzz_parts.target import MAX_ANSWER, BadAnswer, Target, pieces
from tests.http.builders import CATCH_UP, Talk
from tests.http.files_builders import FilesSiteCase

__all__ = ["HttpTarget"]


class Site(FilesSiteCase):
    """A site that outlives the test it is made for."""

    def runTest(self) -> None:
        """Nothing: it is fed from outside."""


class HttpTarget(Target):
    """Requests as bytes, to the real site. First byte: how they are split."""

    PATHS: Final = [
        "/", "/livez", "/readyz", "/metrics", "/status", "/v1/status", "/v1/streams",
        "/v1/streams/receipts/rows?writer=master&from=0&upto=9&limit=5", "/v1/changelog?since=0&limit=5",
        "/v1/changelog?since=0&follow=true&ephemeral=true&streams=receipts", "/v1/extent?since=0&upto=3",
        "/v1/digests?serials=1,2", "/v1/receipts?after=0&upto=9",
        "/v1/commands?since=0&wait=0&limit=10&life=x",
        "/v1/files", "/v1/files/sha256/" + "a" * 64, "/v1/leases", "/v1/positions", "/v1/about",
        "/v1/snapshot", "/v1/changelog?since=9999999999999999999&wait=1",
        CATCH_UP + "/receipts/1?from_token=0&upto_token=9",
    ]  # fmt: skip
    POSTS: Final = [
        ("POST", "/v1/streams/receipts/facts", b'{"facts":[[["!r:h","m.read","@a:h","$e",null,{"ts":1}]]]}'),
        ("POST", "/v1/streams/receipts/facts?files=wait&timeout=1",
         b'{"facts":[],"idempotency_key":"k","writer":"w"}'),
        ("POST", "/v1/commands?origin=o&number=1", b"USER_SYNC a @b:h start 1\n"),
        ("POST", "/v1/leases", b'{"name":"r"}'),
        ("PUT", "/v1/files/sha256/" + "b" * 64, b"bytes"),
        ("PATCH", "/v1/files/sha256/" + "b" * 64, b"bytes"),
        ("DELETE", "/v1/leases/r", b""),
        ("HEAD", "/v1/files/sha256/" + "b" * 64, b""),
        ("OPTIONS", "*", b""),
    ]  # fmt: skip

    def __init__(self) -> None:
        self._site = Site()
        self._made = 0
        atexit.register(self._site.doCleanups)

    def seeds(self) -> list[bytes]:
        gets = [("GET", path, b"") for path in self.PATHS]
        site = Site()
        return [b"\0" + site.request(*one, "Synrepl-Reader: r") for one in [*gets, *self.POSTS]]

    def run(self, data: bytes) -> object:
        seed, text = (*data[:1], 0)[0], data[1:]
        if self._made % 200 == 0:
            # A new log now and then: what came before must not be needed to see a find again.
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
            raise BadAnswer(f"{len(heard)} bytes for {len(text)}")
        first = heard.partition(b"\r\n")[0]
        if b" 500 " in first and CATCH_UP.encode() not in text:
            raise BadAnswer(heard[:2_000].decode("latin-1"))
        return first, len(heard).bit_length()
