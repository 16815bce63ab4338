"""An upstream that is followed over HTTP alone: through proxies, from laptops."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.ports.history import AppendReceipt, EpochStart, LogPosition
from synrepl.ports.tasks import Tasks
from synrepl.replication.addresses import Address
from synrepl.replication.command_forwarder import Numbered
from synrepl.replication.relay import REFUSALS
from synrepl.replication.relay.snapshot_codec import read_meta, read_snapshot
from synrepl.replication.replica import (
    DownstreamCommand,
    Ephemeral,
    Event,
    Facts,
    JoinFinished,
    JoinStarted,
    KnownPeers,
    RefusedByUpstream,
    SnapshotFacts,
    SnapshotMeta,
    SubscriptionStarted,
    TakenUpTo,
    UpstreamHeartbeat,
)
from synrepl.replication.wire_positions import log_position
from synrepl.streams.digest import checksum
from synrepl.streams.facts import Fact
from synrepl.streams.ndjson import decode_facts
from synrepl.transports.credentials import Credentials
from synrepl.transports.http.changelog_client import ChangelogClient
from synrepl.transports.http.changelog_lines import decode_line
from synrepl.transports.http.client_errors import ApiResponseError
from synrepl.transports.http.command_routes import MAX_FORWARDED_BYTES, AcceptedForwards, ForwardedCommands
from synrepl.transports.http.http_client import HttpClient, decode_json, public_url
from synrepl.transports.http.replica_routes import AckBody, JoinAnswer, JoinBody, SubscribeBody
from synrepl.wire.filter import Filter
from synrepl.wire.native import JoinRequest, Refusal, Subscription, WelcomeBody, WirePosition

__all__ = ["HttpConversation", "HttpUpstream"]

MAX_ANSWER: Final = 1024 * 1024
MAX_JOIN_ANSWER: Final = 256 * 1024 * 1024
"""Bytes: what stands beside a snapshot's facts is in it as a text."""
TIMEOUT_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 1.0
ACK_SECONDS: Final = 1.0
HELD_EVENTS: Final = 32

_CODES: Final = {"ahead_of_log": "ahead", "unauthorized": "no_rights"}
_FACT: Final = b'{"serial":'


class HttpUpstream:
    """`replica.IUpstream` over HTTP. `silence` is how many seconds without a sign count as gone; `origin` the
    name under which commands are passed up, with which those for all processes are asked for (None: not)."""

    def __init__(
        self,
        reactor: Any,
        *,
        where: Address,
        secret: str | Credentials | None = None,
        expected_server: str | None = None,
        registered: bool = True,
        address: Callable[[], str] = lambda: "",
        silence: float = 25.0,
        origin: str | None = None,
        client: Any = None,
    ) -> None:
        self.where = where
        self._reactor = reactor
        self._secret = secret
        self._expected_server = expected_server
        self._registered = registered
        self._address = address
        self._silence = silence
        self._origin = origin
        self._client = client

    async def connect(self, uuid: str, name: str) -> "HttpConversation":
        """Reach it, and see who it is."""
        conversation = HttpConversation(
            self._reactor,
            self.where.http.rstrip("/"),
            uuid=uuid,
            name=name,
            secret=self._secret,
            registered=self._registered,
            address=self._address,
            silence=self._silence,
            origin=self._origin,
            client=self._client,
        )
        try:
            await conversation.greet()
        except BaseException:
            conversation.close()
            raise
        theirs = conversation.welcome.server_name
        if self._expected_server not in (None, theirs):
            conversation.close()
            raise NotConnected(f"{self.where} is of {theirs}, expected {self._expected_server}")
        return conversation


