"""The probe, with a homeserver of a few lines: what is measured, and what is cleaned up."""

import gc
import json
from typing import Any
from urllib.parse import unquote

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from synrepl.errors import NotConnected, RemoteProtocolError
from synrepl.homeserver.probe import KIND, STREAMS, Delay, HomeserverClient, Probe


class Homeserver:
    """What was written, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[str] = []
        self.written: dict[str, tuple[float, str]] = {}
        self.waits: list[int] = []
        self.refuses = ""
        self.dies = ""


class Client:
    """A process: it shows what was written `delay` seconds before."""

    def __init__(self, homeserver: Homeserver, delay: float = 0.0) -> None:
        self.homeserver = homeserver
        self.delay = delay
        self.since: list[str] = []

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        home, last = self.homeserver, unquote(path.rpartition("/")[2])
        home.calls.append(f"{method} {path.partition('v3/')[2]}")
        if home.refuses and home.refuses in path:
            raise RemoteProtocolError(f"refuses {path}")
        if home.dies and home.dies in path:
            raise NotConnected("it is gone")
        now = home.clock.seconds()
        if "/sync" in path:
            assert query["set_presence"] == "offline"
            self.since.append(query.get("since", ""))
            home.waits.append(int(query["timeout"]))
            return self._sync(now)
        if "/whoami" in path:
            return {"user_id": "@probe:hs", "device_id": "D"}
        if "/createRoom" in path:
            return {"room_id": "!room"}
        if "/account_data/" in path:
            home.written["account_data"] = now, body.get("mark", "")
        elif "/sendToDevice/" in path:
            home.written["to_device"] = now, body["messages"]["@probe:hs"]["D"]["mark"]
        elif "/send/" in path:
            home.written["events"] = now, body["mark"]
            return {"event_id": f"$of-{body['mark']}"}
        elif "/receipt/" in path:
            home.written["receipts"] = now, last
        return {}

    def _sync(self, now: float) -> Any:
        shown = {name: mark for name, (at, mark) in self.homeserver.written.items() if now >= at + self.delay}

        def events(name: str) -> dict[str, Any]:
            return {"events": [{"type": KIND, "content": {"mark": shown[name]}}] if name in shown else []}

        receipts: list[Any] = [{"content": {shown["receipts"]: {}}}] if "receipts" in shown else []
        room = {"timeline": events("events"), "ephemeral": {"events": receipts}}
        return {
            "next_batch": f"s{now:.2f}",
            "account_data": events("account_data"),
            "to_device": events("to_device"),
            "rooms": {"join": {"!room": room}},
        }


def probed(
    rounds: int = 1, *, patience: float = 30.0, refuses: str = "", dies: str = "", **delays: float
) -> tuple[list[Delay], Probe, Homeserver, dict[str, Client]]:
    """Probe, with processes that are so late."""
    clock = Clock()
    homeserver = Homeserver(clock)
    homeserver.refuses, homeserver.dies = refuses, dies
    clients = {name: Client(homeserver, delay) for name, delay in delays.items()}
    probe = Probe(clock, Client(homeserver), clients, patience=patience)  # type: ignore[arg-type]
    found: list[Any] = []
    Deferred.fromCoroutine(probe.run(rounds)).addBoth(found.append)
    for _ in range(10_000):
        if found:
            break
        clock.advance(0.05)
    assert isinstance(found[0], list), found[0]
    return found[0], probe, homeserver, clients


def test_each_stream_of_each_process_has_its_time() -> None:
    """A process that is late with everything, beside one that is not."""
    found, *_ = probed(fast=0.0, slow=14.0)

    assert set(STREAMS) == {one.stream for one in found}
    for one in found:
        assert one.seconds is not None
        assert (14 <= one.seconds < 14.2) if one.process == "slow" else one.seconds < 0.2


def test_a_process_that_shows_nothing_has_no_time() -> None:
    """The round ends all the same."""
    found, *_ = probed(fast=0.0, dead=1_000.0, patience=5.0)

    assert [None] * 4 == [one.seconds for one in found if one.process == "dead"]


def test_all_processes_are_asked_with_the_same_position() -> None:
    """It goes on between rounds, when all have answered."""
    *_, clients = probed(3, fast=0.0, slow=2.0)
    rounds = [list(dict.fromkeys(client.since)) for client in clients.values()]

    assert rounds[0] == rounds[1]
    assert len(rounds[0]) == 3


def test_there_is_a_round_a_second_at_most() -> None:
    """Whatever the homeserver could bear."""
    _, _, homeserver, _ = probed(5, fast=0.0)

    assert homeserver.clock.seconds() >= 4


def test_a_probe_cleans_up() -> None:
    """Account data, the room, the messages of its device."""
    _, probe, homeserver, _ = probed(2, fast=0.0)

    assert [] == probe.leftovers
    assert homeserver.written["account_data"][1] == ""
    last = [call.rpartition("/")[2] for call in homeserver.calls[-3:]]
    assert ["leave", "forget", "GET sync"] == last
    assert homeserver.waits[-1] == 0
    assert json.dumps(homeserver.calls).count("createRoom") == 1


def test_what_cannot_be_cleaned_up_is_reported() -> None:
    """The measurements are there."""
    found, probe, *_ = probed(fast=0.0, refuses="/forget")

    assert len(found) == 4
    assert len(probe.leftovers) == 1
    assert "its room, left and not forgotten: refuses" in probe.leftovers[0]


class Process:
    """What listens where a process should: nothing of it, or a socket that is never answered."""

    def __init__(self, reactor: MemoryReactorClock, kind: str) -> None:
        self._reactor = reactor
        self._kind = kind
        self._seen = 0

    def act(self) -> None:
        """Accept or refuse what has tried to connect since."""
        for _, _, factory, *_ in self._reactor.tcpClients[self._seen :]:
            connector = self._reactor.connectors[self._seen]
            self._seen += 1
            if self._kind == "killed":
                factory.clientConnectionFailed(connector, Failure(Refused()))
            else:
                protocol: Any = factory.buildProtocol(None)
                protocol.makeConnection(StringTransport())


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_process_that_does_not_answer_is_a_row_in_time(kind: str) -> None:
    """Beside one that does: it has missed everything when the round ends, and it is said why."""
    reactor = MemoryReactorClock()
    process = Process(reactor, kind)
    homeserver = Homeserver(reactor)
    writer = Client(homeserver)
    readers = {
        "fast": writer,
        "gone": HomeserverClient(reactor, "http://127.0.0.1:24012", "token", patience=8.0),
    }
    probe = Probe(reactor, writer, readers, patience=8.0)  # type: ignore[arg-type]
    found: list[Any] = []
    Deferred.fromCoroutine(probe.run(1)).addBoth(found.append)
    while not found and reactor.seconds() < 60:
        process.act()
        reactor.advance(0.05)

    assert reactor.seconds() == pytest.approx(8.0, abs=0.3)
    assert [None] * 4 == [one.seconds for one in found[0] if one.process == "gone"]
    assert all(one.seconds is not None for one in found[0] if one.process == "fast")
    said = {"killed": "connection refused", "stopped": "no answer within 8 s"}[kind]
    assert {"gone": f"http://127.0.0.1:24012: {said}"} == probe.unanswered
    assert [] == reactor.getDelayedCalls()


def test_a_process_that_answers_too_late_for_the_last_request_has_answered() -> None:
    """It is late, and it is there."""
    found, probe, *_ = probed(fast=0.0, late=1_000.0, patience=5.0)

    assert {} == probe.unanswered
    assert None in [one.seconds for one in found]


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_writer_that_does_not_answer_ends_the_probe(kind: str) -> None:
    """In the time of one request, and with nothing left running."""
    reactor = MemoryReactorClock()
    process = Process(reactor, kind)
    writer = HomeserverClient(reactor, "http://127.0.0.1:24012", "token", patience=8.0)
    found: list[Any] = []
    Deferred.fromCoroutine(Probe(reactor, writer, {"it": writer}, patience=8.0).run(1)).addBoth(found.append)
    while not found and reactor.seconds() < 60:
        process.act()
        reactor.advance(0.05)

    assert reactor.seconds() < 8.3
    assert isinstance(found[0].value, NotConnected)
    assert [] == reactor.getDelayedCalls()


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of a coroutine that nobody awaited
def test_a_probe_that_is_interrupted_cleans_up() -> None:
    """Whatever it waits for: a signal cancels it."""
    reactor = MemoryReactorClock()
    process = Process(reactor, "stopped")
    homeserver = Homeserver(reactor)
    writer = Client(homeserver)
    gone = HomeserverClient(reactor, "http://127.0.0.1:24012", "token", patience=30.0)
    probe = Probe(reactor, writer, {"gone": gone}, patience=30.0)  # type: ignore[arg-type]
    found: list[Any] = []
    running = Deferred.fromCoroutine(probe.run(1)).addBoth(found.append)
    process.act()
    reactor.advance(1)
    running.cancel()
    gc.collect()

    assert isinstance(found[0].value, CancelledError)
    assert ["leave", "forget", "GET sync"] == [call.rpartition("/")[2] for call in homeserver.calls[-3:]]
    assert [] == [one for one in reactor.getDelayedCalls() if one.getTime() > reactor.seconds() + 1]


def test_a_writer_that_is_gone_at_the_end_is_asked_once() -> None:
    """The other steps of the clean-up would only take time."""
    found, probe, homeserver, _ = probed(fast=0.0, dies="/leave")

    assert len(found) == 4
    assert 3 == len(probe.leftovers)
    assert all("it is gone" in one for one in probe.leftovers)
    assert 1 == sum("leave" in call or "forget" in call for call in homeserver.calls)


@pytest.mark.parametrize(
    "answer",
    [
        {"rooms": []},
        {"rooms": {"join": {"!room": {"timeline": {"events": [5]}}}}},
        {"account_data": {"events": 7}},
        {"next_batch": 5},
        {},
    ],
)
def test_an_answer_of_another_form_ends_the_probe_in_words(answer: Any) -> None:
    """Any server may be behind the URL."""
    clock = Clock()
    homeserver = Homeserver(clock)
    writer, other = Client(homeserver), Client(homeserver)

    async def call(method: str, path: str, body: Any = None, **query: Any) -> Any:
        return answer

    other.call = call  # type: ignore[method-assign]
    found: list[Any] = []
    probe = Probe(clock, writer, {"other": other}, patience=5.0)  # type: ignore[arg-type,dict-item]
    Deferred.fromCoroutine(probe.run(1)).addBoth(found.append)
    while not found:
        clock.advance(0.05)

    assert isinstance(found[0].value, RemoteProtocolError)
    assert "is it a client API?" in str(found[0].value)


def test_a_write_that_is_refused_says_where_to_write() -> None:
    """A worker that does not write a stream answers 404 or 500."""
    clock = Clock()
    homeserver = Homeserver(clock)
    homeserver.refuses = "/sendToDevice"
    found: list[Any] = []
    client = Client(homeserver)
    Deferred.fromCoroutine(Probe(clock, client, {"it": client}, patience=5.0).run(1)).addBoth(found.append)  # type: ignore[arg-type,dict-item]
    for _ in range(200):
        clock.advance(0.05)

    assert "URL must be the address that clients use" in str(found[0].value)
