"""A replica at the native door of a site over HTTP: what a test says is posted, what comes down is heard."""

from typing import Any, Final

from synrepl.http_api.routes import OCTETS
from synrepl.replicas.routes import CONNECTION, OFFSET
from tests.http.builders import Answer, SiteCase
from tests.replicas.clusters import RawReplica

__all__ = ["Door"]

_END: Final = b"\r\n\r\n"


class Door:
    """A native connection, opened with these headers; the transport of `replica`, which a test lets speak.

    `answers` are those to the requests with its bytes.
    """

    def __init__(self, case: SiteCase, *headers: str) -> None:
        self.headers = headers
        self.offset = 0
        self.answers: list[Answer] = []
        self.replica = RawReplica()
        self._case = case
        self._taken = 0
        self.talk = case.talk()
        self.talk.say(case.request("POST", "/v1/native", b"", *headers))
        self.replica.makeConnection(self)
        self.pass_(0)

    @property
    def opened(self) -> Answer:
        """The answer that opened it, as far as it has come."""
        return self.talk.answer()

    @property
    def name(self) -> str:
        """Its id."""
        return self.opened.headers[CONNECTION.lower()]

    @property
    def is_ended(self) -> bool:
        """Whether the answer is complete, or was cut."""
        return self.opened.is_whole or self.talk.transport.is_aborted

    def write(self, data: bytes) -> None:
        """Post bytes that follow those before."""
        self.answers.append(self.post(data))
        self.offset += len(data)
        self.pass_(0)

    def post(self, data: bytes, offset: int | None = None, *headers: str, name: str = "") -> Answer:
        """Post bytes with this offset and this id."""
        return self._case.ask("POST", "/v1/native/bytes", data, *self.of_post(offset, *headers, name=name))

    def of_post(self, offset: int | None = None, *headers: str, name: str = "") -> tuple[str, ...]:
        """The headers of a request with bytes."""
        at = self.offset if offset is None else offset
        given = (f"{CONNECTION}: {name or self.name}", f"{OFFSET}: {at}", f"Content-Type: {OCTETS}")
        return (*given, *(headers or self.headers))

    def pass_(self, seconds: float) -> None:
        """Let time pass, and hear what came."""
        for _ in range(max(1, round(seconds / 0.05))):
            self._case.clock.advance(seconds and 0.05)
            self._case.clock.advance(0)
            body = self.opened.body
            data, self._taken = body[self._taken :], len(body)
            if data:
                self.replica.dataReceived(data)

    def errors(self) -> list[str]:
        """The texts of ERROR that came down."""
        return [line.decode() for line in self.replica.lines("ERROR")]

    def subscribe(self, **options: Any) -> None:
        """Be known, and follow from where the log is now."""
        welcome = self.replica.greet(self, **options)
        assert welcome is not None, self.replica.heard
        self.replica.subscribe(self, welcome)
