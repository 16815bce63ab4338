"""A homeserver with five workers whose Redis is our daemon, for an hour.

Without SYNREPL_LONG it is a minute. The same traffic goes over a real Redis first: what processes complain of
there is no fault of ours. SYNREPL_TRAFFIC_SECONDS is another time.
"""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.interop import test_resp
from tests.interop.drive import DRIVEN, Driving
from tests.interop.harness import peer_python
from tests.interop.homeserver import FIVE_WORKERS, READER, Homeserver
from tests.interop.recorder import Message, Recorder, table
from tests.interop.tables import assert_log_is_complete, seconds_behind, stored_last
from tests.interop.test_homeserver import Running, assert_holds, complaints, is_kept, told_by
from tests.interop.test_resp import SERVER_NAME, Site, site_in
from tests.processes.loading import LONG, report, size
from tests.servers.redis import RedisServer

pytestmark = test_resp.pytestmark

TRAFFIC_SECONDS: Final = float(os.environ.get("SYNREPL_TRAFFIC_SECONDS", size(25, 3600)))
REDIS_SECONDS: Final = 60.0
DRIVERS: Final = 2
"""Groups of users that do everything beside each other."""
LOOK_SECONDS: Final = 20.0
STALL_SECONDS: Final = size(5, 30)
KILLS: Final = size(1, 20)
KILL_PAUSE_SECONDS: Final = 3.0
CURRENT_SECONDS: Final = 15.0
"""How long after its return a process may take to have everything."""

SHARED: Final = ("events", "receipts", "device_lists", "thread_subscriptions")
"""The streams that several processes write."""

METRICS: Final = "prometheus_client/exposition.py"
"""In the traceback of a process that counts while it collects its metrics, once in a while."""

SAID: Final = re.compile(r"Sending update for (\w+): .*\(limited: \w+, updates: (\d+),")

VARIABLE: Final = re.compile(r"[$!@#][^\s'\",)]+|0x[0-9a-f]+|\d+")
"""What differs between two complaints of one kind: ids, addresses and numbers."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("hour"), layout=FIVE_WORKERS) as site:
        yield site


@contextmanager
def traffic(
    running: Running, *, avoided: frozenset[str] = frozenset(), goes_on: bool = False
) -> Iterator[list[Driving]]:
    """Several drivers beside each other, none of which needs the `avoided` processes."""
    drivers = [running.driver() for _ in range(DRIVERS)]
    for driver in drivers:
        driver.avoided = avoided
    with ExitStack() as stack:
        begun = [stack.enter_context(Driving(driver, goes_on=goes_on)) for driver in drivers]
        for driving in begun:
            driving.wait_for_rounds(0)
        yield begun


def keep_going(traffic: Sequence[Driving], seconds: float) -> None:
    """Return after so many seconds, in which every driver has gone on."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for driving in traffic:
            driving.keep_going(min(left, LOOK_SECONDS) / len(traffic))


def kinds_of_complaints(homeserver: Homeserver) -> dict[str, str]:
    """What its processes complained of, one line of each kind: level, place and text without its numbers."""
    kinds: dict[str, str] = {}
    for name, lines in complaints(homeserver).items():
        if any(METRICS in line for line in lines):
            lines = [line for line in lines if " twisted - sentinel - " not in line]  # noqa: PLW2901
        for line in lines:
            _, _, rest = line.partition(",")
            place, _, text = rest.partition(" ")[2].partition(" - ")
            text = text.partition(" - ")[2]
            kinds.setdefault(VARIABLE.sub("_", f"{place}: {text}" if place else line), f"{name}: {line}")
    return kinds


def rows_said(homeserver: Homeserver) -> Counter[tuple[str, str]]:
    """How many rows each process says in its log that it sent, by stream and writer."""
    said: Counter[tuple[str, str]] = Counter()
    for name, process in homeserver.processes.items():
        for stream, rows in SAID.findall(process.log):
            said[stream, name] += int(rows)
    return said


def rows_heard(recorder: Recorder) -> Counter[tuple[str, str]]:
    """How many rows were published, by stream and writer."""
    heard = (message.payload.split(" ", 3) for message in recorder.messages(0, "RDATA"))
    return Counter((stream, writer) for _, stream, writer, _ in heard)


