"""Which failures end `synrepl tail`: those that no further attempt can mend."""

import re
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from synrepl.cli.tail_common import TailOutput
from synrepl.replication.follower.follower import Follower, FollowerEvent
from synrepl.wire.commands import Position

__all__ = ["PERMANENT", "PermanentFailure", "TargetCheck", "advice_for", "speaks_http"]

SILENT_SECONDS: Final = 3.0
"""A server greets at once. After this the target is asked whether it speaks HTTP."""

STREAMS_SECONDS: Final = 3.0
"""A server says where all of its streams stand at once. A stream without a position by then is not there."""

PROBE_SECONDS: Final = 5.0

SAID_BY_SERVER: Final = "the server reports: "


class PermanentFailure(NamedTuple):
    """A reason that stays until somebody changes something, and what that is (empty: the reason says so)."""

    reason: re.Pattern[str]
    advice: str = ""


PERMANENT: Final = (
    PermanentFailure(re.compile(r"Wrong remote: "), "check TARGET and --server-name"),
    PermanentFailure(re.compile(r"port must be 0-65535"), "check the port of TARGET"),
    PermanentFailure(re.compile(r"it does not speak HTTP ")),
    PermanentFailure(re.compile(r"unknown stream "), "check --stream"),
    PermanentFailure(re.compile(r"lacks the right |this takes the right ")),
    PermanentFailure(re.compile(r"the certificate of .* is not in keys_file")),
    PermanentFailure(
        re.compile(
            r"TLS: (the certificate |certificate verify failed|the peer does not speak it"
            r"|.* wants a certificate|.* refuses our certificate)"
        )
    ),
)
"""Every other reason passes by itself: a refused or lost connection, a restart, a name that is not found."""


def advice_for(reason: str) -> str | None:
    """What to do about a failure for good; None if the failure may pass."""
    return next((failure.advice for failure in PERMANENT if failure.reason.search(reason)), None)


class TargetCheck:
    """Ends a `synrepl tail` over the line protocol when its target can never answer.

    `target` is how messages call it. `probe` asks the target whether it speaks HTTP; `streams` are those that
    are wanted, and that a server must have. A server that pushes (`tells_all` is False) does not tell all of
    its streams.
    """

    def __init__(
        self,
        tailing: TailOutput,
        target: str,
        *,
        streams: Collection[str],
        tells_all: bool,
        probe: "Callable[[], Deferred[bool]]",
    ) -> None:
        self._tailing = tailing
        self._target = target
        self._streams = streams if tells_all else ()
        self._probe = probe
        self._told: set[str] = set()
        self._is_greeted = True
        self._timer: Any = None

    def watch(self, follower: Follower) -> None:
        """Watch what this follower meets."""
        follower.on_event(self.event)
        follower.on_command(Position)(self.position)

    def event(self, event: FollowerEvent) -> None:
        """Something happened to the follower."""
        match event.kind:
            case "connected":
                self._is_greeted = False
                self._told.clear()
                self._wait(SILENT_SECONDS, self._ask_whether_http)
            case "server":
                self._is_greeted = True
                self._cancel()
            case "disconnected":
                self._cancel()
                self._judge(event.text)
                if not self._is_greeted:
                    self._is_greeted = True
                    self._ask_whether_http()
            case "error" if event.text.startswith(SAID_BY_SERVER):
                self._judge(event.text.removeprefix(SAID_BY_SERVER))

    def position(self, command: Position) -> None:
        """The server said where a stream stands."""
        if not self._told and self._streams:
            self._wait(STREAMS_SECONDS, self._compare_streams)
        self._told.add(command.stream)

    def stop(self) -> None:
        """Check no more."""
        self._cancel()

    def _judge(self, reason: str) -> None:
        advice = advice_for(reason)
        if advice is not None:
            self._end(f"{reason}; {advice}" if advice else reason)

    def _compare_streams(self) -> None:
        missing = [stream for stream in self._streams if stream not in self._told]
        if missing:
            self._end(f"it has no stream {', '.join(missing)}; it has {', '.join(sorted(self._told))}")

    def _ask_whether_http(self) -> None:
        self._probe().addCallback(self._answered)

    def _answered(self, is_http: bool) -> None:
        if is_http:
            self._end("it speaks HTTP, not the line protocol; give the port of the line protocol, or a URL")

    def _end(self, why: str) -> None:
        self._tailing.end(f"cannot follow {self._target}: {why}")

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._cancel()
        self._timer = self._tailing.reactor.callLater(seconds, then)

    def _cancel(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None


class _Question(Protocol):
    """Asks for a page, and looks whether the answer is one of HTTP."""

    def __init__(self) -> None:
        self.answer: Deferred[bool] = Deferred(self._give_up)
        self._heard = b""

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(b"GET / HTTP/1.0\r\n\r\n")

    def dataReceived(self, data: bytes) -> None:
        self._heard += data
        if len(self._heard) >= len(b"HTTP/"):
            assert self.transport is not None
            self.transport.loseConnection()
            self._answer(self._heard.startswith(b"HTTP/"))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._answer(False)

    def _give_up(self, _: Any) -> None:
        if self.transport is not None:
            self.transport.loseConnection()

    def _answer(self, is_http: bool) -> None:
        if not self.answer.called:
            self.answer.callback(is_http)


async def speaks_http(reactor: Any, endpoint: IStreamClientEndpoint) -> bool:
    """Whether what listens there answers as an HTTP server does, in time."""
    factory: Factory[_Question] = Factory.forProtocol(_Question)
    factory.noisy = False
    try:
        question: Any = await endpoint.connect(factory).addTimeout(PROBE_SECONDS, reactor)
        is_http: bool = await question.answer.addTimeout(PROBE_SECONDS, reactor)
    except Exception:  # it does not answer: that is no answer of HTTP
        return False
    return is_http
