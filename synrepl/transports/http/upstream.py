"""An upstream that a replica follows over HTTP, for example through a proxy."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, TypeVar

import msgspec
from twisted.logger import Logger

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.route import HttpRequest
from synrepl.http_api.routes import ACKNOWLEDGE, FORWARD_COMMANDS, JOIN, REPLICATION, SUBSCRIBE
from synrepl.ports.gate import Gate
from synrepl.ports.history import AppendReceipt, EpochStart, LogPosition, LogSnapshot
from synrepl.ports.response_errors import ApiResponseError
from synrepl.ports.tasks import Tasks
from synrepl.ports.time import Timer, sleep
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import Numbered
from synrepl.replication.relay.snapshot_codec import SnapshotDecoder, read_meta
from synrepl.replication.replica.conversation import (
    Ephemeral,
    Facts,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
)
from synrepl.streams.digest import checksum
from synrepl.streams.facts import Fact, decode_facts
from synrepl.transports.credentials import Credentials
from synrepl.transports.event_queue import EventQueue
from synrepl.transports.http import messages
from synrepl.transports.http.changelog_lines import HeartbeatLine, MovedLine, decode_line
from synrepl.transports.http.client import ChangelogClient
from synrepl.transports.http.http_client import decode_json
from synrepl.transports.settings import UpstreamSettings
from synrepl.wire import native
from synrepl.wire.error_codes import REFUSALS, moved_to
from synrepl.wire.filter import Filter

T = TypeVar("T")

MAX_RESPONSE_BYTES: Final = 1024 * 1024
MAX_JOIN_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a join response, which contains a snapshot's metadata as text."""
SNAPSHOT_PART: Final = 256 * 1024
"""About so many characters of it are decoded in one turn of the reactor."""
TIMEOUT_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 1.0
ACK_SECONDS: Final = 1.0
MAX_QUEUED_EVENTS: Final = 32
MAX_FORWARDED_BYTES: Final = 128 * 1024
"""A request is full at this many bytes of commands; JSON escapes can make its body a few times as large."""

_CODES: Final = {"ahead_of_log": "ahead", "unauthorized": "no_rights"}
_FACT: Final = b'{"serial":'


@dataclass(eq=False, repr=False)
class HttpUpstream:
    """`replica.IUpstream` over HTTP.

    `origin` is the name under which followers' commands are forwarded. Without an origin (None), commands for
    all processes are not requested.
    """

    reactor: Any
    settings: UpstreamSettings
    _: KW_ONLY
    where: Address
    secret: str | Credentials | None = None
    address: Callable[[], str] = lambda: ""
    origin: str | None = None
    client: Any = None

    async def connect(self, uuid: str, name: str) -> "HttpConversation":
        """Fetch the upstream's identity, and return the conversation with it."""
        conversation = HttpConversation(self, uuid, name)
        try:
            await conversation.greet()
        except BaseException:
            conversation.close()
            raise
        return conversation