def interleaved(messages: Sequence[Message]) -> list[str]:
    """The rows of one writer that were told within a batch of another one, in the same stream.

    Synapse collects the rows of a batch by stream alone, so it would take them for one fact.
    """
    found = []
    is_open: dict[str, str] = {}
    for message in messages:
        _, stream, writer, token, _ = message.payload.split(" ", 4)
        if is_open.get(stream, writer) != writer:
            found.append(f"{stream} {token} of {writer} within a batch of {is_open[stream]}")
        if token == "batch":
            is_open[stream] = writer
        else:
            is_open.pop(stream, None)
    return found


def test_synapse_skips_rows() -> None:
    """Rows that no process publishes, on a Redis neither (docs/reference/peers.md#redis-skipped)."""
    command = [peer_python("newest"), Path(__file__).parent / "peers" / "skipped_rows.py"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (answer["written"], answer["told"]) == ([12, 13, 14], [14])


@pytest.fixture(scope="module")
def usual_complaints() -> frozenset[str]:
    """The kinds of complaints that the same traffic has on a Redis. In a short time it has none."""
    if not LONG:
        return frozenset()
    redis = RedisServer()
    with redis, Recorder(redis.port, SERVER_NAME) as recorder:
        with Homeserver(SERVER_NAME, redis=redis, layout=FIVE_WORKERS) as homeserver:
            with traffic(Running(homeserver, recorder)) as drivers:
                keep_going(drivers, REDIS_SECONDS)
            recorder.wait_until_quiet()
            kinds = kinds_of_complaints(homeserver)
            torn = interleaved(recorder.messages(0, "RDATA"))
    report(f"on a Redis: {len(torn)} rows within a batch of another writer; complaints: {list(kinds)}")
    return frozenset(kinds)


def test_traffic_of_every_kind(usual_complaints: frozenset[str], site: Site) -> None:
    """The log has every fact once, as the tables do; the processes stand together and have no complaints."""
    since, mark = stored_last(site), site.recorder.mark()
    began = time.monotonic()

    with traffic(site) as drivers:
        keep_going(drivers, TRAFFIC_SECONDS)
    took = time.monotonic() - began
    site.recorder.wait_until_quiet()

    facts = site.recorder.facts(mark)
    batches = sum(len(fact.rows) > 1 for fact in facts)
    report(f"{took:.0f} s of traffic: {len(facts)} facts, {batches} in batches\n{table(facts)}")
    assert {fact.stream for fact in facts} >= DRIVEN
    for stream in SHARED:
        writers = {fact.writer for fact in facts if fact.stream == stream}
        assert set(site.homeserver.writers_of(stream)) == writers
    assert [] == interleaved(site.recorder.messages(mark, "RDATA"))
    assert rows_said(site.homeserver) == rows_heard(site.recorder)
    assert_holds(site.daemon, told_by(site.recorder.facts(), is_kept))
    assert_log_is_complete(site, since, has_heard_all=True)
    found = kinds_of_complaints(site.homeserver)
    assert [] == [line for kind, line in found.items() if kind not in usual_complaints]
    status = json.loads(site.daemon.get("/v1/status"))["resp"]
    report(f"the port: {status}")
    assert [] == status["lost"]


def test_a_subscriber_is_stalled(site: Site) -> None:
    """It has everything soon after, though it read nothing for a while."""
    since = stored_last(site)
    pid = site.homeserver.processes[READER].pid
    with traffic(site, avoided=frozenset({READER})) as drivers:
        mark, began = site.recorder.mark(), time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            keep_going(drivers, STALL_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)
        back = time.monotonic()
        told = len(site.recorder.messages(mark))
        seconds = seconds_behind(site, back, CURRENT_SECONDS)
    report(f"{READER} read none of {told} lines for {back - began:.0f} s: current {seconds:.1f} s later")
    assert told

    assert_log_is_complete(site, since)


def test_workers_are_killed(site: Site) -> None:
    """Each has what the others wrote meanwhile, and they have its rows. So has the log."""
    since, times = stored_last(site), []
    names = random.Random(1).choices(site.homeserver.layout.workers, k=KILLS)
    with traffic(site, goes_on=True) as drivers:
        for name in names:
            site.homeserver.processes[name].kill()
            site.homeserver._start(name)
            times.append(round(seconds_behind(site, time.monotonic(), CURRENT_SECONDS), 1))
            keep_going(drivers, KILL_PAUSE_SECONDS)
    given_up = sum(driver.given_up for driver in drivers)
    report(f"killed {names}: all processes current after {times} s; {given_up} rounds given up")

    assert_log_is_complete(site, since)
