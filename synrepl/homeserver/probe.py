"""A probe: writes as a user of a homeserver, and measures how long each process takes until it shows it.

Account data, a to-device message, an event and a receipt are written once in a round, in a room of the
probe's own, and read back through each process with ``/sync``. All reads of a round have the same `since`: a
later one would delete the to-device message before every process has shown it.
"""

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec
from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.task import deferLater

from synrepl.base.time import Timer
from synrepl.errors import NotConnected, RemoteProtocolError, ReplicationError
from synrepl.http_api.route import public_url
from synrepl.transports.credentials import Credentials
from synrepl.transports.failures import describe_error
from synrepl.transports.http.http_client import make_client
from synrepl.transports.http.response_body import collect_body
from synrepl.wire.text import printable

CLIENT: Final = "/_matrix/client/v3"
KIND: Final = "org.synrepl.probe"
"""The type of everything that the probe writes."""

STREAMS: Final = ("account_data", "to_device", "events", "receipts")

ROUND_SECONDS: Final = 1.0
"""No round begins sooner after the one before."""
POLL_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.05
"""Seconds between two reads of a process that has shown some streams: its next answers come at once."""
RETRY_SECONDS: Final = 0.5
"""Seconds between two requests to a process that does not answer."""
UNAVAILABLE: Final = (502, 503, 504)
"""The status codes by which a proxy says that a process does not answer."""
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


class Delay(msgspec.Struct, frozen=True):
    """How long one process took to show one write, in seconds; None if it did not within the limit."""

    process: str
    stream: str
    seconds: float | None


class HomeserverClient:
    """A user of a homeserver over HTTP, who waits so many seconds for an answer.

    Raises `NotConnected` and `RemoteProtocolError`.
    """

    def __init__(self, reactor: Any, url: str, token: str, *, patience: float) -> None:
        self.url = url.rstrip("/")
        self._reactor = reactor
        self._token = token
        self._patience = patience
        self._client, _ = make_client(reactor, Credentials())

    def __repr__(self) -> str:
        return f"<HomeserverClient {public_url(self.url)}>"

    async def call(
        self, method: str, path: str, body: Any = None, *, within: float | None = None, **query: str
    ) -> Any:
        """Send a request, and return the JSON object of its answer, which comes `within` so many seconds."""
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        shown = printable(public_url(self.url))
        seconds = self._patience if within is None else within

        async def call() -> tuple[int, bytes]:
            data = None if body is None else json.dumps(body).encode()
            headers: Any = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
            response = await self._client.request(method, url, headers=headers, data=data)
            return response.code, await collect_body(response, MAX_ANSWER_BYTES, shown)

        try:
            code, content = await self._limited(call(), seconds)
        except (CancelledError, RemoteProtocolError):
            raise
        except TimedOut as error:
            raise NotConnected(f"{shown}: no answer within {seconds:.3g} s") from error
        except Exception as error:
            raise NotConnected(f"{shown}: {describe_error(error)}") from error
        if code in UNAVAILABLE:
            raise NotConnected(f"{shown} answers {code}")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise RemoteProtocolError(f"{shown}: no JSON ({code}): is it a client API?") from None
        if code != 200:
            why = found.get("error", "") if isinstance(found, dict) else ""
            raise RemoteProtocolError(f"{shown} refuses {method} {path}: {code} {printable(str(why))}")
        if not isinstance(found, dict):
            raise RemoteProtocolError(f"{shown}: {path} is not answered by an object: is it a client API?")
        return found

    async def _limited(self, request: Coroutine[Any, Any, T], seconds: float) -> T:
        """Await a request. Raises `TimedOut` after this time, and `CancelledError` if it is cancelled.

        What a request itself raises then differs by how far it came.
        """
        is_late = False
        sent = Deferred.fromCoroutine(request)

        def expire() -> None:
            nonlocal is_late
            is_late = True
            sent.cancel()

        timer = Timer(self._reactor, expire)
        timer.start(seconds)
        try:
            return await sent
        except Exception as error:
            if is_late:
                raise TimedOut from error
            if _is_cancelled(error):
                raise CancelledError from error
            raise
        finally:
            timer.stop()


def _is_cancelled(error: Exception) -> bool:
    reasons = [reason.value for reason in getattr(error, "reasons", None) or ()]
    return any(isinstance(one, CancelledError | ConnectingCancelledError) for one in (error, *reasons))


