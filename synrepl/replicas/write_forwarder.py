"""Forwards writes posted to a replica to its primary, and responds once they are applied locally.

Every wait is bounded and uses no thread. A write ends in one of five ways: stored and applied, stored and not
applied yet, refused, not stored, or unknown. Every write has an idempotency key, so that a retry resolves an
unknown outcome.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, repeat
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from synrepl.base.history import Appended
from synrepl.base.interfaces import IClock
from synrepl.base.response_errors import NeverSent, NotForwarded
from synrepl.base.tasks import Tasks
from synrepl.base.time import sleep
from synrepl.errors import ReplicationError, StorageError
from synrepl.http_api.request_errors import HttpError
from synrepl.replication.hooks import Posted, PostedPart
from synrepl.replication.serving.log_waiters import LogWaiters
from synrepl.storage.log import Log

MIB: Final = 1024 * 1024
LOWEST_SECONDS: Final = 0.1
RETRY_DELAYS: Final = (0.1, 0.2, 0.5, 1.0)
"""Delays before retries after an unknown outcome, with the same idempotency key."""
MAX_HOPS: Final = 8
MAX_ANSWER_BYTES: Final = 64 * MIB
"""The longest answer of the primary: it has the tokens of all facts."""

Query = Sequence[tuple[bytes, bytes]]


def body_of(posted: Posted, key: str) -> bytes:
    """Encode posted facts with this idempotency key."""
    head = b'{"idempotency_key":%b,' % msgspec.json.encode(key)
    if not posted.is_batch:
        return head + _members(posted.parts[0])
    parts = (b'{"stream":%b,' % msgspec.json.encode(one.stream) + _members(one) for one in posted.parts)
    return b'%b"atomic":true,"appends":[%b]}' % (head, b",".join(parts))


def _members(part: PostedPart) -> bytes:
    """Return the members of an append in JSON, and its end."""
    writer = b"" if part.writer is None else b'"writer":%b,' % msgspec.json.encode(part.writer)
    return b'%b"facts":[%b]}' % (writer, b",".join(part.facts))


class _BatchAnswer(msgspec.Struct):
    """The primary's answer to a batch."""

    epoch: int
    appends: list[Appended]


class _Write(msgspec.Struct, frozen=True):
    """A write as it is forwarded, in tries with the same body and key, until a time in seconds.

    `stream` is None for a batch of several.
    """

    stream: str | None
    body: bytes
    key: str
    query: Query
    until: float


