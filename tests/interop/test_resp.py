"""A whole homeserver of the newest release without a Redis: our daemon is in its place.

What was told is what the recorder heard at the RESP port, with no code of ours; what was written is what the
homeserver's processes say over HTTP.
"""

import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.interop.drive import DRIVEN, Driver, Driving
from tests.interop.harness import peer_python
from tests.interop.homeserver import PERSISTER, PROCESSES, TWO_WORKERS, WORKER, Homeserver, Layout, Process
from tests.interop.observer import Observer
from tests.interop.recorder import Recorder
from tests.interop.test_homeserver import (
    Running,
    assert_holds,
    complaints,
    differences,
    held_by,
    is_kept,
    said_over_http,
    told_by,
    until_none,
)
from tests.interop.test_inspect import inspect
from tests.processes.loading import report, size
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

SERVER_NAME: Final = "hs.test"
KILLS: Final = size(2, 20)
RETURN_SECONDS: Final = 15.0
"""How long after the daemon's return every process may take to have everything.

Most are back in five; the publishing connection of a process waits up to ten between attempts, and a jitter.
"""

POSITION: Final = re.compile(
    r'^synapse_storage_stream_current_position\{.*stream_name="(\w+)".*\} (\S+)$', re.MULTILINE
)
METRICS_TRIES: Final = 5
SUB_CHANNEL: Final = b"USER_IP"

pytestmark = pytest.mark.skipif(
    not peer_python("newest").exists()
    or "homeserver" not in os.environ.get("SYNREPL_INTEROP", "homeserver").split(),
    reason="the newest Synapse is not there, or not asked for; run scripts/interop homeserver",
)


class RespPort:
    """The port that the homeserver takes for that of its Redis."""

    def __init__(self) -> None:
        self.port = free_port()

    def start(self) -> None:
        """The daemon is started by the test."""

    def remove(self) -> None:
        """Nothing is left of it."""


@dataclass(kw_only=True)
class Site(Running):
    """A homeserver whose Redis is our daemon."""

    daemon: Observer
    folder: Path


@contextmanager
def site_in(folder: Path, *, layout: Layout = TWO_WORKERS, release: str = "newest") -> Iterator[Site]:
    """A site that keeps its daemon's files in this folder."""
    port = RespPort()
    password = "replication-secret-of-the-tests"
    settings = {"enabled": True, "host": "127.0.0.1", "port": port.port, "password": password}
    homeserver = Homeserver(
        SERVER_NAME,
        redis=cast(RedisServer, port),
        shared={"redis": settings},
        layout=layout,
        release=release,
    )
    assert password == homeserver.secret
    daemon = Observer(folder, homeserver, resp=f"tcp:{port.port}:interface=127.0.0.1")
    with daemon, Recorder(port.port, SERVER_NAME, password) as recorder, homeserver:
        yield Site(homeserver=homeserver, recorder=recorder, daemon=daemon, folder=folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("resp")) as site:
        yield site


def metrics(process: Process) -> str:
    """Its own metrics. It collects them in a thread, and fails if what it counts changes meanwhile."""
    url = f"http://127.0.0.1:{process.metrics_port}/_synapse/metrics"
    for left in reversed(range(METRICS_TRIES)):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError:
            if not left:
                raise
    raise AssertionError


def positions(site: Site) -> dict[str, dict[str, float]]:
    """The position of each process in each stream, by their own metrics."""
    found: dict[str, dict[str, float]] = {}
    for name, process in site.homeserver.processes.items():
        for stream, position in POSITION.findall(metrics(process)):
            found.setdefault(stream, {})[name] = float(position)
    assert len(found) > 5, found
    return found


def apart(site: Site) -> list[str]:
    """The streams in which the processes are not at the same position."""
    return [
        f"{stream}: {by_process}"
        for stream, by_process in positions(site).items()
        if len(set(by_process.values())) > 1
    ]