class HttpConversation:
    """`replica.IConversation`: a few requests, and one answer without an end."""

    _logger = Logger()

    def __init__(
        self,
        reactor: Any,
        url: str,
        *,
        uuid: str,
        name: str,
        secret: str | Credentials | None,
        registered: bool,
        address: Callable[[], str],
        silence: float,
        origin: str | None,
        client: Any,
    ) -> None:
        self.welcome: WelcomeBody
        self._reactor = reactor
        self._url = url
        self._uuid = uuid
        self._name = name
        self._registered = registered
        self._address = address
        self._silence = silence
        self._origin = origin
        self._http = HttpClient(reactor, secret, TIMEOUT_SECONDS, client)
        self._changelog = ChangelogClient(reactor, url, secret, client=client)
        self._tasks = Tasks(self._logger, "upstream")
        self._events: deque[Any] = deque()
        self._waiter: Deferred[None] | None = None
        self._room: Deferred[None] | None = None
        self._is_closed = False
        self._acknowledged = 0
        self._to_acknowledge: LogPosition | None = None
        self._ack_timer: Any = None
        self._head = 0
        self._to_tell: deque[Numbered] = deque()
        self._is_telling = False

    # -- events --------------------------------------------------------------------------------------------

    async def next(self) -> Event:
        """The next event, once there is one."""
        while not self._events:
            if self._is_closed:
                raise NotConnected("the conversation is over")
            self._waiter = Deferred()
            await self._waiter
        return self._take()

    def ready(self) -> Event | None:
        """The next event, if it is here."""
        if not self._events or isinstance(self._events[0], Exception):
            return None
        return self._take()

    def _take(self) -> Event:
        event = self._events.popleft()
        room, self._room = self._room, None
        if room is not None and len(self._events) < HELD_EVENTS:
            room.callback(None)
        elif room is not None:
            self._room = room
        if isinstance(event, Exception):
            raise event
        taken: Event = event
        return taken

    def _put(self, event: Any) -> None:
        self._events.append(event)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.callback(None)

    def _until_room(self) -> "Deferred[None] | None":
        if len(self._events) < HELD_EVENTS:
            return None
        self._room = Deferred()
        return self._room

    # -- what is asked -------------------------------------------------------------------------------------

    async def greet(self) -> None:
        """See who it is."""
        self.welcome = await self._ask("GET", "/v1/replication", None, WelcomeBody)

    def join(self, asked: JoinRequest) -> None:
        """Ask for a copy."""
        self._begin(self._join(asked))

    def subscribe(self, asked: Subscription) -> None:
        """Ask for what comes after a place."""
        self._begin(self._subscribe(asked))

    def _begin(self, work: Any) -> None:
        self._tasks.start(self._guarded(work), "talking to the upstream")

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except ApiResponseError as error:
            self._put(_as_refused(error))
        except ReplicationError as error:
            self._put(error)

    async def _ask(self, method: str, path: str, asked: Any, shape: Any, *, most: int = MAX_ANSWER) -> Any:
        url = self._url + path
        body = None if asked is None else msgspec.json.encode(asked)
        try:
            return decode_json(shape, await self._http.fetch(method, url, body, most), public_url(url))
        except ApiResponseError as error:
            raise _as_refused(error) from error

    async def _join(self, asked: JoinRequest) -> None:
        said = JoinBody(name=self._name, join=asked, registered=self._registered, address=self._address())
        path = f"/v1/replicas/{self._uuid}/join"
        answer: JoinAnswer = await self._ask("POST", path, said, JoinAnswer, most=MAX_JOIN_ANSWER)
        position, trimmed_upto = log_position(answer.position), log_position(answer.trimmed_upto)
        self._put(JoinStarted(answer.join, answer.history, position, trimmed_upto, answer.resumed))
        if answer.snapshot is None:
            # All of it was there; what came since follows once it is subscribed to.
            self._put(JoinFinished(position))
            return
        if answer.after < position.serial:
            await self._changelog.follow(
                answer.after,
                self._lines,
                upto=position.serial,
                compacted=True,
                # Of a whole log the digests prove each fact; of what trimming or a filter left, none does.
                checksum=trimmed_upto.serial > 0 or not asked.filter.is_open,
                silence=self._silence,
                heartbeat=HEARTBEAT_SECONDS,
                **_chosen(asked.filter),
            )
        self._put(SnapshotFacts(read_snapshot(answer.snapshot.encode())))
        self._put(JoinFinished(position))

    async def _subscribe(self, asked: Subscription) -> None:
        said = SubscribeBody(
            name=self._name, subscription=asked, registered=self._registered, address=self._address()
        )
        answer: _SubscribeAnswer = await self._ask(
            "POST", f"/v1/replicas/{self._uuid}", said, _SubscribeAnswer
        )
        self._head = answer.position.serial
        self._put(SubscriptionStarted(log_position(answer.position)))
        self._put(KnownPeers(answer.peers))
        self._acknowledged = asked.position.serial
        self._ack_timer = self._reactor.callLater(ACK_SECONDS, self._acknowledge_soon)
        await self._changelog.follow(
            asked.position.serial,
            self._lines,
            epoch=asked.position.epoch,
            digest=asked.position.digest,
            history=asked.history,
            epoch_starts=True,
            receipts=True,
            ephemeral=True,
            commands=self._origin,
            silence=self._silence,
            heartbeat=HEARTBEAT_SECONDS,
            **_chosen(asked.filter),
        )

    def _lines(self, lines: list[bytes]) -> Awaitable[None] | None:
        """Lines of the changelog, each run of facts as one event."""
        facts: list[bytes] = []
        for line in lines:
            if line.startswith(_FACT):
                facts.append(line)
                continue
            self._facts(facts)
            facts = []
            what, told = decode_line(line)
            match what:
                case "heartbeat":
                    self._beat(told)
                case "held":
                    held = decode_json(list[msgspec.Raw], told, self._url)
                    self._put(Ephemeral(decode_facts(b"\n".join(map(bytes, held))), is_all=True))
                case "command":
                    self._put(DownstreamCommand(decode_json(str, told, self._url).encode()))
                case "ephemeral":
                    self._put(Ephemeral(decode_facts(told)))
                case _:
                    epoch_starts: list[EpochStart]
                    receipts: list[AppendReceipt]
                    epoch_starts, receipts = read_meta(line + b"\n")
                    self._put(SnapshotMeta(epoch_starts, receipts))
        self._facts(facts)
        return self._until_room()

    def _facts(self, lines: list[bytes]) -> None:
        if lines:
            data = b"\n".join(lines)
            facts = decode_facts(data)
            _check(facts, data)
            self._head = max(self._head, facts[-1].serial)
            self._put(Facts(facts))

    def _beat(self, told: bytes) -> None:
        beat = decode_json(_HeartbeatLine, told, self._url)
        self._head = max(self._head, beat.serial, beat.head)
        if beat.digest is not None:
            self._put(
                UpstreamHeartbeat(LogPosition(beat.epoch, beat.serial, beat.digest), self._head, beat.now_ms)
            )

    async def digests(self, serials: Sequence[int]) -> dict[int, str | None]:
        """The upstream's digests there."""
        found = await self._changelog.digests(serials)
        try:
            return {int(serial): digest for serial, digest in found.digests.items()}
        except ValueError:
            raise RemoteProtocolError(f"{self._url} tells digests of serials that are no numbers") from None

    # -- acknowledging -------------------------------------------------------------------------------------

    def acknowledge(self, position: LogPosition, at_ms: int) -> None:
        """Everything up to there is held; told about once a second."""
        self._to_acknowledge = position

    def _acknowledge_soon(self) -> None:
        self._ack_timer = self._reactor.callLater(ACK_SECONDS, self._acknowledge_soon)
        if len(self._tasks) < 2 + self._is_telling:
            self._tasks.start(self._acknowledge(), "acknowledging")

    async def _acknowledge(self) -> None:
        position = self._to_acknowledge
        if position is None:
            return
        self._acknowledged = max(self._acknowledged, position.serial)
        said = AckBody(position.epoch, self._acknowledged)
        try:
            answer = await self._ask("POST", f"/v1/replicas/{self._uuid}/ack", said, _ReceivedLine)
        except RefusedByUpstream as error:
            self._put(error)
        except ReplicationError as error:
            self._logger.debug("not acknowledged: {why}", why=str(error))
        else:
            self._head = max(self._head, answer.serial)
            self._put(KnownPeers(answer.peers))

    # -- what followers send up ----------------------------------------------------------------------------

    def forward(self, origin: str, commands: Sequence[Numbered]) -> None:
        """Say what followers sent up: one request at a time, as the order matters."""
        self._to_tell.extend(commands)
        if not self._is_telling and self._to_tell:
            self._is_telling = True
            self._tasks.start(self._guarded(self._tell(origin)), "passing commands up")

    async def _tell(self, origin: str) -> None:
        while self._to_tell:
            room = MAX_FORWARDED_BYTES
            some: list[tuple[int, str]] = []
            while self._to_tell and room > 0:
                number, line = self._to_tell.popleft()
                some.append((number, line.decode()))
                room -= len(line)
            asked = ForwardedCommands(origin, some)
            # If it fails the conversation ends, and they are said again in the next one.
            taken = await self._ask("POST", "/v1/commands", asked, AcceptedForwards)
            self._put(TakenUpTo(origin, taken.number, taken.since))
        self._is_telling = False

    def close(self) -> None:
        """End it."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._ack_timer is not None and self._ack_timer.active():
            self._ack_timer.cancel()
        self._tasks.cancel_all()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.callback(None)
        ending = Tasks(self._logger, "upstream")
        ending.start(self._changelog.stop(), "closing connections")
        ending.start(self._http.stop(), "closing connections")


def _check(facts: Sequence[Fact], data: bytes) -> None:
    """Raises `RemoteProtocolError` if the checksum of its own that a fact came with is not right."""
    if b',"checksum":"' not in data:
        return
    for fact, said in zip(facts, _checksums.decode_lines(data), strict=True):
        if said.checksum is not None and said.checksum != checksum(fact):
            raise RemoteProtocolError(f"serial {fact.serial} was changed on the way")


class _Checksum(msgspec.Struct):
    checksum: str | None = None


_checksums: Final = msgspec.json.Decoder(_Checksum)


class _SubscribeAnswer(msgspec.Struct):
    position: WirePosition
    peers: list[str]


class _ReceivedLine(msgspec.Struct):
    serial: int
    peers: list[str]


class _HeartbeatLine(msgspec.Struct):
    epoch: int
    serial: int
    digest: str | None
    now_ms: int
    head: int = 0


def _chosen(wanted: Filter) -> dict[str, Any]:
    return {"streams": wanted.streams, "writers": wanted.writers}


def _as_refused(error: ApiResponseError) -> ReplicationError:
    """A refusal of a replica as such; what else an HTTP server can say means that it is not there."""
    code = _CODES.get(error.code, error.code)
    if code not in REFUSALS:
        if error.status < 500:
            return RemoteProtocolError(str(error))
        return NotConnected(str(error))
    told = error.body
    return RefusedByUpstream(
        Refusal(
            code=code,
            message=error.message,
            retryable=REFUSALS[code].retryable,
            moved_to=str(told.get("moved_to") or ""),
            epoch=_integer(told.get("epoch")),
            serial=_integer(told.get("serial")),
        )
    )


def _integer(told: Any) -> int:
    return told if isinstance(told, int) else 0