@dataclass(eq=False, repr=False)
class WriteForwarder:
    """Forwards facts to the primary: `primary_url` returns its URL, `call` is that of `PeerHttp`.

    `is_active` tells whether this daemon forwards now: a promoted one does not. `refusal` returns why
    facts of a stream are not forwarded at all, or None. `has_file` waits, for some seconds, until a file is
    stored locally. At most `max_pending_bytes` of facts, or one larger write, wait in `forward` at a time.
    """

    log: Log
    clock: IClock
    call: Callable[..., Awaitable[Any]]
    primary_url: Callable[[], str | None]
    _: KW_ONLY
    is_active: Callable[[], bool] = lambda: True
    refusal: Callable[[str], StorageError | None] = lambda stream: None
    has_file: Callable[[str, float], Awaitable[bool]] | None = None
    max_pending_bytes: int = 64 * MIB
    logger: Logger

    def __post_init__(self) -> None:
        self.pending_bytes = 0
        """Bytes of facts in `forward` that wait for the primary's response."""
        self._tasks = Tasks(self.logger, "write forwarding")

    async def stop(self) -> None:
        """Cancel pending writes."""
        self._tasks.cancel_all()

    async def forward(self, posted: Posted, waiters: LogWaiters) -> Appended:
        """Forward facts; return the primary's response once they are applied here (ephemeral ones: at once).

        That of a batch has the tokens of all its parts, in order.

        If the client disconnects, the facts are forwarded all the same. Raises `NotForwarded`, or the
        `refusal`.
        """
        write = self._prepare(posted)
        size = len(write.body)
        if waiters.is_full or self.pending_bytes + size > max(self.max_pending_bytes, size):
            why = "too many writes are being forwarded to the primary: retry later"
            raise NotForwarded("busy", why)

        outcome: Deferred[Appended | NotForwarded] = Deferred()
        self._tasks.start(self._forward(outcome, write), "forwarding facts")
        response = await outcome
        if isinstance(response, NotForwarded):
            if response.status >= 500:
                response.more["idempotency_key"] = write.key
            raise response
        if response.first_serial is not None:
            last = response.first_serial + len(response.tokens) - 1
            await self._wait_until_applied(response, last, write, posted.files, waiters)
        return response

    async def append(self, stream: str, facts: Sequence[bytes]) -> None:
        """Forward facts (each the JSON array of its rows) without waiting until they are applied.

        Raises `NotForwarded` or the `refusal`.
        """
        response = await self._post_until_known(self._prepare(Posted(parts=[PostedPart(stream, facts)])))
        if isinstance(response, NotForwarded):
            raise response

    def _prepare(self, posted: Posted) -> _Write:
        """Add this daemon to `via` of the query. Raises the `refusal`, or `NotForwarded` for a loop."""
        if (refused := self.refusal(posted.stream or "")) is not None:
            raise refused
        hops = posted.hops
        if self.log.uuid in hops or len(hops) >= MAX_HOPS:
            why = "forwarding loop: none of the daemons on the way is the primary"
            raise NotForwarded("upstream_away", why)
        query = [*posted.query, (b"via", ",".join([*hops, self.log.uuid]).encode())]
        if posted.owner is not None:
            query.append((b"owner", posted.owner.encode()))
        key = str(uuid4()) if posted.key is None else posted.key
        return _Write(posted.stream, body_of(posted, key), key, query, self.clock.seconds() + posted.timeout)

    async def _forward(self, outcome: "Deferred[Appended | NotForwarded]", write: _Write) -> None:
        self.pending_bytes += len(write.body)
        try:
            response = await self._post_until_known(write)
        except CancelledError:
            response = _unknown(write.key, "this daemon is shutting down")
        except Exception:
            self.logger.failure("cannot forward facts to the primary")
            response = _unknown(write.key, "internal error; see the log of this daemon")
        finally:
            self.pending_bytes -= len(write.body)
        if not outcome.called:
            outcome.callback(response)

    async def _post_until_known(self, write: _Write) -> "Appended | NotForwarded":
        """Post the facts; retry, until the deadline, while the outcome is unknown."""
        doubt = ""
        for pause in chain(RETRY_DELAYS, repeat(RETRY_DELAYS[-1])):
            result, why = await self._try(write)
            # A refusal of this try says nothing about an earlier try with an unknown outcome.
            if result is not None and (not doubt or isinstance(result, Appended) or result.status < 500):
                return result
            doubt = doubt or why
            if self.clock.seconds() + pause >= write.until:
                break
            await sleep(self.clock, pause)
        return _unknown(write.key, doubt)

    async def _try(self, write: _Write) -> "tuple[Appended | NotForwarded | None, str]":
        """Post once. Return the result; or None, and the reason why the outcome is unknown."""
        url = self.primary_url()
        if url is None:
            why = "no primary is known: retry later"
            return NotForwarded("upstream_away", why), ""
        left = max(write.until - self.clock.seconds(), LOWEST_SECONDS)
        query = [*write.query, (b"timeout", b"%.3f" % left)]
        # Imported on use, as most daemons forward nothing.
        from synrepl.http_api.routes import APPEND, APPEND_BATCH

        request = APPEND_BATCH.request() if write.stream is None else APPEND.request(write.stream)
        request = request._replace(target=f"{request.target}?{urlencode(query)}")
        answer: type[Appended | _BatchAnswer] = _BatchAnswer if write.stream is None else Appended
        try:
            found = await self.call(
                request, answer, base_url=url, body=write.body, max_bytes=MAX_ANSWER_BYTES, timeout=left
            )
        except NeverSent as error:
            return NotForwarded("upstream_unreachable", f"nothing was stored: {error}"), ""
        except HttpError as error:
            return _refusal(error), str(error)
        except ReplicationError as error:
            return None, str(error)
        return found if isinstance(found, Appended) else _as_one(found), ""

    async def _wait_until_applied(
        self, appended: Appended, serial: int, write: _Write, files: Collection[str], waiters: LogWaiters
    ) -> None:
        """Wait until the facts are applied, and requested files stored. Raises `NotForwarded` on timeout."""
        more = {"epoch": appended.epoch, "tokens": appended.tokens, "idempotency_key": write.key}
        is_here = self.log.head.serial >= serial or (
            # At the limit of waiters the facts are stored all the same.
            not waiters.is_full and await waiters.wait_for(serial, write.until - self.clock.seconds())
        )
        if not is_here:
            raise self._not_here_yet(serial, **more)
        epoch = self.log.head.epoch
        if epoch != appended.epoch and not await self._is_same_append(serial, appended, write.key):
            if epoch < appended.epoch:
                raise self._not_here_yet(serial, **more)
            raise _unknown(write.key, f"epoch {appended.epoch}, in which these facts were stored, has ended")
        if files and self.has_file is not None and not await self._has_files(files, write.until):
            raise self._not_here_yet(serial, files=sorted(files), **more)

    def _not_here_yet(self, serial: int, **more: Any) -> NotForwarded:
        at = self.log.head.serial
        late = "their files have" if "files" in more else f"serial {serial} of epoch {more['epoch']} has"
        why = f"the facts are stored at the primary, but {late} not arrived here yet; this log is at {at}"
        return NotForwarded("not_here_yet", why, serial=serial, at=at, **more)

    async def _is_same_append(self, serial: int, appended: Appended, key: str) -> bool:
        """Whether the facts at these serials are the forwarded ones, not facts of a later epoch."""
        first = serial - len(appended.tokens) + 1
        receipts = await self.log.reads.receipts(first - 1, first)
        return any(receipt.key.text == key for receipt in receipts)

    async def _has_files(self, files: Collection[str], until: float) -> bool:
        assert self.has_file is not None
        for sha256 in sorted(files):
            if not await self.has_file(sha256, until - self.clock.seconds()):
                return False
        return True


