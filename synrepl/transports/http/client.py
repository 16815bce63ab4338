"""The other end: pulling missed rows, reading the changelog, adding facts.

Works against this daemon, and `HttpCatchUp` against Synapse's own processes too. What does HTTP is imported
when it is first needed, so that a worker that follows over TCP alone does not pay for it.
"""

import random
import string
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from inspect import isawaitable
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.ports.interfaces import Appended
from synrepl.replication.catchup import Missed, NowhereToFetch
from synrepl.streams.jsontext import dumps

__all__ = ["AheadOfLog", "HttpAppender", "HttpCatchUp", "HttpChangelog", "RequestRefused"]

T = TypeVar("T")

MIB: Final = 1024 * 1024
HELD_BYTES: Final = MIB
"""Lines of a changelog that wait for `on_line` before the connection is read no further."""
MAX_LINE_BYTES: Final = 256 * MIB
MAX_ERROR_BYTES: Final = 64 * 1024


class RequestRefused(ReplicationError):
    """The server answered with a refusal: `status`, its `code` and its `message`."""

    def __init__(self, *, url: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{url} answered {status} {code}: {message}")
        self.url = url
        self.status = status
        self.code = code
        self.message = message
        self.retryable = status in {429, 502, 503, 504}


class AheadOfLog(RequestRefused):
    """We know facts that the server's log, which ends at `serial` of `epoch`, does not have."""

    def __init__(self, *, url: str, message: str, serial: int, epoch: int) -> None:
        super().__init__(url=url, status=409, code="ahead_of_log", message=message)
        self.serial = serial
        self.epoch = epoch


class HttpCatchUp:
    """Pulls missed rows as Synapse's workers do; an `ICatchUp`. Of a daemon of ours also an `IAllocated`.

    `base_url` is asked for the rows of every writer that `instance_map` has no URL for; None: nobody is. The
    map may be that of a homeserver, where the writer `master` is called `main`. A request may take `timeout`
    seconds in all, its answer `max_bytes` bytes. `client` is a treq client, for tests.
    """

    def __init__(
        self,
        reactor: Any,
        base_url: str | None,
        *,
        secret: str | None = None,
        instance_map: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        max_bytes: int = 256 * MIB,
        client: Any = None,
    ) -> None:
        self._base_url = base_url
        self._instance_map = dict(instance_map or {})
        if "main" in self._instance_map:
            self._instance_map.setdefault("master", self._instance_map["main"])
        self._max_bytes = max_bytes
        self._http = _Http(reactor, secret, timeout, client)
        self._tells_allocated = True

    async def fetch(self, *, stream: str, writer: str, after: int, upto: int) -> Missed:
        """The facts with ``after < token <= upto``, or the first of them.

        Raises `NotConnected` when there is no (whole) answer, `RemoteProtocolError` when it is a wrong one,
        `NowhereToFetch` when nobody is known who could be asked.
        """
        mapped = self._instance_map.get(writer)
        base = mapped or self._base_url
        if base is None:
            raise NowhereToFetch(f"instance_map has no address of {writer}")
        base = base.rstrip("/")
        # Real workers name whom they ask; a proxy in front of a single address would not know that name.
        host = f"{writer}:80" if mapped else None
        # Synapse remembers answers by this, whatever else is asked.
        txn_id = "".join(random.choices(string.ascii_letters, k=10))
        query = urlencode({"from_token": after, "upto_token": upto, "writer": writer})
        path = f"/_synapse/replication/get_repl_stream_updates/{quote(stream, safe='')}/{txn_id}"
        url = f"{base}{path}?{query}"
        try:
            body = await self._http.whole("GET", url, None, self._max_bytes, host=host)
        except RequestRefused as error:
            kind = NotConnected if error.retryable else RemoteProtocolError
            raise kind(str(error)) from error
        return _missed(body, _public(url), after, upto)

    async def highest(self, stream: str) -> int | None:
        """The highest token of a stream, as `base_url` has it; None from a server that does not tell."""
        if not self._tells_allocated or self._base_url is None:
            return None
        url = f"{self._base_url.rstrip('/')}/v1/streams/{quote(stream, safe='')}/allocated"
        try:
            body = await self._http.whole("GET", url, None, MIB)
        except RequestRefused as error:
            if error.status == 404 and error.code != "unknown_stream":
                self._tells_allocated = False  # no daemon of ours: not to be bothered again
                return None
            raise
        return _decoded(_Allocated, body, _public(url)).allocated

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()


class _Daemon:
    """A daemon of ours, over HTTP. `timeout` bounds, in seconds, the wait for an answer to begin."""

    def __init__(
        self,
        reactor: Any,
        base_url: str,
        secret: str | None = None,
        *,
        timeout: float = 60.0,
        client: Any = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._http = _Http(reactor, secret, timeout, client)

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()


class HttpChangelog(_Daemon):
    """Reads a daemon's log over HTTP."""

    async def pages(
        self,
        since: int,
        streams: Collection[str] | None,
        wait: float,
        on_line: Callable[[bytes], Awaitable[None] | None],
        *,
        limit: int | None = None,
    ) -> int:
        """Call `on_line` with each fact (a line of JSON) after the serial `since`, up to the head.

        The server waits up to `wait` seconds for a first one. What `on_line` returns is waited for, and
        meanwhile only a little more is read. Gives the serial up to which nothing wanted is missing: ask
        from there next. Raises `AheadOfLog`, or another `ReplicationError`; lines given until then are good.
        """
        query: dict[str, Any] = {"since": since, "wait": f"{wait:g}"}
        if streams is not None:
            query["streams"] = ",".join(sorted(streams))
        if limit is not None:
            query["limit"] = limit
        url = f"{self._base_url}/v1/changelog?{urlencode(query)}"
        response = await self._http.begin("GET", url, None, extra_seconds=wait)
        lines = _Lines()
        response.deliverBody(lines)
        count = 0
        try:
            async for text in _each(lines, _public(url)):
                handled = on_line(text)
                if isawaitable(handled):
                    await handled
                since = _serial(text, _public(url))
                count += 1
        finally:
            lines.stop()
        if limit is not None and count >= limit:
            return since
        told = response.headers.getRawHeaders("synrepl-serial") or [""]
        return max(since, int(told[0])) if told[0].isdecimal() else since


class HttpAppender(_Daemon):
    """Adds facts to a daemon's log over HTTP."""

    async def append(
        self, stream: str, facts: list[list[Any]], writer: str | None = None, key: str | None = None
    ) -> Appended:
        """Add facts, each a list of rows; done when they are durable.

        Raises `RequestRefused` with the server's own words, `NotConnected` when it is unknown what became of
        them (harmless to repeat with the same `key`).
        """
        asked: dict[str, Any] = {"facts": facts}
        if writer is not None:
            asked["writer"] = writer
        if key is not None:
            asked["idempotency_key"] = key
        try:
            body = dumps(asked)
        except (TypeError, ValueError, RecursionError) as error:
            raise ReplicationError(f"these facts cannot be written as JSON: {error}") from error
        url = f"{self._base_url}/v1/streams/{quote(stream, safe='')}/facts"
        answer = await self._http.whole("POST", url, body, 64 * MIB)
        return _decoded(Appended, answer, _public(url))

    async def stop(self) -> None:
        """Close the idle connections."""
        await self._http.stop()


# -- answers -----------------------------------------------------------------------------------------------


class _Updates(msgspec.Struct):
    updates: list[tuple[int, msgspec.Raw]]
    upto_token: int
    limited: bool


class _Allocated(msgspec.Struct):
    allocated: int | None


class _Serial(msgspec.Struct):
    serial: int


class _Error(msgspec.Struct):
    """The body of a refusal, ours or Synapse's."""

    error: str = ""
    message: str = ""
    errcode: str = ""
    serial: int = 0
    epoch: int = 0


def _missed(body: bytes, url: str, after: int, upto: int) -> Missed:
    answer = _decoded(_Updates, body, url)
    if answer.limited and after <= upto and answer.upto_token == after:
        raise RemoteProtocolError(f"{url} says that more follows after {after}, and gave none of it")
    facts: list[tuple[int, list[bytes]]] = []
    for token, row in answer.updates:
        if facts and facts[-1][0] == token:
            facts[-1][1].append(bytes(row))
        else:
            facts.append((token, [bytes(row)]))
    return Missed(facts=facts, upto=answer.upto_token, limited=answer.limited)


def _serial(text: bytes, url: str) -> int:
    return _decoded(_Serial, text, url).serial


def _decoded(shape: type[T], body: bytes, url: str) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{url} gave a wrong answer: {error}") from error


def _refused(status: int, body: bytes, url: str) -> RequestRefused:
    try:
        told = msgspec.json.decode(body, type=_Error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = _Error()
    code = told.errcode or told.error or "error"
    message = " ".join((told.error if told.errcode else told.message).split())[:1000] or "no reason given"
    if status == 409 and code == "ahead_of_log":
        return AheadOfLog(url=url, message=message, serial=told.serial, epoch=told.epoch)
    return RequestRefused(url=url, status=status, code=code, message=message)


def _public(url: str) -> str:
    """The URL as people may see it: without a user and a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# -- requests ----------------------------------------------------------------------------------------------


class _Http:
    """Makes requests over a few connections that are kept, and turns every failure into one of ours."""

    def __init__(self, reactor: Any, secret: str | None, timeout: float, client: Any) -> None:
        self._reactor = reactor
        self._headers = {} if secret is None else {"authorization": [f"Bearer {secret}"]}
        self._timeout = timeout
        self._client = client
        self._pool: Any = None

    async def whole(
        self, method: str, url: str, body: bytes | None, max_bytes: int, *, host: str | None = None
    ) -> bytes:
        """A whole answer of status 200. `host` is said in the header in place of the URL's."""
        work = self._get_whole(method, url, body, max_bytes, host)
        got: bytes = await self._within(self._timeout, work, url)
        return got

    async def begin(self, method: str, url: str, body: bytes | None, *, extra_seconds: float) -> Any:
        """An answer of status 200 whose body is still to come."""
        return await self._within(self._timeout + extra_seconds, self._get(method, url, body), url)

    async def stop(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            await self._pool.closeCachedConnections()

    async def _get_whole(
        self, method: str, url: str, body: bytes | None, max_bytes: int, host: str | None
    ) -> bytes:
        return await _collected(await self._get(method, url, body, host), max_bytes, _public(url))

    async def _get(self, method: str, url: str, body: bytes | None, host: str | None = None) -> Any:
        headers: dict[str, list[str]] = dict(self._headers)
        if host is not None:
            headers["host"] = [host]
        if body is not None:
            headers["content-type"] = ["application/json"]
        response = await self._treq().request(
            method,
            _public(url),
            headers=headers,
            data=body,
            # To follow a redirection would show the secret to whoever it names.
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )
        if response.code != 200:
            raise _refused(
                response.code, await _collected(response, MAX_ERROR_BYTES, _public(url)), _public(url)
            )
        return response

    async def _within(self, seconds: float, work: Any, url: str) -> Any:
        """What `work` gives, in time."""
        done: Deferred[Any] = Deferred.fromCoroutine(work)
        done.addTimeout(seconds, self._reactor)
        try:
            return await done
        except (ReplicationError, CancelledError):
            raise
        except TimedOut:
            raise NotConnected(f"{_public(url)} has not answered within {seconds:g} seconds") from None
        except Exception as error:
            raise NotConnected(f"{_public(url)} cannot be reached: {_reason(error)}") from error

    def _treq(self) -> Any:
        if self._client is None:
            from treq.client import HTTPClient
            from twisted.web.client import Agent, HTTPConnectionPool

            self._pool = HTTPConnectionPool(self._reactor)
            self._client = HTTPClient(Agent(self._reactor, connectTimeout=10.0, pool=self._pool))
        return self._client


def _reason(error: Exception) -> str:
    """One line, also where Twisted wraps the reasons."""
    reasons = getattr(error, "reasons", None)
    if reasons and isinstance(reasons[0], Failure):
        return _reason(reasons[0].value) if isinstance(reasons[0].value, Exception) else str(reasons[0])
    return " ".join(str(error).split()) or type(error).__name__


async def _collected(response: Any, max_bytes: int, url: str) -> bytes:
    collecting = _Collector(max_bytes, url)
    response.deliverBody(collecting)
    return await collecting.done


class _Collector(Protocol):
    """Gathers a body, up to a bound."""

    def __init__(self, max_bytes: int, url: str) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._room = max_bytes
        self._max_bytes = max_bytes
        self._url = url
        self._parts: list[bytes] = []

    def dataReceived(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room >= 0:
            self._parts.append(data)
        elif not self.done.called:
            self._parts.clear()
            self.done.errback(RemoteProtocolError(f"{self._url} gave more than {self._max_bytes} bytes"))
            self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if _is_whole(reason):
            self.done.callback(b"".join(self._parts))
        else:
            self.done.errback(reason)

    def _abort(self) -> None:
        _abort(self.transport)


class _Lines(Protocol):
    """Cuts a body into lines, and lets the sender wait while too much of it is held here."""

    def __init__(self) -> None:
        self.end: Failure | None = None
        self.rest: list[bytes] = []
        self._rest_bytes = 0
        self._lines: deque[bytes] = deque()
        self._held = 0
        self._is_paused = False
        self._is_stopped = False
        self._waiter: Deferred[None] | None = None

    def dataReceived(self, data: bytes) -> None:
        if self._is_stopped:
            return
        first, *others = data.split(b"\n")
        self.rest.append(first)
        self._rest_bytes += len(first)
        if others:
            *lines, last = b"".join(self.rest), *others
            self._lines += lines
            self._held += sum(map(len, lines))
            self.rest, self._rest_bytes = [last] if last else [], len(last)
        if self._held > HELD_BYTES and not self._is_paused:
            self._is_paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]
        if self._rest_bytes > MAX_LINE_BYTES:
            _abort(self.transport)
        self._wake()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end = reason
        self._wake()

    def take(self) -> bytes | None:
        """The next line; None if there is none just now."""
        if not self._lines:
            return None
        text = self._lines.popleft()
        self._held -= len(text)
        if self._is_paused and self._held <= HELD_BYTES // 2 and self.end is None:
            self._is_paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return text

    async def changed(self) -> None:
        """Returns when there is more, or no more."""
        self._waiter = Deferred()
        await self._waiter

    def stop(self) -> None:
        """Read no further."""
        self._is_stopped = True
        if self.end is None:
            _abort(self.transport)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


async def _each(lines: _Lines, url: str) -> Any:
    while True:
        while (text := lines.take()) is not None:
            yield text
        if lines.end is not None:
            break
        await lines.changed()
    if not _is_whole(lines.end) or lines.rest:
        raise NotConnected(f"{url} broke off: {_reason(lines.end.value)}")  # type: ignore[arg-type]


def _is_whole(reason: Failure) -> bool:
    from twisted.web.client import ResponseDone

    return reason.check(ResponseDone) is not None


def _abort(transport: Any) -> None:
    """Close it without waiting for what is still coming."""
    if transport is not None:
        getattr(transport, "abortConnection", transport.loseConnection)()
