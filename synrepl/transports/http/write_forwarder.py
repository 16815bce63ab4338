"""Facts posted to a replica: checked here, kept by the primary, answered once they are here.

Every wait is bounded and costs no thread, and each way in which it can end is told apart: kept and here, kept
and not here yet, refused, not kept, and unknown. With an idempotency key on every write, the unknown becomes
known by asking again.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import chain, repeat
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl
from uuid import uuid4

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from synrepl.errors import ReplicationError
from synrepl.ports.interfaces import Appended, IClock
from synrepl.ports.tasks import Tasks
from synrepl.storage import Log
from synrepl.streams.stream import Stream
from synrepl.transports.http import api_error
from synrepl.transports.http.api_error import RETRY_SECONDS, ApiError, upstream_unreachable
from synrepl.transports.http.append_body import AppendBody, read_body, read_facts
from synrepl.transports.http.client_errors import ApiResponseError
from synrepl.transports.http.http_client import NeverSent
from synrepl.transports.http.log_waiters import LogWaiters, not_here_yet
from synrepl.transports.http.query import seconds, text

__all__ = ["IPostClient", "WriteForwarder"]

MIB: Final = 1024 * 1024
TIMEOUT_SECONDS: Final = 10.0
LOWEST_SECONDS: Final = 0.1
HIGHEST_SECONDS: Final = 300.0
AGAIN_SECONDS: Final = (0.1, 0.2, 0.5, 1.0)
"""How long after an unclear outcome the primary is asked again, with the same key."""
MAX_HOPS: Final = 8

Query = Sequence[tuple[bytes, bytes]]


class IPostClient(Protocol):
    """Where facts are passed on to; `HttpAppender` is one."""

    async def post(self, stream: str, body: bytes, *, query: Query, timeout: float) -> Appended: ...

    async def stop(self) -> None: ...


class _PostResponse(msgspec.Struct, frozen=True):
    """The primary's answer: up to `serial` the facts are committed there."""

    body: bytes
    epoch: int
    serial: int | None
    tokens: list[int]


