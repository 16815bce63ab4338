"""A homeserver whose Redis is our daemon, compared with the tables of its database.

`test_resp.py` compares the log with what the processes say over HTTP.
"""

import time
from typing import Final

from tests.interop import test_resp
from tests.interop.homeserver import WORKER
from tests.interop.tables import (
    assert_log_is_complete,
    seconds_behind,
    stored_last,
    stored_positions,
    wait_until,
)
from tests.interop.test_resp import Site, driving
from tests.processes.loading import report, size

pytestmark = test_resp.pytestmark
site = test_resp.site

KILLS: Final = size(3, 20)


def wait_for_writes(site: Site, stored: dict[str, int]) -> None:
    """Return once a writer has committed something after these positions."""
    wait_until(lambda: stored_positions(site) != stored, "a commit")


def test_the_log_has_what_is_in_the_tables(site: Site) -> None:
    """Every row that a writer committed is in the log under its writer and token; no token is there twice."""
    # Nobody tells what the main process wrote before it subscribed; the log begins with its POSITION.
    since = stored_last(site)

    site.drive(4)

    assert_log_is_complete(site, since)


def test_every_process_is_current_after_each_return_of_the_daemon(site: Site) -> None:
    """Processes that wrote while the daemon was gone have all of each other's rows in ten seconds."""
    since, times = stored_last(site), []
    with driving(site) as rounds:
        for _ in range(KILLS):
            stored = stored_positions(site)
            site.daemon.kill()
            wait_for_writes(site, stored)
            site.daemon.start()
            times.append(seconds_behind(site, time.monotonic()))
            rounds.wait_for_rounds(1)
    report(f"{KILLS} kills of the daemon: all processes current after at most {max(times):.1f} s; {times}")

    assert_log_is_complete(site, since)


def test_every_process_is_current_after_a_worker_returned(site: Site) -> None:
    """A worker that was killed under traffic has what the others wrote meanwhile, and they have its rows."""
    since = stored_last(site)
    with driving(site) as rounds:
        process = site.homeserver.processes[WORKER]
        process.kill()
        site.homeserver._start(WORKER)
        seconds = seconds_behind(site, time.monotonic())
        rounds.wait_for_rounds(1)
    report(f"{WORKER} killed: all processes current {seconds:.1f} s after its return")

    assert_log_is_complete(site, since)
