"""The probe, with a homeserver of a few lines: what is measured, and what is cleaned up."""

import json
from typing import Any
from urllib.parse import unquote

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.errors import RemoteProtocolError
from synrepl.inspection.probe import KIND, STREAMS, Delay, Probe


class Homeserver:
    """What was written, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[str] = []
        self.written: dict[str, tuple[float, str]] = {}
        self.waits: list[int] = []
        self.refuses = ""


class Client:
    """A process: it shows what was written `delay` seconds before."""

    def __init__(self, homeserver: Homeserver, delay: float = 0.0) -> None:
        self.homeserver = homeserver
        self.delay = delay
        self.since: list[str] = []

    async def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        home, last = self.homeserver, unquote(path.rpartition("/")[2])
        home.calls.append(f"{method} {path.partition('v3/')[2]}")
        if home.refuses and home.refuses in path:
            raise RemoteProtocolError(f"refuses {path}")
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
    rounds: int = 1, *, patience: float = 30.0, refuses: str = "", **delays: float
) -> tuple[list[Delay], Probe, Homeserver, dict[str, Client]]:
    """Probe, with processes that are so late."""
    clock = Clock()
    homeserver = Homeserver(clock)
    homeserver.refuses = refuses
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