def _as_one(answer: _BatchAnswer) -> Appended:
    """Return the result of a batch that was stored as one append."""
    first = next((one.first_serial for one in answer.appends if one.first_serial is not None), None)
    return Appended(answer.epoch, first, [token for one in answer.appends for token in one.tokens])


def _refusal(error: HttpError) -> "Appended | NotForwarded | None":
    """Convert the primary's error; None to retry: the outcome is unknown, or the body was corrupted."""
    match error.status, error.code:
        case ((502 | 503 | 504), _) if not error.body:  # from a proxy
            return None
        case 504, "not_here_yet":
            # From a replica on the way: the facts are stored. Wait for them as that replica did.
            return _stored_upstream(error)
        case 504, _:
            return None
        case 400, "garbled":  # corrupted in transit
            return None
        case ((502 | 503), "upstream_unreachable"):
            # From a replica on the way: the primary did not receive the facts.
            return NotForwarded("upstream_unreachable", error.message)
        case 503, _:
            # A commit may have failed after the facts were stored.
            return NotForwarded("upstream_away", str(error)) if error.is_unsent else None
        case ((401 | 403), _):
            checks = "check secret_file here, the rights of its key and allowed_hosts at the primary"
            why = f"the primary refuses requests of this daemon: {error}; {checks}"
            return NotForwarded("upstream_refused", why)
        case status, _ if error.body and (400 <= status < 500 or status == 502):
            return _unchanged(error)
    return NotForwarded("upstream_failed", str(error))


def _unchanged(error: HttpError) -> NotForwarded:
    message = error.body.get("message")
    refused = NotForwarded(
        error.code, message if isinstance(message, str) else error.message, status=error.status
    )
    refused.more = {name: value for name, value in error.body.items() if name not in {"error", "message"}}
    return refused


def _stored_upstream(error: HttpError) -> "Appended | None":
    try:
        response = msgspec.convert(error.body, type=_NotHereYetBody)
    except msgspec.ValidationError:
        return None
    first = response.serial - len(response.tokens) + 1
    return Appended(epoch=response.epoch, first_serial=first, tokens=response.tokens)


class _NotHereYetBody(msgspec.Struct):
    serial: int
    epoch: int
    tokens: list[int]


def _unknown(key: str, why: str) -> NotForwarded:
    message = f"unknown outcome; retry with the same idempotency key: {why}"
    return NotForwarded("outcome_unknown", message, idempotency_key=key)