def assert_whole(site: Site, mark: int) -> None:
    """The log has everything that was written since, once, heard by anybody or not."""
    site.recorder.wait_until_quiet(4.0)
    wanted = said_over_http(site, mark)
    until_none(
        lambda: [one for one in differences(wanted, held_by(site.daemon.changelog())) if "missing" in one]
    )
    held = held_by(site.daemon.changelog())
    twice = [
        f"{at} {rows}"
        for at, rows in held.items()
        if at[0] != "caches" and any(count > 1 for count in rows.values()) and at in wanted
        if rows - wanted[at]
    ]
    assert [] == twice


@contextmanager
def driving(site: Site) -> Iterator[Driving]:
    with Driving(site.driver(), goes_on=True) as rounds:
        rounds.wait_for_rounds(1)
        yield rounds


def wait_until_together(site: Site, began: float) -> float:
    """Return how many seconds after `began` all processes stood at the same positions."""
    until_none(lambda: apart(site), RETURN_SECONDS + 20)
    return time.monotonic() - began


@pytest.mark.story
def test_it_runs_without_a_complaint(site: Site) -> None:
    """Traffic of every kind; the log has all of it, and the processes stand together."""
    recorder = site.recorder
    mark = recorder.mark()
    driver: Driver = site.drive(6)
    recorder.wait_until_quiet()

    facts = recorder.facts(mark)
    assert {fact.stream for fact in facts} >= DRIVEN
    assert driver.rounds >= 6
    assert_holds(site.daemon, told_by(recorder.facts(), is_kept))
    assert_whole(site, mark)
    assert {} == complaints(site.homeserver)
    until_none(lambda: apart(site))
    status: Any = site.daemon.get("/v1/status")
    assert '"lost":[]' in status.replace(" ", "").partition('"resp"')[2]


def test_inspect_finds_nothing_wrong(site: Site) -> None:
    """`synrepl inspect` reads the same settings, and asks at the port what it asks a Redis."""
    with driving(site) as rounds:
        found = inspect(site.homeserver, "--ask")
        rounds.wait_for_rounds(1)

    assert ([], 0) == (found["findings"], found["code"])


def test_access_tokens_are_passed_and_not_stored(site: Site) -> None:
    """USER_IP goes to those who subscribed to its channel, and comes into no file.

    A token that was logged out is a key of the stream of cache invalidations, and in the log with that.
    """
    told = "".join(one.payload for one in site.recorder.messages(0, "USER_IP"))
    rows = "".join(one.payload for one in site.recorder.messages(0, "RDATA"))
    tokens = {token for token in re.findall(r'"(syt_[^"]+)"', told) if token not in rows}
    assert tokens
    for file in site.folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert not [token for token in tokens if token.encode() in data], file


@pytest.mark.story
def test_the_daemon_is_killed_and_restarted(site: Site) -> None:
    """Every process finds out what it missed, by itself; so does the log. How long that takes after each
    return is measured in `test_resp_database.py`.
    """
    mark = site.recorder.mark()
    with driving(site) as rounds:
        for _ in range(KILLS):
            rounds.wait_for_rounds(1)
            subscriptions = site.recorder.subscriptions
            # While it starts lines are written, and nobody passes them.
            site.daemon.kill()
            site.daemon.start()
            site.recorder.wait_for_subscription(subscriptions + 1)
    seconds = wait_until_together(site, time.monotonic())
    report(f"{KILLS} kills of the daemon: all processes together {seconds:.1f} s after the last traffic")
    assert_whole(site, mark)


@pytest.mark.parametrize("name", [WORKER, PERSISTER])
def test_a_process_is_killed_and_restarted(site: Site, name: str) -> None:
    """It has what the others wrote, and the others what it wrote before."""
    mark = site.recorder.mark()
    with driving(site) as rounds:
        for _ in range(size(1, 10)):
            process = site.homeserver.processes[name]
            process.kill()
            site.homeserver._start(name)
            rounds.wait_for_rounds(1)
    seconds = wait_until_together(site, time.monotonic())
    report(f"{name} killed: all processes together {seconds:.1f} s after the last traffic")
    assert_whole(site, mark)
    assert set(PROCESSES) == set(site.homeserver.processes)