class Probe:
    """Probes a homeserver: writes through `writer`, and reads through each of `readers`, by their names.

    Waits up to `patience` seconds in a round. `told` is called after each round with its number and delays.
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
        self.unanswered: dict[str, str] = {}
        """The processes that answered nothing in the last round, and why."""
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
        self._user = _text(me, "user_id")
        self._device = _text(me, "device_id") if "device_id" in me else ""
        settings = {
            "preset": "private_chat",
            "name": "synrepl probe",
            "creation_content": {"m.federate": False},
        }
        self._room = _text(await self._write(f"{CLIENT}/createRoom", settings, method="POST"), "room_id")
        self._since = _text(await self._sync(self._writer, ""), "next_batch")

    async def _clean_up(self) -> None:
        room = f"{CLIENT}/rooms/{quote(self._room, safe='')}"
        call = self._writer.call
        steps: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "the account data": lambda: call("PUT", self._account_data, {}),
            "the membership of its room": lambda: call("POST", f"{room}/leave", {}),
            "its room, left and not forgotten": lambda: call("POST", f"{room}/forget", {}),
            # The device has received its messages up to here: the homeserver deletes them.
            "to-device messages": lambda: self._sync(self._writer, self._since),
        }
        gone: NotConnected | None = None
        for what, step in steps.items():
            try:
                if gone is not None:
                    # Who did not answer the step before would only take time.
                    raise gone
                await step()
            except NotConnected as error:
                gone = error
                self.leftovers.append(f"{what}: {error}")
            except ReplicationError as error:
                self.leftovers.append(f"{what}: {error}")

    @property
    def _account_data(self) -> str:
        return f"{CLIENT}/user/{quote(self._user, safe='')}/account_data/{KIND}"

    async def _sync(
        self, client: HomeserverClient, since: str, *, seconds: float = 0.0, within: float | None = None
    ) -> Any:
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
        return await client.call("GET", f"{CLIENT}/sync", within=within, **query)

    async def _round(self, number: int) -> list[Delay]:
        mark = f"{number}-{uuid4().hex}"
        written: dict[str, float] = {}
        receipt: list[str] = []
        until = self._reactor.seconds() + self._patience
        readers = [
            Deferred.fromCoroutine(self._read(name, client, mark, receipt, written, until))
            for name, client in self._readers.items()
        ]
        reading = gatherResults(readers, consumeErrors=True)
        try:
            await self._write_all(mark, receipt, written)
            results: list[tuple[list[Delay], str]] = await reading
        except FirstError as error:
            error.subFailure.raiseException()
        finally:
            reading.addErrback(lambda _: None)
            for reader in readers:
                reader.cancel()
        # A process that has shown everything has a token after it.
        self._since = next((since for _, since in results if since), self._since)
        return [delay for delays, _ in results for delay in delays]

    async def _write(self, path: str, body: Any, *, method: str = "PUT") -> Any:
        try:
            return await self._writer.call(method, path, body)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"{error}; URL must be the address that clients use: a process refuses what others write"
            ) from error

    async def _write_all(self, mark: str, receipt: list[str], written: dict[str, float]) -> None:
        room = f"{CLIENT}/rooms/{quote(self._room, safe='')}"
        await self._write(self._account_data, {"mark": mark})
        written["account_data"] = self._reactor.seconds()
        messages = {"messages": {self._user: {self._device or "*": {"mark": mark}}}}
        await self._write(f"{CLIENT}/sendToDevice/{KIND}/{mark}", messages)
        written["to_device"] = self._reactor.seconds()
        sent = await self._write(f"{room}/send/{KIND}/{mark}", {"mark": mark})
        written["events"] = self._reactor.seconds()
        receipt.append(_text(sent, "event_id"))
        await self._write(f"{room}/receipt/m.read/{quote(receipt[0], safe='')}", {}, method="POST")
        written["receipts"] = self._reactor.seconds()

    async def _read(
        self,
        name: str,
        client: HomeserverClient,
        mark: str,
        receipt: list[str],
        written: dict[str, float],
        until: float,
    ) -> tuple[list[Delay], str]:
        """Read from this process until it has shown all streams. Return the time of each, and the last token.

        Requests that are not answered are repeated until the round ends: the process may be restarting.
        """
        shown: dict[str, float] = {}
        token = trouble = ""
        has_answered = False
        while len(shown) < len(STREAMS) and (left := until - self._reactor.seconds()) > 0:
            try:
                answer = await self._sync(client, self._since, seconds=min(POLL_SECONDS, left), within=left)
            except NotConnected as error:
                left = until - self._reactor.seconds()
                # The last request may end with the round, which says less than those before.
                if left > 0 or not trouble:
                    trouble = str(error)
                await deferLater(self._reactor, max(0.0, min(RETRY_SECONDS, left)))
                continue
            has_answered = True
            now = self._reactor.seconds()
            for stream in self._found(answer, mark, receipt[0] if receipt else ""):
                shown.setdefault(stream, now)
            token = _text(answer, "next_batch")
            if len(shown) < len(STREAMS):
                await deferLater(self._reactor, PAUSE_SECONDS)
        if has_answered:
            self.unanswered.pop(name, None)
        else:
            self.unanswered[name] = trouble
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
        """The streams whose write of this round is in an answer of /sync. Raises `RemoteProtocolError`."""
        try:
            return self._shown(answer, mark, event)
        except (AttributeError, KeyError, TypeError) as error:
            raise RemoteProtocolError("an answer of /sync has another form: is it a client API?") from error

    def _shown(self, answer: Any, mark: str, event: str) -> list[str]:
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


def _text(answer: Any, name: str) -> str:
    """A text of an answer. Raises `RemoteProtocolError`."""
    found = answer.get(name)
    if not isinstance(found, str):
        raise RemoteProtocolError(f"an answer has no {name}: is it a client API?")
    return found
