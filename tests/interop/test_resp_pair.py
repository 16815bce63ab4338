"""A whole homeserver without a Redis, on two daemons behind one address: the primary is killed under traffic.

Synapse knows one address: that of a HAProxy with the configuration of contrib/haproxy, where the machine has
one; else of a proxy of ours. Both daemons serve the channel: it need not know which one is the primary.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.interop import test_resp
from tests.interop.homeserver import Homeserver
from tests.interop.observer import Observer
from tests.interop.recorder import Recorder
from tests.interop.tables import (
    assert_log_is_complete,
    seconds_behind,
    stored_last,
    stored_positions,
    wait_until,
)
from tests.interop.test_resp import SERVER_NAME, RespPort, Site, driving
from tests.interop.test_resp_database import wait_for_writes
from tests.processes.haproxy import HAPROXY, Section, haproxy
from tests.processes.loading import report, size
from tests.processes.proxy import Proxy
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

pytestmark = test_resp.pytestmark

KILLS: Final = size(2, 20)


@dataclass
class Pair:
    """Two daemons, the primary first, and the address of both."""

    site: Site
    primary: Observer
    replica: Observer
    proxy: Proxy | None
    resp_ports: dict[str, int]

    def kill_primary(self) -> None:
        """End the primary, promote the replica, and let the address lead there."""
        self.primary.kill()
        if self.proxy is not None:
            self.proxy.cut()
            self.proxy.go_to(self.resp_ports[self.replica.name])
        ask(self.replica, "/v1/promote", {"force": True})
        self.primary, self.replica = self.replica, self.primary
        self.site = replace(self.site, daemon=self.primary)

    def start_replica(self) -> None:
        """Start the former primary, which may have facts that nobody else has: it gives them up."""
        self.replica.list_upstream(f"tcp:127.0.0.1:{self.primary.port}")
        self.replica.start(answers="/livez")
        wait_until(lambda: role(self.replica) != "primary", "the former primary to hear of the new one")
        if role(self.replica) == "fenced":
            ask(self.replica, "/v1/resync", {})
        wait_until(lambda: following(self.replica) in ("live", "stopped"), "the former primary to follow")
        if following(self.replica) == "stopped":
            ask(self.replica, "/v1/resync", {})
        wait_until(lambda: status(self.replica)["resp"]["connected"], "the channel at the replica")


def ask(daemon: Observer, path: str, body: Any) -> None:
    """Ask an operator's favour of the daemon."""
    request = urllib.request.Request(
        daemon.url + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {daemon.secret}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60):
        pass


def status(daemon: Observer) -> dict[str, Any]:
    """What the daemon says of itself."""
    found: dict[str, Any] = json.loads(daemon.get("/v1/status"))
    return found


def following(daemon: Observer) -> str:
    """How it follows its upstream."""
    return str((status(daemon)["upstream"] or {}).get("state"))


def role(daemon: Observer) -> str:
    """The role of the daemon."""
    return str(status(daemon)["role"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    ports = {"first": free_port(), "second": free_port()}
    place, password = RespPort(), "replication-secret-of-the-tests"
    redis = {"enabled": True, "host": "127.0.0.1", "port": place.port, "password": password}
    homeserver = Homeserver(SERVER_NAME, redis=cast(RedisServer, place), shared={"redis": redis})
    first = Observer(
        folder / "first", homeserver, name="first", resp=f"tcp:{ports['first']}:interface=127.0.0.1"
    )
    proxy = None if HAPROXY else Proxy(ports["first"], at=place.port)
    section = Section(place.port, list(ports.values()))
    report("the address is that of " + ("a HAProxy" if HAPROXY else "a proxy of ours"))
    with first, haproxy(folder, {"resp": section}) if HAPROXY else nullcontext():
        second = Observer(
            folder / "second",
            homeserver,
            name="second",
            resp=f"tcp:{ports['second']}:interface=127.0.0.1",
            upstream=[f"tcp:127.0.0.1:{first.port}"],
        )
        with second, Recorder(place.port, SERVER_NAME, password) as recorder, homeserver:
            site = Site(homeserver=homeserver, recorder=recorder, daemon=first, folder=folder)
            yield Pair(site, first, second, proxy, ports)
    if proxy is not None:
        proxy.close()


def test_every_process_is_current_after_each_promotion(pair: Pair) -> None:
    """The processes wrote while nobody passed their lines; the new primary has all of it, once."""
    since, times = stored_last(pair.site), []
    with driving(pair.site) as rounds:
        for _ in range(KILLS):
            stored = stored_positions(pair.site)
            pair.kill_primary()
            wait_for_writes(pair.site, stored)
            times.append(seconds_behind(pair.site, time.monotonic()))
            rounds.wait_for_rounds(1)
            pair.start_replica()
    report(f"{KILLS} kills of the primary: all processes current after at most {max(times):.1f} s; {times}")

    assert_log_is_complete(pair.site, since)