class HttpConversation(EventQueue):
    """`replica.IConversation` over HTTP: single requests, and the changelog as an endless response."""

    _logger = Logger()

    def __init__(self, upstream: HttpUpstream, uuid: str, name: str) -> None:
        self.welcome: native.Welcome
        self._upstream = upstream
        self._url = url = upstream.where.http.rstrip("/")
        self._uuid = uuid
        self._name = name
        self._changelog = ChangelogClient(
            upstream.reactor, url, secret=upstream.secret, client=upstream.client
        )
        self._tasks = Tasks(self._logger, "upstream")
        self._room = Gate()
        super().__init__(MAX_QUEUED_EVENTS, on_full=self._room.close, on_room=self._room.open)
        self._acknowledged = 0
        self._to_acknowledge: LogPosition | None = None
        self._ack_timer = Timer(upstream.reactor, self._acknowledge_tick)
        self._head = 0
        self._commands: deque[Numbered] = deque()
        self._is_forwarding = False

    async def greet(self) -> None:
        """Fetch the upstream's identity and history."""
        self.welcome = await self._request(REPLICATION.request(), native.Welcome)
        self.welcome.check()

    def join(self, request: native.Join) -> None:
        """Request a snapshot."""
        self._start(self._join(request), "joining")

    def subscribe(self, request: native.Subscribe) -> None:
        """Request the facts after a position."""
        self._start(self._subscribe(request), "following the upstream")

    def _start(self, coroutine: Any, name: str) -> None:
        self._tasks.start(self._report_errors(coroutine), name)

    async def _report_errors(self, coroutine: Any) -> None:
        try:
            await coroutine
        except ApiResponseError as error:
            self.put(_convert_error(error))
        except ReplicationError as error:
            self.put(error)

    async def _request(
        self,
        request: HttpRequest,
        answer: type[T],
        body: msgspec.Struct | None = None,
        *,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> T:
        try:
            return await self._changelog.call(
                request, answer, body=body, max_bytes=max_bytes, timeout=TIMEOUT_SECONDS
            )
        except ApiResponseError as error:
            raise _convert_error(error) from error

    def _identity(self) -> dict[str, Any]:
        upstream = self._upstream
        is_registered = not upstream.settings.anonymous
        return {"name": self._name, "registered": is_registered, "address": upstream.address()}

    async def _join(self, request: native.Join) -> None:
        body = messages.JoinBody(join=request, **self._identity())
        response = await self._request(
            JOIN.request(self._uuid), messages.JoinAnswer, body, max_bytes=MAX_JOIN_BYTES
        )
        position = response.position
        self.put(response)
        if response.snapshot is None:
            # The replica has all of the snapshot; the subscription brings newer facts.
            self.put(native.Joined(position))
            return
        if response.after < position.serial:
            await self._follow(
                response.after,
                request.filter,
                upto=position.serial,
                compacted=True,
                # The digests of a complete log verify each fact; after trimming or filtering, only checksums
                # can.
                checksum=response.trimmed_upto.serial > 0 or not request.filter.is_open,
            )
        self.put(SnapshotFacts(await self._read_snapshot(response.snapshot)))
        self.put(native.Joined(position))

    async def _read_snapshot(self, text: str) -> LogSnapshot:
        """Decode the lines of a snapshot's metadata. Others are served in between: there may be a million."""
        decoder, at = SnapshotDecoder(), 0
        while at < len(text):
            end = text.find("\n", min(at + SNAPSHOT_PART, len(text) - 1)) + 1 or len(text)
            if (snapshot := decoder.receive(text[at:end].encode())) is not None and end == len(text):
                return snapshot
            at = end
            await sleep(self._upstream.reactor, 0)
        raise RemoteProtocolError("the metadata of the snapshot has no end")

    async def _subscribe(self, request: native.Subscribe) -> None:
        body = messages.SubscribeBody(subscription=request, **self._identity())
        response = await self._request(SUBSCRIBE.request(self._uuid), messages.SubscribeAnswer, body)
        self._head = response.position.serial
        self.put(native.Subscribed(position=response.position))
        self._put_peers(response.peers)
        self._acknowledged = request.position.serial
        self._ack_timer.start(ACK_SECONDS)
        await self._follow(
            request.position.serial,
            request.filter,
            epoch=request.position.epoch,
            digest=request.position.digest,
            history=request.history,
            epoch_starts=True,
            receipts=True,
            ephemeral=True,
            commands=self._upstream.origin,
        )

    async def _follow(self, since: int, filter_: Filter, **query: Any) -> None:
        await self._changelog.follow(
            since,
            self._handle_lines,
            silence=self._upstream.settings.timeout_seconds,
            heartbeat=HEARTBEAT_SECONDS,
            streams=filter_.streams,
            writers=filter_.writers,
            **query,
        )

    def _handle_lines(self, lines: list[bytes]) -> Awaitable[None] | None:
        """Enqueue lines of the changelog as events, each run of facts as one."""
        facts: list[bytes] = []
        for line in lines:
            if line.startswith(_FACT):
                facts.append(line)
                continue
            self._enqueue_facts(facts)
            facts = []
            kind, content = decode_line(line)
            match kind:
                case "heartbeat":
                    self._enqueue_heartbeat(content)
                case "held":
                    current = decode_json(list[msgspec.Raw], content, self._url)
                    self.put(Ephemeral(decode_facts(b"\n".join(map(bytes, current))), is_all=True))
                case "command":
                    self.put(native.Down(line=decode_json(str, content, self._url)))
                case "ephemeral":
                    self.put(Ephemeral(decode_facts(content)))
                case "moved":
                    moved = decode_json(MovedLine, content, self._url)
                    self.put(NotConnected(f"{moved.code}: {moved.message}"))
                case _:
                    epoch_starts: list[EpochStart]
                    receipts: list[AppendReceipt]
                    epoch_starts, receipts = read_meta(line + b"\n")
                    self.put(SnapshotMeta(epoch_starts, receipts))
        self._enqueue_facts(facts)
        return None if self._room.is_open else self._room.wait_open()

    def _enqueue_facts(self, lines: list[bytes]) -> None:
        if lines:
            data = b"\n".join(lines)
            facts = decode_facts(data)
            _check(facts, data)
            self._head = max(self._head, facts[-1].serial)
            self.put(Facts(facts))

    def _enqueue_heartbeat(self, content: bytes) -> None:
        beat = decode_json(HeartbeatLine, content, self._url)
        self._head = max(self._head, beat.serial, beat.head)
        if beat.digest is not None:
            self.put(
                native.Heartbeat(
                    epoch=beat.epoch,
                    serial=beat.serial,
                    digest=beat.digest,
                    head=self._head,
                    at_ms=beat.now_ms,
                    check="",
                )
            )

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """Fetch the upstream's digests at these serials; None where it has none."""
        response = await self._changelog.digests(serials)
        return dict(response.digests)

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Report that everything up to this position is stored durably; sent about once a second."""
        self._to_acknowledge = position

    def _acknowledge_tick(self) -> None:
        self._ack_timer.start(ACK_SECONDS)
        if len(self._tasks) < 2 + self._is_forwarding:
            self._start(self._acknowledge(), "acknowledging")

    async def _acknowledge(self) -> None:
        position = self._to_acknowledge
        if position is None:
            return
        self._acknowledged = max(self._acknowledged, position.serial)
        body = messages.AckBody(position.epoch, self._acknowledged)
        try:
            response = await self._request(ACKNOWLEDGE.request(self._uuid), messages.AckAnswer, body)
        except RefusedByUpstream as error:
            self.put(error)
        except ReplicationError as error:
            self._logger.debug("cannot acknowledge facts to the upstream: {why}", why=str(error))
        else:
            self._head = max(self._head, response.serial)
            self._put_peers(response.peers)

    def _put_peers(self, addresses: list[str]) -> None:
        peers = native.Peers(addresses=addresses)
        peers.check()
        self.put(peers)

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Forward followers' commands, one request at a time to keep their order."""
        self._commands.extend(commands)
        if not self._is_forwarding and self._commands:
            self._is_forwarding = True
            self._start(self._forward_commands(origin), "forwarding commands")

    async def _forward_commands(self, origin: str) -> None:
        while self._commands:
            room = MAX_FORWARDED_BYTES
            some: list[tuple[int, str]] = []
            while self._commands and room > 0 and len(some) < messages.MAX_FORWARDED:
                number, line = self._commands.popleft()
                some.append((number, line.decode()))
                room -= len(line)
            request = messages.ForwardedCommands(origin, some)
            # A failure ends the connection; the next connection forwards these commands again.
            accepted = await self._request(FORWARD_COMMANDS.request(), messages.AcceptedForwards, request)
            self.put(native.Taken(origin=origin, number=accepted.number, since=accepted.since))
        self._is_forwarding = False

    def close(self) -> None:
        """Close the connection."""
        if self.error is not None:
            return
        self.end(NotConnected("the connection to the upstream is closed"))
        self._ack_timer.stop()
        self._tasks.cancel_all()
        ending = Tasks(self._logger, "upstream")
        ending.start(self._changelog.stop(), "closing connections")


def _check(facts: Sequence[Fact], data: bytes) -> None:
    """Raises `RemoteProtocolError` if a fact does not match its own checksum."""
    if b',"checksum":"' not in data:
        return
    for fact, line in zip(facts, _checksums.decode_lines(data), strict=True):
        if line.checksum is not None and line.checksum != checksum(fact):
            raise RemoteProtocolError(f"corrupted fact {fact.serial}: its checksum does not match")


class _Checksum(msgspec.Struct):
    checksum: str | None = None


_checksums: Final = msgspec.json.Decoder(_Checksum)


def _convert_error(error: ApiResponseError) -> ReplicationError:
    """Convert an error response: to a refusal of the replica, or else to a connection or protocol error."""
    code = _CODES.get(error.code, error.code)
    if code not in REFUSALS:
        if error.status < 500:
            return RemoteProtocolError(str(error))
        return NotConnected(str(error))
    content = error.body
    return RefusedByUpstream(
        native.Refused(
            code=code,
            message=error.message,
            retryable=bool(REFUSALS[code].retryable),
            moved_to=moved_to(content),
            epoch=_integer(content.get("epoch")),
            serial=_integer(content.get("serial")),
        )
    )


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0