class WriteForwarder:
    """Passes facts on to the daemon at `upstream`, by what `appender_for` gives for its URL.

    `is_active` says whether this daemon relays at all just now: one that was promoted does not. `file_here`
    says whether the file of this checksum is here, or gets here in so many seconds. Of facts that were not
    answered yet, at most `max_pending_bytes` are held.
    """

    def __init__(
        self,
        log: Log,
        clock: IClock,
        appender_for: Callable[[str], IPostClient],
        upstream: Callable[[], str | None],
        *,
        is_active: Callable[[], bool] = lambda: True,
        file_here: Callable[[str, float], Awaitable[bool]] | None = None,
        max_pending_bytes: int = 64 * MIB,
        logger: Logger,
    ) -> None:
        self._log = log
        self._clock = clock
        self._appender_for = appender_for
        self._upstream = upstream
        self._is_active = is_active
        self._file_here = file_here
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._logger = logger
        self._tasks = Tasks(logger, "relaying")
        self._appender: tuple[str, IPostClient] | None = None

    @property
    def is_active(self) -> bool:
        """Whether facts go to the primary."""
        return self._is_active()

    @property
    def pending_bytes(self) -> int:
        """How many bytes of facts are on their way."""
        return self._pending_bytes

    async def stop(self) -> None:
        """Give up what is on its way, and close the connections."""
        self._tasks.cancel_all()
        appender, self._appender = self._appender, None
        if appender is not None:
            await appender[1].stop()

    async def answer(self, request: Any, stream: Stream[Any], body: bytes, waiting: LogWaiters) -> bytes:
        """What the primary answers, once it is true here too. Raises `ApiError`.

        If nobody waits for the answer any more, the facts are passed on all the same.
        """
        timeout = seconds(
            request, "timeout", lowest=LOWEST_SECONDS, highest=HIGHEST_SECONDS, default=TIMEOUT_SECONDS
        )
        until = self._clock.seconds() + timeout
        wants_files = _wants_files(request)
        query = self._query(request)
        posted = read_body(body)
        facts = await read_facts(stream, posted, self._clock)
        if waiting.is_full or self._pending_bytes + len(body) > max(self._max_pending_bytes, len(body)):
            raise ApiError(503, "busy", "too much is being passed on already", retry_after=RETRY_SECONDS)
        key = posted.idempotency_key if isinstance(posted.idempotency_key, str) else str(uuid4())
        files = _files_of(stream.name, facts) if wants_files else frozenset()
        del facts

        outcome: Deferred[_PostResponse | ApiError] = Deferred()
        self._tasks.start(
            self._pass_on(outcome, stream.name, _with_key(posted, key), key, query, until), "passing on facts"
        )
        told = await outcome
        if isinstance(told, ApiError):
            if told.status >= 500:
                told.more = {**told.more, "idempotency_key": key}
            raise told
        if told.serial is not None:
            await self._arrived(told, told.serial, key, files, until, waiting)
        return told.body

    async def append(self, stream: str, facts: Sequence[bytes]) -> None:
        """Pass on facts (each the JSON array of its rows) that nobody waits for. Raises `ApiError`."""
        key = str(uuid4())
        body = b'{"idempotency_key":%b,"facts":[%b]}' % (msgspec.json.encode(key), b",".join(facts))
        via = [(b"via", self._log.uuid.encode())]
        told = await self._settled(stream, body, key, via, self._clock.seconds() + TIMEOUT_SECONDS)
        if isinstance(told, ApiError):
            raise told

    # -- to the primary ------------------------------------------------------------------------------------

    async def _pass_on(
        self,
        outcome: "Deferred[_PostResponse | ApiError]",
        stream: str,
        body: bytes,
        key: str,
        query: Query,
        until: float,
    ) -> None:
        self._pending_bytes += len(body)
        try:
            told = await self._settled(stream, body, key, query, until)
        except CancelledError:
            told = _unknown(key, "this daemon is being stopped")
        except Exception:
            self._logger.failure("facts could not be passed on")
            told = _unknown(key, "something went wrong here; it is in the log of this daemon")
        finally:
            self._pending_bytes -= len(body)
        if not outcome.called:
            outcome.callback(told)

    async def _settled(
        self, stream: str, body: bytes, key: str, query: Query, until: float
    ) -> "_PostResponse | ApiError":
        """What became of the facts; asks again, while there is time, for as long as nobody knows."""
        doubt = ""
        for pause in chain(AGAIN_SECONDS, repeat(AGAIN_SECONDS[-1])):
            told, why = await self._try(stream, body, query, until)
            # While an earlier try is in doubt, that this one came to nothing says nothing.
            if told is not None and (not doubt or isinstance(told, _PostResponse) or told.status < 500):
                return told
            doubt = doubt or why
            if self._clock.seconds() + pause >= until:
                break
            await deferLater(self._clock, pause)  # type: ignore[arg-type]
        return _unknown(key, doubt)

    async def _try(
        self, stream: str, body: bytes, query: Query, until: float
    ) -> "tuple[_PostResponse | ApiError | None, str]":
        """Ask once: what is told to the client, or None and why nobody knows what became of it."""
        url = self._upstream()
        if url is None:
            why = "no primary is known just now"
            return ApiError(503, "upstream_away", why, retry_after=RETRY_SECONDS), ""
        left = max(until - self._clock.seconds(), LOWEST_SECONDS)
        asked = [*query, (b"timeout", b"%.3f" % left)]
        try:
            return _told(await self._at(url).post(stream, body, query=asked, timeout=left)), ""
        except NeverSent as error:
            return upstream_unreachable(f"nothing was stored: {error}"), ""
        except ApiResponseError as error:
            return _refused(error), str(error)
        except ReplicationError as error:
            return None, str(error)

    def _at(self, url: str) -> IPostClient:
        if self._appender is None or self._appender[0] != url:
            before, self._appender = self._appender, (url, self._appender_for(url))
            if before is not None:
                self._tasks.start(before[1].stop(), "closing connections to a former primary")
        return self._appender[1]

    def _query(self, request: Any) -> Query:
        """The whole query is passed on, and by whom. Raises `ApiError` when it has been here before."""
        # A character for a byte, whatever the bytes are.
        given = request.uri.partition(b"?")[2].decode("latin-1")
        pairs = parse_qsl(given, keep_blank_values=True, encoding="latin-1")
        via = text(request, "via")
        hops = via.split(",") if via else []
        if self._log.uuid in hops or len(hops) >= MAX_HOPS:
            why = "this write goes round in a circle: no daemon on its way is the primary"
            raise ApiError(503, "upstream_away", why, retry_after=RETRY_SECONDS)
        others = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in pairs
            if name not in {"timeout", "via"}
        ]
        return [*others, (b"via", ",".join([*hops, self._log.uuid]).encode())]

    # -- back here -----------------------------------------------------------------------------------------

    async def _arrived(
        self,
        told: _PostResponse,
        serial: int,
        key: str,
        files: Collection[str],
        until: float,
        waiting: LogWaiters,
    ) -> None:
        """Return when the facts are here, and the files if they are wanted. Raises `ApiError` otherwise."""
        more = {"epoch": told.epoch, "tokens": told.tokens, "idempotency_key": key}
        try:
            is_here = await waiting.reach(serial, until - self._clock.seconds())
        except ApiError:  # too many wait: no reason to say that these facts are not kept
            is_here = False
        if not is_here:
            raise not_here_yet(serial, self._log.serial, **more)
        if self._log.epoch != told.epoch and not await self._is_ours(serial, told, key):
            if self._log.epoch < told.epoch:
                raise not_here_yet(serial, self._log.serial, **more)
            raise _unknown(key, f"epoch {told.epoch}, of which these facts were, has ended meanwhile")
        if files and self._file_here is not None and not await self._have(files, until):
            raise not_here_yet(serial, self._log.serial, files=sorted(files), **more)

    async def _is_ours(self, serial: int, told: _PostResponse, key: str) -> bool:
        """Whether the facts up to this serial are those that were passed on, and not of a later epoch."""
        first = serial - len(told.tokens) + 1
        receipts = await self._log.receipts_between(first - 1, first)
        return any(receipt.key == key for receipt in receipts)

    async def _have(self, files: Collection[str], until: float) -> bool:
        assert self._file_here is not None
        for sha256 in sorted(files):
            if not await self._file_here(sha256, until - self._clock.seconds()):
                return False
        return True


