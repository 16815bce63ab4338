"""A probe: writes as a user of a homeserver, and measures how long each process takes until it shows it.

Account data, a to-device message, an event and a receipt are written once in a round, in a room of the
probe's own, and read back through each process with ``/sync``. All reads of a round have the same `since`: a
later one would delete the to-device message before every process has shown it.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec
import treq
from treq.client import HTTPClient
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseNeverReceived

from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.route import public_url
from synrepl.transports.credentials import Credentials
from synrepl.transports.failures import describe_failure
from synrepl.wire.text import printable

CLIENT: Final = "/_matrix/client/v3"
KIND: Final = "org.synrepl.probe"
"""The type of everything that the probe writes."""

STREAMS: Final = ("account_data", "to_device", "events", "receipts")

ROUND_SECONDS: Final = 1.0
"""No round begins sooner after the one before."""
POLL_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.05
"""Between two reads of a process that has shown a part: it answers at once from then on."""
REQUEST_SECONDS: Final = 60.0
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024


class Delay(msgspec.Struct, frozen=True):
    """How long one process took to show one write, in seconds; None if it did not within the limit."""

    process: str
    stream: str
    seconds: float | None


class HomeserverClient:
    """A user of a homeserver over HTTP. Raises `NotConnected` and `RemoteProtocolError`."""

    def __init__(self, reactor: Any, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._reactor = reactor
        self._token = token
        agent: Any = Agent(reactor, contextFactory=Credentials(), connectTimeout=10.0)  # type: ignore[no-untyped-call]
        self._client = HTTPClient(agent)

    def __repr__(self) -> str:
        return f"<HomeserverClient {public_url(self.url)}>"

    async def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Send a request, and return the JSON of its answer."""
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        shown = public_url(self.url)

        async def call() -> tuple[int, bytes]:
            data = None if body is None else json.dumps(body).encode()
            headers: Any = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
            response = await self._client.request(method, url, headers=headers, data=data)
            parts: list[bytes] = []
            size = 0

            def collect(part: bytes) -> None:
                nonlocal size
                size += len(part)
                if size > MAX_ANSWER_BYTES:
                    raise RemoteProtocolError(f"{shown}: an answer of more than {MAX_ANSWER_BYTES} bytes")
                parts.append(part)

            await treq.collect(response, collect)
            return response.code, b"".join(parts)

        try:
            code, content = await Deferred.fromCoroutine(call()).addTimeout(REQUEST_SECONDS, self._reactor)
        except (TimedOut, RemoteProtocolError) as error:
            raise NotConnected(f"{shown}: {error or f'no answer within {REQUEST_SECONDS:g} s'}") from error
        except Exception as error:
            failure: Any = Failure(error)  # type: ignore[no-untyped-call]
            if isinstance(error, ResponseNeverReceived) and error.reasons:
                failure = error.reasons[0]
            raise NotConnected(f"{shown}: {describe_failure(failure)}") from error
        try:
            found = json.loads(content)
        except ValueError:
            raise RemoteProtocolError(f"{shown}: no JSON ({code}): is it a client API?") from None
        if code != 200:
            why = printable(str(found.get("error", ""))) if isinstance(found, dict) else ""
            raise RemoteProtocolError(f"{shown} refuses {method} {path.partition('?')[0]}: {code} {why}")
        return found


