"""A homeserver of release 1.66.0 with two workers, whose Redis is our daemon.

It is the last release that also knows replication over TCP, and has settings of its own. Its metrics show
no positions: that its processes stand together is seen in the tokens that they give to clients. The log has
its rows in the shape of the newest release.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from math import inf
from typing import Any, Final

import pytest

from tests.interop.client import Client
from tests.interop.drive import DRIVEN
from tests.interop.harness import asked_for, peer_python
from tests.interop.homeserver import LAYOUT_OF_CURRENT, PERSISTER, WORKER
from tests.interop.recorder import table
from tests.interop.test_homeserver import (
    SLACK_SECONDS,
    Told,
    complaints,
    held_by,
    is_kept,
    is_part,
    said_over_http,
    told_by,
    until_none,
)
from tests.interop.test_resp import Site, driving, site_in
from tests.processes.loading import report, size

pytestmark = pytest.mark.skipif(
    not peer_python("current").exists() or "current" not in asked_for(),
    reason="Synapse 1.66.0 is not there, or not asked for; run scripts/interop current",
)

ROUNDS: Final = size(6, 200)
LATER: Final = frozenset({"profile_updates", "quarantined_media", "sticky_events", "thread_subscriptions"})
"""The streams that this release does not have."""
OWN: Final = frozenset({"tag_account_data"})
"""The streams that later releases do not have."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("current")
    with site_in(folder, layout=LAYOUT_OF_CURRENT, release="current") as site:
        yield site


def apart(site: Site, user: Client) -> list[str]:
    """The token that each process gives, if they are not the same."""
    tokens = {name: user.sync(at=name)["next_batch"] for name in site.homeserver.processes}
    return [] if len(set(tokens.values())) == 1 else [str(tokens)]


def plain(row: str) -> Any:
    """A row, and what it has as a string of JSON: the log has it as it is."""
    return [
        json.loads(item) if isinstance(item, str) and item.startswith("{") else item
        for item in json.loads(row)
    ]


def differences(wanted: Told, held: Told) -> list[str]:
    """The wanted rows that the log does not have, in either shape, or has twice."""
    found = []
    for (stream, token), rows in wanted.items():
        left = [plain(row) for row in held.get((stream, token), Counter()).elements()]
        for row in map(plain, rows.elements()):
            like = next((one for one in left if is_part(row, one)), None)
            if like is None:
                found.append(f"{stream} {token} is missing {row}")
            else:
                left.remove(like)
        found += [f"{stream} {token} is repeated or wrong {row}" for row in left]
    return found


def lacking(site: Site, mark: int, gone: float) -> list[str]:
    """How the log differs from what was told; and what it lacks of what the processes say was written since.

    They no longer say what was of rooms that are deleted, or was superseded: of what the daemon passed on
    right before it was killed, the rest is demanded.
    """
    held = held_by(site.daemon.changelog())
    said = {at: rows for at, rows in said_over_http(site, mark).items() if is_kept(at[0])}
    told = [fact for fact in site.recorder.facts() if abs(fact.at - gone) > SLACK_SECONDS]
    return differences(told_by(told, is_kept), held) + [
        one for one in differences(said, held) if "missing" in one
    ]


def assert_log_has(site: Site, mark: int, gone: float = -inf) -> None:
    """The log has what was told, once, and what was written; `gone` is when the daemon was killed."""
    site.recorder.wait_until_quiet(4.0)
    until_none(partial(lacking, site, mark, gone))


def test_it_runs_without_a_complaint(site: Site) -> None:
    """Traffic of every kind that the release knows; the log has all of it, the processes stand together."""
    recorder = site.recorder
    mark = recorder.mark()
    site.drive(ROUNDS)
    recorder.wait_until_quiet()

    facts = recorder.facts(mark)
    report(f"{len(facts)} facts of 1.66.0\n{table(facts)}")
    assert {fact.stream for fact in facts} >= (DRIVEN - LATER) | OWN
    assert {PERSISTER, WORKER} == {fact.writer for fact in facts if fact.stream == "events"}
    assert_log_has(site, mark)
    assert {} == complaints(site.homeserver)
    assert [] == json.loads(site.daemon.get("/v1/status"))["resp"]["lost"]
    user = Client.register(site.homeserver, "somebody")
    until_none(lambda: apart(site, user))


@pytest.mark.parametrize("name", [WORKER, PERSISTER])
def test_a_worker_is_killed_and_restarted(site: Site, name: str) -> None:
    """It has what the others wrote, and the log what it wrote before."""
    mark = site.recorder.mark()
    with driving(site) as rounds:
        site.homeserver.processes[name].kill()
        site.homeserver._start(name)
        rounds.wait_for_rounds(1)

    assert_log_has(site, mark)
    user = Client.register(site.homeserver, f"after-{name}")
    until_none(lambda: apart(site, user))


def test_the_daemon_is_killed_and_restarted(site: Site) -> None:
    """The processes come back by themselves, and find out what they missed; so does the log."""
    mark = site.recorder.mark()
    with driving(site) as rounds:
        subscriptions = site.recorder.subscriptions
        site.daemon.kill()
        gone = time.monotonic()
        site.daemon.start()
        site.recorder.wait_for_subscription(subscriptions + 1)
        rounds.wait_for_rounds(1)

    assert_log_has(site, mark, gone)
    user = Client.register(site.homeserver, "after-the-daemon")
    until_none(lambda: apart(site, user))