def _told(appended: Appended) -> _PostResponse:
    first = appended.first_serial
    return _PostResponse(
        body=msgspec.json.encode(appended),
        epoch=appended.epoch,
        serial=None if first is None else first + len(appended.tokens) - 1,
        tokens=appended.tokens,
    )


def _refused(error: ApiResponseError) -> "_PostResponse | ApiError | None":
    """What the primary's refusal means here; None if it leaves open whether the facts were stored."""
    match error.status, error.code:
        case ((502 | 504), _) if not error.body:  # by a proxy on the way
            return None
        case 504, "not_here_yet":
            # By a replica between us and the primary: the facts are kept, and we wait for them as it did.
            return _of_chain(error)
        case 504, _:
            return None
        case 400, "garbled":  # on the way there
            return None
        case ((502 | 503), api_error.UPSTREAM_UNREACHABLE):
            # By a replica between us and the primary: it went no further.
            return upstream_unreachable(error.message)
        case 503, _:
            return ApiError(503, "upstream_away", str(error), retry_after=RETRY_SECONDS)
        case ((401 | 403), _):
            why = f"the primary does not take this daemon's key: {error}"
            return ApiError(502, "upstream_refused", why, more={"retryable": False})
        case status, _ if error.body and (400 <= status < 500 or status == 502):
            return _as_it_is(error)
    return ApiError(502, "upstream_failed", str(error))


def _as_it_is(error: ApiResponseError) -> ApiError:
    more = {name: value for name, value in error.body.items() if name not in {"error", "message"}}
    message = error.body.get("message")
    return ApiError(
        error.status, error.code, message if isinstance(message, str) else error.message, more=more
    )


def _of_chain(error: ApiResponseError) -> "_PostResponse | None":
    try:
        told = msgspec.convert(error.body, type=_NotThereYet)
    except msgspec.ValidationError:
        return None
    first = told.serial - len(told.tokens) + 1
    return _told(Appended(epoch=told.epoch, first_serial=first, tokens=told.tokens))


class _NotThereYet(msgspec.Struct):
    serial: int
    epoch: int
    tokens: list[int]


def _unknown(key: str, why: str) -> ApiError:
    message = f"nobody knows whether this was stored; ask again with the same idempotency key: {why}"
    return ApiError(504, "outcome_unknown", message, more={"idempotency_key": key}, retry_after=RETRY_SECONDS)


def _with_key(posted: AppendBody, key: str) -> bytes:
    """The facts as they were posted, byte by byte, with this idempotency key."""
    writer = b"" if posted.writer is msgspec.UNSET else b'"writer":%b,' % msgspec.json.encode(posted.writer)
    facts = b",".join(map(bytes, posted.facts))
    return b'{%b"idempotency_key":%b,"facts":[%b]}' % (writer, msgspec.json.encode(key), facts)


def _wants_files(request: Any) -> bool:
    given = text(request, "files")
    if given not in (None, "here"):
        raise ApiError(400, "bad_request", f"files can be here, not {given[:40]!r}")
    return given == "here"


def _files_of(stream: str, facts: Collection[bytes]) -> frozenset[str]:
    """The checksums that rows of ``files`` name, unless they delete."""
    if stream != "files":
        return frozenset()
    rows = (row for fact in facts for row in msgspec.json.decode(fact))
    return frozenset(row[2] for row in rows if row[0] != "delete" and row[2] is not None)