class Probe:
    """Probes a homeserver: writes through `writer`, and reads through each of `readers`, by their names.

    `told` is called after each round with its number and delays.
    """

    def __init__(
        self,
        reactor: Any,
        writer: HomeserverClient,
        readers: Mapping[str, HomeserverClient],
        *,
        patience: float,
        told: Callable[[int, Sequence[Delay]], None] = lambda number, delays: None,
    ) -> None:
        self._reactor = reactor
        self._writer = writer
        self._readers = dict(readers)
        self._patience = patience
        self._told = told
        self._requests = 0
        self.leftovers: list[str] = []
        """What could not be cleaned up, and why."""
        self._user = self._device = self._room = self._since = ""

    async def run(self, rounds: int) -> list[Delay]:
        """Probe so many rounds, and clean up. Raises `ReplicationError`."""
        found: list[Delay] = []
        await self._prepare()
        try:
            for number in range(1, rounds + 1):
                began = self._reactor.seconds()
                delays = await self._round(number)
                found += delays
                self._told(number, delays)
                if number < rounds:
                    left = began + ROUND_SECONDS - self._reactor.seconds()
                    await deferLater(self._reactor, max(0.0, left))
        finally:
            await self._clean_up()
        return found

    async def _prepare(self) -> None:
        me = await self._writer.call("GET", f"{CLIENT}/account/whoami")
        self._user, self._device = me["user_id"], me.get("device_id", "")
        settings = {
            "preset": "private_chat",
            "name": "synrepl probe",
            "creation_content": {"m.federate": False},
        }
        self._room = (await self._writer.call("POST", f"{CLIENT}/createRoom", settings))["room_id"]
        self._since = (await self._sync(self._writer, ""))["next_batch"]

    async def _clean_up(self) -> None:
        room = f"{CLIENT}/rooms/{quote(self._room, safe='')}"
        steps = {
            "the account data": self._writer.call("PUT", self._account_data, {}),
            "the membership of its room": self._writer.call("POST", f"{room}/leave", {}),
            "its room, left and not forgotten": self._writer.call("POST", f"{room}/forget", {}),
            # The device has received its messages up to here: the homeserver deletes them.
            "to-device messages": self._sync(self._writer, self._since),
        }
        for what, step in steps.items():
            try:
                await step
            except ReplicationError as error:
                self.leftovers.append(f"{what}: {error}")

    @property
    def _account_data(self) -> str:
        return f"{CLIENT}/user/{quote(self._user, safe='')}/account_data/{KIND}"

    async def _sync(self, client: HomeserverClient, since: str, *, seconds: float = 0.0) -> Any:
        kinds = {"types": [KIND]}
        wanted = {
            "presence": {"types": []},
            "account_data": kinds,
            "room": {
                "rooms": [self._room],
                "timeline": {"types": [KIND]},
                "ephemeral": {"types": ["m.receipt"]},
                "account_data": {"types": []},
            },
        }
        # Synapse answers a repeated request from a cache for two minutes: each has a time-out of its own.
        self._requests += 1
        timeout = max(0, int(seconds * 1000) - self._requests % 1000)
        query = {"filter": json.dumps(wanted), "set_presence": "offline", "timeout": str(timeout)}
        if since:
            query["since"] = since
        return await client.call("GET", f"{CLIENT}/sync", **query)

    async def _round(self, number: int) -> list[Delay]:
        mark = f"{number}-{uuid4().hex}"
        written: dict[str, float] = {}
        receipt: list[str] = []
        until = self._reactor.seconds() + self._patience
        reading = gatherResults(
            [
                Deferred.fromCoroutine(self._read(name, client, mark, receipt, written, until))
                for name, client in self._readers.items()
            ],
            consumeErrors=True,
        )
        await self._write(mark, receipt, written)
        results: list[tuple[list[Delay], str]] = await reading
        # A process that has shown everything has a token after it.
        self._since = next((since for _, since in results if since), self._since)
        return [delay for delays, _ in results for delay in delays]

    async def _write(self, mark: str, receipt: list[str], written: dict[str, float]) -> None:
        room = quote(self._room, safe="")

        async def write(stream: str, request: Awaitable[Any]) -> Any:
            answer = await request
            written[stream] = self._reactor.seconds()
            return answer

        call = self._writer.call
        await write("account_data", call("PUT", self._account_data, {"mark": mark}))
        messages = {"messages": {self._user: {self._device or "*": {"mark": mark}}}}
        await write("to_device", call("PUT", f"{CLIENT}/sendToDevice/{KIND}/{mark}", messages))
        event = await write(
            "events", call("PUT", f"{CLIENT}/rooms/{room}/send/{KIND}/{mark}", {"mark": mark})
        )
        receipt.append(event["event_id"])
        path = f"{CLIENT}/rooms/{room}/receipt/m.read/{quote(event['event_id'], safe='')}"
        await write("receipts", call("POST", path, {}))

    async def _read(
        self,
        name: str,
        client: HomeserverClient,
        mark: str,
        receipt: list[str],
        written: dict[str, float],
        until: float,
    ) -> tuple[list[Delay], str]:
        """Read until this process has shown all: how long each took, and the token then."""
        shown: dict[str, float] = {}
        token = ""
        while len(shown) < len(STREAMS) and (left := until - self._reactor.seconds()) > 0:
            answer = await self._sync(client, self._since, seconds=min(POLL_SECONDS, left))
            now = self._reactor.seconds()
            for stream in self._found(answer, mark, receipt[0] if receipt else ""):
                shown.setdefault(stream, now)
            token = answer["next_batch"]
            if len(shown) < len(STREAMS):
                await deferLater(self._reactor, PAUSE_SECONDS)
        # What was shown before the write was answered took no time.
        delays = [
            Delay(
                name,
                stream,
                max(0.0, shown[stream] - written.get(stream, shown[stream])) if stream in shown else None,
            )
            for stream in STREAMS
        ]
        return delays, token if len(shown) == len(STREAMS) else ""

    def _found(self, answer: Any, mark: str, event: str) -> list[str]:
        """The streams whose write of this round is in an answer of /sync."""

        def has(events: Any) -> bool:
            return any(one.get("content", {}).get("mark") == mark for one in events)

        room = answer.get("rooms", {}).get("join", {}).get(self._room, {})
        found = []
        if has(answer.get("account_data", {}).get("events", ())):
            found.append("account_data")
        if has(answer.get("to_device", {}).get("events", ())):
            found.append("to_device")
        if has(room.get("timeline", {}).get("events", ())):
            found.append("events")
        receipts = room.get("ephemeral", {}).get("events", ())
        if event and any(event in one.get("content", {}) for one in receipts):
            found.append("receipts")
        return found
